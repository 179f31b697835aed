"""FedAvgM: momentum on the server.

T.-M. H. Hsu, H. Qi, M. Brown. Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification. arXiv 1909.06335, 2019, section 4.3. S. Reddi et al., ICLR 2021,
add a learning rate, with SGD as the server's optimizer.
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import Moved, ServerOptimizer
from algorithms.spec import option
from wire.arrays.tensors import Array, Tensors


class FedAvgM(ServerOptimizer):
    """v <- beta v + change; x <- x + server_lr v.

    With beta 0 and server_lr 1 the next model is exactly the mean: FedAvg.
    """

    name: ClassVar[str] = "fedavgm"
    citation: ClassVar[str] = "Hsu et al., arXiv 1909.06335, 2019, 4.3"
    moments: Mapping[str, float] = {"momentum": 0.0}
    server_lr: float = option(1.0, "learning rate of the server", above=0)
    beta: float = option(0.9, "decay of the momentum", low=0, below=1)

    def step(self, change: Array, moments: Tensors) -> Moved:
        momentum = self.beta * moments["momentum"] + change
        return Moved(self.server_lr * momentum, {"momentum": momentum})


class NoServerOptimizer(ServerOptimizer):
    """x <- x + change."""

    name: ClassVar[str] = "no-server-optimizer"
    citation: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    moves: ClassVar[bool] = False

    def step(self, change: Array, moments: Tensors) -> Moved:
        return Moved(change, {})
