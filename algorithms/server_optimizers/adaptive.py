"""FedAdagrad, FedAdam and FedYogi: the server's step has its own length for every parameter.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konecny, S. Kumar, H. B. McMahan. Adaptive
Federated Optimization. ICLR 2021, Algorithm 2. Legend: Delta_t the change, the mean of the devices'
models minus the model; m_t the ``momentum``, v_t the ``square``, eta the `server_lr`, tau the
degree of adaptivity.

    m_t = beta1 m_{t-1} + (1 - beta1) Delta_t
    v_t as in each class, v_{-1} = tau^2
    x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau)

Neither moment is corrected for its bias towards its first value. The usual values are the paper's
(section 5.1): beta1 = 0.9, beta2 = 0.99, tau = 0.001; FedAdagrad has beta1 = 0. A good `server_lr`
depends on how large the devices' changes are: the paper tries 0.001 to 10.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from algorithms.core.contract import Moved
from algorithms.spec import PART, POSITIVE, Limits
from wire.arrays.tensors import Array, Tensors


class Adaptive(ABC):
    """What the three have in common."""

    citation: ClassVar[str] = "Reddi et al., ICLR 2021, Algorithm 2"
    moves: ClassVar[bool] = True
    limits: ClassVar[Mapping[str, Limits]] = {"server_lr": POSITIVE, "beta1": PART, "tau": POSITIVE}

    def __init__(self, server_lr: float, beta1: float, tau: float) -> None:
        self.server_lr, self.beta1, self.tau = server_lr, beta1, tau

    @property
    def moments(self) -> Mapping[str, float]:
        return {"momentum": 0.0, "square": self.tau**2}

    def step(self, change: Array, moments: Tensors) -> Moved:
        momentum = self.beta1 * moments["momentum"] + (1 - self.beta1) * change
        square = self.second_moment(moments["square"], np.square(change))
        return Moved(
            self.server_lr * momentum / (np.sqrt(square) + self.tau),
            {"momentum": momentum, "square": square},
        )

    @abstractmethod
    def second_moment(self, square: Array, squared: Array) -> Array:
        """v_t of v_{t-1} and Delta_t^2, float64 of one shape."""


class FedAdagrad(Adaptive):
    """v_t = v_{t-1} + Delta_t^2."""

    name: ClassVar[str] = "fedadagrad"

    def __init__(self, server_lr: float = 0.01, beta1: float = 0.0, tau: float = 0.001) -> None:
        super().__init__(server_lr, beta1, tau)

    def second_moment(self, square: Array, squared: Array) -> Array:
        return square + squared


class FedAdam(Adaptive):
    """v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2."""

    name: ClassVar[str] = "fedadam"
    limits: ClassVar[Mapping[str, Limits]] = {"beta2": PART}

    def __init__(
        self, server_lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 0.001
    ) -> None:
        super().__init__(server_lr, beta1, tau)
        self.beta2 = beta2

    def second_moment(self, square: Array, squared: Array) -> Array:
        return np.asarray(self.beta2 * square + (1 - self.beta2) * squared)


class FedYogi(FedAdam):
    """v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2)."""

    name: ClassVar[str] = "fedyogi"

    def second_moment(self, square: Array, squared: Array) -> Array:
        return np.asarray(square - (1 - self.beta2) * squared * np.sign(square - squared))
