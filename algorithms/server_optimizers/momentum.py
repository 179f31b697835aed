"""FedAvgM: momentum on the server.

T.-M. H. Hsu, H. Qi, M. Brown. Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification. arXiv 1909.06335, 2019, section 4.3; with a learning rate as SGD is
the server's optimizer in S. Reddi et al., ICLR 2021.
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import Moved
from algorithms.spec import PART, POSITIVE, Limits
from wire.arrays.tensors import Array, Tensors


class FedAvgM:
    """v <- beta v + change; x <- x + server_lr v. With beta 0 and server_lr 1 the next model is the
    mean, to the bit: FedAvg."""

    name: ClassVar[str] = "fedavgm"
    citation: ClassVar[str] = "Hsu et al., arXiv 1909.06335, 2019, 4.3"
    moves: ClassVar[bool] = True
    moments: Mapping[str, float] = {"momentum": 0.0}
    limits: ClassVar[Mapping[str, Limits]] = {"server_lr": POSITIVE, "beta": PART}

    def __init__(self, server_lr: float = 1.0, beta: float = 0.9) -> None:
        self.server_lr, self.beta = server_lr, beta

    def step(self, change: Array, moments: Tensors) -> Moved:
        momentum = self.beta * moments["momentum"] + change
        return Moved(self.server_lr * momentum, {"momentum": momentum})


class NoServerOptimizer:
    """x <- x + change."""

    name: ClassVar[str] = "no-server-optimizer"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    moves: ClassVar[bool] = False
    moments: Mapping[str, float] = {}

    def step(self, change: Array, moments: Tensors) -> Moved:
        return Moved(change, {})
