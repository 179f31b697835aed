"""Base class of the optimizers of devices: hyper-parameters and gradient clipping."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.spec import WithOptions, option
from wire.arrays import names


def slot_of(key: str, prefix: str = "momentum") -> str:
    """Return the key of a trained tensor's slot: ``slot/momentum.NAME``."""
    return names.slot(f"{prefix}.{names.name_of(key)}")


class Optimizer(WithOptions, ABC):
    """Rule by which a device moves a tensor along its gradient; traced into training graphs.

    If the gradients of a step, all tensors together, have a norm above `max_norm`, they are first
    scaled down to it (R. Pascanu et al., ICML 2013); 0 clips nothing.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    replaces: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters of objectives that this optimizer does not use."""
    in_step: ClassVar[tuple[str, ...]] = ()
    """Options that are always hyper-parameters of the step; others are if they are not 0."""
    plain: bool = False
    """True if it is SGD with momentum and nothing else, which every backend has."""
    max_norm: float = option(0.0, "largest norm of a gradient; 0 for any", low=0)

    @property
    def hyper(self) -> Mapping[str, float]:
        """Hyper-parameters of the optimizer, which replace those of the objective."""
        others = {key: float(getattr(self, key, 0.0)) for key in ("max_norm", "weight_decay")}
        always = {key: float(getattr(self, key)) for key in self.in_step}
        return always | {key: value for key, value in others.items() if value}

    @abstractmethod
    def slots(self, key: str, value: Tensor) -> TorchTensors:
        """Return a trained tensor's state at the start of a round, by key ``slot/PREFIX.NAME``."""

    def clipped(self, directions: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Return the directions of all tensors of a step, scaled down together to `max_norm`.

        The rule is that of `torch.nn.utils.clip_grad_norm_`.
        """
        if not self.max_norm or not directions:
            return directions
        length: Tensor = (
            torch.stack([direction.square().sum() for direction in directions.values()])
            .sum()
            .sqrt()
        )
        scale = (hyper["max_norm"] / (length + 1e-6)).clamp(max=1.0)
        return {key: direction * scale for key, direction in directions.items()}

    def move_all(
        self, directions: TorchTensors, tensors: TorchTensors, hyper: TorchTensors, lr: Tensor
    ) -> TorchTensors:
        """Return all tensors and their slots after a step.

        The values are those of `move`, except for rounding. Steps that are traced use `move`. All
        its operators are ones that devices can train with (docs/models.md).
        """
        moved: TorchTensors = {}
        for key, direction in directions.items():
            moved |= self.move(key, direction, tensors, hyper, lr)
        return moved

    @abstractmethod
    def move(
        self, key: str, direction: Tensor, tensors: TorchTensors, hyper: TorchTensors, lr: Tensor
    ) -> TorchTensors:
        """Return the tensor and its slots after a step against `direction`."""
