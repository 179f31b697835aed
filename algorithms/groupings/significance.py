"""How many groups do N devices form, and who is in each? Decided by a significance test, without a preset number or threshold.

Devices are points, one set of coordinates per view (what their inputs look like, what their labels look like, how their models
respond). For a view, Ward's tree is cut into k = 2, 3, ... groups, and the part of the spread that stays inside groups, W_k / W_1,
is compared with what ONE Gaussian population of the same covariance would show, in which a device with fewer examples is noisier
(a parametric bootstrap, after the gap statistic and SigClust). If the fleet is more grouped than all but a share ALPHA of such
populations, it is split, and each part is tested again.

R. Tibshirani, G. Walther, T. Hastie. Estimating the number of clusters in a data set via the gap statistic. JRSS B 63, 2001.
Y. Liu, D. N. Hayes, A. Nobel, J. S. Marron. Statistical significance of clustering for high-dimension, low-sample size data. JASA 2008.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from algorithms.contract import Matrix
from wire.tensors import Array

ALPHA = 0.05
"""Chance to split a fleet that has no groups, over all views (Bonferroni): the textbook level."""
DRAWS = 999
"""Bootstrap populations; p is resolved to 1 / (DRAWS + 1), well below ALPHA over any number of views."""
MOST_GROUPS = 8
"""Groups in one split; more are found because each part is tested again."""
FEWEST_DEVICES = 8
"""Smaller sets are not tested: both halves would rest on fewer than four devices."""
FEWEST_MEMBERS = 2
"""One device alone is an outlier, not a distribution: it joins the nearest group."""
SAMPLE = 256
"""Of a larger fleet this many devices are tested; the others join the nearest group."""


@dataclass(frozen=True)
class Test:
    """One test of one view: was it significant, and who would belong together."""

    view: str
    num_devices: int
    p: float
    z: float
    labels: Array

    def note(self) -> dict[str, Any]:
        """What a report shows of it."""
        return {"view": self.view, "devices": self.num_devices, "p": round(self.p, 4), "z": round(self.z, 2)}


def euclidean_coordinates(rows: Array) -> Matrix:
    """Points (N, <= N) with the same distances between them as the rows (N, D) have: the test costs nothing for large D."""
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    return _from_gram(centred @ centred.T)


def coordinates_of_distances(squared: Matrix) -> Matrix:
    """Points (N, <= N) whose squared distances are as close as can be to a symmetric matrix (N, N): classical scaling."""
    centring = np.eye(len(squared)) - 1.0 / len(squared)
    return _from_gram(-0.5 * centring @ squared @ centring)


def _from_gram(gram: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(gram)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def find_groups(views: Mapping[str, Matrix], num_examples: Array, seed: int = 0) -> tuple[Array, list[Test]]:
    """Group labels 0..G-1 of N devices, and the tests that led there.

    `views` maps a name to coordinates (N, d) float64; `num_examples` (N,). Devices are to be given in the order of their ids: then
    the result does not depend on the order in which they arrived.
    """
    n = np.asarray(num_examples, np.float64)
    if len(n) > SAMPLE:
        return _sampled(views, n, seed)
    if len(n) < FEWEST_DEVICES:
        return np.zeros(len(n), np.int64), []
    tests = [_test(name, points, n, seed) for name, points in sorted(views.items())]
    best = min(tests, key=lambda test: (test.p, -test.z))
    labels = _absorb(views[best.view], best.labels)
    if best.p > ALPHA / len(views) or labels.max() == 0:
        return np.zeros(len(n), np.int64), tests
    result, count = np.zeros(len(n), np.int64), 0
    for label in range(labels.max() + 1):
        members = np.flatnonzero(labels == label)
        inner, inner_tests = find_groups({k: v[members] for k, v in views.items()}, n[members], seed)
        result[members] = count + inner
        count += int(inner.max()) + 1
        tests += inner_tests
    return result, tests


def _test(view: str, points: Matrix, n: Matrix, seed: int) -> Test:
    size = len(n)
    points = euclidean_coordinates(points)
    noise = np.sqrt(n.mean() / n)
    even = points / noise[:, None]
    deviations = np.linalg.svd(even - even.mean(0), compute_uv=False)[: size - 1] / np.sqrt(size - 1)
    noise = np.sort(noise)[:, None]
    observed, tree = _log_within(points)
    rng = np.random.default_rng(seed)
    null = np.array([_log_within(rng.standard_normal((size, size - 1)) * deviations * noise)[0] for _ in range(DRAWS)])
    mean, sd = null.mean(0), null.std(0) + 1e-12
    gap = mean - observed
    z = float((gap / sd).max())
    p = (1 + int((((mean - null) / sd).max(1) >= z).sum())) / (DRAWS + 1)
    best = int(gap.argmax())
    fewest = 2 + int(np.argmax(gap >= gap[best] - sd[best]))  # the fewest groups within one deviation of the largest gap
    return Test(view, size, p, z, fcluster(tree, fewest, "maxclust") - 1)


def _log_within(points: Matrix) -> tuple[Matrix, Matrix]:
    """log(W_k / W_1) for k = 2, 3, ..., and Ward's tree."""
    tree = linkage(points, "ward")
    within = np.cumsum(tree[:, 2] ** 2 / 2)
    ks = np.arange(2, max(2, min(MOST_GROUPS, len(points) // 2)) + 1)
    return np.log(np.maximum(within[len(points) - 1 - ks], 1e-300) / max(within[-1], 1e-300)), tree


def _absorb(points: Matrix, labels: Array) -> Array:
    """Give the members of too small groups to the nearest remaining centre, and number the groups anew."""
    kept = [g for g in np.unique(labels) if (labels == g).sum() >= FEWEST_MEMBERS]
    if len(kept) < 2:
        return np.zeros_like(labels)
    centres = np.stack([points[labels == g].mean(0) for g in kept])
    nearest = ((points[:, None] - centres) ** 2).sum(2).argmin(1)
    return np.array([kept.index(g) if g in kept else nearest[i] for i, g in enumerate(labels)], np.int64)


def _sampled(views: Mapping[str, Matrix], n: Matrix, seed: int) -> tuple[Array, list[Test]]:
    chosen = np.sort(np.random.default_rng(seed).choice(len(n), SAMPLE, replace=False))
    labels, tests = find_groups({k: v[chosen] for k, v in views.items()}, n[chosen], seed)
    distances = np.zeros((len(n), int(labels.max()) + 1))
    for points in views.values():
        centres = np.stack([points[chosen][labels == g].mean(0) for g in range(labels.max() + 1)])
        distances += ((points[:, None] - centres) ** 2).sum(2) / max(points[chosen].var(0).sum(), 1e-300)
    return distances.argmin(1), tests
