"""What privacy mechanisms have in common: nothing happens to an update unless a mechanism says
so."""

from collections.abc import Sequence
from typing import ClassVar

from algorithms.core.contract import LocalModel, Work
from algorithms.spec import WithOptions
from wire.arrays.tensors import Array
from wire.messages import Verb


class DefaultPrivacy(WithOptions):
    """Leaves every update as it is, at no cost; mechanisms change what differs."""

    name: ClassVar[str]
    citation: ClassVar[str]
    protects: ClassVar[bool] = True
    """True if it gives a guarantee: devices must then report nothing that it does not cover."""
    mean: ClassVar[str] = ""
    """Name of the only mean that its noise is measured for; empty when any will do."""
    server_noise: ClassVar[bool] = False
    """True if `noise` adds any: the server then needs the same secret as long as a run lasts."""

    def in_step(self) -> dict[str, float]:
        """Return the hyper-parameters that the exported step must have for it to hold; empty when
        the step has no part in it."""
        return {}

    def verbs(self) -> tuple[Verb, ...]:
        """Return what a device does after its training, before anything leaves it."""
        return ()

    def clip(self, update: Array) -> Array:
        """Return one device's flat update (D,) float32, statistics included, as it may be used."""
        return update

    def noise(self, mean: Array, num_devices: int, seed: int) -> Array:
        """Return a group's mean update (D,) float32 over `num_devices` as others may see it."""
        return mean

    def epsilon(self, rounds: int, models: Sequence[LocalModel], work: Work) -> float | None:
        """Return epsilon after so many rounds like this one, at the mechanism's delta; None
        without a mechanism."""
        return None


class NoPrivacy(DefaultPrivacy):
    """Gives no guarantee."""

    name: ClassVar[str] = "no-privacy"
    citation: ClassVar[str] = ""
    protects: ClassVar[bool] = False
