"""CGAU's appendix A: two clients that see opposite halves of an XOR, and a device's tensors without
a part of its conditioning."""

import numpy as np
import torch

from algorithms.core.contract import TorchTensors
from algorithms.models.gated import EXPRESSION, MODULATION
from wire.arrays import names
from wire.arrays.tensors import Array


def switched_off(
    tensors: TorchTensors, modulation: bool = True, expression: bool = True
) -> TorchTensors:
    """Return the tensors with a part of the conditioning at zero (appendix A, Fig. 3g and 3h)."""
    ends = (*[MODULATION] * modulation, *[EXPRESSION] * expression)
    return {
        k: torch.zeros_like(v) if names.role_of(k) == names.PRIVATE and k.endswith(ends) else v
        for k, v in tensors.items()
    }


def xor_clients(
    num_examples: int, seed: int, spread: float = 0.15
) -> dict[str, tuple[Array, Array]]:
    """The two clients of appendix A, x (n, 2) float32 and y (n,) int64: four clusters around (+-1,
    +-1), of class 1 where the signs differ; ``up`` has those with positive x2, ``down`` the others.
    """
    rng = np.random.default_rng(seed)
    clients = {}
    for name, side in (("up", 1.0), ("down", -1.0)):
        left = np.arange(num_examples) % 2 == 0
        centres = np.stack([np.where(left, -1.0, 1.0), np.full(num_examples, side)], axis=1)
        x = centres + rng.normal(0.0, spread, centres.shape)
        clients[name] = x.astype(np.float32), (np.sign(centres[:, 0]) != side).astype(np.int64)
    return clients
