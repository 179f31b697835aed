"""What objectives need whose devices look at the models of M other devices, their peers, each
device being a group of its own.

A device receives them stacked as ``received/others.NAME`` (M, \\*shape), and ``received/present``
(M,): 1 where there is one, 0 where there are fewer than M; the tensors of those are zero.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from algorithms.core.contract import TorchTensors, exchanged
from algorithms.core.keys import NEWCOMER
from wire.arrays import names
from wire.arrays.tensors import Tensors

PRESENT = names.received("present")


def peer_key(key: str) -> str:
    """``received/others.NAME`` for ``shared/NAME`` or ``statistic/NAME``."""
    return names.received(f"others.{names.name_of(key)}")


def no_peer_models(tensors: TorchTensors, num_peers: int) -> TorchTensors:
    """What a device holds before there are peers."""
    stacks = {peer_key(k): torch.zeros(num_peers, *v.shape) for k, v in exchanged(tensors).items()}
    return stacks | {PRESENT: torch.zeros(num_peers)}


def stack_peer_models(
    models: Mapping[str, Tensors], own: Tensors, peers: Sequence[str], num_peers: int
) -> Tensors:
    """What the server sends of the models with these keys, in their order; a key without a model is
    absent."""
    stacks = {peer_key(k): np.zeros((num_peers, *v.shape), np.float32) for k, v in own.items()}
    present = np.zeros(num_peers, np.float32)
    for place, peer in enumerate(peers):
        if peer in models:
            present[place] = 1.0
            for key, value in models[peer].items():
                stacks[peer_key(key)][place] = value
    return stacks | {PRESENT: present}


def known_groups(known: Sequence[str], membership: Mapping[str, str]) -> list[str]:
    """The keys of all groups so far, in the order of their numbers."""
    return sorted({*known, *membership.values()} - {NEWCOMER}, key=int)
