"""The function `shoal.load`: a fleet's data from names, files, arrays and torch data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, get_args, overload

import msgspec
from numpy.typing import ArrayLike
from torch.utils.data import Dataset

from edge_client.core.ports import Windows
from edge_client.data.labels import last_share_of_each_class
from edge_client.data.tables.roles import RoleName
from edge_client.data.tables.words import FolderSettings
from shoal.api.arrays import fleet_of_arrays, fleet_of_devices, padded_or_alike
from shoal.api.columns import (
    Roles,
    Table,
    arrays_of_windows,
    by_owner,
    by_person,
    fleet_of_samples,
    has_windows,
)
from shoal.api.examples import (
    array_of,
    input_channels,
    items_of,
    windows_of,
)
from shoal.api.sources import are_tables, is_file, recordings_of, table_of, tables_of
from simulation.datasets.catalog import USUAL_CUTS, Cuts
from simulation.datasets.catalog import load as load_named
from simulation.datasets.npz import ARRAYS
from simulation.datasets.windows import FleetData
from simulation.partition import assign, make_fleet, read_partition
from simulation.scenario import Scenario, check_scenario
from wire.errors import ConfigError, DataError


@overload
def load(
    source: str | Path,
    *,
    partition: str = "user",
    devices: int | None = None,
    seed: int = 0,
    length: int | None = None,
    stride: int | None = None,
    steps: int = 0,
    columns: Mapping[str, RoleName] | None = None,
    rate: float = 0.0,
) -> FleetData: ...


@overload
def load(
    source: Any,
    y: Any = None,
    owner: Any = None,
    *,
    person: str = "",
    label: str = "",
    time: str = "",
    length: int | None = None,
    stride: int | None = None,
    steps: int = 0,
    columns: Mapping[str, RoleName] | None = None,
    rate: float = 0.0,
    anomaly: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    split: ArrayLike | None = None,
    session: ArrayLike | None = None,
    start: ArrayLike | None = None,
    classes: Sequence[str] = (),
    channels: Sequence[str] = (),
    vocabulary: int | None = None,
    name: str = "own",
) -> FleetData: ...


def load(
    source: Any,
    y: Any = None,
    owner: Any = None,
    *,
    person: str = "",
    label: str = "",
    time: str = "",
    partition: str = "user",
    devices: int | None = None,
    seed: int = 0,
    length: int | None = None,
    stride: int | None = None,
    steps: int = 0,
    columns: Mapping[str, RoleName] | None = None,
    rate: float = 0.0,
    anomaly: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    split: ArrayLike | None = None,
    session: ArrayLike | None = None,
    start: ArrayLike | None = None,
    classes: Sequence[str] = (),
    channels: Sequence[str] = (),
    vocabulary: int | None = None,
    name: str = "own",
) -> FleetData:
    """Load the data of a fleet.

    `source` is one of these:

    - a name or a path, as ``--data`` takes it (docs/data.md). `partition`, `devices` and `seed`
      assign the examples. A path may be that of a folder with a folder or a recording (``*.csv`` or
      ``*.parquet``) for each device, or of one table with a column of persons. The recordings are
      cut as boards cut them: windows of `length` samples, one every `stride` samples, 128 and 64 by
      default. With `steps`, a window has that number of steps, each with its own class. `person`,
      `label` and `time` name columns, as those of a table; `columns` says the role of columns by
      name: time, label, person, channel or left out. `rate` is the number of samples a second to
      which recordings are brought. Both go before ``shoal.toml`` in the folder, and that before any
      guess; `reading` of the result says what was taken for what.
    - an array x (n, channels, time), or (n, channels, height, width) for images, of numbers, with
      `owner` (n,), the device of each example as a number or a name, and labels `y`: class numbers
      or names (n,); 0 and 1 (n, names) for several labels of a window; floats (n,) or (n,
      quantities) for quantities; or class numbers or names (n, steps) of its steps, -1 or empty for
      a step without a label. `split` (n,) has ``train`` or ``test``. `session` and `start` (n,) say
      in which recording and where in it a window begins. If only anomalies are known, y is None and
      `anomaly` (n,) is 1 for anomalous windows, which are for testing, and 0 for others.
    - a mapping from device ids to examples: (x, y), (x, y, test_x, test_y), or a map-style torch
      `Dataset` of pairs; or to recordings: a table, or a list of tables.
    - a table of samples or of windows, of pandas, polars, pyarrow, `datasets`, or a mapping from
      names to arrays. `person`, `label` and `time` name its columns. The rows of a person are
      recordings, which are cut at gaps of the time and into windows as those of a folder are. All
      other columns are channels, or those that `channels` names. If cells are arrays, a row is a
      window. A mapping may also have the arrays of a ``.npz``, or the tables ``train`` and
      ``test`` of windows.
    - a map-style torch `Dataset` of pairs with `owner`, of (example, label, owner), or of mappings
      in which `label` and `person` name these.

    With `stride`, a list of arrays (channels, time) in the place of x are recordings, with a label
    for each or for each of its samples. In the place of x, a mapping from names to arrays (n,
    channels, time) has the windows of several sensors. They become channels of one array: a sample
    of a slower sensor is repeated.

    Windows of different lengths are a list of arrays (channels, time) in the place of x, or the
    examples of a `Dataset`. They are padded with zeros to `length` samples, or to the longest, and
    get one more channel, ``present``: 1 where there is a sample. `lengths` (n,) is the number of
    samples of each window of an array that is padded already.

    Without a test part in the source, the last 25 % of each device's examples of each class are the
    test part, in their order; without classes, the last 25 % of all its examples. `classes` and
    `channels` are names; with several labels of a window, `classes` name the columns of `y`.
    `vocabulary` says that arrays hold ids of words or events, from 0 to below it; without it,
    numbers are measurements.

    Raises:
        DataError: the data cannot be read, or do not have this layout; the text says what was
            expected.
        ConfigError: a partition that cannot be read or does not fit.
    """
    if isinstance(classes, str | Mapping):
        raise ConfigError(
            "classes must be a list of names in the order of the class numbers, from 0 on, got "
            f"{type(classes).__name__} {classes!r}"
        )
    roles = Roles(person, label, time)
    others = {
        "anomaly": anomaly,
        "lengths": lengths,
        "split": split,
        "session": session,
        "start": start,
    }
    if isinstance(source, str | Path):
        unread = {"y": y, "owner": owner, **others, "vocabulary": vocabulary}
        unread |= {"classes": classes or None, "channels": channels or None}
        if wrong := [key for key, value in unread.items() if value is not None]:
            raise ConfigError(
                f"{wrong[0]} must be left out with the name or path {str(source)!r}: it is for "
                "data from memory. Words about recordings in a folder go into its shoal.toml "
                "(docs/data.md), or into columns."
            )
        columns = {**roles.columns, **(columns or {})}
        if length is None and stride is None and not steps and not columns and not rate:
            return fleet_of(source, partition, devices, seed)
        check_cuts(length, stride)
        cuts, words = Cuts(length or 0, stride or 0, steps, rate), _words(columns or {}, rate)
        read = load_named(str(source), cuts, words)
        return assign(read, read_partition(partition), devices, seed)
    recordings: Mapping[str, Sequence[Table]] | None = None
    table = table_of(source, roles)
    if table is not None and not has_windows(table):
        recordings = by_person(table, roles)
    elif table is not None:
        arrays = arrays_of_windows(table, roles, channels)
        source, y, owner = (arrays.pop(key) for key in ("X", "y", "subject"))
        channels, others = (), others | arrays
    elif isinstance(source, Mapping) and is_file(source):
        arrays = {key: array_of(source[key]) for key in ARRAYS if key in source}
        arrays |= {"subject": array_of(source[person])} if person else {}
        return fleet_of_arrays(arrays, classes, channels, vocabulary, name)
    elif isinstance(source, Mapping) and owner is None:
        if not source:
            raise DataError("data: the mapping is empty, expected examples by device id")
        if any(map(are_tables, source.values())):
            recordings = {str(d): tables_of(str(d), value) for d, value in source.items()}
        elif stride is not None:
            recordings = {
                str(d): recordings_of(str(d), pair, channels) for d, pair in source.items()
            }
        else:
            return fleet_of_devices(source, length, classes, channels, vocabulary, name)
    elif isinstance(source, Dataset):
        source, y, owners = items_of("data", source, label or "y", person)
        owner = owners if owner is None else owner
    elif stride is not None and owner is not None:
        recordings = by_owner(source, y, owner, channels)
    if recordings is not None:
        check_cuts(length, stride)
        return fleet_of_samples(
            recordings,
            roles,
            _words(columns or {}, rate),
            classes=classes,
            channels=channels,
            length=length or 0,
            stride=stride or 0,
            steps=steps,
            name=name,
        )
    if stride is not None or steps:
        raise DataError(
            "stride and steps must be left out unless data are recordings, got "
            f"{type(source).__name__} of windows"
        )
    if (y is None and anomaly is None) or owner is None:
        raise DataError(
            "data must be arrays as in load(x, y, owner), a table as in load(table, person='NAME', "
            f"label='NAME'), a mapping by device id, or a name or path, got {type(source).__name__}"
        )
    x = windows_of("data", source)
    if isinstance(source, Mapping):
        channels = channels or input_channels(source)
    if lengths is not None and isinstance(x, list):
        raise DataError(
            "lengths must be left out if x is a list of windows, which have their lengths already"
        )
    arrays = {
        key: array_of(value) for key, value in (others | {"y": y}).items() if value is not None
    }
    arrays |= padded_or_alike({"": x}, length) | {"subject": array_of(owner)}
    return fleet_of_arrays(arrays, classes, channels, vocabulary, name)


def _words(columns: Mapping[str, RoleName], rate: float) -> FolderSettings:
    """Return a user's words about recordings.

    Raises:
        ConfigError: a role is none, or the rate is negative.
    """
    try:
        return msgspec.convert({"columns": dict(columns), "rate": float(rate)}, FolderSettings)
    except msgspec.ValidationError:
        wrong = [role for role in columns.values() if role not in get_args(RoleName)]
        raise ConfigError(
            f"columns must have roles of {', '.join(get_args(RoleName))}, got {wrong[0]!r}"
            if wrong
            else f"rate must be at least 0, got {rate}"
        ) from None


def check_cuts(length: int | None, stride: int | None) -> None:
    """Raise ConfigError unless windows can be cut from recordings with this length and stride."""
    for name, value in (("length", length), ("stride", stride)):
        if value is not None and (not isinstance(value, Integral) or value < 1):
            raise ConfigError(f"{name} must be a whole number of samples from 1 on, got {value!r}")


def fleet_of(
    data: FleetData | str | Path,
    partition: str,
    devices: int | None,
    seed: int,
    scenario: Scenario | None = None,
    cuts: Cuts = USUAL_CUTS,
) -> FleetData:
    """Return data, by name, path or as an object, assigned by a partition.

    `scenario` is checked against the partition; `cuts` is of recordings.

    Raises:
        DataError: the data cannot be read, or are too few.
        ConfigError: the partition cannot be read, or does not fit the data or the scenario.
    """
    if not isinstance(data, FleetData | str | Path):
        raise DataError(
            "data must be a name, a path, or arrays loaded with shoal.load(x, y, owner), got "
            f"{type(data).__name__}"
        )
    assigned = read_partition(partition)
    if scenario is not None:
        check_scenario(scenario, assigned)
    if not isinstance(data, FleetData):
        return make_fleet(str(data), assigned, devices, seed, cuts)
    if any(cuts):
        raise ConfigError(
            "window, stride, steps and rate must be left out with data that shoal.load has cut"
        )
    return assign(data, assigned, devices, seed)


def validation(data: FleetData, share: float = 0.25) -> FleetData:
    """Return the fleet without its test parts, for tuning.

    The last `share` of each device's training windows of each class, in their order, become the
    test part; the others are for training. What is tuned on this fleet has not seen the real test
    part.

    Raises:
        ConfigError: the share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ConfigError(f"share must be above 0 and below 1, got {share}")

    def divided(windows: Windows) -> Windows:
        test = last_share_of_each_class(windows.train_y, share)
        x, y = windows.train_x, windows.train_y
        return Windows(x[~test], y[~test], x[test], y[test], windows.unlabelled_x)

    return replace(
        data, devices={d: divided(windows) for d, windows in data.devices.items()}, recordings={}
    )
