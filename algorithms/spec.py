"""Parser of names with options, ``name:key=value:key=value``, the syntax of all choices.

Algorithms, partitions, attacks, profiles and policies use this syntax, and algorithms join several
choices by ``+``. An option is defined in one place, with its default, its meaning and its range: a
field of its class, or a table. A text is parsed once, here, into a `Choice`, and ``str`` returns
the text. No value may contain ``:``, or ``+`` where choices are joined.
"""

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from wire.errors import ConfigError

Value = bool | int | float | str
DEFAULT_ALGORITHM = "personal"
"""Default algorithm of every command."""
PYTHON = "python"
"""Prefix of the name of a class from Python that is not defined in a file: ``python:CLASS``."""
BETWEEN = "/"
"""Separator of the numbers in a text."""
MANY = 20
"""Maximum number of names that an error lists; of more names it lists only similar ones."""


@dataclass(frozen=True)
class Option:
    """One option: its default, its meaning, and its allowed values.

    A number is from `low` to `high`, above `above` and below `below`.
    """

    default: Value | None
    """Default, whose type is the option's; None for a number without a default."""
    about: str = ""
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()
    """Allowed texts; empty for any text."""
    numbers: bool = False
    """True if a text may also be numbers from 0, joined by `BETWEEN` (`read_numbers`)."""
    whole: bool = False
    """True if a number without a default must be a whole number."""

    def read(self, key: str, text: str, where: str) -> Value:
        """Return the value of `text`; `where` is the start of the error.

        Raises:
            ConfigError: the value is not allowed for this option.
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
        raise ConfigError(f"{where}: {key} must be {expected}, got {text!r}")


Options = Mapping[str, Option]
"""The options of one name, by key."""
option: Any = Option
"""Declares a field of a class as an option, such as ``k: int = option(2, "groups", low=1)``."""


class WithOptions:
    """A component with options, which are class attributes declared by `option`.

    Each object has its own values. A derived class may set an option to a plain value, which
    removes the option.
    """

    def __init__(self, *values: Any, **named: Any) -> None:
        """`values` are those of the first options, in the order of `fields_of`.

        Raises:
            ConfigError: an option has an invalid value, or there are more values than options.
        """
        fields, where = fields_of(type(self)), str(getattr(self, "name", type(self).__name__))
        if len(values) > len(fields):
            allowed = f"at most {len(fields)} ({', '.join(fields)})" if fields else "none"
            raise ConfigError(f"{where}: values without a name: {allowed}, got {len(values)}")
        named |= dict(zip(fields, values, strict=False))
        if unknown := named.keys() - fields:
            raise ConfigError(f"{where} has no option {min(unknown)!r}")
        for key, field in fields.items():
            value: Any = named.get(key, field.default)
            usual = value == field.default
            setattr(self, key, field.default if usual else field.read(key, write(value), where))


def fields_of(cls: type) -> Options:
    """Return the options that a class and its bases declare, the class's own options first.

    An option that a base has too stays in its place, and options declared after it follow there.
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
    """Return the hyper-parameters of a class, from its ``hyper``.

    A plain number there replaces only the default.
    """
    options: dict[str, Option] = {}
    for base in reversed(cls.__mro__):
        for key, value in vars(base).get("hyper", {}).items():
            parent = options.get(key, Option(0.0))
            options[key] = value if isinstance(value, Option) else replace(parent, default=value)
    return {key: options[key] for key in getattr(cls, "hyper", {})}


@cache
def options_of(cls: type) -> Options:
    """Return the options of a class: its fields, or the keywords of its own ``__init__``.

    Only keywords with a default are options; the range of a keyword is that of the field of its
    name.
    """
    parameters, fields = inspect.signature(cls).parameters.values(), fields_of(cls)
    keywords = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**(fields if any(p.kind is p.VAR_KEYWORD for p in parameters) else {})} | {
        key: replace(fields.get(key, Option(None)), default=default)
        for key, default in keywords.items()
    }


def read_numbers(text: str) -> tuple[float, ...]:
    """Return the numbers in a text such as ``1/2/0.5``; empty if the text is anything else.

    Numbers are finite, from 0, and not all 0.
    """
    try:
        numbers = tuple(float(part) for part in text.split(BETWEEN))
    except ValueError:
        return ()
    return numbers if all(0 <= number < math.inf for number in numbers) and any(numbers) else ()


@dataclass(frozen=True)
class Choice:
    """A parsed name with options.

    ``str(choice)`` is the text, with the explicit options in their original order.
    """

    name: str
    explicit: tuple[tuple[str, Value], ...] = ()
    usual: tuple[tuple[str, Value | None], ...] = ()
    """Every option of the name with its default."""
    source: str = ""
    """State of the source of an external choice (`algorithms.outside`); not part of its text."""

    @property
    def options(self) -> dict[str, Any]:
        """Value of every option: the explicit one, else the default."""
        return {**dict(self.usual), **dict(self.explicit)}

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={write(value)}" for key, value in self.explicit)])


def is_outside(place: str) -> bool:
    """Return True if `place`, the part before a name's first colon, is a file or a module.

    Examples are ``FILE.py:CLASS`` and ``PACKAGE.MODULE:CLASS``. Names in tables have neither colon
    nor dot. A path contains none of ``:``, ``+`` and ``,``.
    """
    return place == PYTHON or ("." in place and "=" not in place)


def read(text: str, known: Mapping[str, Options], what: str, where: str = "") -> Choice:
    """Return the choice of a text.

    Args:
        known: options of every name.
        what: kind of the names, such as an attack.
        where: start of errors about an option; empty for `what` and the text.

    Raises:
        ConfigError: the name is missing or unknown; an option is unknown, given twice, or not of
            the form key=value; a value has another type or is out of range. The text has the value
            and what was expected.
    """
    where = where or f"{what} {text!r}"
    name, *parts = (part.strip() for part in text.split(":"))
    if is_outside(name) and parts:
        name = f"{name}:{parts.pop(0)}"
    if name not in known:
        hint = "A class of your own is written FILE.py:CLASS." if is_outside(name) else ""
        raise ConfigError(unknown(what, name, known, hint))
    options, values = known[name], dict[str, Value]()
    usual = tuple((key, option.default) for key, option in options.items())
    for part in filter(None, parts):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"{where}: {part!r} is not of the form key=value")
        if key not in options:
            listing = (
                ", ".join(k if v is None else f"{k}={write(v)}" for k, v in usual) or "no options"
            )
            raise ConfigError(f"{where}: {key!r} is not an option of {name}; it has {listing}")
        if key in values:
            raise ConfigError(f"{where}: {key} is given twice")
        values[key] = options[key].read(key, value, where)
    return Choice(name, tuple(values.items()), usual)


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> str:
    """Return the error for an unknown name of a kind, with similar names, then with the known ones.

    `hint` is the last sentence.
    """
    names = list(known)
    near = get_close_matches(name, names)
    parts = [f"No {kind} {name!r}."]
    if near:
        parts.append(f"Did you mean {' or '.join(near)}?")
    if len(names) <= MANY or not (near or hint):
        plural = kind[:-1] + "ies" if kind.endswith("y") else kind.removesuffix("s") + "s"
        parts.append(f"Known {plural}: {', '.join(names)}.")
    return " ".join([*parts, hint]).strip()


def write(value: Value) -> str:
    """Return the shortest text that is parsed to the same value, without a ``+``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        digits, e, exponent = repr(value).removesuffix(".0").partition("e")
        return f"{digits}e{int(exponent)}" if e else digits
    return str(value)
