"""Roles of a recording's columns: time, label, person, channel, or left out; pure.

A user's word goes first (`FolderSettings.columns`), then a column's name, then its values over all
recordings. By its values a column is no channel if it tells when or by whom a sample was taken, or
which class it has, in place of what a sensor measured:

- it only grows or only falls, but for a few steps (counters, clocks);
- it is constant in each recording, and differs between recordings;
- each of its few values occurs with one class alone;
- its few values last for long, as a person's number does in a table of several persons.

Fewer than `FEWEST` samples say nothing of this.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from edge_client.data.labels import NAMED, TARGET
from wire.arrays.tensors import Array

TIME: Final = "time"
LABEL: Final = "label"
PERSON: Final = "person"
CHANNEL: Final = "channel"
LEFT_OUT: Final = "left out"
RoleName = Literal["time", "label", "person", "channel", "left out"]
"""Roles that a user may give a column."""
MISSING = frozenset(("", "nan", "na", "n/a", "null", "none"))
"""Cells without a value, in lower case."""
FEWEST = 256
"""Minimum number of samples from which the values of a column say its role."""
ONE_WAY = 0.98
"""Share of a column's steps in one direction from which it counts as a counter."""
SHORTEST = 128
"""Usual number of samples for which each value of a column lasts, from which it may be a person's
or a class's."""
MOST_CELLS = 4096
"""Maximum number of persons, or classes, whom a column may name."""
MOST_VALUES = 64
"""Maximum number of values of a column that may each stand for a class."""

