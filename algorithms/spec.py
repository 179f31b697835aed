"""Names with options, as users write them: ``name:key=value:key=value``, and several such choices
joined by ``+``.

Algorithms, privacy mechanisms, partitions, attacks, profiles and policies are all written so. Each
keeps a table of its names with their options; a text is read here and nowhere else, once, into a
`Choice`, which ``str`` writes back. No value may contain ``:``, and none ``+`` where choices are
joined.

A name may also say where a class is that is in no table: ``FILE.py:CLASS``, or
``PACKAGE.MODULE:CLASS`` (`is_outside`). A path in it contains none of ``:``, ``+`` and ``,``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from wire.errors import ConfigError

Word = TypeVar("Word", bound=str)

Value = bool | int | float | str
DEFAULT_ALGORITHM = "personal"
"""The algorithm of every command that is not given one."""
PYTHON = "python"
"""In place of the file of a class that was given in Python and is in no file: ``python:CLASS``."""
BETWEEN = "/"
"""Separates the numbers of a text."""
MANY = 20
"""Of more names than these, an error lists only those that are like the one that came."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Values that an option may have. A number lies from `low` to `high`, above `above` and below
    `below`."""

    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()
    """Allowed texts; any text when empty."""
    numbers: bool = False
    """True if a text may also be numbers from 0, joined by `BETWEEN` (`read_numbers`)."""


NOT_NEGATIVE, POSITIVE, AT_LEAST_ONE = Limits(low=0), Limits(above=0), Limits(low=1)
SHARE, PART = Limits(low=0, high=1), Limits(low=0, below=1)
"""A part of a whole: any, and less than all of it."""


@dataclass(frozen=True)
class Option(Limits):
    """One option: its default, its meaning, and the values that it may have."""

    default: Value | None
    """Its type is the option's. None: a number that has no usual value."""
    about: str = ""

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
            expected = " or ".join(
                [*self.choices, *(["numbers from 0 such as 1/2/0.5"] if self.numbers else [])]
            )
            anything = not (self.choices or self.numbers)
            if anything or text in self.choices or (self.numbers and read_numbers(text)):
                return text
        else:
            kind = "a whole number" if isinstance(self.default, int) else "a number"
            bounds = {"from": self.low, "above": self.above, "to": self.high, "below": self.below}
            words = (f" {word} {at:g}" for word, at in bounds.items() if math.isfinite(at))
            expected = kind + "".join(words)
            number = self._number(text)
            if self.low <= number <= self.high and self.above < number < self.below:
                return number
        raise ConfigError(f"{where}: {key} is {text!r}, expected {expected}")

    def _number(self, text: str) -> int | float:
        """Return the finite number in `text`, of the default's type; NaN when there is none."""
        try:
            number = int(text) if isinstance(self.default, int) else float(text)
        except ValueError:
            return math.nan
        if not math.isfinite(number):
            return math.nan
        return int(number) if self.default is None and float(number).is_integer() else number


def read_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers in a text such as ``1/2/0.5``, finite, from 0 and not all 0; none where
    it is something else."""
    try:
        numbers = tuple(float(part) for part in text.split(BETWEEN))
    except ValueError:
        return ()
    return numbers if all(0 <= number < math.inf for number in numbers) and any(numbers) else ()


Options = Mapping[str, Option]
"""The options of one name, by key."""


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


def is_outside(name: str) -> bool:
    """True if a name, without options, says where a class is that is in no table:
    ``FILE.py:CLASS`` or ``PACKAGE.MODULE:CLASS``."""
    place, colon, _ = name.rpartition(":")
    return bool(colon) and _is_place(place)


def outside_names(text: str) -> set[str]:
    """Return the names from outside in an algorithm's name, which running it would load."""
    pieces = ([piece.strip() for piece in part.split(":")] for part in text.split("+"))
    return {":".join(piece[:2]) for piece in pieces if _is_place(piece[0])}


def _is_place(text: str) -> bool:
    """True if this is a Python file or a module of a package: names in tables have no dot."""
    return text == PYTHON or ("." in text and "=" not in text)


def read_word(text: str, words: Sequence[Word], what: str) -> Word:
    """Return the one of these words. `what` begins the error, such as an option's name.

    Raises:
        ConfigError: it is none of them.
    """
    for word in words:
        if word == text:
            return word
    raise ConfigError(f"{what} {text}: expected {', '.join(words)}")


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
    if _is_place(name) and parts:
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


def read_joined(text: str, known: Mapping[str, Options], what: str) -> tuple[Choice, ...]:
    """Read choices that are joined by ``+``, in their order.

    Raises:
        ConfigError: as for `read`, of any of them.
    """
    return tuple(read(part, known, what, f"{what} {text!r}") for part in text.split("+"))


def with_option(
    choice: Choice, key: str, value: Value, known: Mapping[str, Options], what: str
) -> Choice:
    """Return the choice with one more option, which is checked as if the text had had it.

    Raises:
        ConfigError: as for `read`.
    """
    return read(f"{choice}:{key}={write(value)}", known, what, f"{what} {str(choice)!r}")


def _unknown(name: str, known: Mapping[str, Options]) -> str:
    """Say that there is no such name, and which ones are like it."""
    if not name:
        return f"no name, expected one of {', '.join(known)}"
    if _is_place(name):
        return (
            f"{name!r} is none of the {len(known)} names; a class of your own is written "
            "FILE.py:CLASS"
        )
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
