"""Owners of recordings: which device has which, by columns and by names of files and folders."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from edge_client.data.array_store import ArrayStore
from edge_client.data.recordings.folders import PERSON_NAME, person_in
from edge_client.data.recordings.scanning import FolderScan, SharedSamples
from edge_client.data.tables.parts import add_line, labels_line, role_line
from edge_client.data.tables.roles import LEFT_OUT, PERSON, is_activity
from edge_client.data.tables.words import SETTINGS
from wire.errors import ConfigError, DataError

DATE = re.compile(r"(?<!\d)(19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d|(?<!\d)1[4-9]\d{8}(?!\d)")
"""Date, or seconds since 1970, in the name of a recording."""
_CODE = re.compile(
    r"(p|s|sub|subj|subject|user|person|participant|volunteer|proband|patient)[ _-]?\d+(?=[\W_])",
    re.IGNORECASE,
)
"""Person with whom the name of a file begins."""
_WORD = re.compile(rf"(?<![^\W_]){PERSON_NAME.pattern}(?![^\W_])", re.IGNORECASE)
"""Person in the name of a file, as a word of its own."""
_CODES = re.compile(r"(?:[^\W\d_]+\d+[\W_]*){2,}")
"""Name of a file of codes alone, such as S01R02 or a1_s2_t3."""
_PERSON_CODES = "participant", "subject", "person", "user", "subj", "sub", "p", "u", "s"
"""Letters of the code that is a person's, the preferred ones first."""
PERSON_LINE = 'person = "*_{person}_*"'
"""Line of ``shoal.toml`` that says where the person is in the names of recordings."""
PERSON_PLACE = "{person}"
"""Text in a user's pattern that stands for the person."""
_ID = re.compile(r"[a-z]{0,4}\d{2,5}(?=[\W_].*[^\W\d])", re.IGNORECASE)
"""Likely person with whom the name of a file in a folder with a number begins."""
_NUMBERED = re.compile(r"\d+[ ._-]*[^\W\d_]{2}")
"""Beginning of a folder's name with the number of a class, or of anything else, before a word."""


class Owners(NamedTuple):
    """Recordings by device; reasons for columns of persons; remarks; folders that are classes."""

    devices: dict[str, FolderScan]
    reasons: dict[str, str]
    remarks: list[str]
    classes: dict[str, str]
    """Likely classes by patterns of the recordings' names."""


class _Names(NamedTuple):
    """Persons, by folder and name of each recording, and folders that are likely classes."""

    persons: dict[tuple[str, str], str]
    remark: str
    classes: dict[str, str]


