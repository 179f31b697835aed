"""`shoal.load`: a fleet's data from names, files, arrays and torch data sets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from edge_client.core.ports import Windows
from edge_client.data.labels import last_share_of_each_class
from shoal.api.examples import Examples, arrays_of, padded, windows_of
from simulation.datasets.device_folders import LENGTH, STRIDE, load_device_folders
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

    - a name or a path, as ``--data`` takes it (docs/simulate.md). `partition`, `devices` and `seed`
      assign the examples. Of a folder with a folder for each device, or with a recording for each,
      ``*.csv`` or ``*.parquet``, recordings are cut as boards cut them: windows of `length`
      samples, one every `stride`; 128 and 64 when not given. With `steps`, a window has the class
      of each of so many.
    - an array x (n, channels, time), or (n, channels, height, width) for images, numbers, with `y`
      (n,) class numbers or names, or (n, names) of 0 and 1 for several labels of a window, or
      numbers with a point for quantities, (n,) or (n, quantities), or (n, steps) class numbers or
      names of its steps, -1 or empty for one without a label, and `owner` (n,), the device of each
      example, as a number or a name. `split` (n,) says ``train`` or ``test``, `session` and `start`
      (n,) where in which recording a window begins. Where nothing but anomalies is known, y is None
      and `anomaly` (n,) is 1 for anomalous windows, which are for testing, and 0 for others.
    - a mapping from device ids to examples: (x, y), (x, y, test_x, test_y), or a map-style torch
      `Dataset` of pairs.

    Windows of different lengths are a list of arrays (channels, time) in the place of x, or what a
    `Dataset` gives. They are padded with zeros to `length` samples, or to the longest, and have one
    more channel, ``present``: 1 where there is a sample. `lengths` (n,) says how many samples each
    window of an array has that is padded already.

    Where nothing says which part is for testing, it is the last 25 % of each device's examples of
    each class, in their order; where labels are no classes, of all its examples. `classes` and
    `channels` are names; of several labels, `classes` are those of their columns. `vocabulary` says
    that arrays hold ids of words or events, from 0 to below it; without it, numbers are
    measurements.

    Raises:
        DataError: the data cannot be read, or do not have this layout; the text says what was
            expected.
        ConfigError: a partition that cannot be read or does not fit.
    """
    if isinstance(source, str | Path):
        if length is None and stride is None and not steps:
            return fleet_of(source, partition, devices, seed)
        if not Path(source).is_dir():
            raise DataError(
                f"data {str(source)!r}: length, stride and steps are for a folder of recordings"
            )
        length, stride = LENGTH if length is None else length, STRIDE if stride is None else stride
        if length < 1 or stride < 1:
            raise ConfigError(
                f"length = {length}, stride = {stride}: expected numbers of samples from 1"
            )
        return assign(
            load_device_folders(Path(source), length, stride, steps),
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
            f"data of type {type(source).__name__}: expected load(x, y, owner), a mapping by "
            "device id, or a name or path"
        )
    owners = np.asarray(owner)
    x = windows_of("data", source)
    if lengths is not None and isinstance(x, list):
        raise DataError(
            "data: lengths are of an array that is padded, and x is a list of windows, each of "
            "its own length"
        )
    others = {
        "y": y,
        "anomaly": anomaly,
        "lengths": lengths,
        "split": split,
        "session": session,
        "start": start,
    }
    given = {key: np.asarray(value) for key, value in others.items() if value is not None}
    given |= _padded_or_alike({"": x}, length) | {"subject": owners}
    if owners.dtype.kind not in "US" or owners.ndim != 1:
        return _fleet(given, [], classes, channels, vocabulary, name)
    names, numbers = np.unique(owners, return_inverse=True)
    return _fleet(
        given | {"subject": numbers},
        [str(device_id) for device_id in names],
        classes,
        channels,
        vocabulary,
        name,
    )


def _padded_or_alike(xs: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    """The examples of all devices as a ``.npz`` has them, where some differ in length padded."""
    if any(isinstance(x, list) for x in xs.values()):
        return padded([window for x in xs.values() for window in x], length)
    if length is not None:
        raise DataError(
            f"data: length = {length} is for windows of different lengths, and for recordings; "
            "these have one length"
        )
    _check_alike("examples", {device_id: x.shape[1:] for device_id, x in xs.items()})
    return {"X": np.concatenate(list(xs.values()))}


def _check_alike(what: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    (first, expected), *others = shapes.items()
    for device_id, shape in others:
        if shape != expected:
            raise DataError(
                f"device {device_id!r}: {what} of shape {list(shape)}; those of device {first!r} "
                f"are {list(expected)}"
            )


def _fleet(
    arrays: dict[str, Any],
    ids: Sequence[str],
    classes: Sequence[str],
    channels: Sequence[str],
    vocabulary: int | None,
    name: str,
) -> FleetData:
    """The fleet of arrays as a ``.npz`` has them; its devices are called by `ids`, in the order of
    their numbers, where there are any."""
    labels = {"activity_names": np.array(classes, str), "channel_names": np.array(channels, str)}
    said = {} if vocabulary is None else {"vocabulary": np.array(vocabulary)}
    made = from_arrays(
        name, name, arrays | said | {key: value for key, value in labels.items() if len(value)}
    )
    if not ids:
        return made
    called = dict(zip(ids, made.devices.values(), strict=True))
    return replace(
        made, devices=called, recordings=dict(zip(ids, made.recordings.values(), strict=True))
    )


def fleet_of(
    data: FleetData | str | Path,
    partition: str,
    devices: int | None,
    seed: int,
    scenario: Scenario | None = None,
) -> FleetData:
    """Data, by name, path or as they are, assigned by a partition; `scenario` is checked against
    that.

    Raises:
        DataError: the data cannot be read, or are too few.
        ConfigError: a partition that cannot be read, does not fit the data, or does not go with the
        scenario.
    """
    if not isinstance(data, FleetData | str | Path):
        raise DataError(
            f"data of type {type(data).__name__}: expected a name, a path, or what shoal.load "
            "makes of arrays: load(x, y, owner)"
        )
    assigned = read_partition(partition)
    if scenario is not None:
        check_scenario(scenario, assigned)
    if isinstance(data, FleetData):
        return assign(data, assigned, devices, seed)
    return make_fleet(str(data), assigned, devices, seed)


def validation(data: FleetData, share: float = 0.25) -> FleetData:
    """The fleet without its test parts. Of each device, the last `share` of the training windows of
    each class, in their order, are the test part; the others are for training. What is tuned on
    this has not seen the real test part.

    Raises:
        ConfigError: the share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ConfigError(f"share = {share}: expected a number above 0 and below 1")

    def divided(windows: Windows) -> Windows:
        test = last_share_of_each_class(windows.train_y, share)
        x, y = windows.train_x, windows.train_y
        return Windows(x[~test], y[~test], x[test], y[test], windows.unlabelled_x)

    return replace(
        data, devices={d: divided(windows) for d, windows in data.devices.items()}, recordings={}
    )
