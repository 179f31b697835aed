"""The command that is being carried out, as a person would type it again: for reports. It imports
nothing that takes time."""

import shlex
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """An option of a command and its value."""

    option: str
    """As it is typed, such as ``--rounds``."""
    value: str
    """Empty: nothing was given and there is no default."""
    is_default: bool


@dataclass(frozen=True)
class Asked:
    """A command and all of its options."""

    command: str = ""
    """A line for a shell; options at their defaults are left out. Empty: no command was given, a
    Python program asks."""
    settings: tuple[Setting, ...] = ()


NOW: ContextVar[Asked] = ContextVar("asked", default=Asked())  # noqa: B039  # it cannot be changed
"""Set by `shoal.command` around each command."""


def describe(path: str, options: Iterable[tuple[str, Any, Any]]) -> Asked:
    """What was asked of the command `path` (``shoal simulate``) by its options: name as it is
    typed, value, default."""
    words, settings = path.split(), []
    for option, value, default in options:
        values = _values(value)
        is_default = values == _values(default)
        settings.append(Setting(option, ", ".join(values), is_default))
        if is_default:
            continue
        words += [option] if value is True else [word for each in values for word in (option, each)]
    return Asked(shlex.join(words), tuple(settings))


def _values(value: Any) -> list[str]:
    """A value as words of a command line; several where an option may be repeated."""
    if value is None or value is False:
        return []
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    return ["yes" if value is True else str(value)]
