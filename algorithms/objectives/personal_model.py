"""A second model of the same structure that a device keeps for itself, under
``private/personal.NAME``, with statistics of its own."""

import torch

from algorithms.core.contract import TorchTensors, exchanged
from wire.arrays import names


def copy_as_personal_model(tensors: TorchTensors) -> TorchTensors:
    """The personal model before the first round: a copy of what is exchanged."""
    return {personal_key(k): torch.clone(v) for k, v in exchanged(tensors).items()}


def personal_key(key: str) -> str:
    """``private/personal.NAME`` for ``shared/NAME`` or ``statistic/NAME``."""
    return names.private(f"personal.{names.name_of(key)}")


def personal_parameters(tensors: TorchTensors) -> list[str]:
    """The keys of the personal model's parameters."""
    return [personal_key(key) for key in names.of_role(tensors, names.SHARED)]


def as_model(tensors: TorchTensors) -> TorchTensors:
    """The personal model in the place of the exchanged one: what a pass through the model then
    uses."""
    return {**tensors, **{k: tensors[personal_key(k)] for k in exchanged(tensors)}}


def as_personal_model(following: TorchTensors) -> TorchTensors:
    """What a pass through the personal model changed, under its own names."""
    return {
        personal_key(k) if names.role_of(k) == names.STATISTIC else k: v
        for k, v in following.items()
    }
