"""DP-SGD: differential privacy of single examples, by clipped per-example gradients and noise.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang. Deep Learning with
Differential Privacy. CCS 2016, Algorithm 1. I. Mironov, K. Talwar, L. Zhang. Rényi Differential
Privacy of the Sampled Gaussian Mechanism. arXiv 1908.10530, 2019.

Every step clips the gradient of each example and adds Gaussian noise to their sum. The accounting
assumes Poisson sampling: each example is in each batch independently with probability
batch_size / num_examples. Devices shuffle their examples and cut them into batches, as most
implementations do. For that the reported epsilon is customary but not proven, and can be too low
(L. Chua et al. How Private are DP-SGD Implementations? ICML 2024). Epsilon covers the trained
tensors, not the losses and counts that a device reports.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from algorithms.core.contract import Work
from algorithms.privacy.gaussian import Mechanism
from algorithms.spec import option
from wire.errors import ConfigError


class DpSgd(Mechanism):
    """A private training step (`algorithms.privacy.per_example`); no noise is added afterwards.

    Guarantee: against everyone who sees a device's update, for the presence or absence of one of
    its examples.
    """

    name: ClassVar[str] = "dp-sgd"
    citation: ClassVar[str] = "Abadi et al., CCS 2016, Algorithm 1"
    in_sums = "cannot"
    min_examples: int = option(
        0, "fewest training windows of a device that takes part; 0: the bundle's", low=0
    )

    def in_step(self) -> dict[str, float]:
        return {"clip_norm": self.clip_norm, "noise_multiplier": self.noise_multiplier}

    def spending(
        self, rounds: int, trainings: Iterable[tuple[int, int]], work: Work
    ) -> set[tuple[float, int]]:
        """Return the kinds of devices: those with few examples or many steps spend most."""
        return {(min(work.batch_size / max(n, 1), 1.0), steps * rounds) for n, steps in trainings}

    def noise_for(self, rounds: int, counts: Sequence[int], work: Work) -> float | None:
        """Return the noise multiplier that the budget allows to the device that spends most."""
        if self.epsilon is not None and not counts:
            raise ConfigError(
                f"{self.name}: min_examples must be above 0 with epsilon={self.epsilon:g} in a "
                "service, got 0; the noise depends on the fewest training windows of a device, and "
                "devices with fewer do not take part"
            )
        return super().noise_for(rounds, counts, work)
