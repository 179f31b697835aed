"""Names with options, as users write them: ``name:key=value:key=value``, and several such choices
joined by ``+``.

Algorithms, partitions, attacks, profiles and policies are all written so. An option has one home,
which says its default, its meaning and its range: a field of its class, or a table. A text is read
here and nowhere else, once, into a `Choice`, which ``str`` writes back. No value may contain ``:``,
and none ``+`` where choices are joined.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from wire.errors import ConfigError

Value = bool | int | float | str
DEFAULT_ALGORITHM = "personal"
"""The algorithm of every command that is not given one."""
PYTHON = "python"
"""In place of the file of a class that was given in Python and is in no file: ``python:CLASS``."""
BETWEEN = "/"
"""Separates the numbers of a text."""
MANY = 20
"""Of more names than these, an error lists only those that are like the one that came."""


@dataclass(frozen=True)
class Option:
    """One option: its default, its meaning, and the values that it may have. A number lies from
    `low` to `high`, above `above` and below `below`."""

    default: Value | None
    """Its type is the option's. None: a number that has no usual value."""
    about: str = ""
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()
    """Allowed texts; any text when empty."""
    numbers: bool = False
    """True if a text may also be numbers from 0, joined by `BETWEEN` (`read_numbers`)."""
    whole: bool = False
    """True if a number without a usual value must be a whole one."""

    def read(self, key: str, text: str, where: str) -> Value:
        """Return the value that `text` stands for; `where` begins the error.

        Raises:
            ConfigError: the option of this key cannot have it.
        """
        if isinstance(self.default, bool):
            expected = "true or false"
            if text in ("true", "false"):
                return text == "true"
        elif isinstance(self.default, str):
            numbers = ["numbers from 0 such as 1/2/0.5"] if self.numbers else []
            expected = " or ".join([*self.choices, *numbers])
            if text in self.choices or not expected or (numbers and read_numbers(text)):
                return text
        else:
            whole = self.whole or isinstance(self.default, int)
            bounds = {"from": self.low, "above": self.above, "to": self.high, "below": self.below}
            words = (f" {word} {at:g}" for word, at in bounds.items() if math.isfinite(at))
            expected = ("a whole number" if whole else "a number") + "".join(words)
            try:
                number: int | float = int(text) if whole else float(text)
            except ValueError:
                number = math.nan
            inside = self.low <= number <= self.high and self.above < number < self.below
            if inside and math.isfinite(number):
                loose = self.default is None and float(number).is_integer()
                return int(number) if loose else number
        raise ConfigError(f"{where}: {key} is {text!r}, expected {expected}")


Options = Mapping[str, Option]
"""The options of one name, by key."""
option: Any = Option
"""Declares a field of a class as an option, such as ``k: int = option(2, "groups", low=1)``."""


class WithOptions:
    """A choice with options: class attributes that `option` makes, of which each object has
    values. A class that derives from it may set one to a plain value, which is then no option."""

    def __init__(self, *values: Any, **named: Any) -> None:
        """`values` are those of the first options, in the order of `fields_of`.

        Raises:
            ConfigError: an option cannot have its value, or there are more values than options.
        """
        fields, where = fields_of(type(self)), str(getattr(self, "name", type(self).__name__))
        if len(values) > len(fields):
            allowed = f"at most {len(fields)} ({', '.join(fields)})" if fields else "none"
            raise ConfigError(f"{where}: {len(values)} values without a name, expected {allowed}")
        named |= dict(zip(fields, values, strict=False))
        if unknown := named.keys() - fields:
            raise ConfigError(f"{where}: {min(unknown)!r} is no option")
        for key, field in fields.items():
            value: Any = named.get(key, field.default)
            usual = value == field.default
            setattr(self, key, field.default if usual else field.read(key, write(value), where))


def fields_of(cls: type) -> Options:
    """Return what a class and its bases declare by `option`, its own options first.

    One that a base has too stays in its place, and what the class declares after it follows there.
    """
    order: list[str] = []
    for base in reversed(cls.__mro__):
        place = 0
        for key in (key for key, each in vars(base).items() if isinstance(each, Option)):
            if key not in order:
                order.insert(place, key)
            place = order.index(key) + 1
    return {key: each for key in order if isinstance(each := getattr(cls, key, None), Option)}


