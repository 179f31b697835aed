"""The server's half of an objective that needs nothing from it; others change what differs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from algorithms.core.contract import LocalModel, ObjectiveMemory, Programs, Work
from wire.arrays.tensors import Tensors
from wire.messages import Evaluate, Verb


class DefaultCoordinator:
    """Every round: evaluate the model received, then train. After the last: evaluate. Nothing is
    sent besides the model."""

    grouping: ClassVar[str] = ""
    own_rule: ClassVar[bool] = False
    responds: ClassVar[bool] = False
    absorbs: ClassVar[bool] = False
    keeps: ClassVar[bool] = False

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        return ObjectiveMemory()

    def forget(
        self, context: ObjectiveMemory, device_id: str, alone: str | None
    ) -> ObjectiveMemory:
        """Without what is kept for the device's own group."""
        if alone is None:
            return context
        return replace(
            context,
            arrays={k: v for k, v in context.arrays.items() if not k.startswith(f"{alone}/")},
        )

    def preparing(self, context: ObjectiveMemory) -> bool:
        return False

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        return {"": (Evaluate(), *self.training(context, work))}

    def training(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        """What a device does in a round after it has evaluated the model it received."""
        return (work.train(),)

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        return (Evaluate(),)

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        return context

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        return {}
