"""The smartwatch data set of the seglearn wheel: 10 people, both arms, 7 shoulder exercises.

It has 6 channels at 50 Hz.

D. M. Burns et al. Shoulder physiotherapy exercise recognition: machine learning the inertial
signals from a smartwatch. Physiological Measurement 39(7), 2018. The wheel (BSD licence) carries
140 recordings, one for each person, arm and exercise.

``watch`` has windows of one exercise each. ``watch-session`` has the exercises of a device one
after another, as in an hour of training, in an order that differs between devices. Its windows are
longer and go across the joins, and each third of a second has its label. The movement between two
exercises was not recorded, so a change of exercise is abrupt here.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.core.ports import Windows
from edge_client.data.labels import classes_of_steps
from simulation.datasets.windows import FleetData, Recordings, cut_windows
from wire.arrays.tensors import Array
from wire.bundle import Window
from wire.errors import DataError

LENGTH, STRIDE, TRAIN_SHARE, RATE_HZ = 128, 64, 0.7, 50.0
SESSION_LENGTH, SESSION_STRIDE, SESSION_STEPS = 512, 128, 32
"""Windows of ten seconds, in steps of 16 samples."""

_Piece = tuple[Array, Array, Array, Array]
"""Arrays x, y, session and start of windows."""


def load_watch() -> FleetData:
    """Read twenty devices ``p01-left`` .. ``p10-right``.

    The first 70 % of each recording's time are the training part. Windows are cut on either side of
    that point, so the parts share no samples.

    Raises:
        DataError: the seglearn package is not installed.
    """
    raw = _read("watch")
    parts: dict[str, dict[str, list[_Piece]]] = {}
    for number, (recording, label, person, side) in enumerate(
        zip(raw["X"], raw["y"], raw["subject"], raw["side"], strict=True)
    ):
        device = parts.setdefault(_device_id(person, side), {"train": [], "test": []})
        cut = round(TRAIN_SHARE * len(recording))
        for part, begin, end in (("train", 0, cut), ("test", cut, len(recording))):
            x = cut_windows(np.asarray(recording[begin:end]), LENGTH, STRIDE)
            y, session = (np.full(len(x), value, np.int64) for value in (label, number))
            device[part].append((x, y, session, begin + STRIDE * np.arange(len(x), dtype=np.int64)))
    recordings = {
        d: Recordings(*map(np.concatenate, zip(*parts[d]["train"], *parts[d]["test"], strict=True)))
        for d in sorted(parts)
    }
    num_train = {d: sum(len(x) for x, *_ in parts[d]["train"]) for d in parts}
    return FleetData(
        "watch",
        Window(tuple(str(c) for c in raw["X_labels"]), LENGTH, STRIDE, RATE_HZ),
        tuple(str(c) for c in raw["y_labels"]),
        {
            d: Windows(
                r.x[: num_train[d]], r.y[: num_train[d]], r.x[num_train[d] :], r.y[num_train[d] :]
            )
            for d, r in recordings.items()
        },
        {device_id: device_id.split("-")[1] for device_id in sorted(parts)},
        recordings,
    )


def load_watch_session() -> FleetData:
    """Read the same devices as `load_watch`, each with its recordings one after another.

    The training parts of the recordings follow each other, and the test parts likewise. Windows
    have `SESSION_STEPS` steps with the exercise of each; a step in which it changes has no label.

    Raises:
        DataError: the seglearn package is not installed.
    """
    raw = _read("watch-session")
    recordings: dict[str, list[tuple[Array, int]]] = {}
    for recording, label, person, side in zip(
        raw["X"], raw["y"], raw["subject"], raw["side"], strict=True
    ):
        recordings.setdefault(_device_id(person, side), []).append(
            (np.asarray(recording), int(label))
        )
    devices = {}
    for number, device_id in enumerate(sorted(recordings)):
        device_recordings = recordings[device_id]
        order = np.random.default_rng(number).permutation(len(device_recordings))
        cuts = [round(TRAIN_SHARE * len(samples)) for samples, _ in device_recordings]
        train = _session(
            [(device_recordings[i][0][: cuts[i]], device_recordings[i][1]) for i in order]
        )
        devices[device_id] = Windows(
            *train,
            *_session(
                [(device_recordings[i][0][cuts[i] :], device_recordings[i][1]) for i in order]
            ),
        )
    return FleetData(
        "watch-session",
        Window(
            tuple(str(c) for c in raw["X_labels"]),
            SESSION_LENGTH,
            SESSION_STRIDE,
            RATE_HZ,
            steps=SESSION_STEPS,
        ),
        tuple(str(c) for c in raw["y_labels"]),
        devices,
        {device_id: device_id.split("-")[1] for device_id in devices},
    )


def _session(pieces: list[tuple[Array, int]]) -> tuple[Array, Array]:
    """Return windows x (n, channels, length) and the labels y (n, steps) of their steps.

    `pieces` are parts of recordings (samples, channels), one after another, with their labels.
    """
    samples = np.concatenate([piece for piece, _ in pieces])
    labels = np.concatenate([np.full((len(piece), 1), label) for piece, label in pieces])
    x, of_samples = (
        cut_windows(values, SESSION_LENGTH, SESSION_STRIDE) for values in (samples, labels)
    )
    return x, classes_of_steps(of_samples[:, 0], SESSION_STEPS)


def _read(name: str) -> dict[str, Any]:
    spec = find_spec("seglearn")
    path = Path(spec.origin).parent / "data" / "watch_dataset.npy" if spec and spec.origin else None
    if path is None or not path.exists():
        raise DataError(
            f"data {name!r} is part of the package seglearn, which is not installed: pip install "
            "'shoal[simulation]'"
        )
    dataset: dict[str, Any] = np.load(
        path, allow_pickle=True
    ).item()  # pickle: a file of an installed package, trusted as its code is
    return dataset


def _device_id(person: float, side: float) -> str:
    return f"p{int(person):02d}-{'right' if side == 1 else 'left'}"