def hyper_of(cls: type) -> Options:
    """Return the hyper-parameters of a class: what is in its ``hyper``, where a plain number takes
    the place of the default alone."""
    found: dict[str, Option] = {}
    for base in reversed(cls.__mro__):
        for key, each in vars(base).get("hyper", {}).items():
            known = found.get(key, Option(0.0))
            found[key] = each if isinstance(each, Option) else replace(known, default=each)
    return {key: found[key] for key in getattr(cls, "hyper", {})}


@cache
def options_of(cls: type) -> Options:
    """Return the options of a class: its fields, or the keywords with defaults of an ``__init__``
    of its own, which may have the range of a field."""
    parameters, fields = inspect.signature(cls).parameters.values(), fields_of(cls)
    keywords = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**(fields if any(p.kind is p.VAR_KEYWORD for p in parameters) else {})} | {
        key: replace(fields.get(key, Option(None)), default=default)
        for key, default in keywords.items()
    }


def read_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers in a text such as ``1/2/0.5``, finite, from 0 and not all 0; none where
    it is something else."""
    try:
        numbers = tuple(float(part) for part in text.split(BETWEEN))
    except ValueError:
        return ()
    return numbers if all(0 <= number < math.inf for number in numbers) and any(numbers) else ()


@dataclass(frozen=True)
class Choice:
    """A name with options, read: its text is ``str(choice)``, with the options that were given, in
    the order in which they were."""

    name: str
    given: tuple[tuple[str, Value], ...] = ()
    usual: tuple[tuple[str, Value | None], ...] = ()
    """Every option of the name with its default."""
    source: str = ""
    """Of a choice that is in no table: which state of its source this is (`algorithms.outside`);
    its name does not say."""

    @property
    def options(self) -> dict[str, Any]:
        """The value of every option: the given one, else the default."""
        return {**dict(self.usual), **dict(self.given)}

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={write(value)}" for key, value in self.given)])


def is_outside(place: str) -> bool:
    """True if the part of a name before its first colon says where a class is that is in no table,
    as ``FILE.py:CLASS`` and ``PACKAGE.MODULE:CLASS`` do: names in tables have neither colon nor
    dot. A path contains none of ``:``, ``+`` and ``,``."""
    return place == PYTHON or ("." in place and "=" not in place)


def read(text: str, known: Mapping[str, Options], what: str, where: str = "") -> Choice:
    """Read one choice. `known` has the options of every name; `what` the names stand for, such as
    an attack, begins the errors, or `where` if it is there.

    Raises:
        ConfigError: no name, or one that there is not; an option that it does not have, one given
        twice, or one that is not of the form key=value; a value of another type or out of range.
        The text says what came and what was expected.
    """
    where = where or f"{what} {text!r}"
    name, *parts = (part.strip() for part in text.split(":"))
    if is_outside(name) and parts:
        name = f"{name}:{parts.pop(0)}"
    if name not in known:
        raise ConfigError(f"{where}: {_unknown(name, known)}")
    options, given = known[name], dict[str, Value]()
    usual = tuple((key, option.default) for key, option in options.items())
    for part in filter(None, parts):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"{where}: {part!r} is not of the form key=value")
        if key not in options:
            has = ", ".join(k if v is None else f"{k}={write(v)}" for k, v in usual) or "no options"
            raise ConfigError(f"{where}: {key!r} is no option of {name}; it has {has}")
        if key in given:
            raise ConfigError(f"{where}: {key} is given twice")
        given[key] = options[key].read(key, value, where)
    return Choice(name, tuple(given.items()), usual)


def _unknown(name: str, known: Mapping[str, Options]) -> str:
    """Say that there is no such name, and which ones are like it."""
    if not name:
        return f"no name, expected one of {', '.join(known)}"
    if is_outside(name):
        write_it = "a class of your own is written FILE.py:CLASS"
        return f"{name!r} is none of the {len(known)} names; {write_it}"
    near = get_close_matches(name, known)
    few = f"the {len(known)} names" if near and len(known) > MANY else ", ".join(known)
    return f"{name!r} is none of {few}" + (f"; did you mean {' or '.join(near)}?" if near else "")


def write(value: Value) -> str:
    """Return the shortest text that reads as the same value, without a ``+``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        digits, e, exponent = repr(value).removesuffix(".0").partition("e")
        return f"{digits}e{int(exponent)}" if e else digits
    return str(value)
