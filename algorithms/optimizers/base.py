"""Base class of the optimizers of devices: hyper-parameters, and the clipping of gradients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.spec import WithOptions, option
from wire.arrays import names


def slot_of(key: str, prefix: str = "momentum") -> str:
    """The slot that belongs to a trained tensor: ``slot/momentum.NAME``."""
    return names.slot(f"{prefix}.{names.name_of(key)}")


class Optimizer(WithOptions, ABC):
    """Rule by which a device moves a tensor along its gradient; traced into training graphs.

    Gradients longer than `max_norm`, all tensors of a step together, are shortened to it (R.
    Pascanu et al., ICML 2013), before anything else; 0 clips nothing.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    replaces: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters of objectives that mean nothing to it."""
    in_step: ClassVar[tuple[str, ...]] = ()
    """Options that are hyper-parameters of every step; the others are where they are not 0."""
    plain: bool = False
    """True if it is SGD with momentum and nothing else, which every backend has."""
    max_norm: float = option(0.0, "largest norm of a gradient; 0 for any", low=0)

    @property
    def hyper(self) -> Mapping[str, float]:
        """Its hyper-parameters, which take the place of the objective's."""
        others = {key: float(getattr(self, key, 0.0)) for key in ("max_norm", "weight_decay")}
        always = {key: float(getattr(self, key)) for key in self.in_step}
        return always | {key: value for key, value in others.items() if value}

    @abstractmethod
    def slots(self, key: str, value: Tensor) -> TorchTensors:
        """Return what it keeps of a trained tensor within a round, before the first step
        (``slot/PREFIX.NAME``)."""

    def clipped(self, directions: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Return the directions of all tensors of a step, shortened together where they are too
        long: as `torch.nn.utils.clip_grad_norm_`."""
        if not self.max_norm or not directions:
            return directions
        length: Tensor = (
            torch.stack([direction.square().sum() for direction in directions.values()])
            .sum()
            .sqrt()
        )
        scale = (hyper["max_norm"] / (length + 1e-6)).clamp(max=1.0)
        return {key: direction * scale for key, direction in directions.items()}

    @abstractmethod
    def move(
        self, key: str, direction: Tensor, tensors: TorchTensors, hyper: TorchTensors, lr: Tensor
    ) -> TorchTensors:
        """Return the tensor after a step against `direction`, and its slots."""
