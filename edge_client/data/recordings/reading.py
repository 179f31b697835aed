"""Account of recordings: roles of columns, rate and classes, with the reason for each.

`read_reading` decides by all recordings of all devices, so that a fleet has the same channels.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from edge_client.data.labels import TARGET
from edge_client.data.recordings.folders import position_in, sensor_in
from edge_client.data.recordings.remarks import between, one_hot, sample_remarks, sensors_apart
from edge_client.data.recordings.resampling import longest_interval_s
from edge_client.data.recordings.scanning import (
    LARGEST_CLASS,
    FolderScan,
    are_intervals,
    usual_rate,
)
from edge_client.data.recordings.stretches import SAME_RATE
from edge_client.data.tables.parts import (
    TableSource,
    add_line,
    at_row,
    class_line,
    in_words,
    missing_line,
    role_line,
)
from edge_client.data.tables.roles import (
    CHANNEL,
    DIVIDES,
    LABEL,
    LEFT_OUT,
    MAY_BE_LABEL,
    PERSON,
    TIME,
    ColumnRole,
    RoleName,
    is_activity,
    plain,
)
from edge_client.data.tables.text_form import THOUSANDS, is_text
from edge_client.data.tables.values import (
    FEWEST,
    ONE_VALUE,
    ColumnFacts,
    come_back,
    constant,
    lasting,
    missing_codes,
    reason_by_values,
    tells_the_class,
    tells_the_sensor,
)
from edge_client.data.tables.words import SETTINGS, FolderSettings
from wire.errors import DataError

FEWEST_FEATURES = 12
"""Minimum number of channels from which rows may be whole windows."""
SENSOR_COLUMNS = frozenset(
    (
        *("sensor", "sensor_name", "sensor_type", "sensortype", "sensorname", "data_type"),
        *("datatype", "type", "variable", "signal", "quantity", "parameter", "metric"),
    )
)
"""Names of a column that says the sensor of each row."""
_NUMBER = re.compile(r"\d+")
_STATISTIC = re.compile(
    r"(^|[^a-z])(mean|avg|std|stdev|var|variance|mad|min|max|median|iqr|energy|entropy|skew\w*|"
    r"kurt\w*|rms|correlation|arcoeff|sma|bandsenergy|meanfreq|maxinds|q\d+|fft\w*)([^a-z]|$)",
    re.IGNORECASE,
)
_STATE = re.compile(r"(machine_|operating_)?(state|status|condition|fault|zustand|etat|estado)")
"""Name of a column that likely has classes, if none is the label."""
MOST_MADE_UP = 2.0
"""Largest factor by which a rate is raised: at most as many samples are made up as there are."""


class DataReading(msgspec.Struct, frozen=True):
    """Account of what was taken for what in recordings."""

    columns: tuple[ColumnRole, ...]
    rate_hz: float = 0.0
    remarks: tuple[str, ...] = ()
    rates: dict[str, float] = {}
    """Rate of each device's recordings before they were brought onto `rate_hz`, 0 if unknown."""
    gaps: dict[str, int] = {}
    """Number of gaps in each device's recordings."""
    recordings: tuple[str, ...] = ()
    """Names of the recordings of all devices."""
    words: FolderSettings = FolderSettings()
    """A user's words about the recordings of the first device."""
    labels_hold: bool = False
    """True if a label stands in the row where its class begins, and holds up to the next one."""
    folders: dict[str, str] = {}
    """Likely classes of recordings by patterns of their names, by folders that are no devices."""

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels, in their order."""
        return tuple(column.name for column in self.columns if column.role == CHANNEL)

    def __str__(self) -> str:
        left_out = [column.name for column in self.columns if column.role == LEFT_OUT]
        rate = f" at {self.rate_hz:g} Hz" if self.rate_hz else ""
        labels = f", labels {', '.join(self.labels)}" if self.labels else ", no labels"
        without = f", left out {', '.join(map(repr, left_out))}" if left_out else ""
        gaps = f", {sum(self.gaps.values())} gaps" if any(self.gaps.values()) else ""
        return f"channels {', '.join(self.channels)}{rate}{labels}{without}{gaps}"

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the columns of labels."""
        return tuple(column.name for column in self.columns if column.role == LABEL)


