"""Base class of privacy mechanisms, which leaves every update unchanged."""

import math
from collections.abc import Sequence
from typing import ClassVar

from algorithms.core.contract import InSums, LocalModel, Work
from algorithms.spec import WithOptions
from wire.arrays.tensors import Array
from wire.messages import Verb


class DefaultPrivacy(WithOptions):
    """No change to any update, at no cost; mechanisms override what differs."""

    name: ClassVar[str]
    citation: ClassVar[str]
    protects: ClassVar[bool] = True
    """True if it gives a guarantee; devices must then report nothing that it does not cover."""
    mean: ClassVar[str] = ""
    """Name of the only mean that the noise is calibrated for; empty if any mean is allowed."""
    min_examples: int = 0
    """Minimum number of training windows of a device that takes part; 0: the bundle's minimum."""
    in_sums: ClassVar[InSums] = "cannot"
    """Declaration for secret mode."""
    in_clear: ClassVar[bool] = True
    """True if it protects without secret mode."""
    server_noise: ClassVar[bool] = False
    """True if `noise` adds noise; the server then needs the same secret for the whole campaign."""

    def in_step(self) -> dict[str, float]:
        """Return the hyper-parameters of the exported step that the guarantee rests on.

        Empty if the mechanism does not change the step.
        """
        return {}

    def verbs(self) -> tuple[Verb, ...]:
        """Return the verbs that a device carries out after training, before anything leaves it."""
        return ()

    def clip(self, update: Array) -> Array:
        """Return one device's flat update (D,) float32, statistics included, clipped."""
        return update

    def noise(self, mean: Array, num_devices: int, seed: int) -> Array:
        """Return the mean update (D,) float32 of a group of `num_devices`, with noise."""
        return mean

    def epsilon_after(self, rounds: int, models: Sequence[LocalModel], work: Work) -> float | None:
        """Return epsilon after `rounds` rounds like this one, at the mechanism's delta.

        None without a mechanism.
        """
        return None

    def noise_for(self, rounds: int, counts: Sequence[int], work: Work) -> float | None:
        """Return the noise multiplier with which `rounds` rounds stay within the privacy budget.

        None without a budget. `counts`: numbers of training windows of the devices.

        Raises:
            ConfigError: no noise is enough, or the explicit noise is too small.
        """
        return None

    def cost(self, rounds: int, counts: Sequence[int], work: Work) -> str:
        """Return a sentence about the epsilon of `rounds` rounds; empty if there is none.

        Arguments are those of `noise_for`.
        """
        return ""


def counts_from(fewest: int, batch_size: int) -> tuple[int, ...]:
    """Return the numbers of windows that cost most, of devices with at least `fewest` windows.

    A device with few windows costs much, and so does one whose last batch has one window. Empty for
    0.
    """
    return (fewest, math.ceil(fewest / batch_size) * batch_size + 1) if fewest else ()


class NoPrivacy(DefaultPrivacy):
    """No guarantee."""

    name: ClassVar[str] = "no-privacy"
    citation: ClassVar[str] = ""
    in_sums = "works"
    protects: ClassVar[bool] = False
