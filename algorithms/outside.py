"""Choices that are in no table of the registry: a class in a user's file, in a module, among a
package's entry points, or given in Python.

``FILE.py:CLASS`` runs the file, ``PACKAGE.MODULE:CLASS`` imports the module; an entry point has a
name as registered choices have. Each is found once in every state of its source, and that state is
part of the `Choice`. So a run whose file was edited meanwhile is refused, not mixed of two
versions, and two files with classes of one name are never taken for each other.
"""

import hashlib
import inspect
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from algorithms.kinds import KINDS, Kind
from algorithms.objectives.halves import TwoHalves
from algorithms.spec import PYTHON
from algorithms.user_code import MODULES, digest_of, failure, run_file
from wire.errors import ConfigError

GROUPS: dict[Kind, str] = {
    "objective": "shoal.objectives",
    "grouping": "shoal.groupings",
    "mean": "shoal.means",
    "privacy": "shoal.privacy",
    "personalisation": "shoal.personalisation",
    "optimizer": "shoal.optimizers",
    "server optimizer": "shoal.server_optimizers",
    "task": "shoal.tasks",
}
"""The entry points of an installed package that are choices, by kind."""
WHAT = "algorithm file"

_found: dict[tuple[str, str], Any] = {}
"""By name and source."""
_given: dict[str, str] = {}
"""The source of the object that was given last, by its name."""


def find(name: str) -> tuple[Any, str]:
    """What a name from outside stands for, as its source is now, and what tells this state of the
    source from others.

    Raises:
        ConfigError: there is no such file, module or class, or running it fails.
    """
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        file = Path(place)
        source = digest_of(file, WHAT)
        return _keep(
            name, source, lambda: _attribute(run_file(file, WHAT), attribute, f"{WHAT} {place}")
        )
    if place == PYTHON:
        if name not in _given:
            raise ConfigError(
                f"{name} was given as an object in Python, and this process has not been given "
                "it: put it into a file of its own"
            )
        return _found[name, _given[name]], _given[name]
    module = _imported(place, name)
    return _keep(name, _source_of(module), lambda: _attribute(module, attribute, f"module {place}"))


def found(name: str, source: str) -> Any:
    """What `find` found under this name in this state of its source, in this process or in another.

    Raises:
        ConfigError: as `find`; or the source has changed since.
    """
    if (name, source) not in _found:
        _, now = find(name)
        if now != source:
            raise ConfigError(
                f"{name}: its source has changed since this run was set up; start it anew"
            )
    return _found[name, source]


def give(made: Any) -> tuple[str, str]:
    """Name and source of a class, or of `TwoHalves`, that Python code has at hand. Other processes
    find it by this name, if it stands at the top of a file or of an installed module; else only
    this process and those that it forks have it.

    Raises:
        ConfigError: it is neither a class nor `TwoHalves`, or its file has a path that no name can
        contain.
    """
    owner = made.device if isinstance(made, TwoHalves) else made
    if not isinstance(owner, type):
        raise ConfigError(
            f"{made!r} is no class: an algorithm is composed of names, classes and TwoHalves, and "
            "of what `choice` makes of them"
        )
    module = sys.modules.get(owner.__module__)
    attribute = (
        next((key for key, value in vars(module).items() if value is made), "") if module else ""
    )
    file = getattr(module, "__file__", None) or ""
    if module is None or not attribute or not file.endswith(".py"):
        name, source = f"{PYTHON}:{owner.__name__}", _digest_of_code(owner)
        while _found.get((name, source), made) is not made:
            source += "'"
        _given[name] = source
    elif "." in module.__name__ and module.__spec__ is not None:
        name, source = f"{module.__name__}:{attribute}", _source_of(module)
    else:
        name, source = f"{_checked(file)}:{attribute}", digest_of(Path(file), WHAT)
    _found[name, source] = made
    return name, source


def anchored(name: str) -> str:
    """The name with the whole path of its file, if it names one.

    Raises:
        ConfigError: no name can contain that path.
    """
    place, colon, attribute = name.rpartition(":")
    return (
        f"{_checked(str(Path(place).resolve()))}:{attribute}"
        if colon and place.endswith(".py")
        else name
    )


def _checked(file: str) -> str:
    """A path that an algorithm's name can contain.

    Raises:
        ConfigError: it cannot.
    """
    if marks := [mark for mark in ":+," if mark in file]:
        raise ConfigError(
            f"{WHAT} {file}: a path with {' or '.join(marks)} cannot be part of an algorithm's name"
        )
    return file


def modules() -> list[ModuleType]:
    """The modules whose classes another machine cannot import: they have to be sent as they are."""
    from_files = [module for name, module in sys.modules.items() if name.startswith(MODULES)]
    owners = {
        (made.device if isinstance(made, TwoHalves) else made).__module__
        for made in _found.values()
    }
    return [
        *from_files,
        *(
            sys.modules[name]
            for name in sorted(owners)
            if name in sys.modules and not name.startswith(MODULES)
        ),
    ]


@cache
def installed() -> dict[str, tuple[Kind, EntryPoint]]:
    """The choices among the entry points of installed packages, by name; none of them is loaded
    yet.

    Raises:
        ConfigError: two packages have one of the same name.
    """
    made: dict[str, tuple[Kind, EntryPoint]] = {}
    for kind in KINDS:
        for entry in entry_points(group=GROUPS[kind]):
            if entry.name in made and made[entry.name][1].value != entry.value:
                packages = " and ".join(sorted({_package(entry), _package(made[entry.name][1])}))
                raise ConfigError(
                    f"{packages} both have an entry point {entry.name!r} for algorithms: "
                    "uninstall one of them"
                )
            made[entry.name] = kind, entry
    return made


def find_installed(name: str) -> tuple[Kind, Any, str]:
    """Kind, object and package with version of an entry point.

    Raises:
        ConfigError: it cannot be loaded.
    """
    kind, entry = installed()[name]
    try:
        return kind, entry.load(), _package(entry)
    except Exception as error:  # the package's code may raise anything
        told = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{name!r} of {_package(entry)} ({GROUPS[kind]}) cannot be loaded: {told}"
        ) from error


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _keep(name: str, source: str, make: Any) -> tuple[Any, str]:
    if (name, source) not in _found:
        _found[name, source] = make()
    return _found[name, source], source


def _attribute(module: ModuleType, attribute: str, where: str) -> Any:
    if not hasattr(module, attribute):
        own = [
            k
            for k, v in vars(module).items()
            if isinstance(v, TwoHalves) or (isinstance(v, type) and v.__module__ == module.__name__)
        ]
        raise ConfigError(
            f"{where}: it has no {attribute!r}" + (f"; it has {', '.join(own)}" if own else "")
        )
    return getattr(module, attribute)


def _imported(place: str, name: str) -> ModuleType:
    try:
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigError(f"{name}: there is no module {error.name!r} here") from None
        raise ConfigError(f"{name}: {error}") from error
    except Exception as error:  # the module's code may raise anything
        raise failure("module", Path(place), error) from error


def _source_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None) or ""
    return digest_of(Path(file), WHAT) if file.endswith(".py") else ""


def _digest_of_code(owner: type) -> str:
    try:
        text = inspect.getsource(owner)
    except (OSError, TypeError):
        return "given"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