def read_reading(
    scans: Mapping[str, FolderScan], rate_hz: float = 0.0, owners: Iterable[FolderScan] = ()
) -> DataReading:
    """Return the roles of columns, and the rate, by all devices' recordings.

    Args:
        scans: recordings by folder or file.
        rate_hz: rate that is wanted; 0 for that of most devices.
        owners: recordings of each device; empty if they are `scans`.

    Raises:
        DataError: no column is a channel, a cell of a channel is no number, or a recording has a
            rate that is too low.
    """
    first = next(iter(scans.values()))
    columns, remarks = [], list[str]()
    headers = dict[str, ColumnRole]()
    for scan in scans.values():
        headers |= {name: role for name, role in scan.columns.items() if name not in headers}
    roles = {role.role for role in first.columns.values()}
    roles |= {LABEL for scan in scans.values() if scan.settings.labels}
    classes = [] if LABEL in roles else one_hot(scans.values())
    if classes:
        remarks.append(
            f"of the columns {in_words(classes)} one says 1 in each row, as columns of classes do. "
            f"If they are the label: {add_line(role_line(LABEL, *classes))}"
        )
    missing = dict[float, str]()
    for name, role in headers.items():
        facts = [scan.facts[name] for scan in scans.values() if name in scan.facts]
        if role.role == CHANNEL:
            missing |= dict.fromkeys(missing_codes(facts), name)
        wrong = next((each.wrong for each in facts if each.wrong), None)
        if role.role == CHANNEL and role.reason and wrong:  # a user names it
            raise DataError(
                f"{wrong[0]}, column {name}: {wrong[1]!r} is not a number, and the column is a "
                "channel. Mend the cell, or empty it."
            )
        if role.reason == MAY_BE_LABEL and not first.settings.labels:
            way = _way(name, LABEL, roles)
            remarks.append(f"column {name!r} is left out: {role.reason}. {way}")
        if name in classes:
            role = ColumnRole(name, LEFT_OUT, "it says 1 where others say 0, as a class does")
        if role.role == CHANNEL and role.reason == "":
            reason = reason_by_values(facts)
            values = set[str]() if sensor_in(name) else lasting(facts)
            numbers = set[float]().union(*(each.levels or () for each in facts))
            is_named = plain(name) in SENSOR_COLUMNS and any(each.varies for each in facts)
            are_codes = is_named and len(numbers) > 1 and not any(n % 1 for n in numbers)
            if (wrong and plain(name) in SENSOR_COLUMNS) or are_codes or tells_the_sensor(facts):
                place, text = wrong or (first.sources[0].files[0][1], f"{min(numbers):g}")
                raise DataError(
                    f"{place}, column {name}: {text!r} is likely the sensor of the row. "
                    "Write the rows of each sensor to a file of its own, as walk_acc.csv and "
                    "walk_gyr.csv, or a column for each. If all rows are of one sensor: "
                    + add_line(role_line(LEFT_OUT, name))
                )
            if wrong and 2 * sum(map(is_text, values)) > len(values):
                reason = "not all of its cells are numbers" if reason != "no numbers" else reason
            elif wrong and (reason != "no numbers" or THOUSANDS.fullmatch(wrong[1])):
                raise DataError(
                    f"{wrong[0]}, column {name}: {wrong[1]!r} is not a number. Mend the cell, or "
                    "leave the column out. " + add_line(role_line(LEFT_OUT, name))
                )
            if values and not reason and not come_back(facts):
                reason = "each of its values lasts for long, as a person's or a class's does"
            likely = _likely_role(name, values, reason, facts, roles)
            if reason:
                role = ColumnRole(name, LEFT_OUT, reason, role.unit)
                if likely != CHANNEL or reason not in ("no numbers", "empty", ONE_VALUE):
                    remarks.append(
                        f"column {name!r} is left out: {reason}. {_way(name, likely, roles)}"
                    )
            elif values and likely != CHANNEL:
                remarks.append(
                    f"column {name!r} is taken as a channel, and each of its values lasts for "
                    f"long, as a person's or a class's does. {_way(name, likely, roles)}"
                )
            elif len(constant(facts)) == 1 and sum(f.values for f in facts) >= FEWEST:
                remarks.append(
                    f"channel {name!r} has one value in all recordings. If it is no measurement: "
                    + add_line(role_line(LEFT_OUT, name))
                )
            elif tells_the_class(facts):
                remarks.append(
                    f"channel {name!r} alone tells the classes apart. If it is no measurement: "
                    + add_line(role_line(LEFT_OUT, name))
                )
        units = {scan.time_units[name] for scan in scans.values() if name in scan.time_units}
        by_values = f"in {' or '.join(sorted(units))}, by its values" if units else ""
        columns.append(ColumnRole(name, role.role, role.reason or by_values, role.unit))
    if missing:
        shown = ", ".join(f"{number:.15g} in {name!r}" for number, name in missing.items())
        remarks.append(
            f"values far from all others are taken as measured: {shown}. If they stand for no "
            f"value: {add_line(missing_line({*first.settings.missing, *missing}))}"
        )
    if not any(column.role == CHANNEL for column in columns):
        what = "; ".join(f"{c.name!r}: {c.reason or c.role}" for c in columns)
        usable = [
            column.name
            for column in columns
            if column.role == LEFT_OUT
            and (column.name not in first.facts or first.facts[column.name].values)
            and column.reason != DIVIDES
        ]
        raise DataError(
            f"data {first.folder}: the header {list(first.columns)} names no channel ({what}). "
            + (
                add_line(role_line(CHANNEL, usable[0]))
                if usable
                else "Recordings need a column of measurements."
            )
        )
    rates = {device: scan.rate_hz for device, scan in scans.items()}
    ranked = sorted(rate for rate in rates.values() if rate)
    wanted = rate_hz or first.settings.rate or (ranked[(len(ranked) - 1) // 2] if ranked else 0.0)
    of_tracks = {
        " ".join(filter(None, key)): usual_rate(rates)
        for scan in scans.values()
        for key, rates in scan.of_tracks.items()
    }
    of_all = {
        name: [rate for rate, _ in chain(scan.rates, *scan.of_tracks.values()) if rate]
        for name, scan in scans.items()
    }
    lowest = min(chain(*of_all.values()), default=0.0)
    for name, scan in scans.items():
        for rate in of_all[name]:
            if wanted / rate > MOST_MADE_UP * (1 + SAME_RATE):
                raise DataError(
                    f"data {scan.folder}: a recording has {rate:g} samples a second, and "
                    f"{wanted:g} are wanted, so more samples would be made up than there are. "
                    + (
                        f"Record at least {wanted / MOST_MADE_UP:g} samples a second."
                        if rate_hz
                        else "Remove it, or take a lower rate for all. "
                        + add_line(f"rate = {lowest:g}")
                    )
                )
    for rate, path in (each for scan in scans.values() for each in scan.of_sensors):
        if 1 / rate > longest_interval_s(1 / rate, wanted):
            raise DataError(
                f"{path}: one sample in {1 / rate:.3g} s is too seldom to be filled in beside "
                f"other sensors, at {wanted:g} samples a second. Leave its columns out, or take "
                f"the lower rate for all. {add_line(f'rate = {rate:g}')}"
            )
    beside = {name for scan in scans.values() for source in scan.sources for name in source.beside}
    if beside:
        more = f" and {len(beside) - 5} more" if len(beside) > 5 else ""
        names = f"{', '.join(sorted(beside)[:5])}{more}"
        labels = any(re.match(r"labels?\.", name, re.IGNORECASE) for name in beside)
        way = ". Classes are read from files with a time, or begin and end, and the label" * labels
        remarks.append(f"files beside the recordings are not read: {names}{way}")
    of_labels = [path for scan in scans.values() for s in scan.sources for path in s.labels]
    if of_labels:
        until = "beginning to its end" if are_intervals(of_labels[0]) else "time up to the next one"
        remarks.append(
            f"classes are those of {of_labels[0].name} beside the samples: each holds from its "
            + until
        )
    places = set[str]()
    for scan in owners or scans.values():
        of_files = {position_in(source.name) for source in scan.sources} - {""}
        places |= next((p for p in (of_files, scan.places) if len(p) > 1), set())
    if len(places) > 1 and not first.settings.recordings:
        named = sorted(places)
        pattern = f"*{named[0]}*" if named[0] not in first.places else named[0]
        remarks.append(
            f"recordings of several devices or places on a body are taken together: "
            f"{', '.join(named[:5])}{', ...' if len(named) > 5 else ''}. To take one: "
            + add_line(f"recordings = [{json.dumps(pattern, ensure_ascii=False)}]")
        )
    named = _features(columns)
    if named and first.settings.window == 1:
        remarks.append(
            f"columns such as {named[0]!r} and {named[1]!r} look like features: each row is a "
            "window of one sample, and neighbouring rows say nothing of each other"
        )
    if named and not first.settings.names and not first.settings.window:
        count = sum(column.role == CHANNEL for column in columns)
        raise DataError(
            f"{first.sources[0].files[0][1]}, line 1, column {named[0]!r}: no column is a time, "
            f"and columns such as {named[0]!r} and {named[1]!r} look like a whole window in each "
            "row. Make arrays of the rows: shoal.load(x, y, owner) with x (n, channels, time). To "
            f"take each row as a window of {count} channels and one sample: "
            + add_line("window = 1")
        )
    remarks += [text for scan in scans.values() if (text := sensors_apart(scan))][:1]
    remarks += sample_remarks(scans)
    all_rates = rates | of_tracks
    others = [d for d, rate in all_rates.items() if rate and abs(rate / wanted - 1) > SAME_RATE]
    if others:
        what = ", ".join(f"{d} from {all_rates[d]:g} Hz" for d in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        remarks.append(f"{what}{more} brought onto {wanted:g} Hz")
    steps = set[bool]().union(*(scan.label_steps for scan in scans.values()))
    labels_hold = steps == {False} and first.settings.window != 1  # else a row is a window
    if labels_hold:
        remarks.append(
            "no two rows in a row have a label, as where a label says that a class begins: each "
            'holds up to the next one. A label that shoal.toml names "" in [classes] ends one'
        )
    remarks += between(scans.values())
    recordings = tuple(dict.fromkeys(s.name for scan in scans.values() for s in scan.sources))
    return DataReading(
        tuple(columns), wanted, tuple(remarks), rates, {}, recordings, first.settings, labels_hold
    )


def _likely_role(
    name: str,
    values: Collection[str],
    reason: str,
    devices: Sequence[ColumnFacts],
    others: Collection[str],
) -> RoleName:
    """Return the role that a column without one may have, "channel" if nothing says another.

    Args:
        name: name of the column.
        values: values that last as a person's or a class's do.
        reason: reason why it is no channel by its values, "" if it may be one.
        devices: facts of the column.
        others: roles of the other columns.
    """
    if reason.startswith(("it only grows", "it grows")) and TIME not in others:
        return TIME
    are_activities = 2 * sum(map(is_activity, values)) > len(values)
    if not values or (LABEL in others and are_activities):
        return CHANNEL
    is_state = _STATE.fullmatch(plain(name)) is not None
    if LABEL not in others and (are_activities or is_state or come_back(devices)):
        return LABEL
    return CHANNEL if PERSON in others else PERSON


def _way(name: str, role: RoleName, others: Collection[str]) -> str:
    """Return the sentence that says how a column gets a role."""
    what = {TIME: "is the time", LABEL: "is the label", PERSON: "names the person"}
    other = ' (for the label, write "label")' * (role == PERSON and LABEL not in others)
    return f"If it {what.get(role, 'is a channel')}{other}: {add_line(role_line(role, name))}"


def _features(columns: Sequence[ColumnRole]) -> list[str]:
    """Return names of the channels if rows are likely whole windows, none otherwise."""
    channels = [column.name for column in columns if column.role == CHANNEL]
    if any(column.role == TIME for column in columns) or len(channels) < FEWEST_FEATURES:
        return []
    series = Counter(_NUMBER.sub("#", name) for name in channels if _NUMBER.search(name))
    statistics = [name for name in channels if _STATISTIC.search(name)]
    counted = [
        name
        for name in channels
        if series.get(_NUMBER.sub("#", name), 0) >= max(FEWEST_FEATURES, len(channels) / 2)
    ]
    return statistics if 2 * len(statistics) >= len(channels) else counted


def class_names(scans: Iterable[FolderScan]) -> tuple[str, ...]:
    """Return the names of the classes of recordings, sorted; none if classes are numbers.

    The names of ``classes.txt`` go first.

    Raises:
        DataError: a label is neither a name nor a class number.
    """
    texts = dict[str, tuple[TableSource, int]]()
    for device in scans:
        if device.listed:
            return device.listed
        texts = device.texts | texts
        texts |= dict.fromkeys(device.settings.labels.values(), (device.folder / SETTINGS, 0))
    texts.pop("", None)
    numbers = 0
    for text, (path, line) in texts.items():
        try:
            float(text)
        except ValueError:
            continue
        numbers += 1
        place = f"{at_row(path, line)}: "
        if re.fullmatch(r"[+-]?[0-9]+", text) is None:
            raise DataError(
                f"{place}a label must be a whole number or a name, got {text!r}. If it is a "
                f"quantity, call its column {TARGET}NAME; fedavg+regression learns it"
            )
        if not 0 <= int(text) <= LARGEST_CLASS:
            raise DataError(
                f"{place}a class number must be between 0 and {LARGEST_CLASS}, got {text}. If it "
                f"means no label: {add_line(class_line(text, ''))}"
            )
    return () if numbers == len(texts) else tuple(sorted(texts))