def by_owner(path: Path, scans: Mapping[str, FolderScan]) -> Owners:
    """Return recordings by the persons whom a column, or the names of files, name.

    The recordings stay as they are if nothing names two persons or more.

    Raises:
        DataError: a recording has no column of persons, and others have one.
    """
    persons = sorted(set().union(*(device.persons for device in scans.values())))
    first = next(iter(scans.values()))
    columns = {n: c for d in scans.values() for n, c in d.columns.items() if c.role == PERSON}
    names = _by_pattern(path, scans)
    if not names.persons and len(persons) < 2:
        names = _by_names(path, scans)
    if len(persons) < 2 and not names.persons:
        return Owners(dict(scans), {}, [names.remark] if names.remark else [], {})
    if any((d.settings, d.listed) != (first.settings, first.listed) for d in scans.values()):
        what = "the names of files" if names.persons else f"column {next(iter(columns))!r}"
        why = f"{what} names several persons, and each folder is a device: it has words of its own"
        return Owners(dict(scans), {}, [why], {})
    unnamed = next((device.unnamed for device in scans.values() if device.unnamed), None)
    if unnamed is not None and not names.persons:
        raise DataError(
            f"{unnamed}: no column names a person, and column {next(iter(columns))!r} of other "
            "files does. Add the column, or leave it out: then each folder is a device. "
            + add_line(role_line(LEFT_OUT, *columns))
        )
    whole = replace(first, folder=path, texts={}, persons=set())
    whole.names = set().union(*(device.names for device in scans.values()))
    whole.labels = set().union(*(device.labels for device in scans.values()))
    whole.places = set().union(*(device.places for device in scans.values()))
    whole.repeated = set().union(*(device.repeated for device in scans.values()))
    whole.missing = set().union(*(device.missing for device in scans.values()))
    whole.needs_names = any(device.needs_names for device in scans.values())
    devices: dict[str, FolderScan] = {}
    for name, device in scans.items():
        rows = iter(device.rows)
        for source, rate, unit in zip(device.sources, device.rates, device.units, strict=True):
            inner = f"{name}/{source.name}" if device.folder != path else source.name
            one = devices.setdefault(
                names.persons.get((name, source.name), ""),
                replace(whole, sources=[], rates=[], rows=[], units=[], texts=whole.texts),
            )
            one.sources.append(source._replace(name=inner))
            one.rows += [next(rows) for _ in source.files]
            one.rates.append(rate)
            one.units.append(unit)
        whole.texts.update(device.texts | whole.texts)
    if names.persons:
        return Owners(dict(sorted(devices.items())), {}, [names.remark], names.classes)
    shared = replace(devices[""], shared=SharedSamples(ArrayStore(), {}))
    reasons = dict.fromkeys(columns, f"a device for each of {len(persons)} persons")
    tracks = [each for device in scans.values() for each in device.of_tracks.items()]
    rates_of = {p: [r for key, rates in tracks if key[0] == p for r in rates] for p in persons}
    owners = {p: replace(shared, persons={p}, rates=rates_of[p] or shared.rates) for p in persons}
    return Owners(owners, reasons, [], {})


def _by_pattern(path: Path, scans: Mapping[str, FolderScan]) -> _Names:
    """Return the persons that a user's pattern finds in the names of recordings.

    Raises:
        ConfigError: the pattern has no place for the person, or a name does not fit it.
    """
    first = next(iter(scans.values()))
    pattern = first.settings.person
    if not pattern:
        return _Names({}, "", {})
    if pattern.count(PERSON_PLACE) != 1:
        raise ConfigError(
            f"person must be a pattern with one {PERSON_PLACE}, such as *_{PERSON_PLACE}_*, got "
            f"{pattern!r}. Correct the line in {SETTINGS}."
        )
    before, after = (re.escape(part).replace(r"\*", ".*?") for part in pattern.split(PERSON_PLACE))
    fitting = re.compile(rf"(?:.*/)?{before}([^/]+?){after}")
    persons = dict[tuple[str, str], str]()
    for folder, device in scans.items():
        for source in device.sources:
            name = source.name if device.folder == path else f"{folder}/{source.name}"
            match = fitting.fullmatch(name)
            if match is None:
                raise ConfigError(
                    f"person: the name {name!r} of a recording does not fit {pattern!r}. Correct "
                    f"the line in {SETTINGS}, or leave the recording out."
                )
            persons[folder, source.name] = match[1]
    return _Names(persons, _remark(persons.values()), {})


