"""How many devices a round asks, and with how many updates it is over; for the service's rounds and the simulation's virtual clock. Pure.

*sync*: as many as the cohort has, and the update of each is waited for. *over-select*: more are asked than the cohort has, and the round is
over with the first updates that fill it (K. Bonawitz et al., Towards federated learning at scale, MLSys 2019, section 9). *buffered* has no
rounds (J. Nguyen et al., Federated learning with buffered asynchronous aggregation, AISTATS 2022): simulations alone have it so far;
`staleness_weights` says how much less an old update counts.
"""

import hashlib
import heapq
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from wire.tensors import Array


class Cohort(NamedTuple):
    """A policy of rounds."""

    size: int = 0
    """Updates that a round waits for; 0: one of every device that is there."""
    over: float = 0.0
    """So many more devices are asked, as a share of the cohort."""

    def asked(self, available: int) -> int:
        """How many of the devices that are there are asked."""
        return min(math.ceil(round(self.size * (1 + self.over), 9)), available) if self.size else available

    def goal(self, asked: int) -> int:
        """With how many updates a round is over that has asked so many."""
        return min(self.size, asked) if self.size else asked


def drawn(device_ids: Iterable[str], count: int, seed: int) -> list[str]:
    """So many of these devices, in the order of their ids; another seed draws others, and each is as likely as any other."""
    return sorted(heapq.nsmallest(count, device_ids, key=lambda device_id: hashlib.sha256(f"{seed} {device_id}".encode()).digest()))


def staleness_weights(staleness: Array) -> Array:
    """1 / sqrt(1 + staleness), float64 (Nguyen et al., section 5): what an update counts that started so many aggregations ago."""
    weights: Array = 1 / np.sqrt(1.0 + staleness)
    return weights
