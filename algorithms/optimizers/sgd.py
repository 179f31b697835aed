"""Stochastic gradient descent with momentum, as `torch.optim.SGD`."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.optimizers.base import Clipping, slot_of
from algorithms.spec import Limits


class Sgd(Clipping):
    """g <- g + weight_decay * w; v <- momentum * v + g; w <- w - lr * v, or with Nesterov w <- w -
    lr * (g + momentum * v).

    Learning rate and momentum are the objective's own. The momentum is a slot: it starts at zero in
    every round.
    """

    name: ClassVar[str] = "sgd"
    citation: ClassVar[str] = "Sutskever et al., ICML 2013, as torch.optim.SGD"
    replaces: ClassVar[tuple[str, ...]] = ()
    limits: ClassVar[Mapping[str, Limits]] = {}

    def __init__(
        self, weight_decay: float = 0.0, nesterov: bool = False, max_norm: float = 0.0
    ) -> None:
        super().__init__(max_norm)
        self.weight_decay, self.nesterov = weight_decay, nesterov

    @property
    def plain(self) -> bool:
        return not (self.weight_decay or self.nesterov or self.max_norm)

    @property
    def hyper(self) -> Mapping[str, float]:
        return self.clipping() | ({"weight_decay": self.weight_decay} if self.weight_decay else {})

    def slots(self, key: str, value: Tensor) -> TorchTensors:
        return {slot_of(key): torch.zeros_like(value)}

    def move(
        self, key: str, direction: Tensor, tensors: TorchTensors, hyper: TorchTensors, lr: Tensor
    ) -> TorchTensors:
        if self.weight_decay:
            direction = direction + hyper["weight_decay"] * tensors[key]
        momentum = hyper["momentum"] * tensors[slot_of(key)] + direction
        step = direction + hyper["momentum"] * momentum if self.nesterov else momentum
        return {slot_of(key): momentum, key: tensors[key] - lr * step}
