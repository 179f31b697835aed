"""Which devices are grouped together: who moved after each round, and how far devices are apart."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

from aggregator.core.registry import GroupChange, Registry
from aggregator.http.pages.distances import DistanceView, compare, read_views


class Move(NamedTuple):
    """A device that was put into another group."""

    device_id: str
    before: str
    """Empty: it was in no group that is remembered."""
    change: GroupChange


def moves(registry: Registry, campaign: str) -> list[Move]:
    """Return the changes of group that the registry remembers of this campaign, but for the first
    of each device; the latest first."""
    moved = []
    for device_id, entry in registry.devices.items():
        changes = [change for change in entry.groups if change.campaign == campaign]
        moved += [Move(device_id, before.group, change) for before, change in pairwise(changes)]
    return sorted(moved, key=lambda move: (-move.change.at_s, move.device_id))


class Distances:
    """Remembers the last comparison of each campaign's devices: a page that is looked at every
    second computes it once a round."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[str, Mapping[str, str], dict[str, DistanceView]]] = {}

    def views(
        self, run_id: str, digest: str, starts: Mapping[str, str], read: Callable[[], bytes]
    ) -> dict[str, DistanceView]:
        """Return the comparisons in the blob `digest`, by name. `read` reads the blob; `starts`
        has the key of each device's model.

        Raises:
            ShoalError: the blob cannot be read.
        """
        digest_before, starts_before, views = self._latest.get(run_id, ("", {}, {}))
        if digest_before != digest or starts_before is not starts:
            matrices, ids = read_views(read())
            compared = {name: compare(matrix, ids, starts) for name, matrix in matrices.items()}
            views = {name: each for name, each in compared.items() if each.ids}
            self._latest[run_id] = digest, starts, views
        return views
