"""The registry: what a name stands for, in a table by kind, and which options it has.

Each kind of choice has a folder. A class in one of its files that has a `name` of its own is
registered under that name, so adding a choice is adding a file. Names that are not registered come
from outside: from entry points of installed packages, or by `algorithms.outside`. The options of a
choice are what its class declares: keywords with defaults, an objective's hyper-parameters, and
`limits` for their ranges.
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

from algorithms import outside
from algorithms.core import contract
from algorithms.groupings.base import Defaults
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.dbe import MeanRegulariser, PrivateBias
from algorithms.objectives.supervised import Supervised
from algorithms.personalisation.choices import ByRecipe, Personalisation
from algorithms.privacy.base import DefaultPrivacy
from algorithms.spec import Choice, Limits, Option, Options, is_outside
from algorithms.tasks.classification import Classification
from wire.errors import ConfigError

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
"""What a choice of one's own may be called: bundles, summaries and errors say its name."""


class Kind(NamedTuple):
    """One kind of choice."""

    folder: str
    """Folder of its classes; with ``shoal.`` before it, the group of its entry points."""
    members: tuple[str, ...]
    """What a class of it must have."""
    attributes: tuple[str, ...]
    """What no class of another kind has."""
    base: type | None = None
    """What most classes of it derive from."""
    words: str = ""
    """How errors call one, if not by its name."""


def _members(declared: Any) -> tuple[str, ...]:
    """Return the attributes and methods that a class declares."""
    names = (*inspect.get_annotations(declared), *vars(declared))
    return tuple(dict.fromkeys(name for name in names if not name.startswith("_")))


KINDS = {
    "objective": Kind("objectives", ("name", "citation"), (), Supervised, "an objective"),
    "memory": Kind("objectives", ("name", "citation"), (), MeanRegulariser),
    "bias": Kind("objectives", ("name", "citation"), (), PrivateBias),
    "grouping": Kind("groupings", _members(contract.Grouping), ("group", "start"), Defaults),
    "mean": Kind("means", _members(contract.Mean), ("combine",)),
    "privacy": Kind("privacy", _members(DefaultPrivacy), ("epsilon",), DefaultPrivacy),
    "personalisation": Kind(
        "personalisation",
        _members(Personalisation),
        ("candidates",),
        ByRecipe,
        "what a device keeps",
    ),
    "optimizer": Kind("optimizers", _members(contract.Optimizer), ("move",), None, "an optimizer"),
    "server optimizer": Kind("server_optimizers", _members(contract.ServerOptimizer), ("moments",)),
    "task": Kind("tasks", _members(contract.Task), ("losses", "check"), Classification),
}
EXPECTED = (
    "expected an objective (a class derived from Supervised), or a class with what a grouping "
    "(Defaults), a mean, a privacy mechanism (DefaultPrivacy), what a device keeps (ByRecipe), an "
    "optimizer, a server optimizer or a task (Classification) has"
)
SHORT = {"dbe": ("mr", "prbm")}
"""Names that stand for several choices."""


def _registered(kind: Kind) -> dict[str, Any]:
    """Return the classes of a kind by name, from the files of its folder."""
    folder = import_module(f"algorithms.{kind.folder}")
    found: dict[str, Any] = {}
    for file in iter_modules(folder.__path__, f"{folder.__name__}."):
        for made in vars(import_module(file.name)).values():
            if not isinstance(made, type) or made.__module__ != file.name:
                continue
            own = kind.folder != "objectives" or issubclass(made, kind.base or made)
            if own and "name" in vars(made):
                found[vars(made)["name"]] = made
    return dict(sorted(found.items()))


CHOICES = {kind: _registered(rule) for kind, rule in KINDS.items()}
"""The registered classes, by kind and name."""


class Entry(NamedTuple):
    """What a name stands for."""

    kind: str
    made: Any
    source: str = ""
    """State of its source; empty if it is registered."""


