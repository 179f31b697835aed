"""Which devices are grouped together: after each round, who moved, and how far apart devices are.
Pure."""

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from aggregator.core.registry import GroupChange, Registry
from aggregator.core.summary import group_number
from wire.arrays.tensors import Array, decode_tensors

MOST = 400
"""Devices in a picture, at most: of more, so many are taken that are evenly spread over the
groups."""
LABELLED = 40
"""Devices in a matrix whose names stand beside it, at most."""
PALETTE = ((8, 48, 64), (27, 127, 121), (130, 201, 167), (250, 245, 214))
"""The colours of distances, from close to far, as red, green and blue."""


class Move(NamedTuple):
    """A device that was put into another group."""

    device_id: str
    before: str
    """Empty: it was in no group that is remembered."""
    change: GroupChange


class Compared(NamedTuple):
    """The devices of a distance matrix, in the order of their groups."""

    ids: tuple[str, ...]
    groups: tuple[int | None, ...]
    matrix: Array
    """(devices, devices), float32."""
    all: int
    """How many devices were compared; more than there are here where there were too many for a
    picture."""

    @property
    def bounds(self) -> list[int]:
        """Where one group ends and the next begins, as indices."""
        return [i for i in range(1, len(self.groups)) if self.groups[i] != self.groups[i - 1]]

    @property
    def order(self) -> str:
        """A short name of which devices these are, in which order."""
        return f"{zlib.crc32(' '.join(self.ids).encode()):08x}"


class Dot(NamedTuple):
    """A device in a plane."""

    x: float
    y: float
    """Both from 0 to 1."""
    device_id: str
    group: int | None


class Seen(NamedTuple):
    """A distance matrix, as a page shows it."""

    compared: Compared
    dots: list[Dot]


def moves(registry: Registry, campaign: str) -> list[Move]:
    """The changes of group that the registry remembers of this campaign, but for the first of each
    device; the latest first."""
    found = []
    for device_id, entry in registry.devices.items():
        own = [change for change in entry.groups if change.campaign == campaign]
        found += [Move(device_id, before.group, change) for before, change in pairwise(own)]
    return sorted(found, key=lambda move: (-move.change.at_s, move.device_id))


def read_views(payload: bytes) -> tuple[dict[str, Array], list[str]]:
    """The distance matrices of a round by name, and whose they are
    (`aggregator.aggregation.apply.encode_views`).

    Raises:
        ShoalError: these are none.
    """
    matrices, text = decode_tensors(payload)
    return dict(sorted(matrices.items(), reverse=True)), json.loads(text)["device_ids"]


def compare(matrix: Array, device_ids: Sequence[str], starts: Mapping[str, str]) -> Compared:
    """A distance matrix of these devices in the order of their groups (`starts`: by device, the key
    of its model), without those that are not known any more."""
    known = [(group_number(starts[d]), d, i) for i, d in enumerate(device_ids) if d in starts]
    known.sort(key=lambda found: (-1 if found[0] is None else found[0], found[1]))
    chosen = [known[i] for i in np.linspace(0, len(known) - 1, min(MOST, len(known))).astype(int)]
    order = [i for _, _, i in chosen]
    return Compared(
        tuple(d for _, d, _ in chosen),
        tuple(group for group, _, _ in chosen),
        matrix[np.ix_(order, order)],
        len(known),
    )


class Distances:
    """Keeps what was made of the last distances of each campaign: a page that is looked at every
    second makes it once a round."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Mapping[str, str], dict[str, Seen]]] = {}

    def seen(
        self, run_id: str, digest: str, starts: Mapping[str, str], read: Callable[[], bytes]
    ) -> dict[str, Seen]:
        """The distance matrices of the blob `digest`, by name. `read` reads it; `starts` as in
        `compare`.

        Raises:
            ShoalError: it cannot be read.
        """
        held = self._held.get(run_id)
        if held is not None and held[0] == digest and held[1] is starts:
            return held[2]
        matrices, device_ids = read_views(read())
        compared = {name: compare(matrix, device_ids, starts) for name, matrix in matrices.items()}
        made = {
            name: Seen(seen, in_two_dimensions(seen)) for name, seen in compared.items() if seen.ids
        }
        self._held[run_id] = digest, starts, made
        return made


def in_two_dimensions(compared: Compared) -> list[Dot]:
    """Devices in a plane, as far apart as their distances are, as well as that goes: classical
    scaling.

    W. S. Torgerson. Multidimensional scaling: I. Theory and method. Psychometrika 17, 1952.
    """
    size = len(compared.ids)
    if size < 2:
        return [
            Dot(0.5, 0.5, device_id, group)
            for device_id, group in zip(compared.ids, compared.groups, strict=True)
        ]
    squared = compared.matrix.astype(np.float64) ** 2
    centred = squared - squared.mean(0) - squared.mean(1)[:, None] + squared.mean()
    values, vectors = np.linalg.eigh(-0.5 * centred)
    places = vectors[:, [-1, -2]] * np.sqrt(np.maximum(values[[-1, -2]], 0))
    places *= np.where(
        places[np.abs(places).argmax(0), [0, 1]] < 0, -1, 1
    )  # a reflection is as good: always the same one is taken
    low, span = places.min(0), max(float(np.ptp(places, axis=0).max()), 1e-12)
    spread = (places - low) / span
    return [
        Dot(round(x, 4), round(y, 4), d, g)
        for (x, y), d, g in zip(spread.tolist(), compared.ids, compared.groups, strict=True)
    ]


def picture(compared: Compared) -> bytes:
    """The matrix as a PNG, a pixel for each pair: dark pairs are close. The scale ends where 98 %
    of the distances do."""
    matrix = np.nan_to_num(compared.matrix.astype(np.float64), posinf=0.0, neginf=0.0)
    apart = matrix[~np.eye(len(matrix), dtype=bool)]
    high = float(np.quantile(apart, 0.98)) if apart.size else 1.0
    levels = np.clip(np.rint(255 * matrix / (high or 1.0)), 0, 255).astype(np.uint8)
    at = np.linspace(0, len(PALETTE) - 1, 256)
    colours = np.stack(
        [np.interp(at, range(len(PALETTE)), [colour[i] for colour in PALETTE]) for i in range(3)],
        axis=1,
    )
    rows = np.concatenate(
        [np.zeros((len(levels), 1), np.uint8), levels], axis=1
    )  # each row begins with its filter: none
    size = struct.pack(">IIBBBBB", len(levels), len(levels), 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", size),
        (b"PLTE", np.rint(colours).astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes())),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
