"""Models of a device beside the one that it trains: a second one of its own, and those of peers.

The second model has the same structure, lies under ``private/personal.NAME`` and has statistics of
its own. Peers are M other devices, each device being a group of its own: a device receives them
stacked as ``received/others.NAME`` (M, \\*shape), and ``received/present`` (M,): 1 where there is
one, 0 where there are fewer than M; the tensors of those are zero.
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
    """Return the statistics that a pass through the personal model changed, by its own names."""
    return {
        personal_key(k) if names.role_of(k) == names.STATISTIC else k: v
        for k, v in following.items()
    }
