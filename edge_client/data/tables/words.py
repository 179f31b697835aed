"""A user's words about recordings, in ``shoal.toml`` beside them."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from edge_client.data.tables.roles import RoleName
from edge_client.data.tables.text_form import text_of
from host.files import file_error
from wire.errors import ConfigError

SETTINGS = "shoal.toml"
TABLES = "columns", "labels", "classes", "names"
"""Settings of ``shoal.toml`` that may be tables."""
TimeUnit = Literal["s", "ms", "us", "ns", "min", "h", "d"]
UNIT_NAMES: tuple[TimeUnit, ...] = get_args(TimeUnit)
SHOWN = 20
"""Maximum number of names in an error."""


class FolderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``shoal.toml``: a user's words about recordings, which go before any guess."""

    columns: dict[str, RoleName] = {}
    """Roles of columns by name, or by a pattern of names such as ``acc_*``."""
    names: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    """Names of the columns of text files, in place of a header of as many; by a pattern of the
    files' names if these have other columns."""
    recordings: tuple[str, ...] = ()
    """Patterns of the names of recordings, or of the cells that divide them, to read; all if ()."""
    labels: dict[str, str] = {}
    """Classes of whole recordings, by a pattern of their names, such as ``walk*``."""
    classes: dict[str, str] = {}
    """Other names of classes, by their labels; "" for samples without a label."""
    missing: tuple[float, ...] = ()
    """Numbers that stand for no value, such as -9999."""
    person: str = ""
    """Pattern of the names of recordings in which ``{person}`` stands for the person, whose device
    has the recording: ``a*_{person}_t*``; "" if columns and usual names say it."""
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Samples per second of all recordings, to which others are brought; 0: that of most."""
    window: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of samples of a window; 0: `LENGTH`."""
    stride: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of samples between the starts of two windows; 0: `STRIDE`."""
    time_unit: TimeUnit | Literal[""] = ""
    """Unit of the time; "" if the column's name and its values say it."""


def settings_in(folder: Path, others: FolderSettings | None = None) -> FolderSettings:
    """Return the settings of a folder's ``shoal.toml``; those of `others` that it does not set.

    Raises:
        ConfigError: the file cannot be read, or has a setting that cannot be.
    """
    others = others or FolderSettings()
    path = folder / SETTINGS
    if not path.exists():
        return others
    try:
        text = text_of(path)
        words = _with_lines_at_the_end(_parsed(text))
        _check_keys(path, text, words)
        return msgspec.convert(msgspec.to_builtins(others) | words, FolderSettings)
    except OSError as error:
        raise ConfigError(file_error(path, error)) from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from None


def role_by_pattern(columns: Mapping[str, RoleName], names: Iterable[str]) -> RoleName | None:
    """Return the role of the last pattern that matches one of a column's names, None if none does.

    Capitals count as small letters.
    """
    roles = (role for word, role in reversed([*columns.items()]) if is_pattern_of(word, names))
    return next(roles, None)


def is_pattern_of(word: str, names: Iterable[str]) -> bool:
    """Return True if a word has ``*`` or ``?``, and matches one of a column's names."""
    return bool(set(word) & {*"*?"}) and any(fnmatchcase(n.lower(), word.lower()) for n in names)


def place_in(path: Path, key: str, text: str = "") -> str:
    """Return the path of a ``shoal.toml``, and the number of the first line that has a key."""
    text = text or text_of(path)
    is_key = re.compile(rf"(^|[\s\"'.{{,]){re.escape(key)}[\"']?\s*[].=]")
    numbers = (i for i, line in enumerate(text.splitlines(), 1) if is_key.search(line))
    return f"{path}, line {next(numbers, 1)}"


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the sentence of an error that says which word is most like an unknown one."""
    by_lower = {each.lower(): each for each in sorted(words) if each}
    close = get_close_matches(word.lower(), by_lower, 1, 0.0)
    if not close:
        return "The recordings have none."
    shown = [repr(each) for each in list(by_lower.values())[:SHOWN]]
    more = ", ..." if len(by_lower) > SHOWN else ""
    return f"Nearest: {by_lower[close[0]]!r}. All: {', '.join(shown)}{more}."


def _parsed(text: str) -> dict[str, Any]:
    """Return the content of a ``shoal.toml``; of two lines for one thing the later one counts."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines = text.splitlines()
        for end in range(len(lines) - 1, 0, -1):
            try:
                words = tomllib.loads("\n".join(lines[:end]))
                following = _parsed("\n".join(lines[end:]))
            except tomllib.TOMLDecodeError:
                continue
            if following.keys() <= set(FolderSettings.__struct_fields__):
                return _merged(words, following)
        raise error


def _merged(words: dict[str, Any], following: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: words[key] | value
        for key, value in following.items()
        if isinstance(value, dict) and isinstance(words.get(key), dict)
    }
    return words | following | both


def _with_lines_at_the_end(words: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a ``shoal.toml`` in which settings behind a table are not of it.

    A line that a user adds at the end of the file would otherwise belong to the last table.
    """
    for table in TABLES:
        if not isinstance(words.get(table), dict):
            continue
        behind = {
            key: value
            for key, value in words[table].items()
            if key in FolderSettings.__struct_fields__
            and (not isinstance(value, str) or (key == "time_unit" and value in UNIT_NAMES))
        }
        inside = {key: value for key, value in words[table].items() if key not in behind}
        words = _merged(words | {table: inside}, behind)
    return words


def _check_keys(path: Path, text: str, words: dict[str, Any]) -> None:
    """Raise ConfigError if a ``shoal.toml`` has a key or a role that is unknown."""
    fields = FolderSettings.__struct_fields__
    for key in words:
        if key not in fields:
            raise ConfigError(
                f"{place_in(path, key, text)}: no setting is called {key!r}. "
                f"{nearest(key, fields)} Correct the line, or remove it."
            )
    unit = words.get("time_unit", "")
    if unit and unit not in UNIT_NAMES:
        raise ConfigError(
            f"{place_in(path, 'time_unit', text)}: time_unit must be one of "
            f"{', '.join(UNIT_NAMES)}, got {unit!r}. Correct the line."
        )
    columns = words.get("columns")
    for name, role in columns.items() if isinstance(columns, dict) else ():
        if role not in get_args(RoleName):
            raise ConfigError(
                f"{place_in(path, name, text)}: column {name!r} has the role {role!r}, which is "
                f"unknown. {nearest(str(role), get_args(RoleName))} Correct the line."
            )
