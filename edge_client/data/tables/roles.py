"""Roles of a recording's columns: time, label, person, channel, or left out; pure.

A user's word goes first (`FolderSettings.columns`), then a column's name, then its values over all
recordings (`edge_client.data.tables.values`).
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from edge_client.data.labels import NAMED, TARGET

TIME: Final = "time"
LABEL: Final = "label"
PERSON: Final = "person"
CHANNEL: Final = "channel"
LEFT_OUT: Final = "left out"
RoleName = Literal["time", "label", "person", "channel", "left out"]
"""Roles that a user may give a column."""
MISSING = frozenset(("", "nan", "na", "n/a", "null", "none", "?", "-", "--", "---", "<na>", "#n/a"))
"""Cells without a value, in lower case."""
DATES = "date", "datum", "fecha", "jour", "giorno"
"""Names of a date, which may stand beside a time of day."""
TIMES = (
    *("seconds_elapsed", "t", "time", "timestamp", "creation_time", "arrival_time", "ts"),
    *("elapsed", "elapsed_time", "time_elapsed", "sample_time", "epoch", "unix", "unixtime"),
    *("datetime", "date_time"),
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
    "trial_type",
)
"""Names of a column of classes, the preferred ones first."""
PERSONS = frozenset(
    (
        *("person", "subject", "user", "participant", "volunteer", "owner", "patient", "pid"),
        *("person_id", "subject_id", "user_id", "participant_id", "patient_id", "device_id"),
        *("subjectid", "userid", "personid", "participantid", "deviceid", "proband"),
        *("proband_id", "proband_nr", "probanden_id", "person_nr", "subject_nr", "subject_no"),
        *("versuchsperson", "teilnehmer", "nutzer", "benutzer", "personne", "sujet", "utilisateur"),
        *("persona", "sujeto", "usuario", "participante"),
        *("soggetto", "utente", "pessoa", "sujeito"),
    )
)
DEVICE_IDS = "device_id", "deviceid"
"""Names of a person that divide recordings if another column names the person."""
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
NUMBER_OF_ROW = "the number of a row"
"""Reasons of such columns."""
ANOTHER_LABEL = "another column of labels"
MAY_BE_LABEL = "it has the name of a label"
"""Reasons of a column that is called by a label: beside the label, or where no column is one."""
ACTIVITY = re.compile(
    "(walk|sit|stand|run|jog|lay|lie|lying|climb|stair|upstairs|downstairs|cycl|bik|jump|rest|sleep"
    "|fall|driv|typ|writ|eat|drink|talk|push|clap|cook|iron|vacuum|brush|gehen|sitz|steh|lauf|treppe"
    "|lieg|radf)",
    re.IGNORECASE,
)
"""Beginning of a word that is likely an activity."""
NUMBERS_OF_ROWS = frozenset(
    (
        *(
            "",
            "index",
            "idx",
            "row",
            "row_id",
            "id",
            "seq",
            "nseq",
            "frame",
            "level_0",
            "window",
            "window_id",
        ),
        *("windowid", "packet", "packetcounter", "packet_counter", "packet_number", "sample_id"),
        *("sample_index", "sample_number", "frame_id", "frame_number", "row_number"),
    )
)
_UNIT = re.compile(r"^(.*?)[\s_]*[(\[]([^)\]]*)[)\]]\s*$")
_TIME = re.compile(
    r"(^|.*_)(time|timestamp|datetime|timestamps|date|epoch)"
    r"(_(s|ms|us|ns|sec|min|h|d|utc|local|txt|unix))?(_cal)?$"
)
_ELAPSED = re.compile(
    r"(?:(?:t|time|elapsed|relative|since|in)_)*(?:milliseconds|millis|ms|seconds|secs?|minutes|mins|"
    r"minuten|hours|hrs|stunden|days|tage)(?:_(?:elapsed|relative|since_\w+))*"
)
"""Name of a time by its unit."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PART_OF_LABEL = re.compile(r"labels?(_.+|\d+)$")
_OTHER_LABEL = re.compile(r"(activity|class|gt)_?\d+$")
_SINCE = re.compile(r"^.*(timestamp|time)_?since.*$")


@dataclass(frozen=True)
class ColumnRole:
    """Role of a column, and the reason for it if it is left out."""

    name: str
    role: RoleName
    reason: str = ""
    unit: str = ""


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
    return plain(name) in TIMES or bool(
        _TIME.match(word) or _SINCE.match(plain(name)) or _ELAPSED.fullmatch(word)
    )


def is_activity(name: str) -> bool:
    """Return True if some word of a name is likely an activity."""
    return any(map(ACTIVITY.match, re.findall(r"[^\W\d_]+", name)))


def is_label_column(name: str) -> bool:
    """Return True if a column's name is usual for classes, names or quantities."""
    return name.startswith((NAMED, TARGET)) or plain(name) in LABELS


def is_number_of_row(name: str) -> bool:
    """Return True if a column's name is usual for the number of a row."""
    word = plain(name)
    return word in NUMBERS_OF_ROWS or bool(re.match(r"(unnamed|index_level)(_\d+)*$", word))


def spelled(names: Sequence[str], spellings: Collection[str]) -> dict[str, str]:
    """Return each name as it is spelled in `spellings`, if they differ only in case.

    A name that is known itself stays, and so do names that would become alike.
    """
    by_lower = {word.lower(): word for word in reversed(list(spellings))}
    words = dict[str, str]()
    for name in names:
        word = by_lower.get(name.lower(), name)
        words[name] = name if name in spellings or word in (*names, *words.values()) else word
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
    channels = [name for name in free if roles[name].role == CHANNEL and name not in labels]
    parts = [name for name in channels if _PART_OF_LABEL.match(plain(name))]
    several = [n for n in labels if not plain(n).endswith("id")] if labels else parts
    several = [] if has_label or exact else several
    by_user = any(columns.get(name) == LABEL for name in header)
    chosen = "" if has_label or not labels else labels[0]
    for name in labels:
        roles[name] = (
            ColumnRole(name, LABEL)
            if name == chosen or (name == LABEL and not by_user)
            else ColumnRole(name, LEFT_OUT, ANOTHER_LABEL)
        )
    for name in channels:
        if name in parts and not has_label and not chosen:
            roles[name] = ColumnRole(name, LEFT_OUT, MAY_BE_LABEL)
        elif name in parts or ((has_label or chosen) and _OTHER_LABEL.match(plain(name))):
            roles[name] = ColumnRole(name, LEFT_OUT, ANOTHER_LABEL)
    persons = [name for name in free if plain(name) in PERSONS]
    persons.sort(key=lambda name: plain(name) in DEVICE_IDS)
    if any(columns.get(name) == PERSON for name in header):
        persons.insert(0, "")
    for name in free:
        if name in persons[:1]:
            roles[name] = ColumnRole(name, PERSON)
        elif name in persons or plain(name) in DIVIDERS:
            roles[name] = ColumnRole(name, LEFT_OUT, DIVIDES)
        elif is_number_of_row(name):
            roles[name] = ColumnRole(name, LEFT_OUT, NUMBER_OF_ROW)
    return roles, several if len(several) > 1 else []


def _rank_of(names: Sequence[str]) -> Callable[[str], int]:
    return lambda name: names.index(plain(name)) if plain(name) in names else len(names)
