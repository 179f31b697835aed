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
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from algorithms.core.limits import Limits
from wire.errors import ConfigError

Word = TypeVar("Word", bound=str)

Value = bool | int | float | str
DEFAULT_ALGORITHM = "personal"
"""The algorithm of every command that is not given one."""
PYTHON = "python"
"""In place of the file of a class that was given in Python and is in no file: ``python:CLASS``."""
MANY = 20
"""Of more names than these, an error lists only those that are like the one that came."""


@dataclass(frozen=True)
class Option(Limits):
    """One option: its value when it is not given, what it means, and which values it may have."""

    default: Value | None
    """Its type is the option's. None: a number that has no usual value."""
    about: str = ""

    def read(self, text: str) -> Value:
        """The value that `text` stands for.

        Raises:
            ValueError: it is no such value; the message says what was expected.
        """
        if isinstance(self.default, bool):
            if text in ("true", "false"):
                return text == "true"
        elif isinstance(self.default, str):
            if self.allow(text):
                return text
        elif (number := self._number(text)) is not None and self.hold(number):
            return number
        raise ValueError(f"expected {self._expected()}")

    def _number(self, text: str) -> int | float | None:
        """The finite number in `text`, of the default's type; None when there is none."""
        try:
            number = int(text) if isinstance(self.default, int) else float(text)
        except ValueError:
            return None
        if not math.isfinite(number):
            return None
        return int(number) if self.default is None and float(number).is_integer() else number

    def _expected(self) -> str:
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return " or ".join(
                [*self.choices, *(["numbers from 0 such as 1/2/0.5"] if self.numbers else [])]
            )
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        bounds = {"from": self.low, "above": self.above, "to": self.high, "below": self.below}
        return kind + "".join(
            f" {word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound)
        )


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
        return ":".join([self.name, *(f"{key}={_write(value)}" for key, value in self.given)])


def is_outside(name: str) -> bool:
    """Whether a name, without options, says where a class is that is in no table: ``FILE.py:CLASS``
    or ``PACKAGE.MODULE:CLASS``."""
    place, colon, _ = name.rpartition(":")
    return bool(colon) and _is_place(place)


def outside_names(text: str) -> set[str]:
    """The names from outside in an algorithm's name, which running it would load."""
    pieces = (part.split(":") for part in text.split("+"))
    return {
        ":".join(piece.strip() for piece in part[:2])
        for part in pieces
        if _is_place(part[0].strip())
    }


def _is_place(text: str) -> bool:
    """Whether this is a Python file or a module of a package: names in tables have no dot."""
    return text == PYTHON or ("." in text and "=" not in text)


def read_word(text: str, words: Sequence[Word], what: str) -> Word:
    """One of these words. `what` begins the error, such as an option's name.

    Raises:
        ConfigError: it is none of them.
    """
    for word in words:
        if word == text:
            return word
    raise ConfigError(f"{what} {text}: expected {', '.join(words)}")


def read(text: str, known: Mapping[str, Options], what: str) -> Choice:
    """Read one choice. `known` has the options of every name; `what` the names stand for, such as
    an attack, begins the errors.

    Raises:
        ConfigError: no name, or one that there is not; an option that it does not have, one given
        twice, or one that is not of the form
            key=value; a value of another type or out of range. The text says what came and what was
            expected.
    """
    return _read(text, known, f"{what} {text!r}")


def read_joined(text: str, known: Mapping[str, Options], what: str) -> tuple[Choice, ...]:
    """Read choices that are joined by ``+``, in their order.

    Raises:
        ConfigError: as for `read`, of any of them.
    """
    return tuple(_read(part, known, f"{what} {text!r}") for part in text.split("+"))


def with_option(
    choice: Choice, key: str, value: Value, known: Mapping[str, Options], what: str
) -> Choice:
    """The choice with one more option, which is checked as if the text had had it.

    Raises:
        ConfigError: as for `read`.
    """
    checked = _value(
        key,
        _write(value),
        known[choice.name],
        choice.name,
        dict(choice.given),
        f"{what} {str(choice)!r}",
    )
    return replace(choice, given=(*choice.given, (key, checked)))


def check(key: str, value: Value, option: Option, where: str) -> None:
    """Check a value as if a text had had it; `where` begins the error.

    Raises:
        ConfigError: the option cannot have this value.
    """
    _value(key, _write(value), {key: option}, "", {}, where)


def _read(text: str, known: Mapping[str, Options], where: str) -> Choice:
    name, *parts = (part.strip() for part in text.split(":"))
    if _is_place(name) and parts:
        name = f"{name}:{parts.pop(0)}"
    if name not in known:
        raise ConfigError(f"{where}: {_unknown(name, known)}")
    given: dict[str, Value] = {}
    for part in filter(None, parts):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"{where}: {part!r} is not of the form key=value")
        given[key] = _value(key, value, known[name], name, given, where)
    return Choice(
        name,
        tuple(given.items()),
        tuple((key, option.default) for key, option in known[name].items()),
    )


def _unknown(name: str, known: Mapping[str, Options]) -> str:
    """What is wrong with a name that there is not, and which ones are like it."""
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


def _value(
    key: str, text: str, options: Options, name: str, given: Mapping[str, Value], where: str
) -> Value:
    if key not in options:
        has = ", ".join(
            k if option.default is None else f"{k}={_write(option.default)}"
            for k, option in options.items()
        )
        raise ConfigError(f"{where}: {key!r} is no option of {name}; it has {has or 'no options'}")
    if key in given:
        raise ConfigError(f"{where}: {key} is given twice")
    try:
        return options[key].read(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {key} is {text!r}, {error}") from None


def _write(value: Value) -> str:
    """The shortest text that reads as the same value; without a ``+``, which joins choices."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        digits, e, exponent = repr(value).removesuffix(".0").partition("e")
        return f"{digits}e{int(exponent)}" if e else digits
    return str(value)
