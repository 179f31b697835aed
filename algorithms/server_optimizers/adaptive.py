"""FedAdagrad, FedAdam and FedYogi: server optimizers with a step length for every parameter.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan. Adaptive
Federated Optimization. ICLR 2021, Algorithm 2. Legend: Delta_t the change, the mean of the devices'
models minus the model; m_t the ``momentum``, v_t the ``square``, eta the `server_lr`, tau the
degree of adaptivity.

    m_t = beta1 m_{t-1} + (1 - beta1) Delta_t
    v_t = the equation of each class, v_{-1} = tau^2
    x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau)

Neither moment is corrected for its bias towards its first value. The default values are the paper's
(section 5.1): beta1 = 0.9, beta2 = 0.99, tau = 0.001; FedAdagrad has beta1 = 0. A good `server_lr`
depends on how large the devices' changes are: the paper tries 0.001 to 10.
"""

from typing import Any, ClassVar

import numpy as np

from algorithms.core.contract import Moved, ServerOptimizer
from algorithms.spec import option
from wire.arrays.tensors import Array, Tensors


class FedAdagrad(ServerOptimizer):
    """v_t = v_{t-1} + Delta_t^2."""

    name: ClassVar[str] = "fedadagrad"
    citation: ClassVar[str] = "Reddi et al., ICLR 2021, Algorithm 2"
    server_lr: float = option(0.01, "learning rate of the server", above=0)
    beta1: float = option(0.0, "decay of the momentum", low=0, below=1)
    tau: float = option(0.001, "degree of adaptivity", above=0)

    def __init__(self, *values: Any, **options: Any) -> None:
        super().__init__(*values, **options)
        self.moments = {"momentum": 0.0, "square": min(self.tau, 1e150) ** 2}

    def step(self, change: Array, moments: Tensors) -> Moved:
        momentum = self.beta1 * moments["momentum"] + (1 - self.beta1) * change
        square = self.second_moment(moments["square"], np.square(change))
        return Moved(
            self.server_lr * momentum / (np.sqrt(square) + self.tau),
            {"momentum": momentum, "square": square},
        )

    def second_moment(self, square: Array, squared: Array) -> Array:
        """Return v_t, given v_{t-1} and Delta_t^2; all float64 of one shape."""
        return square + squared


class FedAdam(FedAdagrad):
    """v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2."""

    name: ClassVar[str] = "fedadam"
    beta1: float = option(0.9, "decay of the momentum", low=0, below=1)
    beta2: float = option(0.99, "decay of the squares", low=0, below=1)

    def second_moment(self, square: Array, squared: Array) -> Array:
        return np.asarray(self.beta2 * square + (1 - self.beta2) * squared)


class FedYogi(FedAdam):
    """v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2)."""

    name: ClassVar[str] = "fedyogi"

    def second_moment(self, square: Array, squared: Array) -> Array:
        return np.asarray(square - (1 - self.beta2) * squared * np.sign(square - squared))
