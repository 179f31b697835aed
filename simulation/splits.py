"""Splits of windows into training and test parts: by time, by whole recordings, or at random. Pure.

Windows of one recording overlap, and neighbours look alike: a model that has trained on one knows
the other. ``session`` is the honest split if a person has made several recordings; ``time`` is the
best that one recording allows; ``random`` is common in papers.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from algorithms.spec import Choice, Option, Options, read
from edge_client.core.ports import Windows
from edge_client.data.labels import last_share_of_each_class, strata
from simulation.datasets.windows import FleetData, Recordings
from simulation.partitions.assignment import split_count
from wire.arrays.tensors import Array
from wire.errors import DataError

Rule = Callable[[str, Recordings, int, float, np.random.Generator], tuple[Array, Array]]
"""Function that splits the windows of one device.

(name of the device in errors, its windows in order of time, samples in a window, share for testing,
generator) -> indices for training and for testing (n,), in order of time.
"""
SALT = 0x5B117


def _in_time(
    _where: str, r: Recordings, length: int, share: float, _rng: np.random.Generator
) -> tuple[Array, Array]:
    """Take the last `share` of each class's windows for testing.

    A window that shares samples with a test window is left out.
    """
    start, session = r.start, np.zeros(len(r.y), np.int64) if r.session is None else r.session
    assert start is not None, "checked before"
    test = last_share_of_each_class(r.y, share)
    left_out = np.zeros(len(r.y), bool)
    for number in np.unique(session[test]):
        here = np.flatnonzero(session == number)
        tested = np.sort(start[here[test[here]]])
        # the first test window that does not end before this one begins
        after = np.searchsorted(tested, start[here] - length, "right")
        begins = tested[np.minimum(after, len(tested) - 1)]
        left_out[here] = (after < len(tested)) & (np.abs(begins - start[here]) < length)
    return np.flatnonzero(~test & ~left_out), np.flatnonzero(test)


def _by_session(
    where: str, r: Recordings, _length: int, share: float, _rng: np.random.Generator
) -> tuple[Array, Array]:
    """Take whole recordings for testing, from the last one back.

    A recording is taken if this brings at least one of its classes nearer to `share`, and if each
    of its classes also occurs in a recording that stays for training.

    Raises:
        DataError: there is no such recording.
    """
    assert r.session is not None, "checked before"
    classes, y = np.unique(strata(r.y), return_inverse=True)
    numbers, session = np.unique(r.session, return_inverse=True)
    counts = np.zeros((len(numbers), len(classes)), np.int64)
    np.add.at(counts, (session, y), 1)
    wanted, test_counts, out = (
        share * counts.sum(0),
        np.zeros(len(classes)),
        np.zeros(len(numbers), bool),
    )
    for i in range(len(numbers))[::-1]:
        class_mask = counts[i] > 0
        stay = (counts[~out].sum(0) - counts[i])[class_mask]
        nearer = (test_counts == 0) | (
            np.abs(test_counts + counts[i] - wanted) < np.abs(test_counts - wanted)
        )
        if (stay > 0).all() and nearer[class_mask].any():
            out[i], test_counts = True, test_counts + counts[i]
    if not out.any():
        raise DataError(
            f"split session: {where} has no recording to hold out. It needs one whose classes are "
            "all in another recording as well."
        )
    return np.flatnonzero(~out[session]), np.flatnonzero(out[session])


def _at_random(
    _where: str, r: Recordings, _length: int, share: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Take random windows for testing; overlapping ones lie on both sides."""
    order = rng.permutation(len(r.y))
    count = split_count(len(r.y), share)
    return np.sort(order[count:]), np.sort(order[:count])


_TEST = {
    "test": Option(0.25, "share of a device's windows that is for testing", low=0.01, high=0.99)
}
_RULES: Mapping[str, tuple[Rule, str]] = {
    "time": (_in_time, "start"),
    "session": (_by_session, "session"),
    "random": (_at_random, ""),
}
"""Rule of each split, and the field of `Recordings` that it requires; empty: none."""
SPLITS: Mapping[str, Options] = {"own": {}, **dict.fromkeys(_RULES, _TEST)}
"""Options of every split; ``own`` leaves the parts of the data and the partition."""


def read_split(text: str) -> Choice:
    """Read a split with its options, see `SPLITS`.

    Raises:
        ConfigError: there is no such split or option, or a value is not allowed.
    """
    return read(text, SPLITS, "split")


def split_anew(data: FleetData, choice: Choice, seed: int) -> FleetData:
    """Return the fleet with the training and test parts of a split.

    Each part is in order of time, as far as the data state it. A device's parts depend only on its
    own windows and the seed. Windows without labels stay as they are.

    Raises:
        DataError: the data lack a field that the split requires, or a device has no recording for
        testing.
    """
    if choice.name == "own":
        return data
    rule, needs = _RULES[choice.name]
    devices = {}
    for device_id in sorted(data.devices):
        windows, recordings = data.devices[device_id], data.recordings.get(device_id)
        if recordings is None:  # the data state no recordings: take both parts
            recordings = Recordings(
                np.concatenate([windows.train_x, windows.test_x]),
                np.concatenate([windows.train_y, windows.test_y]),
            )
        if needs and getattr(recordings, needs) is None:
            raise DataError(
                f"split {choice.name} needs the {needs} of each window, which data {data.name} do "
                f"not have for device {device_id} (docs/scenarios.md)"
            )
        ordered = _ordered(recordings)
        rng = np.random.default_rng([seed, SALT, zlib.crc32(device_id.encode())])
        where = f"device {device_id} of data {data.name}"
        train, test = rule(where, ordered, data.window.length, choice.options["test"], rng)
        without = windows.unlabelled_x
        devices[device_id] = Windows(
            ordered.x[train], ordered.y[train], ordered.x[test], ordered.y[test], without
        )
    return replace(data, devices=devices)


def _ordered(r: Recordings) -> Recordings:
    """Return the windows in order of time, as far as the data state it."""
    keys = [place for place in (r.start, r.session) if place is not None]
    if not keys:
        return r
    order = np.lexsort(keys)
    return Recordings(
        r.x[order],
        r.y[order],
        *(None if place is None else place[order] for place in (r.session, r.start)),
    )
