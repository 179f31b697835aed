"""Test if points are more grouped than one Gaussian population: a parametric bootstrap.

Ward's tree is cut into k = 2, 3, ... groups. The share of the spread that stays inside groups, W_k
/ W_1, is compared with that of one Gaussian population of the same covariance, in which a device
with fewer examples is noisier.

R. Tibshirani, G. Walther, T. Hastie. Estimating the number of clusters in a data set via the gap
statistic. JRSS B 63, 2001. Y. Liu, D. N. Hayes, A. Nobel, J. S. Marron. Statistical significance of
clustering for high-dimension, low-sample size data. JASA 2008. J. Besag, P. Clifford. Sequential
Monte Carlo p-values. Biometrika 78(2), 1991.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from algorithms.core.contract import Matrix
from algorithms.groupings.views import euclidean_coordinates
from wire.arrays.tensors import Array

MOST_GROUPS = 8
"""Maximum number of groups in one split; more are found because each part is tested again."""
NOTHING = 1e-6
"""Minimum deviation of a direction that is drawn, as a fraction of the widest direction's."""
BATCH = 49
"""Number of populations between two checks of a test that may stop early."""


@dataclass(frozen=True)
class Draws:
    """Number of bootstrap populations that a test draws.

    `most` resolves p to 1 / (most + 1). With `enough` the test stops once this many populations
    were as grouped as the points. Then p is about enough / draws, far from significant, and more
    draws would not change that (Besag and Clifford).
    """

    most: int
    enough: int | None = None


@dataclass(frozen=True)
class Test:
    """Result of a test of one view: its significance, and the group of each device."""

    view: str
    num_devices: int
    p: float
    z: float
    labels: Array
    coarser: tuple[Array, ...] = ()
    """Groups of each device in the cuts with fewer groups, down to two."""

    @property
    def cuts(self) -> tuple[Array, ...]:
        """The groups of each device, from most groups to two."""
        return self.labels, *self.coarser

    def note(self) -> dict[str, Any]:
        """Return the test as a report shows it."""
        return {
            "view": self.view,
            "devices": self.num_devices,
            "p": round(self.p, 4),
            "z": round(self.z, 2),
        }


def run_test(view: str, points: Matrix, num_examples: Matrix, seed: int, draws: Draws) -> Test:
    """Test points (N, d) of devices with `num_examples` (N,) float64 each."""
    size = len(num_examples)
    points = euclidean_coordinates(points)
    noise = np.sqrt(num_examples.mean() / num_examples)
    even = points / noise[:, None]
    deviations = np.linalg.svd(even - even.mean(0), compute_uv=False)[: size - 1] / np.sqrt(
        size - 1
    )
    deviations = deviations[deviations > NOTHING * deviations.max()]
    noise = np.sort(noise)[:, None]
    observed, tree = _log_within(scipy.spatial.distance.pdist(points), size)
    rng = np.random.default_rng(seed)
    pairs = np.triu_indices(size, 1)
    null = np.empty((draws.most, len(observed)))
    for num_draws in range(1, draws.most + 1):
        null[num_draws - 1] = _log_within(
            _lengths(rng.standard_normal((size, len(deviations))) * deviations * noise, pairs), size
        )[0]
        if num_draws == draws.most or (draws.enough is not None and num_draws % BATCH == 0):
            as_grouped, z, gap, sd = _compare(observed, null[:num_draws])
            if num_draws == draws.most or (draws.enough is not None and as_grouped >= draws.enough):
                break
    best = int(gap.argmax())
    fewest = 2 + int(
        np.argmax(gap >= gap[best] - sd[best])
    )  # the fewest groups within one deviation of the largest gap
    labels, *coarser = (
        scipy.cluster.hierarchy.fcluster(tree, k, "maxclust") - 1 for k in range(fewest, 1, -1)
    )
    return Test(view, size, (1 + as_grouped) / (num_draws + 1), z, labels, tuple(coarser))


def _compare(observed: Matrix, null: Matrix) -> tuple[int, float, Matrix, Matrix]:
    """Compare the points with the populations.

    Returns the number of populations that are as grouped as the points, the number of deviations by
    which the points are more grouped than the populations' mean, and the gap and its deviation for
    each k.
    """
    mean, sd = null.mean(0), null.std(0) + 1e-12
    gap = mean - observed
    z = float((gap / sd).max())
    return int((((mean - null) / sd).max(1) >= z).sum()), z, gap, sd


def _log_within(distances: Matrix, size: int) -> tuple[Matrix, Matrix]:
    """Return log(W_k / W_1) for k = 2, 3, ..., and Ward's tree, from the distances of all pairs."""
    tree = scipy.cluster.hierarchy.linkage(distances, "ward")
    within = np.cumsum(tree[:, 2] ** 2 / 2)
    ks = np.arange(2, max(2, min(MOST_GROUPS, size // 2)) + 1)
    return np.log(np.maximum(within[size - 1 - ks], 1e-300) / max(within[-1], 1e-300)), tree


def _lengths(points: Matrix, pairs: tuple[Array, ...]) -> Matrix:
    """Return the distance of each pair of points.

    One matrix product is four times as fast as `pdist` for 256 points.
    """
    gram = points @ points.T
    squares = np.diagonal(gram)
    return np.sqrt(np.maximum((squares[:, None] + squares - 2 * gram)[pairs], 0.0))
