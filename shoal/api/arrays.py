"""Fleets of windows that are arrays in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.api.examples import Examples, arrays_of, input_channels, padded
from simulation.datasets.npz import from_arrays
from simulation.datasets.windows import FleetData
from wire.errors import DataError


def fleet_of_devices(
    source: Mapping[str, Examples],
    length: int | None,
    classes: Sequence[str],
    channels: Sequence[str],
    vocabulary: int | None,
    name: str,
) -> FleetData:
    """Return the fleet of examples by device."""
    parts = {
        str(device_id): arrays_of(str(device_id), examples)
        for device_id, examples in source.items()
    }
    first = next(iter(source.values()))
    if not channels and isinstance(first, tuple) and isinstance(first[0], Mapping):
        channels = input_channels(first[0])
    xs, ys, splits = zip(*parts.values(), strict=True)
    _check_alike("labels", {device_id: y.shape[1:] for device_id, (_, y, _) in parts.items()})
    joined = padded_or_alike(dict(zip(parts, xs, strict=True)), length) | {
        "y": np.concatenate(ys),
        "split": np.concatenate(splits),
    }
    ids, subject = list(parts), np.repeat(np.arange(len(parts)), [len(y) for y in ys])
    return _fleet(joined | {"subject": subject}, ids, classes, channels, vocabulary, name)


def fleet_of_arrays(
    arrays: dict[str, Any],
    classes: Sequence[str],
    channels: Sequence[str],
    vocabulary: int | None,
    name: str,
) -> FleetData:
    """Return the fleet of the arrays of a ``.npz`` whose owners are numbers or names."""
    owners = arrays.get("subject", np.zeros(0))
    if owners.dtype.kind not in "US" or owners.ndim != 1:
        return _fleet(arrays, [], classes, channels, vocabulary, name)
    names, numbers = np.unique(owners, return_inverse=True)
    ids = [str(device_id) for device_id in names]
    return _fleet(arrays | {"subject": numbers}, ids, classes, channels, vocabulary, name)


def padded_or_alike(xs: Mapping[str, Any], length: int | None) -> dict[str, Any]:
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
