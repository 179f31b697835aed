"""Who takes part in a round, and when: drawn by the seed, or by a policy over device profiles on a
virtual clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from aggregator.core.summary import TimeSummary
from simulation.timing.policies import Policy
from simulation.timing.report import describe


@dataclass(frozen=True)
class Invitation:
    """The devices whose updates make a round, in order."""

    device_ids: list[str]
    opened_at_s: float = 0.0
    closed_at_s: float = 0.0
    versions: Mapping[str, int] = field(default_factory=dict)
    """By device, how many rounds had been made when it got its model, where that is not all so
    far."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """By device, what its change counts beside its number of examples, where that is not 1."""


@dataclass(frozen=True)
class Drawn:
    """`cohort` devices drawn anew for each round, or all; no time passes."""

    device_ids: list[str]
    cohort: int
    seed: int
    oldest: ClassVar[None] = None

    def invite(self, number: int) -> Invitation:
        """Return the round of this number."""
        return Invitation(draw(self.device_ids, self.cohort, [self.seed, number]))


class Timed:
    """The batches of a policy. A device is known to it by its place in `device_ids`."""

    def __init__(self, device_ids: Sequence[str], policy: Policy) -> None:
        self._device_ids, self._policy = list(device_ids), policy
        self._made = 0
        self._closed_at_s = 0.0

    @property
    def oldest(self) -> int:
        """The oldest version of the models that a later round may start from."""
        return self._policy.oldest_version_needed

    def invite(self, number: int) -> Invitation:
        """Return the round of this number. Rounds are asked for in order; the first one may be
        later than 1."""
        opened_at_s = self._closed_at_s
        while self._made < number:
            opened_at_s = self._closed_at_s
            batch = self._policy.next_batch()
            self._made, self._closed_at_s = self._made + 1, batch.at_s
        ids = [self._device_ids[i] for i in batch.devices]
        stale = batch.versions < batch.version
        versions = {ids[i]: int(batch.versions[i]) for i in np.flatnonzero(stale)}
        weights = {ids[i]: float(batch.weights[i]) for i in np.flatnonzero(stale)}
        return Invitation(ids, opened_at_s, batch.at_s, versions, weights)

    def report(self, accuracies: Sequence[tuple[float, float | None]]) -> TimeSummary:
        """Return what the run cost in virtual time; `accuracies` are (second, mean accuracy)."""
        known = [accuracy for _, accuracy in accuracies if accuracy is not None]
        targets = [round(share * max(known), 4) for share in (0.8, 0.95)] if known else []
        return describe(self._policy.tally, self._closed_at_s, accuracies, targets)


Schedule = Drawn | Timed
"""Who takes part when. `oldest` is None where rounds start from the newest models alone."""


def draw(device_ids: list[str], count: int, seed: Sequence[int]) -> list[str]:
    """`count` devices, in their order; all where count is 0 or not less than their number."""
    if not count or count >= len(device_ids):
        return device_ids
    rng = np.random.default_rng([*seed, 0xC0])
    return [
        device_ids[i]
        for i in sorted(rng.choice(len(device_ids), count, replace=False, shuffle=False))
    ]
