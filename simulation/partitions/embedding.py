"""Clients that express a class differently: one cluster of each class in an embedding per client.

CGAU, section 3.3. The paper embeds with a pre-trained network. Without one, this module uses the
principal components of the standardised examples.
"""

from collections.abc import Callable

import numpy as np
import torch

from simulation.datasets.pool import Pool
from simulation.partitions.assignment import Allocation
from wire.arrays.tensors import Array

Embedding = Callable[[Array], Array]
"""x (n, \\*window.shape) -> embedded examples (n, dimensions)."""

FIT_EXAMPLES, ITERATIONS = 5000, 100
OVERSAMPLED = 10
"""Number of directions that are sampled beyond those that are used.

N. Halko, P. G. Martinsson, J. A. Tropp. Finding Structure with Randomness. SIAM Review 53(2), 2011,
section 4.2.
"""


def fit_components(x: Array, dimensions: int, seed: int = 0) -> Embedding:
    """Return the projection on the first principal components of examples x (n, \\*shape).

    The examples are standardised per channel. At most `FIT_EXAMPLES` of them are used. The
    projection has fewer than `dimensions` components if x has fewer examples or values.
    """
    some = x[:: max(1, -(-len(x) // FIT_EXAMPLES))].astype(np.float64)
    axes = (0, *range(2, some.ndim))
    mean, spread = some.mean(axes, keepdims=True), some.std(axes, keepdims=True)
    spread[spread == 0] = 1.0
    flat = ((some - mean) / spread).reshape(len(some), -1)
    components = _principal(flat - flat.mean(0), min(dimensions, *flat.shape), seed)
    weights = (components.reshape(-1, *some.shape[1:]) / spread).reshape(len(components), -1)
    centre = np.broadcast_to(mean, (1, *some.shape[1:])).reshape(-1)
    shift = weights @ centre + components @ flat.mean(0)
    kernel, offset = weights.T.astype(np.float32), shift.astype(np.float32)

    def embed(examples: Array) -> Array:
        embedded: Array = examples.reshape(len(examples), -1) @ kernel - offset
        return embedded

    return embed


def _principal(centred: Array, count: int, seed: int) -> Array:
    """Return the first right singular vectors (count, values) of centred examples (n, values).

    The sign of each makes its largest entry positive. The method is torch's, since scikit-learn's
    class of the same method adds a second to every start.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wanted = min(count + OVERSAMPLED, *centred.shape)
        _, _, right = torch.svd_lowrank(torch.from_numpy(centred), wanted, niter=4)
    components: Array = right.T[:count].numpy()
    largest = components[np.arange(count), np.abs(components).argmax(1)]
    upright: Array = components * np.sign(largest)[:, None]
    return upright


def embedding(
    pool: Pool,
    rng: np.random.Generator,
    *,
    devices: int,
    shuffle: float,
    embed: Embedding | None = None,
    dimensions: int = 2,
) -> Allocation:
    """Assign to each device one cluster of every class in an embedding.

    The embedding is projected on its first `dimensions` principal components. Every class is cut
    into as many clusters as there are devices, and the clusters are assigned at random, one to each
    device. Then the proportion `shuffle` of all examples moves to random devices.

    A test example belongs to the device with the nearest cluster centre of its class. A class with
    fewer examples than devices has fewer clusters.
    """
    embedded = (
        [pool.train_x, pool.test_x] if embed is None else [embed(pool.train_x), embed(pool.test_x)]
    )
    project = fit_components(embedded[0], dimensions)
    train, test = (
        project(embedded[0]),
        project(embedded[1]) if len(embedded[1]) else np.zeros((0, dimensions), np.float32),
    )
    owner_train, owner_test = np.zeros(len(train), np.int64), np.zeros(len(test), np.int64)
    for label in range(len(pool.classes)):
        train_mask, test_mask = pool.train_y == label, pool.test_y == label
        devices_of = rng.permutation(devices)
        if not train_mask.any():
            owner_test[test_mask] = rng.integers(0, devices, int(test_mask.sum()))
            continue
        centres = cluster_centres(train[train_mask], devices, rng)
        owner_train[train_mask] = devices_of[nearest(train[train_mask], centres)]
        owner_test[test_mask] = devices_of[nearest(test[test_mask], centres)]
    for owner in (owner_train, owner_test):
        moved = rng.permutation(len(owner))[: round(shuffle * len(owner))]
        owner[moved] = rng.integers(0, devices, len(moved))
    train_of, test_of = (
        [np.flatnonzero(owner == device) for device in range(devices)]
        for owner in (owner_train, owner_test)
    )
    return Allocation(train_of, test_of)


def cluster_centres(points: Array, count: int, rng: np.random.Generator) -> Array:
    """Return the K-means centres of points (n, dimensions), started by k-means++.

    They are (K, dimensions) float64. K is the smaller of `count` and n.
    """
    points = points.astype(np.float64)
    centres: Array = points[rng.integers(len(points))][None]
    while len(centres) < min(count, len(points)):
        gaps = _squares(points, centres).min(1)
        weights = gaps / gaps.sum() if gaps.sum() > 0 else np.full(len(points), 1 / len(points))
        centres = np.concatenate([centres, points[rng.choice(len(points), p=weights)][None]])
    for _ in range(ITERATIONS):
        at = nearest(points, centres)
        sizes = np.bincount(at, minlength=len(centres))[:, None]
        sums = np.stack([np.bincount(at, column, len(centres)) for column in points.T], axis=1)
        moved = np.where(sizes > 0, sums / np.maximum(sizes, 1), centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def nearest(points: Array, centres: Array) -> Array:
    """Return the number (n,) of the centre nearest to each point."""
    at: Array = _squares(points.astype(np.float64), centres).argmin(1)
    return at


def _squares(points: Array, centres: Array) -> Array:
    squares: Array = np.square(points[:, None] - centres[None]).sum(2)
    return squares
