"""The options of a choice: what its class declares."""

from collections.abc import Mapping
from functools import cache
from inspect import signature
from typing import Any

from algorithms.core.limits import Limits
from algorithms.objectives.halves import TwoHalves
from algorithms.spec import Choice, Option, Value


def options_of(made: Any) -> dict[str, Option]:
    """The options of a class, or of an objective's two halves and its step's hyper-parameters, with
    their limits."""
    parts: tuple[Any, ...] = (made.device, made.server) if isinstance(made, TwoHalves) else (made,)
    defaults = {key: default for part in parts for key, default in _keywords(part).items()}
    if isinstance(made, TwoHalves):
        defaults |= made.device.hyper
    limits = {key: limit for part in parts for key, limit in _limits(part).items()}
    return {
        key: Option(default, **vars(limits.get(key, Limits()))) for key, default in defaults.items()
    }


def given_to(made: Any, choice: Choice) -> dict[str, Value]:
    """Those of the options given in a choice that this class is made with."""
    return {key: value for key, value in choice.given if key in _keywords(made)}


def _limits(made: type) -> dict[str, Limits]:
    """The limits of a class's options: each class of its ancestry declares, in `limits`, those of
    the options that it adds."""
    return {
        key: limit
        for part in reversed(made.__mro__)
        for key, limit in vars(part).get("limits", {}).items()
    }


@cache
def _keywords(made: Any) -> Mapping[str, Any]:
    """The keyword arguments with defaults that a choice is made with: these are its options."""
    return {
        p.name: p.default for p in signature(made).parameters.values() if p.default is not p.empty
    }
