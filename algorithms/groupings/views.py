"""Views of N devices: rows compared by distance, or responses compared by divergence.

A view returns points for a few devices at a time, and distances of any number of devices to a few
centres. Nothing here is N x N for the N of a whole fleet.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy

from algorithms.core.contract import Matrix
from algorithms.groupings.responses import divergence, divergence_to
from wire.arrays.tensors import Array

CHUNK = 4096
"""Number of devices whose distances are computed at once.

Memory besides the rows themselves does not grow with the fleet.
"""


@dataclass(frozen=True)
class Points:
    """Rows (N, D) of N devices, compared by Euclidean distance.

    `members` are positions of devices, (m,) int.
    """

    rows: Array
    telling: Array | None = None
    """True (N,) for each device that reports something in this view; None if all do."""

    def tells(self, members: Array) -> Array:
        """Return True (m,) for each member that reports something in this view."""
        return np.ones(len(members), bool) if self.telling is None else self.telling[members]

    def of(self, members: Array) -> "Points":
        """Return the view of the members alone."""
        return Points(self.rows[members], self.tells(members))

    def points(self, members: Array) -> Matrix:
        """Return points (m, d) that are as far apart as the members are.

        Time and memory may be quadratic in m: call it for a few hundred members at most.
        """
        return np.asarray(self.rows[members])

    def centre(self, members: Array) -> Array:
        """Return the mean of the members, as a row of this view."""
        total = np.zeros(self.rows.shape[1])
        for part in _chunks(members):
            total += self.rows[part].sum(0, dtype=np.float64)
        return np.asarray(total / len(members), self.rows.dtype)

    def squared_distances(self, members: Array, centres: Array) -> Matrix:
        """Return the squared distance of each member to each of k centres, (m, k)."""
        origin = centres.mean(0)
        moved = centres - origin
        result = np.empty((len(members), len(centres)))
        for at, part in zip(range(0, len(members), CHUNK), _chunks(members), strict=True):
            rows = self.rows[part] - origin
            result[at : at + len(part)] = (
                (rows * rows).sum(1)[:, None] - 2 * rows @ moved.T + (moved * moved).sum(1)
            )
        return np.maximum(result, 0.0)

    def distances(self, members: Array) -> Matrix:
        """Return the distances between members, (m, m), for display."""
        return np.asarray(
            scipy.spatial.distance.squareform(
                scipy.spatial.distance.pdist(self.rows[members].astype(np.float64))
            )
        )


@dataclass(frozen=True)
class Responses:
    """Class probabilities (N, z, classes), compared by the Kullback-Leibler divergence.

    The sum of both directions stands in for a squared distance.
    """

    responses: Array

    def tells(self, members: Array) -> Array:
        return np.ones(len(members), bool)

    def of(self, members: Array) -> "Responses":
        return Responses(self.responses[members])

    def points(self, members: Array) -> Matrix:
        kl = self.distances(members)
        return coordinates_of_distances(kl + kl.T)

    def centre(self, members: Array) -> Array:
        return np.asarray(self.responses[members].mean(0))

    def squared_distances(self, members: Array, centres: Array) -> Matrix:
        return np.concatenate(
            [divergence_to(self.responses[part], centres) for part in _chunks(members)]
        )

    def distances(self, members: Array) -> Matrix:
        return divergence(self.responses[members])


View = Points | Responses


def euclidean_coordinates(rows: Array) -> Matrix:
    """Return points (N, <= N) with the same distances between them as between rows (N, D).

    The significance test on them costs no more for a large D.
    """
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    return _from_gram(centred @ centred.T)


def coordinates_of_distances(squared: Matrix) -> Matrix:
    """Return points (N, <= N) whose squared distances best fit a symmetric matrix (N, N).

    This is classical scaling.
    """
    centring = np.eye(len(squared)) - 1.0 / len(squared)
    return _from_gram(-0.5 * centring @ squared @ centring)


def _from_gram(gram: Matrix) -> Matrix:
    values, vectors = np.linalg.eigh(gram)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def _chunks(members: Array) -> Iterator[Array]:
    return (members[at : at + CHUNK] for at in range(0, len(members), CHUNK))
