"""Heterogeneity of the devices of a fleet, as three numbers.

Gamma: CGAU, section 3.4, equations 2 and 3. Label skew is the mean total variation distance.
"""

from collections.abc import Sequence

import numpy as np

from edge_client.data.labels import strata
from simulation.datasets.windows import FleetData
from simulation.partitions.embedding import FIT_EXAMPLES, Embedding, fit_components
from wire.arrays.tensors import Array

DIMENSIONS = 16
BUCKETS = 256
"""Maximum number of buckets in which ids are counted."""
RIDGE = 1e-6
"""Addition to the diagonal of a covariance, as a share of its mean.

It prevents a singular covariance from few examples.
"""


def measure(fleet: FleetData, embed: Embedding | None = None) -> dict[str, float]:
    """Return the heterogeneity of the devices' training examples.

    ``gamma``: `gamma` of the examples under `embed`. The default is the first `DIMENSIONS`
    principal components of all devices' examples, standardised per channel; ids are embedded by
    `quantities` first. ``label_skew``: `label_skew`, 0 if labels are not classes.
    ``example_imbalance``: standard deviation of the number of examples, as a share of its mean,
    over devices that have some.
    """
    windows = [w for _, w in sorted(fleet.devices.items()) if w.num_train]
    if not windows:
        return {"gamma": 0.0, "label_skew": 0.0, "example_imbalance": 0.0}
    # some examples of each device are enough for the components
    every = max(1, sum(w.num_train for w in windows) // FIT_EXAMPLES)
    vocabulary = fleet.window.vocabulary
    project = embed or fit_components(
        quantities(np.concatenate([w.train_x[::every] for w in windows]), vocabulary), DIMENSIONS
    )
    sizes = np.array([w.num_train for w in windows])
    return {
        "gamma": gamma([project(quantities(w.train_x, vocabulary)) for w in windows]),
        "label_skew": label_skew([strata(w.train_y) for w in windows], len(fleet.classes)),
        "example_imbalance": float(sizes.std() / sizes.mean()),
    }


def quantities(x: Array, vocabulary: int) -> Array:
    """Return examples (n, \\*shape) as they are, or ids as shares (n, 1, buckets) float32.

    A share is the part of an example that has the id. With more than `BUCKETS` ids, those with the
    same remainder share a bucket (K. Weinberger et al., Feature Hashing, ICML 2009).
    """
    if not vocabulary:
        return x
    buckets, ids = min(vocabulary, BUCKETS), x.reshape(len(x), -1)
    shares = np.zeros((len(x), 1, buckets), np.float32)
    for place in range(ids.shape[1]):
        shares[np.arange(len(x)), 0, ids[:, place] % buckets] += 1 / ids.shape[1]
    return shares


def gamma(embedded: Sequence[Array]) -> float:
    """Return the mean squared Frechet distance between each client and all others (Eq. 3).

    The distance is that of a client's Gaussian from the Gaussian of all other clients together.
    `embedded` has one array (n, dimensions) per client; the result is in the square of its unit. A
    client without examples does not count. A single client has distance 0.

    Equal clients do not have distance 0: few examples in many dimensions give poor estimates of
    means and covariances. Compare the result with that of a fleet of the same sizes assigned at
    random.
    """
    parts = [np.asarray(z, np.float64) for z in embedded if len(z)]
    if len(parts) < 2:
        return 0.0
    counts = np.array([len(z) for z in parts])
    # sums of squares about a common centre lose no digits
    centre = sum(z.sum(0) for z in parts) / counts.sum()
    sums = np.stack([(z - centre).sum(0) for z in parts])
    squares = np.stack([(z - centre).T @ (z - centre) for z in parts])
    others = _moments(counts.sum() - counts, sums.sum(0) - sums, squares.sum(0) - squares)
    return float(np.mean(squared_frechet(*_moments(counts, sums, squares), *others)))


def squared_frechet(
    mean_1: Array, covariance_1: Array, mean_2: Array, covariance_2: Array
) -> Array:
    """Return the squared Frechet (2-Wasserstein) distance of Gaussians (Eq. 2).

    Means are (..., d) and covariances (..., d, d), both float64. The trace of the root of a product
    is computed as that of the symmetric root(S1) S2 root(S1), which has the same eigenvalues.
    """
    first, second = _ridged(covariance_1), _ridged(covariance_2)
    values, vectors = np.linalg.eigh(first)
    root = (vectors * np.sqrt(np.maximum(values, 0))[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ second @ root), 0)).sum(-1)
    trace = np.trace(first, axis1=-2, axis2=-1) + np.trace(second, axis1=-2, axis2=-1)
    distance: Array = np.maximum(np.square(mean_1 - mean_2).sum(-1) + trace - 2 * cross, 0.0)
    return distance


def label_skew(labels: Sequence[Array], num_classes: int) -> float:
    """Return the mean total variation distance between the classes of a device and of the fleet.

    The distance is the share of the device's examples that would have to change their class. It is
    0 if all devices are alike, and always less than 1.
    """
    counts = np.stack([np.bincount(y, minlength=num_classes) for y in labels if len(y)]).astype(
        np.float64
    )
    fleet = counts.sum(0) / counts.sum()
    return float(np.abs(counts / counts.sum(1, keepdims=True) - fleet).sum(1).mean() / 2)


def _moments(counts: Array, sums: Array, squares: Array) -> tuple[Array, Array]:
    """Return means and covariances from counts, sums and sums of squares.

    They are (clients, d) and (clients, d, d). A single example has covariance 0.
    """
    means = sums / counts[:, None]
    scatter = squares - counts[:, None, None] * means[:, :, None] * means[:, None, :]
    return means, scatter / np.maximum(counts - 1, 1)[:, None, None]


def _ridged(covariance: Array) -> Array:
    size = covariance.shape[-1]
    ridge = RIDGE * np.trace(covariance, axis1=-2, axis2=-1) / size
    ridged: Array = covariance + ridge[..., None, None] * np.eye(size)
    return ridged
