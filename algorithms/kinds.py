"""The eight kinds of choices, and which of them a class is that is in no table."""

import inspect
import re
from typing import Any, Literal, NamedTuple, Protocol

from algorithms.core.contract import Grouping, Mean, Optimizer, Privacy, ServerOptimizer, Task
from algorithms.groupings.base import Defaults
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.halves import TwoHalves
from algorithms.objectives.supervised import Supervised
from algorithms.personalisation.choices import ByRecipe, Personalisation
from algorithms.privacy.base import DefaultPrivacy
from algorithms.tasks.classification import Classification
from wire.errors import ConfigError

Kind = Literal[
    "objective",
    "grouping",
    "mean",
    "privacy",
    "personalisation",
    "optimizer",
    "server optimizer",
    "task",
]
KINDS: tuple[Kind, ...] = (
    "objective",
    "grouping",
    "mean",
    "privacy",
    "personalisation",
    "optimizer",
    "server optimizer",
    "task",
)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
"""What a choice of one's own may be called: bundles, summaries and errors say its name."""


class _Asked(NamedTuple):
    """What a class of a kind must have, the attributes that no class of another kind has, and what
    most derive from."""

    protocol: Any
    attributes: tuple[str, ...]
    base: type | None = None


_ASKED: dict[Kind, _Asked] = {
    "grouping": _Asked(Grouping, ("group", "start"), Defaults),
    "mean": _Asked(Mean, ("combine",)),
    "privacy": _Asked(Privacy, ("epsilon",), DefaultPrivacy),
    "personalisation": _Asked(Personalisation, ("candidates",), ByRecipe),
    "optimizer": _Asked(Optimizer, ("move", "slots")),
    "server optimizer": _Asked(ServerOptimizer, ("step", "moments")),
    "task": _Asked(Task, ("losses", "check"), Classification),
}
EXPECTED = (
    "expected an objective (a class derived from Supervised, or TwoHalves), or a class with what "
    "a grouping (Defaults), a mean, a privacy "
    "mechanism (DefaultPrivacy), what a device keeps (ByRecipe), an optimizer, a server optimizer "
    "or a task (Classification) has"
)


def kind_of(made: Any, where: str) -> Kind:
    """Of which kind an object from outside is, once it has been found to have what that kind needs.
    `where` begins the error.

    Raises:
        ConfigError: it is of no kind, lacks something of its kind, has no name or citation of its
        own, or cannot be made with its defaults.
    """
    if isinstance(made, type) and issubclass(made, DefaultCoordinator):
        raise ConfigError(
            f"{where} is the server's half of an objective alone: name a TwoHalves(device's half, "
            f"{made.__name__})"
        )
    kind: Kind
    if isinstance(made, TwoHalves) or (isinstance(made, type) and issubclass(made, Supervised)):
        kind, named = "objective", made.device if isinstance(made, TwoHalves) else made
        _check_members(named, ("name", "citation"), f"{where} is an objective")
    elif isinstance(made, type):
        kinds = [k for k, asked in _ASKED.items() if _looks_like(made, asked)]
        if len(kinds) != 1:
            raise ConfigError(f"{where} is of no known kind: {EXPECTED}")
        kind, named = kinds[0], made
        called = {"personalisation": "what a device keeps", "optimizer": "an optimizer"}.get(
            kind, f"a {kind}"
        )
        _check_members(
            _with_defaults(made, where), _members(_ASKED[kind].protocol), f"{where} is {called}"
        )
    else:
        raise ConfigError(f"{where} is {type(made).__name__!r} and of no known kind: {EXPECTED}")
    if not isinstance(named.name, str) or not NAME.fullmatch(named.name):
        raise ConfigError(
            f"{where} is named {named.name!r}: expected letters, digits, - and _, beginning with "
            "a letter"
        )
    return kind


def _looks_like(made: type, asked: _Asked) -> bool:
    derived = asked.base is not None and issubclass(made, asked.base)
    return derived or all(hasattr(made, name) for name in asked.attributes)


def _with_defaults(made: type, where: str) -> object:
    needed = [
        p.name
        for p in inspect.signature(made).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigError(
            f"{where}: {needed[0]!r} of its __init__ has no default: what it is made with are its "
            "options, and may be left out"
        )
    try:
        return made()
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"{where} cannot be made with its defaults: {type(error).__name__}: {error}"
        ) from error


def _members(protocol: type[Protocol]) -> tuple[str, ...]:  # type: ignore[valid-type]
    """The attributes and methods that a protocol declares."""
    return tuple(
        name
        for name in (*inspect.get_annotations(protocol), *vars(protocol))
        if not name.startswith("_")
    )


def _check_members(made: object, members: tuple[str, ...], where: str) -> None:
    lacking = [name for name in members if not hasattr(made, name)]
    if lacking:
        raise ConfigError(f"{where} and lacks {', '.join(dict.fromkeys(lacking))}")
