"""Adam and AdamW, as in `torch.optim`."""

from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.optimizers.base import Optimizer, slot_of
from algorithms.spec import option


class Adam(Optimizer):
    """Adam: steps in the direction of the mean gradient, scaled by the root mean square gradient.

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        w <- w - lr * m' / (sqrt(v') + eps), with m' and v' corrected for their bias towards zero

    Both moments and the number of steps of each tensor are slots: they start at zero in every
    round, because a device's optimizer has no memory of earlier rounds (McMahan et al.).
    `weight_decay` times the weight is added to the gradient. D. P. Kingma, J. Ba. Adam. ICLR 2015,
    Algorithm 1.
    """

    name: ClassVar[str] = "adam"
    citation: ClassVar[str] = "Kingma & Ba, ICLR 2015, Algorithm 1"
    replaces: ClassVar[tuple[str, ...]] = ("momentum",)
    in_step: ClassVar[tuple[str, ...]] = ("lr", "beta1", "beta2", "eps")
    decoupled: ClassVar[bool] = False
    lr: float = option(0.001, "learning rate", low=0)
    beta1: float = option(0.9, "decay of the mean of gradients", low=0, below=1)
    beta2: float = option(0.999, "decay of the mean of their squares", low=0, below=1)
    eps: float = option(1e-8, "added to the root of the squares", above=0)
    weight_decay: float = option(0.0, "share of a weight that is added to its gradient", low=0)

    def slots(self, key: str, value: Tensor) -> TorchTensors:
        moments = {slot_of(key, moment): torch.zeros_like(value) for moment in ("mean", "square")}
        return moments | {slot_of(key, "steps"): torch.zeros(())}

    def move(
        self, key: str, direction: Tensor, tensors: TorchTensors, hyper: TorchTensors, lr: Tensor
    ) -> TorchTensors:
        value, steps = tensors[key], tensors[slot_of(key, "steps")] + 1
        beta1, beta2 = hyper["beta1"], hyper["beta2"]
        if self.weight_decay and self.decoupled:
            value = value - lr * hyper["weight_decay"] * value
        elif self.weight_decay:
            direction = direction + hyper["weight_decay"] * value
        mean = beta1 * tensors[slot_of(key, "mean")] + (1 - beta1) * direction
        square = beta2 * tensors[slot_of(key, "square")] + (1 - beta2) * direction.square()
        unbiased, scale = mean / (1 - beta1**steps), (square / (1 - beta2**steps)).sqrt()
        moved = {
            slot_of(key, "mean"): mean,
            slot_of(key, "square"): square,
            slot_of(key, "steps"): steps,
        }
        return {**moved, key: value - lr * unbiased / (scale + hyper["eps"])}


class AdamW(Adam):
    """Adam with weight decay decoupled from the gradient.

    I. Loshchilov, F. Hutter. Decoupled Weight Decay Regularization. ICLR 2019.
    """

    name: ClassVar[str] = "adamw"
    citation: ClassVar[str] = "Loshchilov & Hutter, ICLR 2019, Algorithm 2"
    decoupled: ClassVar[bool] = True
    weight_decay: float = option(0.01, "share of a weight that a step takes off it", low=0)
