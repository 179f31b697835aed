"""The function `shoal.load`: a fleet's data from names, files, arrays and torch data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from edge_client.core.ports import Windows
from edge_client.data.folders import FolderSettings
from edge_client.data.labels import last_share_of_each_class
from edge_client.data.roles import RoleName
from edge_client.data.tables import is_table
from shoal.api.examples import Examples, arrays_of, padded, windows_of
from simulation.datasets.device_folders import load_device_folders
from simulation.datasets.npz import from_arrays
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
    source: Mapping[str, Examples],
    *,
    length: int | None = None,
    classes: Sequence[str] = (),
    channels: Sequence[str] = (),
    vocabulary: int | None = None,
    name: str = "own",
) -> FleetData: ...


@overload
def load(
    source: ArrayLike | Sequence[ArrayLike],
    y: ArrayLike | None,
    owner: ArrayLike,
    *,
    anomaly: ArrayLike | None = None,
    length: int | None = None,
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
      default. With `steps`, a window has that number of steps, each with its own class. `columns`
      says the role of columns by name: time, label, person, channel or left out. `rate` is the
      number of samples a second to which recordings are brought. Both go before ``shoal.toml`` in
      the folder, and that before any guess; `reading` of the result says what was taken for what.
    - an array x (n, channels, time), or (n, channels, height, width) for images, of numbers, with
      `owner` (n,), the device of each example as a number or a name, and labels `y`: class numbers
      or names (n,); 0 and 1 (n, names) for several labels of a window; floats (n,) or (n,
      quantities) for quantities; or class numbers or names (n, steps) of its steps, -1 or empty for
      a step without a label. `split` (n,) has ``train`` or ``test``. `session` and `start` (n,) say
      in which recording and where in it a window begins. If only anomalies are known, y is None and
      `anomaly` (n,) is 1 for anomalous windows, which are for testing, and 0 for others.
    - a mapping from device ids to examples: (x, y), (x, y, test_x, test_y), or a map-style torch
      `Dataset` of pairs.

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
    if isinstance(source, str | Path):
        if length is None and stride is None and not steps and not columns and not rate:
            return fleet_of(source, partition, devices, seed)
        path = Path(source)
        if not path.is_dir() and not (path.is_file() and is_table(path)):
            raise DataError(
                "length, stride and steps must be left out unless data is a folder of recordings, "
                f"got {str(source)!r}"
            )
        for name, value in (("length", length), ("stride", stride)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1 sample, got {value}")
        return assign(
            load_device_folders(path, length or 0, stride or 0, steps, _words(columns or {}, rate)),
            read_partition(partition),
            devices,
            seed,
        )
    if isinstance(source, Mapping):
        if not source:
            raise DataError("data: the mapping is empty, expected examples by device id")
        parts = {
            str(device_id): arrays_of(str(device_id), examples)
            for device_id, examples in source.items()
        }
        xs, ys, splits = zip(*parts.values(), strict=True)
        _check_alike("labels", {device_id: y.shape[1:] for device_id, (_, y, _) in parts.items()})
        joined = _padded_or_alike(dict(zip(parts, xs, strict=True)), length) | {
            "y": np.concatenate(ys),
            "split": np.concatenate(splits),
        }
        ids, subject = list(parts), np.repeat(np.arange(len(parts)), [len(y) for y in ys])
        return _fleet(joined | {"subject": subject}, ids, classes, channels, vocabulary, name)
    if (y is None and anomaly is None) or owner is None:
        raise DataError(
            "data must be arrays as in load(x, y, owner), a mapping by device id, or a name or "
            f"path, got {type(source).__name__}"
        )
    owners = np.asarray(owner)
    x = windows_of("data", source)
    if lengths is not None and isinstance(x, list):
        raise DataError(
            "lengths must be left out if x is a list of windows, which have their lengths already"
        )
    others = {
        "y": y,
        "anomaly": anomaly,
        "lengths": lengths,
        "split": split,
        "session": session,
        "start": start,
    }
    arrays = {key: np.asarray(value) for key, value in others.items() if value is not None}
    arrays |= _padded_or_alike({"": x}, length) | {"subject": owners}
    if owners.dtype.kind not in "US" or owners.ndim != 1:
        return _fleet(arrays, [], classes, channels, vocabulary, name)
    names, numbers = np.unique(owners, return_inverse=True)
    return _fleet(
        arrays | {"subject": numbers},
        [str(device_id) for device_id in names],
        classes,
        channels,
        vocabulary,
        name,
    )


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


def _padded_or_alike(xs: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    """Return all devices' examples as arrays of a ``.npz``, padded if some differ in length."""
    if any(isinstance(x, list) for x in xs.values()):
        return padded([window for x in xs.values() for window in x], length)
    if length is not None:
        raise DataError(f"length must be left out if all windows have one length, got {length}")
    _check_alike("examples", {device_id: x.shape[1:] for device_id, x in xs.items()})
    return {"X": np.concatenate(list(xs.values()))}


def _check_alike(what: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    (first, expected), *others = shapes.items()
    for device_id, shape in others:
        if shape != expected:
            raise DataError(
                f"device {device_id!r}: {what} of shape {list(shape)}, but those of device "
                f"{first!r} have shape {list(expected)}"
            )


def _fleet(
    arrays: dict[str, Any],
    ids: Sequence[str],
    classes: Sequence[str],
    channels: Sequence[str],
    vocabulary: int | None,
    name: str,
) -> FleetData:
    """Return the fleet of the arrays of a ``.npz``.

    `ids` names its devices in the order of their numbers; if it is empty they keep their numbers.
    """
    labels = {"activity_names": np.array(classes, str), "channel_names": np.array(channels, str)}
    vocabulary_entry = {} if vocabulary is None else {"vocabulary": np.array(vocabulary)}
    fleet = from_arrays(
        name,
        name,
        arrays | vocabulary_entry | {key: value for key, value in labels.items() if len(value)},
    )
    if not ids:
        return fleet
    devices = dict(zip(ids, fleet.devices.values(), strict=True))
    return replace(
        fleet, devices=devices, recordings=dict(zip(ids, fleet.recordings.values(), strict=True))
    )


def fleet_of(
    data: FleetData | str | Path,
    partition: str,
    devices: int | None,
    seed: int,
    scenario: Scenario | None = None,
) -> FleetData:
    """Return data, by name, path or as an object, assigned by a partition.

    `scenario` is checked against the partition.

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
    if isinstance(data, FleetData):
        return assign(data, assigned, devices, seed)
    return make_fleet(str(data), assigned, devices, seed)


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