DATES = "date", "datum", "fecha", "jour", "giorno"
"""Names of a date, which may stand beside a time of day."""
TIMES = (
    *("seconds_elapsed", "t", "time", "timestamp", "creation_time", "arrival_time", "ts"),
    *("elapsed", "elapsed_time", "time_elapsed", "sample_time", "epoch", "unix", "unixtime"),
    *("datetime", "date_time", "millis", "milliseconds", "ms", "seconds", "sec"),
    *("activityminute", "activityhour", "sleepday"),
    *("zeitstempel", "zeit", "uhrzeit", "horodatage", "temps", "heure", "marca_de_tiempo"),
    *("tiempo", "hora", "orario", "ora", "tijd"),
    *DATES,
)
"""Names of a time, the preferred ones first. As all names here, they are as `plain` has them."""
LABELS = (
    *("label", "labels", "class", "activity", "activity_name", "activity_label", "activityname"),
    *("class_label", "class_name", "annotation", "gt", "ground_truth", "target", "behaviour"),
    *("behavior", "activity_type", "klasse", "activity_id", "activityid", "class_id", "label_id"),
    *("aktivitat", "aktivitaet", "tatigkeit", "taetigkeit", "activite", "classe", "etiquette"),
    *("actividad", "clase", "etiqueta", "attivita", "etichetta", "atividade", "activiteit"),
)
"""Names of a column of classes, the preferred ones first."""
PERSONS = frozenset(
    (
        *("person", "subject", "user", "participant", "volunteer", "owner", "patient", "pid"),
        *("person_id", "subject_id", "user_id", "participant_id", "patient_id", "device_id"),
        *("subjectid", "userid", "personid", "participantid", "deviceid", "proband"),
        *("proband_id", "proband_nr", "probanden_id", "person_nr", "subject_nr", "subject_no"),
        *("versuchsperson", "teilnehmer", "nutzer", "benutzer", "personne", "sujet", "utilisateur"),
        *(
            "persona",
            "sujeto",
            "usuario",
            "participante",
            "soggetto",
            "utente",
            "pessoa",
            "sujeito",
        ),
    )
)
DIVIDERS = frozenset(
    (
        *("device", "phone", "position", "placement", "body_part", "bodypart", "sensor_id"),
        *("session", "session_id", "recording", "recording_id", "trial", "trial_id", "segment_id"),
        *("run_id", "experiment_id", "exp_id", "series_id", "sequence_id", "sensorid", "sessionid"),
    )
)
"""Names of a column that divides the samples of a person into recordings."""
_POSITIONS = frozenset(
    ("device", "phone", "position", "placement", "body_part", "bodypart", "sensor_id", "sensorid")
)
USER = "you say so"
"""Reason of a role that a user gives a column."""
DATE = "the date of the time, if that is a time of day"
"""Reason of a column of dates beside the time."""
DIVIDES = "it divides recordings"
"""Reason of such a column."""
ACTIVITY = re.compile(
    "(walk|sit|stand|run|jog|lay|lie|lying|climb|stair|upstairs|downstairs|cycl|bik|jump|rest|sleep"
    "|fall|driv|typ|writ|eat|drink|talk|push|clap|cook|iron|vacuum|brush|gehen|sitz|steh|lauf|treppe"
    "|lieg|radf)",
    re.IGNORECASE,
)
"""Beginning of a word that is likely an activity."""
NUMBERS_OF_ROWS = frozenset(("", "index", "idx", "row", "row_id", "id", "seq", "frame", "level_0"))
_UNIT = re.compile(r"^(.*?)[\s_]*[(\[]([^)\]]*)[)\]]\s*$")
_TIME = re.compile(
    r"(^|.*_)(time|timestamp|datetime|timestamps|date|epoch)(_(s|ms|us|ns|sec|utc|local|txt|unix))?"
    r"(_cal)?$"
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_OTHER_LABEL = re.compile(r"(label|activity|class|gt)_?\d+$")
_SINCE = re.compile(r"^.*(timestamp|time)_?since.*$")


@dataclass(frozen=True)
class ColumnRole:
    """Role of a column, and the reason for it if it is left out."""

    name: str
    role: RoleName
    reason: str = ""
    unit: str = ""


@dataclass
class ColumnFacts:
    """Counts of a column's values in the recordings of one device."""

    count: int = 0
    """Number of samples."""
    values: int = 0
    """Number of samples with a number."""
    up: int = 0
    down: int = 0
    wrong: tuple[str, str] | None = None
    """Place and text of the first cell that is no number."""
    constants: set[float] = field(default_factory=set)
    """Value of each recording in which the column is constant."""
    varies: bool = False
    """True if the column is not constant in some recording."""
    classes: dict[float, int] | None = field(default_factory=dict)
    """Class of each value; None if a value has several classes, or there are too many values."""
    labelled: int = 0
    """Number of samples with a number and a class."""
    ranges: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Smallest and largest value of each class."""
    cells: set[str] | None = field(default_factory=set)
    """Values as text; None if they change too often to name a person or a class."""
    cells_here: set[str] = field(default_factory=set)
    """Values of the recording that is read."""
    by_recording: int = 0
    """Sum of the numbers of values of each recording."""
    recordings: int = 0
    stretches: int = 0
    """Number of stretches of one value, and the samples in them."""
    in_stretches: int = 0

    def add(self, numbers: Array, classes: Array | None, previous: float) -> None:
        """Count values (n,), NaN if missing, and the classes (n,) of their samples, -1 if none."""
        self.count += len(numbers)
        has_value = np.isfinite(numbers)
        whole = numbers[has_value]
        self.values += len(whole)
        steps = np.diff(whole if np.isnan(previous) else np.concatenate([[previous], whole]))
        self.up, self.down = self.up + int((steps > 0).sum()), self.down + int((steps < 0).sum())
        if classes is None:
            return
        here = classes[has_value]
        self.labelled += int((here >= 0).sum())
        for number in np.unique(here[here >= 0]).tolist():
            of_class = whole[here == number]
            low, high = self.ranges.get(number, (np.inf, -np.inf))
            self.ranges[number] = (
                min(low, float(of_class.min())),
                max(high, float(of_class.max())),
            )
            if self.classes is None:
                continue
            for value in np.unique(of_class)[: MOST_VALUES + 1].tolist():
                if self.classes.setdefault(value, number) != number:
                    self.classes = None
                    break
            if self.classes is not None and len(self.classes) > MOST_VALUES:
                self.classes = None

    def add_stretches(self, column: Array) -> None:
        """Count the stretches of one value in consecutive numbers or texts (n,)."""
        if self.cells is None or not len(column):
            return
        begins = [0, *(np.flatnonzero(column[1:] != column[:-1]) + 1).tolist()]
        if len(begins) * SHORTEST > 8 * (len(column) + SHORTEST):
            self.cells = None
            return
        for begin, end in pairwise([*begins, len(column)]):
            cell = column[begin]
            text = f"{cell:.10g}" if column.dtype.kind == "f" else str(cell).strip()
            if text.lower() not in MISSING:
                self.cells_here.add(text)
                self.stretches += 1
                self.in_stretches += end - begin

    def end(self, low: float, high: float) -> None:
        """Note the smallest and largest value of a whole recording."""
        self.by_recording += len(self.cells_here)
        self.recordings += 1
        if self.cells is not None:
            self.cells |= self.cells_here
            self.cells = self.cells if len(self.cells) <= MOST_CELLS else None
        self.cells_here = set()
        if low == high:
            self.constants.add(low)
        elif low < high:
            self.varies = True


def plain(name: str) -> str:
    """Return a column's name in lower case, without its unit, with ``_`` between its words.

    Letters have no accents: Tätigkeit is ``tatigkeit``.
    """
    base = match[1] if (match := _UNIT.match(name)) else name
    signs = unicodedata.normalize("NFD", base.lower())
    letters = "".join(sign for sign in signs if unicodedata.category(sign)[0] != "M")
    return re.sub(r"[\W_]+", "_", letters).strip("_")


def unit_of(name: str) -> str:
    """Return the unit that a column's name has in brackets, or ""."""
    return match[2].strip() if (match := _UNIT.match(name)) else ""


def is_time(name: str) -> bool:
    """Return True if a column's name is usual for a time."""
    word = plain(_CAMEL.sub("_", name))
    return plain(name) in TIMES or bool(_TIME.match(word) or _SINCE.match(plain(name)))


def is_activity(name: str) -> bool:
    """Return True if some word of a name is likely an activity."""
    return any(map(ACTIVITY.match, re.findall(r"[^\W\d_]+", name)))


def is_label_column(name: str) -> bool:
    """Return True if a column's name is usual for classes, names or quantities."""
    return name.startswith((NAMED, TARGET)) or plain(name) in LABELS


def is_number_of_row(name: str) -> bool:
    """Return True if a column's name is usual for the number of a row."""
    word = plain(name)
    return word in NUMBERS_OF_ROWS or bool(re.match(r"unnamed(_\d+)*$", word))


def spelled(names: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Return each name as it is spelled in `known`, if they differ only in upper and lower case.

    A name that is known itself stays, and so do names that would become alike.
    """
    by_lower = {word.lower(): word for word in reversed(list(known))}
    words = dict[str, str]()
    for name in names:
        word = by_lower.get(name.lower(), name)
        words[name] = name if name in known or word in (*names, *words.values()) else word
    return words


def is_position(name: str) -> bool:
    """Return True if a column's name is usual for a device, or for its place on a body."""
    return plain(name) in _POSITIONS


def by_name(
    header: Sequence[str], columns: Mapping[str, RoleName]
) -> tuple[dict[str, ColumnRole], list[str]]:
    """Return the roles that names of columns say, and the names that could all be the label.

    Columns without a role by name are channels. A role of `columns` goes before any name.
    """
    roles = {name: ColumnRole(name, CHANNEL, unit=unit_of(name)) for name in header}
    for name in header:
        if name in columns:
            roles[name] = ColumnRole(name, columns[name], USER, unit_of(name))
        elif name.startswith((NAMED, TARGET)):
            roles[name] = ColumnRole(name, LABEL)
    free = [name for name in header if name not in columns and roles[name].role == CHANNEL]
    times = sorted((name for name in free if is_time(name)), key=_rank_of(TIMES))
    times = [*(name for name in header if columns.get(name) == TIME), *times]
    dates = [n for n in times if n in columns or plain(n) in DATES or plain(times[0]) in DATES]
    for name in times:
        reason = DATE if name in dates[:2] else f"another time: {times[0]!r} is the time"
        roles[name] = (
            ColumnRole(name, TIME, unit=unit_of(name))
            if name == times[0]
            else ColumnRole(name, LEFT_OUT, reason)
        )
    labels = sorted((n for n in free if plain(n) in LABELS), key=_rank_of(LABELS))
    has_label = any(role.role == LABEL for role in roles.values())
    exact = [name for name in labels if plain(name) == LABEL]
    several = [] if has_label or exact else [n for n in labels if not plain(n).endswith("id")]
    chosen = "" if has_label or not labels else labels[0]
    for name in labels:
        roles[name] = (
            ColumnRole(name, LABEL)
            if name in (chosen, LABEL)
            else ColumnRole(name, LEFT_OUT, "another column of labels")
        )
    for name in free:
        if roles[name].role == CHANNEL and _OTHER_LABEL.match(plain(name)) and chosen:
            roles[name] = ColumnRole(name, LEFT_OUT, "another column of labels")
        if plain(name) in PERSONS:
            roles[name] = ColumnRole(name, PERSON)
        elif plain(name) in DIVIDERS:
            roles[name] = ColumnRole(name, LEFT_OUT, DIVIDES)
        elif is_number_of_row(name):
            roles[name] = ColumnRole(name, LEFT_OUT, "the number of a row")
    return roles, several if len(several) > 1 else []


def reason_by_values(devices: Sequence[ColumnFacts]) -> str:
    """Return the reason why a column is no channel by its values on all devices, or ""."""
    values = sum(facts.values for facts in devices)
    if not values:
        return "no numbers" if any(facts.wrong for facts in devices) else "empty"
    if values < FEWEST:
        return ""
    up, down = sum(facts.up for facts in devices), sum(facts.down for facts in devices)
    if up + down >= FEWEST / 8 and max(up, down) >= ONE_WAY * (up + down):
        return f"it only {'grows' if up > down else 'falls'}, as a clock or a counter does"
    constants = set().union(*(facts.constants for facts in devices))
    if len(constants) > 1 and not any(facts.varies for facts in devices):
        return "it is constant in each recording"
    if sum(facts.labelled for facts in devices) < FEWEST:
        return ""
    maps = [facts.classes for facts in devices if len(facts.ranges) > 1]
    if maps and all(classes is not None for classes in maps):
        return "each of its values occurs with one class alone"
    return ""


def lasting(devices: Sequence[ColumnFacts]) -> set[str]:
    """Return the values of a column, as text, if they last as a person's or a class's do.

    There are none if values change more often, if there is one alone, or one for each device.
    """
    each = [facts.cells for facts in devices if facts.stretches]
    if any(facts.cells is None for facts in devices) or not each:
        return set()
    values = set[str]().union(*(cells for cells in each if cells))
    count = sum(facts.in_stretches for facts in devices)
    if count < max(FEWEST, SHORTEST * sum(facts.stretches for facts in devices)):
        return set()
    one_each = sum(len(cells) for cells in each if cells) == len(each) == len(values)
    return set() if one_each or len(values) < 2 else values


def come_back(devices: Sequence[ColumnFacts]) -> bool:
    """Return True if values come back within recordings, as those of a slow sensor or classes."""
    return sum(f.stretches for f in devices) > 2 * sum(f.by_recording for f in devices)


def are_shared(devices: Sequence[ColumnFacts]) -> bool:
    """Return True if devices have values in common, and several in a recording, as classes are."""
    each = [facts.cells for facts in devices if facts.cells]
    some = any(facts.by_recording > facts.recordings for facts in devices)
    return some and sum(map(len, each)) > len(set[str]().union(*each))


def tells_the_class(devices: Sequence[ColumnFacts]) -> bool:
    """Return True if a single value of a column says the class on all devices with classes."""
    several = [sorted(facts.ranges.values()) for facts in devices if len(facts.ranges) > 1]
    labelled = sum(facts.labelled for facts in devices)
    return (
        bool(several)
        and labelled >= FEWEST
        and all(all(high < low for (_, high), (low, _) in pairwise(ranges)) for ranges in several)
    )


def _rank_of(names: Sequence[str]) -> Callable[[str], int]:
    return lambda name: names.index(plain(name)) if plain(name) in names else len(names)
