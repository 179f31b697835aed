"""Pulls of a round: how far the update of each device stands out from the others of its group.

An update is compared with the median of its group's updates, which a minority of the devices cannot
move far. Statistics are not compared: those of an honest device with another sensor differ by as
much. A part of each update's values suffices. They are taken while the update is read, so that
no update is read twice. A secret draws them, so that no device knows which values are compared.
"""

import hashlib
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from aggregator.fleet.records import AdmittedUpdate
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors

WIDTH = 1024
"""Maximum number of values of an update that are compared."""
VALUES = 2**18
"""Maximum number of values that are compared in a round, over all of its updates."""
NARROWEST = 64
"""Number of values below which a comparison says nothing.

Larger rounds than `VALUES` / `NARROWEST` updates are not compared.
"""
SMALLEST_PART = 0.01
"""Part of the values below which those of a tensor are left out."""
LEAST = 4
"""Minimum number of updates of a group: of three, no two form a clear majority."""
SMALLEST_SPREAD = 0.1
"""Minimum distance of usual updates from the median, in multiples of their norm.

Devices whose updates are nearly equal do not make a small difference a large one.
"""


class Pull(msgspec.Struct, frozen=True):
    """Update of a device, compared with the other updates of its group."""

    size: float
    """Norm of its change, in multiples of the group's median norm."""
    direction: float
    """Cosine of its change and the group's median change; -1: it moves the model back."""
    distance: float
    """Distance of its change from the group's median change, in multiples of the usual distance."""
    share: float | None
    """Share of the group's mean change that comes from this device; shares add up to 1.

    Above 1, the others pull the model back. None if the mean gives devices no shares.
    """

    @property
    def evidence(self) -> float:
        """Extent to which the update stands out, between 0 and 1.

        It begins at twice the usual distance and is full at four times. A change in the opposite
        direction is as bad at any size.
        """
        far = np.log2(max(self.distance, 1.0)) - 1
        return round(float(min(1.0, max(0.0, far, -2 * self.direction))), 2)


class PullSample:
    """A part of the values of a round's updates, taken while they are read."""

    def __init__(self, num_updates: int, secret: bytes, number: int) -> None:
        """Prepare the sample of the round of this number."""
        self._width = min(WIDTH, VALUES // max(1, num_updates))
        seed = hashlib.sha256(secret + f"/pulls/{number}".encode()).digest()
        self._draw = np.random.default_rng(int.from_bytes(seed))
        self._places: dict[str, Array] = {}
        self._rows: dict[str, Array] = {}

    def read(self, device_id: str, read: Callable[[], Tensors]) -> Tensors:
        """Return the tensors of an update, and take its values."""
        tensors = read()
        if self._width >= NARROWEST:
            self._places = self._places or self._drawn(tensors)
            self._rows[device_id] = np.concatenate(
                [tensors[key].reshape(-1)[places] for key, places in self._places.items()]
                or [np.zeros(0, np.float32)]
            )
        return tensors

    def pulls(
        self,
        updates: Mapping[str, AdmittedUpdate],
        groups: Mapping[str, str],
        weights: Mapping[str, float],
    ) -> dict[str, Pull]:
        """Return the pull of each device whose group is large enough.

        A group is compared as far as its devices started from the same model. `groups`: key of each
        device's group. `weights`: weight of each device in its group's mean; empty if there are
        none.
        """
        parts: dict[tuple[str, str], list[str]] = {}
        for device_id, update in updates.items():
            if device_id in self._rows:
                parts.setdefault((update.start, groups[device_id]), []).append(device_id)
        pulls: dict[str, Pull] = {}
        for members in parts.values():
            if len(members) >= LEAST:
                pulls |= self._compared(members, weights)
        return pulls

    def _drawn(self, tensors: Tensors) -> dict[str, Array]:
        """Return the places of the values in each changed tensor that has a part worth its time."""
        deltas = {k: array for k, array in tensors.items() if names.role_of(k) == names.DELTA}
        sizes = np.array([array.size for array in deltas.values()], dtype=np.int64)
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        drawn = (
            np.arange(total)
            if total <= self._width
            else np.unique(self._draw.integers(0, total, self._width))
        )
        parts = np.split(drawn, np.searchsorted(drawn, ends)[:-1]) if total else []
        return {
            key: places - begin
            for key, places, begin in zip(deltas, parts, ends - sizes, strict=True)
            if places.size > SMALLEST_PART * drawn.size
        }

    def _compared(self, members: list[str], weights: Mapping[str, float]) -> dict[str, Pull]:
        """Return the pulls of a group's devices."""
        rows = np.stack([self._rows[d] for d in members])
        centre = np.median(rows, axis=0)
        norms = np.linalg.norm(rows, axis=1)
        usual = float(np.median(norms))
        if not usual:  # most devices had nothing to learn
            return {}
        distances = np.linalg.norm(rows - centre, axis=1)
        spread = max(float(np.median(distances)), SMALLEST_SPREAD * usual)
        lengths = norms * np.linalg.norm(centre)
        directions = np.divide(rows @ centre, lengths, out=np.zeros(len(rows)), where=lengths > 0)
        shares: list[float | None] = [None] * len(members)
        if weights:
            moved = rows * np.array([weights[d] for d in members])[:, None]
            along = moved @ moved.sum(axis=0)
            shares = [round(float(s), 3) for s in along / (along.sum() or 1.0)]
        return {
            device_id: Pull(
                round(float(norm / usual), 3),
                round(float(direction), 3),
                round(float(distance / spread), 3),
                share,
            )
            for device_id, norm, direction, distance, share in zip(
                members, norms, directions, distances, shares, strict=True
            )
        }
