"""No mechanism: updates are used as they come."""

from collections.abc import Sequence
from typing import ClassVar

from algorithms.core.contract import LocalModel, Work
from wire.messages import Verb
from wire.tensors import Array


class NoPrivacy:
    """Leaves every update as it is; gives no guarantee."""

    name: ClassVar[str] = "no-privacy"
    citation: ClassVar[str] = ""

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
