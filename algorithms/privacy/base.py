"""What privacy mechanisms have in common: nothing happens to an update unless a mechanism says
so."""

from collections.abc import Sequence
from typing import ClassVar

from algorithms.core.contract import LocalModel, Work
from wire.arrays.tensors import Array
from wire.messages import Verb


class DefaultPrivacy:
    """Leaves every update as it is, at no cost; mechanisms change what differs."""

    protects: ClassVar[bool] = True
    mean: ClassVar[str] = ""
    server_noise: ClassVar[bool] = False

    def in_step(self) -> dict[str, float]:
        return {}

    def verbs(self) -> tuple[Verb, ...]:
        return ()

    def clip(self, update: Array) -> Array:
        return update

    def noise(self, mean: Array, num_devices: int, seed: int) -> Array:
        return mean

    def epsilon(self, rounds: int, models: Sequence[LocalModel], work: Work) -> float | None:
        return None


class NoPrivacy(DefaultPrivacy):
    """Gives no guarantee."""

    name: ClassVar[str] = "no-privacy"
    citation: ClassVar[str] = ""
    protects: ClassVar[bool] = False
