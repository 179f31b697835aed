"""IFCA, the iterative federated clustering algorithm: each device trains the best of k models.

A. Ghosh, J. Chung, D. Yin, K. Ramchandran. An Efficient Framework for Clustered Federated Learning.
NeurIPS 2020, Algorithm 1, option II (model averaging). DistFL calls the same method K-Cluster. The
number of groups has to be known.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Grouped, GroupingMemory, LocalModel, Probe, exchanged
from algorithms.core.keys import NEWCOMER
from algorithms.groupings.base import Defaults
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.messages import MOST_CHOICES


class Ifca(Defaults):
    """k groups ``0`` to ``k - 1``; each device chooses the model with the least training loss."""

    name: ClassVar[str] = "ifca"
    citation: ClassVar[str] = "Ghosh et al., NeurIPS 2020, Algorithm 1"
    in_sums = "cannot"
    mean = "uniform"
    chooses = True
    k: int = option(
        2, "groups, of whose models a device is asked to choose one", low=1, high=MOST_CHOICES
    )

    def begin(self, initial: Tensors, seed: int) -> dict[str, Tensors]:
        """Return k models: ``0`` is the initial model, the others are drawn at random.

        Tensors are drawn from a normal distribution with the mean and standard deviation of the
        initial tensor.
        """
        model = dict(sorted(exchanged(initial).items()))
        models = {"0": {key: value.copy() for key, value in model.items()}}
        for number in range(1, self.k):
            rng = np.random.default_rng([seed, number])
            models[str(number)] = {key: _drawn(key, value, rng) for key, value in model.items()}
        return {
            number: {key: tensors[key] for key in initial if key in tensors}
            for number, tensors in models.items()
        }

    def start(self, memory: GroupingMemory, device_id: str) -> str:
        """Return the model that a device chose last; the device chooses again before it trains."""
        return memory.membership.get(device_id, "0")

    def group(
        self, memory: GroupingMemory, models: Sequence[LocalModel], probe: Probe | None, seed: int
    ) -> Grouped:
        """Return the devices' choices as their groups; an absent device keeps its last choice."""
        chosen = {
            model.device_id: "0" if model.start == NEWCOMER else model.start for model in models
        }
        if unknown := [d for d, key in chosen.items() if key not in map(str, range(self.k))]:
            raise ValueError(
                f"device {unknown[0]} started from model {chosen[unknown[0]]!r}: expected one of "
                f"0 to {self.k - 1}"
            )
        return Grouped(
            replace(memory, membership=memory.membership | chosen), device_ids=tuple(chosen)
        )


def _drawn(key: str, value: Array, rng: np.random.Generator) -> Array:
    if names.role_of(key) == names.STATISTIC or value.dtype.kind != "f":
        return value.copy()
    drawn = value.mean(dtype=np.float64) + value.std(dtype=np.float64) * rng.standard_normal(
        value.shape
    )
    return np.asarray(drawn, value.dtype)
