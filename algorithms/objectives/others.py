"""What objectives need whose devices look at the models of M other devices, each device being a group of its own.

A device receives them stacked as ``received/others.NAME`` (M, \\*shape), and ``received/present`` (M,): 1 where there is one, 0
where there are fewer than M; the tensors of those are zero.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from algorithms.contract import NEWCOMER, TorchTensors, exchanged
from wire import names
from wire.tensors import Tensors

PRESENT = names.received("present")


def other_key(key: str) -> str:
    """``received/others.NAME`` for ``shared/NAME`` or ``statistic/NAME``."""
    return names.received(f"others.{names.name_of(key)}")


def no_others(tensors: TorchTensors, num_others: int) -> TorchTensors:
    """What a device holds before there are others."""
    stacks = {other_key(k): torch.zeros(num_others, *v.shape) for k, v in exchanged(tensors).items()}
    return stacks | {PRESENT: torch.zeros(num_others)}


def stack_others(models: Mapping[str, Tensors], own: Tensors, others: Sequence[str], num_others: int) -> Tensors:
    """What the server sends of the models with these keys, in their order; a key without a model is absent."""
    stacks = {other_key(k): np.zeros((num_others, *v.shape), np.float32) for k, v in own.items()}
    present = np.zeros(num_others, np.float32)
    for place, other in enumerate(others):
        if other in models:
            present[place] = 1.0
            for key, value in models[other].items():
                stacks[other_key(key)][place] = value
    return stacks | {PRESENT: present}


def known_groups(known: Sequence[str], membership: Mapping[str, str]) -> list[str]:
    """The keys of all groups so far, in the order of their numbers."""
    return sorted({*known, *membership.values()} - {NEWCOMER}, key=int)
