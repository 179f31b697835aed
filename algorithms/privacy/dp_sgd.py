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

from collections.abc import Sequence
from typing import ClassVar

from algorithms.core.contract import LocalModel, Work
from algorithms.privacy.gaussian import Mechanism, spent


class DpSgd(Mechanism):
    """A private training step (`algorithms.privacy.per_example`); no noise is added afterwards.

    Guarantee: against everyone who sees a device's update, for the presence or absence of one of
    its examples.
    """

    name: ClassVar[str] = "dp-sgd"
    citation: ClassVar[str] = "Abadi et al., CCS 2016, Algorithm 1"

    def in_step(self) -> dict[str, float]:
        return {"clip_norm": self.clip_norm, "noise_multiplier": self.noise_multiplier}

    def epsilon(self, rounds: int, models: Sequence[LocalModel], work: Work) -> float | None:
        """Return epsilon of the device that spends most: one with few examples or many steps."""
        kinds = {
            (min(work.batch_size / max(m.num_examples, 1), 1.0), m.num_steps * rounds)
            for m in models
        }
        return max(
            (spent(self.noise_multiplier, rate, steps, self.delta) for rate, steps in kinds),
            default=0.0,
        )
