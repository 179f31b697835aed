"""The command that is running, as a person would type it again: for reports.

The module imports nothing that takes time.
"""

import shlex
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple


class OptionValue(NamedTuple):
    """An option of a command and its value."""

    option: str
    """Name as it is typed, such as ``--rounds``."""
    value: str
    """Value as text; empty if none was given and there is no default."""
    is_default: bool


@dataclass(frozen=True)
class Asked:
    """A command and all of its options."""

    command: str = ""
    """Shell line without options at their defaults; empty if a Python program calls."""
    settings: tuple[OptionValue, ...] = ()


NOW: ContextVar[Asked] = ContextVar("asked", default=Asked())  # noqa: B039  # frozen
"""The running command; `shoal.command` sets it around each command."""


def describe(path: str, options: Iterable[tuple[str, Any, Any]]) -> Asked:
    """Return the command `path` (``shoal simulate``) with its options.

    Each option is its name as it is typed, its value and its default.
    """
    words, settings = path.split(), []
    for option, value, default in options:
        values = _values(value)
        is_default = values == _values(default)
        settings.append(OptionValue(option, ", ".join(values), is_default))
        if is_default:
            continue
        words += [option] if value is True else [word for each in values for word in (option, each)]
    return Asked(shlex.join(words), tuple(settings))


def _values(value: Any) -> list[str]:
    """Return a value as words of a command line; several if the option is repeated."""
    if value is None or value is False:
        return []
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return ["yes" if value is True else str(value)]
