"""The registry: the class of each name, in a table by kind.

Each kind of choice has a folder. A class in one of its files that defines `name` itself is
registered under that name, so a new file adds a choice. Names that are not registered come from
entry points of installed packages, or from `algorithms.outside`.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any, NamedTuple

from algorithms import outside, spec
from algorithms.core.contract import Mean, ServerOptimizer
from algorithms.groupings.base import Defaults
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.dbe import MeanRegulariser, PrivateBias
from algorithms.objectives.supervised import Supervised
from algorithms.optimizers.base import Optimizer
from algorithms.personalisation.choices import ByRecipe
from algorithms.privacy.base import DefaultPrivacy
from algorithms.spec import Choice, Options
from algorithms.tasks.base import Task
from wire.errors import ConfigError

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
"""Pattern of the name of a user's choice, which bundles, summaries and errors contain."""


class Kind(NamedTuple):
    """One kind of choice."""

    folder: str
    """Folder of its classes; with ``shoal.`` before it, the group of its entry points."""
    base: type
    """Base class of all its classes."""


KINDS = {
    "objective": Kind("objectives", Supervised),
    "memory": Kind("objectives", MeanRegulariser),
    "bias": Kind("objectives", PrivateBias),
    "grouping": Kind("groupings", Defaults),
    "mean": Kind("means", Mean),
    "privacy": Kind("privacy", DefaultPrivacy),
    "personalisation": Kind("personalisation", ByRecipe),
    "optimizer": Kind("optimizers", Optimizer),
    "server optimizer": Kind("server_optimizers", ServerOptimizer),
    "task": Kind("tasks", Task),
}
SHORT = {"dbe": ("mr", "prbm")}
"""Names that stand for several choices."""


def registered(kind: Kind) -> dict[str, Any]:
    """Return the classes of a kind by name, from the files of its folder."""
    folder = import_module(f"algorithms.{kind.folder}")
    files = (file.name for file in iter_modules(folder.__path__, f"{folder.__name__}."))
    classes = (
        each
        for file in files
        for each in vars(import_module(file)).values()
        if isinstance(each, type) and each.__module__ == file and issubclass(each, kind.base)
    )
    return dict(sorted((vars(each)["name"], each) for each in classes if "name" in vars(each)))


CHOICES = {kind: registered(rule) for kind, rule in KINDS.items()}
"""The registered classes, by kind and name."""


@cache
def installed() -> dict[str, tuple[str, EntryPoint, str]]:
    """Return the choices of installed packages by name, without loading them.

    Each has its kind, its entry point, and the package with its version.

    Raises:
        ConfigError: two packages have an entry point of the same name.
    """
    choices: dict[str, tuple[str, EntryPoint, str]] = {}
    groups = {kind: entry_points(group=f"shoal.{rule.folder}") for kind, rule in KINDS.items()}
    for kind, entry in ((kind, entry) for kind, group in groups.items() for entry in group):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        _, other, others = choices.setdefault(entry.name, (kind, entry, package))
        if other.value != entry.value:
            raise ConfigError(
                f"{' and '.join(sorted({package, others}))} both have an entry point "
                f"{entry.name!r} for algorithms: uninstall one of them"
            )
    return choices


class Known(Mapping[str, Options]):
    """The options of every name of some kinds: registered names, then those of installed packages.

    Options of external names are found by lookup only.
    """

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds or tuple(KINDS)

    def __getitem__(self, name: str) -> Options:
        if name not in SHORT and ":" not in name and name not in [*self]:
            raise KeyError(name)
        parts = (options_of(find(part)[1]) for part in SHORT.get(name, (name,)))
        return {key: option for options in parts for key, option in options.items()}

    def __iter__(self) -> Iterator[str]:
        names = [name for kind in self.kinds for name in CHOICES[kind]]
        others = (name for name, (kind, *_) in installed().items() if kind in self.kinds)
        yield from dict.fromkeys([*names, *others])
        yield from SHORT if "memory" in self.kinds else ()

    def __len__(self) -> int:
        return sum(1 for _ in self)


def options_of(factory: Any) -> Options:
    """Return the options of a class.

    Those of an objective are the options of its two halves and the hyper-parameters of its step.
    """
    if not issubclass(factory, Supervised):
        return spec.options_of(factory)
    return {**spec.options_of(factory), **spec.options_of(factory.server), **spec.hyper_of(factory)}


