"""Geometry of groups from secret sums, alike for all parties (SPEC.md, 'Secret surveys'). Pure."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from wire.arrays.tensors import Array
from wire.secret.masks import SEED_BYTES, mask
from wire.secret.survey import BINS, REACH, WIDTH, Plane


@lru_cache(maxsize=4)
def signs(count: int, view: str) -> Array:
    """Return the signs (count, WIDTH) float64 by which a view is projected, alike for everybody.

    The sign in row i and column j is bit j of integer i of the mask of 32 zeros for the view.
    """
    words = mask(bytes(SEED_BYTES), f"signs {view}", count, np.dtype("<u4"))
    bits = np.unpackbits(words.view(np.uint8).reshape(count, 4), axis=1, bitorder="little")
    return np.asarray(bits * 2.0 - 1.0)


def projected(values: Array, view: str) -> Array:
    """Return values (n,) as at most WIDTH numbers of about the same length."""
    if len(values) <= WIDTH and view != "labels":
        return values
    return np.asarray(values @ signs(len(values), view) / np.sqrt(WIDTH))


def node_of(position: Array, planes: Sequence[Plane]) -> str:
    """Return the node that planes lead a device at these coordinates to."""
    node, by_node = "", {plane.node: plane for plane in planes}
    while plane := by_node.get(node):
        node += "01"[bool(np.dot(np.array(plane.axis), position) > plane.threshold)]
    return node


def bins_of(along: Array, deviation: float | Array) -> Array:
    """Return the bin int64 of each distance from the mean along an axis of this deviation."""
    at = np.floor((along / deviation + REACH) * (BINS / (2 * REACH)))
    return np.asarray(np.clip(np.where(np.isnan(at), 0, at), 0, BINS - 1).astype(np.int64))