def _by_names(path: Path, scans: Mapping[str, FolderScan]) -> _Names:
    """Return the persons whom the names of files say, none if they say none."""
    keys = [(name, source.name) for name, device in scans.items() for source in device.sources]
    settings = next(iter(scans.values())).settings
    if next(iter(scans.values())).folder == path:
        codes = [match[0] if (match := _CODE.match(name)) else "" for _, name in keys]
        codes = [_person_of(name) for _, name in keys] if "" in codes else codes
        if "" in codes or not 1 < len(set(codes)) < len(codes):
            return _Names({}, "", {})
        return _Names(dict(zip(keys, codes, strict=True)), _remark(codes), {})
    persons = {key: _person_of(key[1]) for key in keys}
    if len({*persons.values()} - {""}) > 1 and "" not in persons.values():
        if len(scans) < 2 or any(map(person_in, scans)):
            return _Names({}, "", {})
        folders = {key: _folder_of_class(f"{key[0]}/{key[1]}") for key in keys}
        return _Names(persons, _remark(persons.values()), classes_of_folders([*folders.values()]))
    classes = classes_of_folders([*scans])
    in_words = sum(pattern in settings.labels for pattern in classes)
    if len(scans) < 2 or (settings.labels and 2 * in_words <= len(scans)):
        return _Names({}, "", {})
    persons = {key: _person_of(key[1]) or re.split(r"[/\W_]", key[1])[0] for key in keys}
    folders_of = {p: {key[0] for key in keys if persons[key] == p} for p in persons.values()}
    are_crossed = 2 * sum(len(each) > 1 for each in folders_of.values()) > len(folders_of) > 1
    are_activities = 2 * sum(map(is_activity, scans)) > len(scans)
    are_numbered = all(map(_NUMBERED.match, scans))
    are_many = 2 * sum(len(device.sources) > 1 for device in scans.values()) > len(scans)
    have_ids = are_crossed and all(_ID.match(name) for _, name in keys)
    shown = f"folders such as {', '.join([*scans][:2])}"
    if not in_words and not (are_many and (are_activities or (are_numbered and have_ids))):
        what = "have names of activities" if are_activities else "begin with numbers, as of classes"
        remark = f"{shown} {what}, and each is taken for a device. If each is a class: " + add_line(
            labels_line(classes)
        )
        return _Names({}, remark if are_activities or are_numbered else "", {})
    if not are_crossed:
        persons = {(folder, name): re.sub("/", "-", f"{folder}-{name}") for folder, name in keys}
    words = ", ".join(sorted(folders_of)[:3])
    what = f"the first words of the files' names, {words}, are taken for persons" * are_crossed
    are = "are classes" if in_words else "look like classes"
    remark = f"{shown} {are}, not devices; {what or 'each file in them is taken for a device'}"
    undo = f". If each folder is a device: {add_line(labels_line({'*': ''}))}"
    return _Names(persons, remark if in_words else remark + undo, classes)


def _person_of(name: str) -> str:
    """Return the person by whom a file, a folder of it, or a word in its name is called, or ""."""
    file = name.rpartition("/")[2]
    match = _WORD.search(file)
    return person_in(name) or (match[0] if match else _person_code(file))


def _person_code(file: str) -> str:
    """Return the code of the person in the name of a file of codes alone, or ""."""
    codes = re.findall(r"[^\W\d_]+\d+", file) if _CODES.fullmatch(file) else []
    by_letters = {code.rstrip("0123456789").lower(): code for code in codes}
    return next((by_letters[word] for word in _PERSON_CODES if word in by_letters), "")


def _remark(persons: Iterable[str]) -> str:
    """Return the remark about devices by the names of files."""
    shown = ", ".join(sorted({*persons})[:3])
    return f"devices are the persons in the names of files, such as {shown}"


def _folder_of_class(name: str) -> str:
    """Return the innermost folder of a recording that is not of a person."""
    parts = name.split("/")[:-1]
    while len(parts) > 1 and person_in(parts[-1]):
        parts.pop()
    return "/".join(parts)


def classes_of_folders(folders: Iterable[str]) -> dict[str, str]:
    """Return classes by patterns of the recordings in folders: their names without numbers."""
    names = {folder: folder.rpartition("/")[2] for folder in dict.fromkeys(folders)}
    words = {f: re.sub(r"^\d+[\W_]*|[\W_]+\d+$", "", name) for f, name in names.items()}
    if len(names) > 1 == len({*words.values()}) or not all(words.values()):
        words = names
    return {re.sub(r"[][*?]", "?", f) + "/*": word for f, word in words.items()}
