"""Stochastic gradient descent with momentum, as in `torch.optim.SGD`."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.optimizers.base import Optimizer, slot_of
from algorithms.spec import option


class Sgd(Optimizer):
    """SGD with momentum, optionally Nesterov's.

        g <- g + weight_decay * w
        v <- momentum * v + g
        w <- w - lr * v, or with Nesterov w <- w - lr * (g + momentum * v)

    Learning rate and momentum are hyper-parameters of the objective. The momentum v is a slot: it
    starts at zero in every round.
    """

    name: ClassVar[str] = "sgd"
    citation: ClassVar[str] = "Sutskever et al., ICML 2013, as torch.optim.SGD"
    weight_decay: float = option(0.0, "share of a weight that is added to its gradient", low=0)
    nesterov: bool = option(False, "a step follows Nesterov's momentum")

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self.plain = not (self.weight_decay or self.nesterov or self.max_norm)

    def slots(self, key: str, value: Tensor) -> TorchTensors:
        return {slot_of(key): torch.zeros_like(value)}

    def move_all(
        self, directions: TorchTensors, tensors: TorchTensors, hyper: TorchTensors, lr: Tensor
    ) -> TorchTensors:
        if not self.plain:
            return super().move_all(directions, tensors, hyper, lr)
        moved: TorchTensors = {}
        for key, direction in directions.items():
            slot = slot_of(key)
            moved[slot] = torch.addcmul(direction, tensors[slot], hyper["momentum"])
            moved[key] = torch.addcmul(tensors[key], moved[slot], lr, value=-1)
        return moved

    def move(
        self, key: str, direction: Tensor, tensors: TorchTensors, hyper: TorchTensors, lr: Tensor
    ) -> TorchTensors:
        if self.weight_decay:
            direction = direction + hyper["weight_decay"] * tensors[key]
        momentum = hyper["momentum"] * tensors[slot_of(key)] + direction
        step = direction + hyper["momentum"] * momentum if self.nesterov else momentum
        return {slot_of(key): momentum, key: tensors[key] - lr * step}
