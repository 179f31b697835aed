"""The cohorts of rounds and their times, by the seed or by a campaign on the virtual clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from aggregator.core.pool import DevicePool, draw
from aggregator.fleet.plan import round_seed
from aggregator.view.summary import TimeSummary
from simulation.timing.campaign import TimedCampaign
from simulation.timing.report import describe


@dataclass(frozen=True)
class Invitation:
    """The devices whose updates make a round, in order."""

    device_ids: list[str]
    opened_at_s: float = 0.0
    closed_at_s: float = 0.0
    versions: Mapping[str, int] = field(default_factory=dict)
    """Number of rounds behind a device's model, by device, if it is not the latest model."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of a device's change in addition to its examples, by device, if it is not 1."""


@dataclass(frozen=True)
class Drawn:
    """A cohort drawn for each round, or all devices; no time passes.

    A service draws the same devices with the same seed, while all of them are free
    (`aggregator.fleet.rounds`).
    """

    device_ids: list[str]
    cohort: int
    seed: int
    oldest: ClassVar[None] = None

    def invite(self, number: int) -> Invitation:
        """Return the cohort of the round of this number."""
        return Invitation(drawn(self._pool, self.cohort, round_seed(self.seed, number)))

    @cached_property
    def _pool(self) -> DevicePool:
        return DevicePool(self.device_ids)


class Timed:
    """The batches of a campaign on the virtual clock."""

    def __init__(self, device_ids: Sequence[str], campaign: TimedCampaign) -> None:
        self._device_ids, self._campaign = list(device_ids), campaign

    @property
    def oldest(self) -> int:
        """The oldest version of the models from which a later round may start."""
        return self._campaign.oldest_version_needed

    def invite(self, number: int) -> Invitation:
        """Return the cohort of the round of this number.

        Calls are in the order of rounds; the first one may be later than 1.
        """
        campaign = self._campaign
        while campaign.tally.aggregations < number:
            opened_at_s = campaign.now_s
            batch = campaign.next_batch()
        ids = [self._device_ids[i] for i in batch.devices]
        stale = batch.versions < batch.version
        versions = {ids[i]: int(batch.versions[i]) for i in np.flatnonzero(stale)}
        weights = {ids[i]: float(batch.weights[i]) for i in np.flatnonzero(stale)}
        return Invitation(ids, opened_at_s, batch.at_s, versions, weights)

    def report(self, accuracies: Sequence[tuple[float, float | None]]) -> TimeSummary:
        """Return the cost of the run in virtual time; `accuracies` are (second, mean accuracy)."""
        values = [accuracy for _, accuracy in accuracies if accuracy is not None]
        targets = [round(share * max(values), 4) for share in (0.8, 0.95)] if values else []
        return describe(self._campaign.tally, self._campaign.now_s, accuracies, targets)


Schedule = Drawn | Timed
"""Source of cohorts; `oldest` is None if rounds start from the newest models alone."""


def drawn(pool: DevicePool, count: int, seed: int) -> list[str]:
    """Return `count` devices of a pool, sorted, drawn one after the other with a round's seed.

    All are returned if `count` is 0 or not less than their number.
    """
    if not count or count >= len(pool):
        return sorted(pool)
    chosen = list[str]()
    for place in range(count):
        chosen.append(pool[draw(f"{seed} {place}", len(pool))])
        pool = pool.without(chosen[-1])
    return sorted(chosen)
