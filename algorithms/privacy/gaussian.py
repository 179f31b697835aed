"""Differential privacy of whole devices: clipped updates with Gaussian noise.

Each device adds all of the noise, or a share of it, or the aggregator adds it once.

R. C. Geyer, T. Klein, M. Nabi. Differentially Private Federated Learning: A Client Level
Perspective. arXiv 1712.07557, 2017. H. B. McMahan, D. Ramage, K. Talwar, L. Zhang. Learning
Differentially Private Recurrent Language Models. ICLR 2018. I. Mironov. Rényi Differential Privacy.
CSF 2017 (the accounting).

Epsilon covers the shared tensors and statistics of updates, in every round, if every device takes
part in every round. It does not cover anything else that devices report (numbers of examples,
losses, responses), nor the membership of groups.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from algorithms.core.contract import LocalModel, Work
from algorithms.privacy.base import DefaultPrivacy
from algorithms.spec import option
from wire.arrays.privacy import add_noise, clip
from wire.arrays.tensors import Array
from wire.errors import ConfigError
from wire.messages import Protect, Verb
from wire.secret.noise import rounded_norm
from wire.secret.question import LEAST_DEVIATION, MOST_DEVIATION, Noise

MOST_NOISE = 1e6
"""Largest noise multiplier of the search."""


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
    """Options and accounting that all mechanisms share.

    With the option `epsilon`, the noise multiplier is found for the rounds planned (`noise_for`),
    and then written beside it.
    """

    noise_share: ClassVar[float] = 1.0
    """Noise in units of the largest difference to hide, as a share of the noise multiplier."""
    clip_norm: float = option(1.0, "largest Euclidean norm C", above=0)
    noise_multiplier: float = option(1.0, "standard deviation of the noise, in units of C", low=0)
    delta: float = option(
        1e-5,
        "chance that the guarantee does not hold; well below one over the number of those it "
        "protects",
        above=0,
        below=1,
    )
    epsilon: float | None = option(
        None, "largest epsilon after the rounds planned, for which the noise is found", above=0
    )

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.noise_is_explicit = len(values) > 1 or "noise_multiplier" in named

    def spending(
        self, rounds: int, trainings: Iterable[tuple[int, int]], work: Work
    ) -> set[tuple[float, int]]:
        """Return the sampling rate and the number of mechanisms of each kind of device.

        `trainings`: numbers of windows and of steps in a round, of every device.
        """
        return {(1.0, rounds)}

    def epsilon_after(self, rounds: int, models: Sequence[LocalModel], work: Work) -> float | None:
        trainings = [(m.num_examples, m.num_steps) for m in models]
        return self._largest(self.noise_multiplier, self.spending(rounds, trainings, work))[0]

    def cost(self, rounds: int, counts: Sequence[int], work: Work) -> str:
        kinds = self.spending(rounds, _trainings(counts, work), work)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # epsilon may be very large
            largest = self._largest(self.noise_multiplier, kinds)[0]
        noise = f"{self.name} with noise_multiplier={self.noise_multiplier:g}"
        if not math.isfinite(largest):
            return f"{noise} guarantees nothing"
        return (
            f"{noise} and clip_norm={self.clip_norm:g}: {rounds} round{'s' * (rounds != 1)} cost "
            f"epsilon={largest:.4g} at delta={self.delta:g}"
        )

    def noise_for(self, rounds: int, counts: Sequence[int], work: Work) -> float | None:
        """Return the smallest noise multiplier, of four digits, that the budget allows."""
        if self.epsilon is None:
            return None
        kinds = self.spending(rounds, _trainings(counts, work), work)
        noise = self.noise_multiplier if self.noise_is_explicit else 0.0
        largest, kind = self._largest(noise, kinds)
        if not self.noise_is_explicit:
            while largest > self.epsilon:
                noise = self._smallest(*kind)
                largest, kind = self._largest(noise, kinds)
        if largest > self.epsilon:
            raise ConfigError(
                f"{self.name}: epsilon must be at least {largest:.4g} with noise_multiplier="
                f"{noise:g} in {rounds} rounds, got {self.epsilon:g}; leave noise_multiplier out, "
                "or plan fewer rounds"
            )
        return noise

    def _largest(
        self, noise: float, kinds: set[tuple[float, int]]
    ) -> tuple[float, tuple[float, int]]:
        """Return the largest epsilon of these kinds of devices, and the kind that spends it."""
        spent_by = (
            (spent(noise * self.noise_share, rate, steps, self.delta), (rate, steps))
            for rate, steps in sorted(kinds)
        )
        return max(spent_by, default=(0.0, (1.0, 0)))

    def _smallest(self, rate: float, steps: int) -> float:
        """Return the smallest noise multiplier for one kind of device, rounded up to four digits.

        Raises:
            ConfigError: the accounting gives a larger epsilon with any noise.
        """
        from opacus.accountants.utils import get_noise_multiplier

        assert self.epsilon is not None
        with warnings.catch_warnings():
            # far-off candidates of the search are at the edge of the accountant's orders
            warnings.simplefilter("ignore", UserWarning)
            least = spent(MOST_NOISE, rate, steps, self.delta)
            if least > self.epsilon:
                raise ConfigError(
                    f"{self.name}: epsilon must be at least {least:.4g} with delta="
                    f"{self.delta:g}, got {self.epsilon:g}; Renyi accounting states no smaller one"
                )
            exact = get_noise_multiplier(
                target_epsilon=self.epsilon,
                target_delta=self.delta,
                sample_rate=rate,
                steps=steps,
                accountant="rdp",
                epsilon_tolerance=self.epsilon / 1000,
            )
        exact /= self.noise_share
        unit = 10.0 ** (math.floor(math.log10(exact)) - 3)
        return float(f"{math.ceil(exact / unit) * unit:.4g}")


def _trainings(counts: Sequence[int], work: Work) -> list[tuple[int, int]]:
    """Return the numbers of windows, and of steps in a round, of devices with these windows."""
    return [(n, work.local_epochs * math.ceil(n / work.batch_size)) for n in counts]


class LocalGaussian(Mechanism):
    """Local noise: each device clips its update to C and adds noise of noise_multiplier * C.

    That is the standard deviation of the noise.

    The device trusts nobody. Guarantee: against everyone, the aggregator included, for any change
    of the device's data. Two clipped updates can be 2 C apart, so the noise is noise_multiplier / 2
    times the largest difference to hide. The aggregator does not clip, because noise makes a
    correctly protected update longer than C.
    """

    noise_share: ClassVar[float] = 0.5
    name: ClassVar[str] = "local-gaussian"
    citation: ClassVar[str] = "Mironov, CSF 2017, Proposition 7, at the device"
    in_sums = "cannot"

    def verbs(self) -> tuple[Verb, ...]:
        return (Protect(self.clip_norm, self.noise_multiplier * self.clip_norm),)


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
    in_sums = "cannot"
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


class SharedGaussian(Mechanism):
    """Noise in shares, for secret mode: each device adds a share, and only a sum has all of it.

    Each device clips its update to C, rounds it to integers, and adds discrete Gaussian noise
    before it masks them. The noise of honest * min_sum devices has the standard deviation
    noise_multiplier * C in their sum.

    Guarantee: against everyone, the aggregator included, who sees the sums of all rounds planned,
    and knows the noise of all other devices; for a device's update being present or zero.
    """

    name: ClassVar[str] = "shared-gaussian"
    citation: ClassVar[str] = (
        "P. Kairouz, Z. Liu, T. Steinke. The Distributed Discrete Gaussian Mechanism for Federated "
        "Learning with Secure Aggregation. ICML 2021"
    )
    in_sums = "works"
    in_clear: ClassVar[bool] = False
    mean: ClassVar[str] = "uniform"
    honest: float = option(
        0.8, "share of the smallest sum's devices whose noise counts", above=0, high=1
    )

    def verbs(self) -> tuple[Verb, ...]:
        return (Protect(self.clip_norm, 0.0),)

    def shares(self, num_numbers: int, min_sum: int) -> Noise:
        """Return the noise of each device of a sum.

        Rounding lengthens an update (`rounded_norm`), and the noise is in proportion to the longer
        norm. Norms of 4 sqrt(num_numbers) or more grow by about 1 %.

        Args:
            num_numbers: number of values of a device.
            min_sum: smallest number of devices of a sum.

        Raises:
            ConfigError: the noise multiplier is 0, or too large for so few devices.
        """
        devices = self.honest * min_sum
        if self.noise_multiplier == 0:
            raise ConfigError(f"{self.name}: noise_multiplier must be above 0, got 0")
        norm = max(
            4 * math.sqrt(num_numbers),
            LEAST_DEVIATION * math.sqrt(devices) / self.noise_multiplier,
        )
        share = rounded_norm(norm, num_numbers) / math.sqrt(devices)
        deviation = self.noise_multiplier * share
        if deviation > MOST_DEVIATION:
            raise ConfigError(
                f"{self.name}: noise_multiplier must be at most {MOST_DEVIATION / share:.3g} with "
                f"min_sum {min_sum}, got {self.noise_multiplier:g}; raise min_sum"
            )
        return Noise(norm, deviation)