def find(name: str, source: str = "") -> Entry:
    """Return what a name stands for. `source` is the state that it must have, where that is known.

    Raises:
        ConfigError: it is from outside, and cannot be loaded, is of no kind, or is called as a
        registered choice is.
    """
    for kind, table in CHOICES.items():
        if name in table:
            if name in installed():
                entry = installed()[name][1]
                raise ConfigError(
                    f"{name!r} is registered here, and an installed package has it too "
                    f"({entry.group}: {entry.value}): uninstall it"
                )
            return Entry(kind, table[name])
    if is_outside(name):
        made, source = outside.load(name, source)
        kind = kind_of(made, name)
    else:
        group, entry = installed()[name]
        source = _package(entry)
        try:
            made = entry.load()
        except Exception as error:  # the package's code may raise anything
            raise ConfigError(
                f"{name!r} of {source} ({entry.group}) cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        kind = kind_of(made, f"entry point {name!r}")
        if (kind, made.name) != (group, name):
            raise ConfigError(
                f"entry point {name!r} of {source} ({entry.group}) is the {kind} {made.name!r}: "
                "kind and name must be the same"
            )
    if any(made.name in table for table in CHOICES.values()):
        raise ConfigError(
            f"{name} is called {made.name!r}, as a registered choice is: give it a `name` of its "
            "own"
        )
    return Entry(kind, made, source)


def class_of(choice: Choice) -> Any:
    """Return the class that a choice names."""
    return find(choice.name, choice.source).made


def make(choice: Choice) -> Any:
    """Return what a choice names with its options; not for objectives and what wraps them."""
    return class_of(choice)(**dict(choice.given))


def give(made: type) -> tuple[str, str]:
    """Return the name of a class and its source, registered or not.

    Raises:
        ConfigError: as `outside.give`.
    """
    names = (name for table in CHOICES.values() for name, one in table.items() if one is made)
    name = next(names, "")
    return (name, "") if name else outside.give(made)


def names_of(kind: str) -> list[str]:
    """Return all names of a kind: the registered ones, then those of installed packages."""
    others = [name for name, (own, _) in installed().items() if own == kind]
    return [*CHOICES[kind], *(name for name in others if name not in CHOICES[kind])]


def with_source(choice: Choice) -> Choice:
    """Return the choice with the state that its source is in now, if it has one."""
    registered = choice.source or choice.name in SHORT
    return choice if registered else replace(choice, source=find(choice.name).source)


def expand(choice: Choice) -> tuple[Choice, ...]:
    """Return the choices that a short name stands for, or the choice alone."""
    parts = SHORT.get(choice.name, ())
    return tuple(_part(choice, name) for name in parts) or (choice,)


def _part(choice: Choice, name: str) -> Choice:
    options = options_of(find(name).made)
    given = tuple((key, value) for key, value in choice.given if key in options)
    return Choice(name, given, tuple((key, option.default) for key, option in options.items()))


class Known(Mapping[str, Options]):
    """The options of every name of some kinds; those from outside are found when asked for."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds or tuple(KINDS)

    def __getitem__(self, name: str) -> Options:
        if name in SHORT:
            parts = (options_of(find(part).made) for part in SHORT[name])
            return {key: option for options in parts for key, option in options.items()}
        if not is_outside(name) and not any(name in names_of(kind) for kind in self.kinds):
            raise KeyError(name)
        return options_of(find(name).made)

    def __iter__(self) -> Iterator[str]:
        yield from (name for kind in self.kinds for name in names_of(kind))
        yield from (name for name in SHORT if "memory" in self.kinds)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def options_of(made: Any) -> dict[str, Option]:
    """Return the options of a class with their limits; an objective's are those of its two halves
    and the hyper-parameters of its step."""
    parts = (made, made.server) if issubclass(made, Supervised) else (made,)
    defaults = {key: default for part in parts for key, default in keywords(part).items()}
    if issubclass(made, Supervised):
        defaults |= made.hyper
    limits: dict[str, Limits] = {}
    for base in (base for part in parts for base in reversed(part.__mro__)):
        limits |= vars(base).get("limits", {})
    return {
        key: Option(default, **vars(limits.get(key, Limits()))) for key, default in defaults.items()
    }


@cache
def keywords(made: Any) -> Mapping[str, Any]:
    """Return the keywords with defaults that a class is made with."""
    parameters = inspect.signature(made).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@cache
def installed() -> dict[str, tuple[str, EntryPoint]]:
    """Return kind and entry point of the choices of installed packages, by name, not loaded yet.

    Raises:
        ConfigError: two packages have one of the same name.
    """
    made: dict[str, tuple[str, EntryPoint]] = {}
    for kind, rule in KINDS.items():
        for entry in entry_points(group=f"shoal.{rule.folder}"):
            other = made.setdefault(entry.name, (kind, entry))[1]
            if other.value != entry.value:
                packages = " and ".join(sorted({_package(entry), _package(other)}))
                raise ConfigError(
                    f"{packages} both have an entry point {entry.name!r} for algorithms: "
                    "uninstall one of them"
                )
    return made


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def kind_of(made: Any, where: str) -> str:
    """Return the kind of a class from outside that has what the kind needs; `where` begins errors.

    Raises:
        ConfigError: it is of no kind, lacks something of its kind, has no name of its own, or
        cannot be made with its defaults.
    """
    named: Any = made
    if not isinstance(made, type):
        raise ConfigError(f"{where} is {type(made).__name__!r} and of no known kind: {EXPECTED}")
    if issubclass(made, DefaultCoordinator):
        raise ConfigError(
            f"{where} is the server's half of an objective alone: name the device's half, a class "
            f"with server = {made.__name__}"
        )
    derived = [k for k, rule in KINDS.items() if rule.base and issubclass(made, rule.base)]
    alike = [
        k
        for k, rule in KINDS.items()
        if rule.attributes and all(hasattr(made, name) for name in rule.attributes)
    ]
    kinds = {*derived} if "objective" in derived else {*derived, *alike}
    if len(kinds) != 1:
        raise ConfigError(f"{where} is of no known kind: {EXPECTED}")
    (kind,) = kinds
    one = made if KINDS[kind].folder == "objectives" else _with_defaults(made, where)
    if lacking := [name for name in KINDS[kind].members if not hasattr(one, name)]:
        words = KINDS[kind].words or f"a {kind}"
        raise ConfigError(f"{where} is {words} and lacks {', '.join(lacking)}")
    name = named.name
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"{where} is named {name!r}: expected letters, digits, - and _, beginning with a letter"
        )
    return kind


def _with_defaults(made: type, where: str) -> object:
    for p in inspect.signature(made).parameters.values():
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise ConfigError(
                f"{where}: {p.name!r} of its __init__ has no default: what it is made with are its "
                "options, and may be left out"
            )
    try:
        return made()
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"{where} cannot be made with its defaults: {type(error).__name__}: {error}"
        ) from error
