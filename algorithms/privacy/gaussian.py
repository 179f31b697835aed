"""Differential privacy of whole devices: clipped updates with Gaussian noise.

Each device adds the noise, or the aggregator adds it once.

R. C. Geyer, T. Klein, M. Nabi. Differentially Private Federated Learning: A Client Level
Perspective. arXiv 1712.07557, 2017. H. B. McMahan, D. Ramage, K. Talwar, L. Zhang. Learning
Differentially Private Recurrent Language Models. ICLR 2018. I. Mironov. Rényi Differential Privacy.
CSF 2017 (the accounting).

Epsilon covers the shared tensors and statistics of updates, in every round, if every device takes
part in every round. It does not cover anything else that devices report (numbers of examples,
losses, responses), nor the membership of groups.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from algorithms.core.contract import LocalModel, Work
from algorithms.privacy.base import DefaultPrivacy
from algorithms.spec import option
from wire.arrays.privacy import add_noise, clip
from wire.arrays.tensors import Array
from wire.messages import Protect, Verb


def spent(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return epsilon at `delta` of `steps` Gaussian mechanisms on Poisson samples.

    The accounting is Rényi's; epsilon is infinite without noise.
    """
    # the import takes a second, and only campaigns with a mechanism need it
    from opacus.accountants import (
        RDPAccountant,
    )

    if steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, sampling_rate, steps)]
    return float(accountant.get_epsilon(delta=delta))


class Mechanism(DefaultPrivacy):
    """Options that all mechanisms share."""

    clip_norm: float = option(1.0, "largest Euclidean norm C", above=0)
    noise_multiplier: float = option(1.0, "standard deviation of the noise, in units of C", low=0)
    delta: float = option(
        1e-5,
        "chance that the guarantee does not hold; well below one over the number of those it "
        "protects",
        above=0,
        below=1,
    )


class LocalGaussian(Mechanism):
    """Local noise: each device clips its update to C and adds noise of noise_multiplier * C.

    That is the standard deviation of the noise.

    The device trusts nobody. Guarantee: against everyone, the aggregator included, for any change
    of the device's data. Two clipped updates can be 2 C apart, so the noise is noise_multiplier / 2
    times the largest difference to hide. The aggregator does not clip, because noise makes a
    correctly protected update longer than C.
    """

    name: ClassVar[str] = "local-gaussian"
    citation: ClassVar[str] = "Mironov, CSF 2017, Proposition 7, at the device"

    def verbs(self) -> tuple[Verb, ...]:
        return (Protect(self.clip_norm, self.noise_multiplier * self.clip_norm),)

    def epsilon(self, rounds: int, models: Sequence[LocalModel], work: Work) -> float | None:
        return spent(self.noise_multiplier / 2, 1.0, rounds, self.delta)


class CentralGaussian(Mechanism):
    """Central noise: the aggregator adds noise_multiplier * C / N to the mean of N updates.

    That is the standard deviation of the noise.

    Each device clips its update to C, and the aggregator clips it again because it does not trust
    the device.

    Guarantee: against those who see models, not against the aggregator; for a device's update being
    present or zero. It rests on the uniform mean, in which one update moves the mean by at most C /
    N, and on a secret seed: anybody who knows it can subtract the noise. Each mean of a round needs
    a seed of its own.
    """

    name: ClassVar[str] = "gaussian"
    citation: ClassVar[str] = (
        "Geyer et al., 2017, Algorithm 1; McMahan et al., ICLR 2018, with every device in every "
        "round"
    )
    mean: ClassVar[str] = "uniform"
    server_noise: ClassVar[bool] = True

    def verbs(self) -> tuple[Verb, ...]:
        return (Protect(self.clip_norm, 0.0),)

    def clip(self, update: Array) -> Array:
        return clip(update, self.clip_norm)

    def noise(self, mean: Array, num_devices: int, seed: int) -> Array:
        return add_noise(
            mean, self.noise_multiplier * self.clip_norm / num_devices, np.random.default_rng(seed)
        )

    def epsilon(self, rounds: int, models: Sequence[LocalModel], work: Work) -> float | None:
        return spent(self.noise_multiplier, 1.0, rounds, self.delta)
