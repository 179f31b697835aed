"""One home for a setting: a field of a frozen struct, from which all else is derived.

A field has its type, default, bounds, unit and a sentence (`about`). From the struct come options
and environment variables (`shoal.command`), the file of `shoal init`, the check of each value with
its error, the HTTP API's fields, keywords of Python, and the tables of the reference. A new setting
is one line in its struct, and its use.
"""

import math
import os
from collections.abc import Iterable, Mapping
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from wire.errors import ConfigError

KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
YEAR_S = 366 * 86_400.0
LARGEST = 1_000_000


def about(
    text: str,
    *,
    unit: str = "",
    live: bool = False,
    epsilon: bool = False,
    option: str | None = None,
    **bounds: Any,
) -> msgspec.Meta:
    """Describe a setting.

    Args:
        unit: suffix of the field's name that its option omits (``deadline_s``).
        live: True if it may change while a campaign runs.
        epsilon: True if the epsilon of a privacy mechanism is computed for its value.
        option: name of its option if it differs from the field's name.
        bounds: ge, gt, le, lt, pattern, min_length, max_length, as in msgspec.
    """
    extra = {"unit": unit, "live": live, "epsilon": epsilon, "option": option}
    return msgspec.Meta(description=text, extra=extra, **bounds)


class Setting(NamedTuple):
    """A field of a struct of settings, with its metadata."""

    name: str
    type: Any
    default: Any
    meta: msgspec.Meta
    prefix: str = ""

    @property
    def text(self) -> str:
        """Help text: one sentence."""
        return self.meta.description or ""

    @property
    def about(self) -> Mapping[str, Any]:
        """Arguments of `about` besides text and bounds."""
        return self.meta.extra or {}

    @property
    def parameter(self) -> str:
        """Name of the option as a parameter (``rollout_patience``); empty if there is none."""
        if (name := self.about["option"]) is None:
            unit = self.about["unit"]
            name = self.name.removesuffix(f"_{unit}") if unit else self.name
        return self.prefix + name if name else ""

    @property
    def flag(self) -> str:
        """Option on the command line: ``--rollout-patience``."""
        return "--" + self.parameter.replace("_", "-")

    @property
    def allowed(self) -> str:
        """Allowed values in words: ``between 1 and 10``."""
        bare = self.bare
        if get_origin(bare) is Literal:
            return "one of " + ", ".join(get_args(bare))
        if get_origin(bare) is dict:
            return "NAME=VALUE with a number"
        meta, kind = self.meta, KINDS.get(bare, "a text")
        low = meta.ge if meta.ge is not None else meta.gt
        high = meta.le if meta.le is not None else meta.lt
        if low is not None and high is not None:
            return (
                "a whole number " if bare is int else ""
            ) + f"between {low:.10g} and {high:.10g}"
        if low is not None:
            return f"{kind} {'above' if meta.ge is None else 'of at least'} {low:g}"
        if meta.max_length is not None:
            return f"{kind} of at most {meta.max_length} characters"
        return kind

    @property
    def bare(self) -> Any:
        """Type without None."""
        kinds = [each for each in get_args(self.type) if each is not type(None)]
        return kinds[0] if type(None) in get_args(self.type) else self.type

    def read(self, value: Any, origin: str = "") -> Any:
        """Return a value, converted and checked.

        `origin` is the source of the value: an option, a variable, or a file and line.

        Raises:
            ConfigError: the setting does not allow the value.
        """
        if value is None and type(None) in get_args(self.type):
            return None
        if self.bare is Path:
            return Path(value)
        try:
            if get_origin(self.bare) is dict:
                value = _pairs(value)
            if self.bare is int and isinstance(value, float) and value.is_integer():
                value = int(value)
            read = msgspec.convert(
                value,
                Annotated[self.bare, self.meta],
                strict=not (origin and isinstance(value, str)),
            )
            numbers = read.values() if isinstance(read, dict) else [read]
            if not any(isinstance(each, float) and not math.isfinite(each) for each in numbers):
                return read
        except msgspec.ValidationError:
            pass
        shown = value if isinstance(value, int | float) else repr(value)
        if origin and isinstance(value, str) and self.bare in (int, float):
            shown = value or "nothing"
        message = f"{self.prefix}{self.name} must be {self.allowed}, got {shown}"
        raise ConfigError(message + (f" ({origin})" if origin else ""))


def _pairs(value: Any) -> Any:
    """Return texts ``NAME=VALUE`` as a mapping.

    The first invalid text, or a value that is not a list of texts, is returned without change.
    """
    if not isinstance(value, list | tuple):
        return value
    pairs = {}
    for text in value:
        name, _, number = str(text).partition("=")
        try:
            pairs[name] = float(number)
        except ValueError:
            return text
        if not math.isfinite(pairs[name]):
            return text
    return pairs


@cache
def settings_of(struct: type[msgspec.Struct], prefix: str = "") -> Mapping[str, Setting]:
    """Return the settings of a struct by name: the fields with an `about`."""
    settings = {}
    hints: dict[str, Any] = {}
    for base in reversed(struct.__mro__):
        hints |= get_annotations(base)
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    defaults = (msgspec.NODEFAULT,) * (len(names) - len(defaults)) + defaults
    for name, default in zip(names, defaults, strict=True):
        if get_origin(hints[name]) is not Annotated:
            continue
        kind, *metas = get_args(hints[name])
        if isinstance(metas[0], msgspec.Meta) and "live" in (metas[0].extra or {}):
            # msgspec stores a factory for a mutable default, such as {}
            value = default.factory() if hasattr(default, "factory") else default
            settings[name] = Setting(name, kind, value, metas[0], prefix)
    return settings


@cache
def marked(struct: type[msgspec.Struct], mark: str) -> frozenset[str]:
    """Return the names of the settings that are ``live``, or that affect ``epsilon``."""
    return frozenset(name for name, each in settings_of(struct).items() if each.about[mark])


def check(struct: type[msgspec.Struct], values: Mapping[str, Any], origin: str = "") -> None:
    """Check the values of settings by name; None means no value.

    Raises:
        ConfigError: a setting does not allow its value.
    """
    for name, setting in settings_of(struct).items():
        if values.get(name) is not None:
            setting.read(values[name], origin)


def table(settings: Iterable[Setting]) -> list[str]:
    """Return settings as lines of a Markdown table."""
    lines = [
        "| option | default | allowed | unit | may change in a campaign | meaning |",
        "|---|---|---|---|---|---|",
    ]
    for each in settings:
        if each.parameter:
            default = f"`{each.default}`" if each.default not in (None, "", False, {}) else ""
            unit, live = each.about["unit"], "yes" if each.about["live"] else ""
            lines.append(
                f"| `{each.flag}` | {default} | {each.allowed} | {unit} | {live} | {each.text} |"
            )
    return lines


def warn_of_variables(prefix: str, names: Iterable[str]) -> list[str]:
    """Return a warning for each environment variable with this prefix that no option reads.

    `names`: names of the options, as parameters.
    """
    from difflib import get_close_matches  # boards save its memory

    variables = sorted(f"{prefix}{name}".upper() for name in names)
    texts = []
    for variable in sorted(v for v in os.environ if v.startswith(prefix) and v not in variables):
        near = get_close_matches(variable, variables, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        texts.append(f"the environment variable {variable} is not an option of this command{hint}")
    return texts
