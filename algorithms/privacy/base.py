"""Base class of privacy mechanisms, which leaves every update unchanged."""

from collections.abc import Sequence
from typing import ClassVar

from algorithms.core.contract import LocalModel, Work
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

    def epsilon(self, rounds: int, models: Sequence[LocalModel], work: Work) -> float | None:
        """Return epsilon after `rounds` rounds like this one, at the mechanism's delta.

        None without a mechanism.
        """
        return None


class NoPrivacy(DefaultPrivacy):
    """No guarantee."""

    name: ClassVar[str] = "no-privacy"
    citation: ClassVar[str] = ""
    protects: ClassVar[bool] = False
