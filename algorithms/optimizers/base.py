"""What optimizers share: the limits of their options, and the clipping of gradients."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import TorchTensors
from algorithms.spec import NOT_NEGATIVE, Limits
from wire.arrays import names


def slot_of(key: str, prefix: str = "momentum") -> str:
    """The slot that belongs to a trained tensor: ``slot/momentum.NAME``."""
    return names.slot(f"{prefix}.{names.name_of(key)}")


class Clipping:
    """Gradients longer than `max_norm`, all tensors of a step together, are shortened to it (R.
    Pascanu et al., ICML 2013), before anything else; 0 clips nothing."""

    limits: ClassVar[Mapping[str, Limits]] = {
        "max_norm": NOT_NEGATIVE,
        "weight_decay": NOT_NEGATIVE,
    }

    def __init__(self, max_norm: float) -> None:
        self.max_norm = max_norm

    def clipped(self, directions: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """The same directions, shortened together where they are too long: as
        `torch.nn.utils.clip_grad_norm_`."""
        if not self.max_norm or not directions:
            return directions
        length: Tensor = (
            torch.stack([direction.square().sum() for direction in directions.values()])
            .sum()
            .sqrt()
        )
        scale = (hyper["max_norm"] / (length + 1e-6)).clamp(max=1.0)
        return {key: direction * scale for key, direction in directions.items()}

    def clipping(self) -> dict[str, float]:
        """The hyper-parameter of the clipping, where there is one."""
        return {"max_norm": self.max_norm} if self.max_norm else {}