def find(name: str, source: str = "") -> tuple[str, Any, str]:
    """Return the kind and class of a name, and the state of its source (empty if registered).

    `source` is the required state of an external name's source; empty for any.

    Raises:
        ConfigError: an external name cannot be loaded, is of no kind, or has the name of a
            registered choice; or a registered name is also that of an installed package's choice.
    """
    for kind, table in CHOICES.items():
        if name in table:
            if name in installed():
                entry = installed()[name][1]
                raise ConfigError(
                    f"{name!r} is a name of Shoal's own, and also of an installed package "
                    f"({entry.group}: {entry.value}). Uninstall the package."
                )
            return kind, table[name], ""
    if ":" in name:
        cls, source = outside.load(name, source)
        kind = _kind_of(cls, name)
    else:
        group, entry, source = installed()[name]
        where = f"{name!r} of {source} ({entry.group})"
        try:
            cls = entry.load()
        except Exception as error:  # the package's code may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{where} cannot be loaded: {reason}") from error
        kind = _kind_of(cls, f"entry point {name!r}")
        if (kind, cls.name) != (group, name):
            raise ConfigError(
                f"entry point {where} must be the {group} {name!r}, and is the {kind} {cls.name!r}"
            )
    if any(cls.name in table for table in CHOICES.values()):
        raise ConfigError(
            f"{name} has the `name` {cls.name!r}, which is one of Shoal's own. Choose another."
        )
    return kind, cls, source


def class_of(choice: Choice) -> Any:
    """Return the class of a choice."""
    return find(choice.name, choice.source)[1]


def make(choice: Choice) -> Any:
    """Return an instance of a choice's class with its options.

    It is not for objectives and their wrappers, which are constructed on a model.
    """
    return class_of(choice)(**dict(choice.explicit))


def with_source(choice: Choice) -> Choice:
    """Return the choice with the current state of its source, if it has one."""
    registered = choice.source or choice.name in SHORT
    return choice if registered else replace(choice, source=find(choice.name)[2])


def expand(choice: Choice) -> tuple[Choice, ...]:
    """Return the choices of a short name, or the choice alone."""
    parts = {name: options_of(find(name)[1]) for name in SHORT.get(choice.name, ())}
    return tuple(
        Choice(
            name,
            tuple((key, value) for key, value in choice.explicit if key in options),
            tuple((key, option.default) for key, option in options.items()),
        )
        for name, options in parts.items()
    ) or (choice,)


def _kind_of(factory: Any, where: str) -> str:
    """Return the kind of an external class that is complete for its kind.

    `where` is the start of errors.

    Raises:
        ConfigError: it is of no kind, lacks an attribute of its kind, has an invalid name, or
            cannot be constructed with its defaults.
    """
    bases = factory.__mro__ if isinstance(factory, type) else ()
    if DefaultCoordinator in bases:
        raise ConfigError(
            f"{where} is only the server's half of an objective. Name the device's half, a class "
            f"with server = {factory.__name__}."
        )
    kind = next((kind for kind, rule in KINDS.items() if rule.base in bases), "")
    if not kind:
        kinds = ", ".join(f"{kind} ({rule.base.__name__})" for kind, rule in KINDS.items())
        raise ConfigError(
            f"{where} must be a class derived from the one of its kind"
            f"{'' if bases else f', got an object of type {type(factory).__name__}'}. "
            f"Kinds: {kinds}."
        )
    lacking = [name for name in ("name", "citation") if not hasattr(factory, name)]
    lacking += sorted(getattr(factory, "__abstractmethods__", ()))
    lacks = f" and lacks {', '.join(lacking)}" if lacking else ""
    if lacking:
        raise ConfigError(f"{where} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}{lacks}")
    if KINDS[kind].folder != "objectives":
        for p in inspect.signature(factory).parameters.values():
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise ConfigError(
                    f"{where}: the argument {p.name!r} of its __init__ needs a default, because "
                    "an option may be left out"
                )
        try:
            factory()
        except Exception as error:  # the user's code may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{where} cannot be made with its defaults: {reason}") from error
    if "name" not in vars(factory) and any(factory.name in table for table in CHOICES.values()):
        factory.name = factory.__name__  # a class derived from one of Shoal's is another choice
    if not isinstance(factory.name, str) or not NAME.fullmatch(factory.name):
        raise ConfigError(
            f"{where}: `name` must be of letters, digits, - and _, and begin with a letter, got "
            f"{factory.name!r}"
        )
    return kind
