"""Matrices of distances between devices, ordered by group, as pictures and points. Pure."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from aggregator.view.summary import group_number
from wire.arrays.tensors import Array, decode_tensors

MOST = 400
"""Maximum number of devices in a picture; of more, a sample spread evenly over the groups is shown.
"""
PALETTE = ((8, 48, 64), (27, 127, 121), (130, 201, 167), (250, 245, 214))
"""Colours of distances, from close to far, as red, green and blue."""


class DistanceView(NamedTuple):
    """Devices of a distance matrix, ordered by group."""

    ids: tuple[str, ...]
    groups: tuple[int | None, ...]
    matrix: Array
    """Distances (devices, devices), float32; 0 where a distance is not finite."""
    all: int
    """Number of devices that were compared, of which the picture may show only some."""
    places: list[tuple[float, float]]
    """Place of each device in a plane, with coordinates from 0 to 1."""
    bounds: list[int]
    """Indices at which one group ends and the next begins."""
    order: str
    """Short hash of the devices in this order."""


def read_views(payload: bytes) -> tuple[dict[str, Array], list[str]]:
    """Return the distance matrices of a round by name, and the ids of the devices.

    `aggregator.aggregation.apply.encode_views` makes the payload.

    Raises:
        ShoalError: the bytes are not such matrices.
    """
    matrices, text = decode_tensors(payload)
    return dict(sorted(matrices.items(), reverse=True)), json.loads(text)["device_ids"]


def compare(matrix: Array, device_ids: Sequence[str], starts: Mapping[str, str]) -> DistanceView:
    """Order the devices of a distance matrix by group.

    `starts`: key of each device's model; devices without one are left out.
    """
    members = [(group_number(starts[d]), d, i) for i, d in enumerate(device_ids) if d in starts]
    members.sort(key=lambda found: (-1 if found[0] is None else found[0], found[1]))
    chosen = [
        members[i] for i in np.linspace(0, len(members) - 1, min(MOST, len(members))).astype(int)
    ]
    order = [i for _, _, i in chosen]
    shown = np.nan_to_num(matrix[np.ix_(order, order)], posinf=0.0, neginf=0.0)
    ids, groups = tuple(d for _, d, _ in chosen), tuple(group for group, _, _ in chosen)
    bounds = [i for i in range(1, len(groups)) if groups[i] != groups[i - 1]]
    name = f"{zlib.crc32(' '.join(ids).encode()):08x}"
    return DistanceView(ids, groups, shown, len(members), in_two_dimensions(shown), bounds, name)


def in_two_dimensions(matrix: Array) -> list[tuple[float, float]]:
    """Place devices in a plane so that their distances are kept as well as possible.

    This is classical scaling: W. S. Torgerson. Multidimensional scaling: I. Theory and method.
    Psychometrika 17, 1952.
    """
    if len(matrix) < 2:
        return [(0.5, 0.5)] * len(matrix)
    squared = matrix.astype(np.float64) ** 2
    centred = squared - squared.mean(0) - squared.mean(1)[:, None] + squared.mean()
    values, vectors = np.linalg.eigh(-0.5 * centred)
    places = vectors[:, [-1, -2]] * np.sqrt(np.maximum(values[[-1, -2]], 0))
    # Reflections are equally good; always choose the same one.
    places *= np.where(places[np.abs(places).argmax(0), [0, 1]] < 0, -1, 1)
    low, span = places.min(0), max(float(np.ptp(places, axis=0).max()), 1e-12)
    return [(round(x, 4), round(y, 4)) for x, y in ((places - low) / span).tolist()]


def picture(compared: DistanceView) -> bytes:
    """Draw the matrix as a PNG with a pixel for each pair, where dark pairs are close.

    The scale ends at the 98 % quantile of the distances.
    """
    matrix = compared.matrix.astype(np.float64)
    apart = matrix[~np.eye(len(matrix), dtype=bool)]
    high = float(np.quantile(apart, 0.98)) if apart.size else 1.0
    levels = np.clip(np.rint(255 * matrix / (high or 1.0)), 0, 255).astype(np.uint8)
    at = np.linspace(0, len(PALETTE) - 1, 256)
    channels = zip(*PALETTE, strict=True)
    colours = np.stack([np.interp(at, range(len(PALETTE)), each) for each in channels], axis=1)
    # each row begins with its filter type, which is none
    rows = np.concatenate([np.zeros((len(levels), 1), np.uint8), levels], axis=1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", len(levels), len(levels), 8, 3, 0, 0, 0)),
        (b"PLTE", np.rint(colours).astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes())),
        (b"IEND", b""),
    )
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
