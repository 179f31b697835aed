"""Models on a device besides the one that it trains: its personal model, and models of peers.

The personal model has the same structure, is stored under ``private/personal.NAME`` and has
separate statistics. Peers are M other devices, with one group for each device: a device receives
their models stacked as ``received/others.NAME`` (M, \\*shape), and ``received/present`` (M,), which
is 1 for each model. With fewer than M peers, the rest of ``present`` and of the tensors is 0.
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
    """Return ``received/others.NAME`` for ``shared/NAME`` or ``statistic/NAME``."""
    return names.received(f"others.{names.name_of(key)}")


def no_peer_models(tensors: TorchTensors, num_peers: int) -> TorchTensors:
    """Return the tensors of a device that has no peers yet."""
    stacks = {peer_key(k): torch.zeros(num_peers, *v.shape) for k, v in exchanged(tensors).items()}
    return stacks | {PRESENT: torch.zeros(num_peers)}


def stack_peer_models(
    models: Mapping[str, Tensors], personal: Tensors, peers: Sequence[str], num_peers: int
) -> Tensors:
    """Return the models with the keys `peers`, stacked in their order for a device.

    A key without a model is absent.
    """
    stacks = {peer_key(k): np.zeros((num_peers, *v.shape), np.float32) for k, v in personal.items()}
    present = np.zeros(num_peers, np.float32)
    for place, peer in enumerate(peers):
        if peer in models:
            present[place] = 1.0
            for key, value in models[peer].items():
                stacks[peer_key(key)][place] = value
    return stacks | {PRESENT: present}


def known_groups(group_ids: Sequence[str], membership: Mapping[str, str]) -> list[str]:
    """Return the keys of all groups so far, in the order of their numbers."""
    return sorted({*group_ids, *membership.values()} - {NEWCOMER}, key=int)


def copy_as_personal_model(tensors: TorchTensors) -> TorchTensors:
    """Return the personal model before the first round: a copy of the exchanged tensors."""
    return {personal_key(k): torch.clone(v) for k, v in exchanged(tensors).items()}


def personal_key(key: str) -> str:
    """Return ``private/personal.NAME`` for ``shared/NAME`` or ``statistic/NAME``."""
    return names.private(f"personal.{names.name_of(key)}")


def personal_parameters(tensors: TorchTensors) -> list[str]:
    """Return the keys of the personal model's parameters."""
    return [personal_key(key) for key in names.of_role(tensors, names.SHARED)]


def as_model(tensors: TorchTensors) -> TorchTensors:
    """Return tensors for a pass in which the personal model replaces the exchanged one."""
    return {**tensors, **{k: tensors[personal_key(k)] for k in exchanged(tensors)}}


def as_personal_model(following: TorchTensors) -> TorchTensors:
    """Return a pass's changed tensors, with statistics under the keys of the personal model."""
    return {
        personal_key(k) if names.role_of(k) == names.STATISTIC else k: v
        for k, v in following.items()
    }
