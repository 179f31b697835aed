"""Test if the devices of a node are two populations, by their bins along principal axes. Pure.

The share of an axis's variance that is between the sides of its best cut is compared with what one
Gaussian population of the same covariance shows along its own principal axes. A Gaussian has
2 / pi = 0.64 of its variance between its halves, a uniform density 0.75, and two far groups have 1.
"""

from dataclasses import dataclass

import numpy as np

from algorithms.core.contract import Matrix
from wire.arrays.tensors import Array
from wire.secret.coordinates import bins_of
from wire.secret.survey import BINS, REACH

MOST_AXES = 4
"""Maximum number of axes of a view that are tested."""
LEAST_SPREAD = 0.03
"""Smallest share of the variance along an axis along which devices tell their bins."""
DRAWS = 4_999
"""Number of simulated fleets of one population."""
FEWER_DRAWS, MANY = 999, 64
"""Number of simulated fleets for a node of at least `MANY` devices."""
BATCH = 50


@dataclass(frozen=True)
class AxisCut:
    """Best cut of the axes of a node."""

    axis: int
    place: float
    """Distance of the cut from the node's mean, along the axis."""
    share: float
    """Share of the axis's variance that is between the sides."""
    p: float
    """Probability that one population has a cut that stands out as much, on any axis."""


def principal_axes(covariance: Matrix) -> tuple[Matrix, Array]:
    """Return at most MOST_AXES axes (k, q), the widest first, and all deviations (q,)."""
    variances, vectors = np.linalg.eigh(covariance)
    variances, vectors = np.maximum(variances[::-1], 0.0), vectors[:, ::-1]
    wide = int((variances >= LEAST_SPREAD * variances.sum()).sum())
    # the sign of an eigenvector is that of its largest entry, so that it does not depend on LAPACK
    axes = vectors[:, : max(1, min(MOST_AXES, wide))].T
    largest = np.take_along_axis(axes, np.abs(axes).argmax(1)[:, None], 1)
    return axes * np.where(largest < 0, -1.0, 1.0), np.sqrt(variances)


def middles(bins: Array, deviation: float | Array) -> Array:
    """Return the middles of bins on an axis of this deviation."""
    return np.asarray(((bins + 0.5) * (2 * REACH / BINS) - REACH) * deviation)


def best_cuts(points: Array, least: int) -> tuple[Array, Array]:
    """Return the best cut of each row of sorted points (..., N).

    It is the share of the variance between its sides, and the number of points below it. No cut has
    fewer than `least` points on a side, or equal points on both. Without a cut the share is 0.
    """
    count = points.shape[-1]
    lower = np.arange(least, count - least + 1)
    if not len(lower):
        return np.zeros(points.shape[:-1]), np.zeros(points.shape[:-1], np.int64)
    centred = points - points.mean(-1, keepdims=True)
    total = np.maximum((centred**2).sum(-1), 1e-300)
    below = np.cumsum(centred, -1)[..., least - 1 : count - least]
    between = below**2 * (1 / lower + 1 / (count - lower))
    apart = points[..., lower] > points[..., lower - 1]
    between = np.where(apart, between, 0.0)
    best = between.argmax(-1)
    return np.take_along_axis(between, best[..., None], -1)[..., 0] / total, lower[best]


def test_axes(bins: Array, deviations: Array, least: int) -> AxisCut:
    """Return the best cut of a node's devices.

    Args:
        bins: number of devices (k, BINS) by bin, along the node's k principal axes.
        deviations: deviations along all principal axes of the node, the widest first.
        least: smallest number of devices on a side.
    """
    wide = deviations[: len(bins)]
    rows = zip(bins, wide, strict=True)
    points = np.stack([np.repeat(middles(np.arange(BINS), d), c) for c, d in rows])
    shares, lower = best_cuts(points, least)
    null = one_population(deviations, points.shape[1], len(bins), least)
    mean, deviation = null.mean(0), null.std(0) + 1e-9
    scores = (shares - mean) / deviation
    axis = int(scores.argmax())
    extreme = ((null - mean) / deviation).max(1) >= scores[axis]
    below = int(lower[axis])
    place = float(points[axis, max(below - 1, 0) : below + 1].mean())
    p = (1 + int(extreme.sum())) / (len(null) + 1)
    return AxisCut(axis, place, float(shares[axis]), p)


def one_population(deviations: Array, count: int, num_axes: int, least: int) -> Matrix:
    """Return the shares (draws, num_axes) of the best cuts of Gaussian populations of devices."""
    draws = DRAWS if count < MANY else FEWER_DRAWS
    deviations = deviations[deviations > 1e-6 * deviations[0]]
    rng, shares = np.random.default_rng(0), np.full((draws, num_axes), 2 / np.pi)
    for at in range(0, draws, BATCH):
        points = rng.standard_normal((min(BATCH, draws - at), count, len(deviations))) * deviations
        points -= points.mean(1, keepdims=True)
        if count <= len(deviations):
            variances, vectors = np.linalg.eigh(points @ points.transpose(0, 2, 1))
            sizes = np.sqrt(np.maximum(variances[:, None, ::-1], 0.0))
            along = (vectors[:, :, ::-1] * sizes)[:, :, :num_axes]
        else:
            _, vectors = np.linalg.eigh(points.transpose(0, 2, 1) @ points)
            along = points @ vectors[:, :, ::-1][:, :, :num_axes]
        scale = along.std(1, keepdims=True) + 1e-300
        along = np.sort(middles(bins_of(along, scale), scale), axis=1).transpose(0, 2, 1)
        shares[at : at + len(points), : along.shape[1]] = best_cuts(along, least)[0]
    return shares
