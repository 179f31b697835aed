"""FedDisk's ablation without density models: the binary classifier sees the examples themselves.

H. Nguyen, P. Wu, J. M. Chang. Federated Learning for Distribution Skewed Data Using Sample Weights.
IEEE Transactions on Artificial Intelligence, 2023, section VI.

The paper pools the raw data of all clients on one machine. Here they stay on the devices. With
label 1 for the fleet, 0 for the device and p = a^T phi(x), the squared loss E_fleet (1 - p)^2 +
E_device p^2 needs no more of the fleet than the mean of phi phi^T: an average, weighted by
examples, computed in a preparation and equal to the one over pooled data. Therefore the 100 ReLU
units phi of the paper's classifier keep their random weights, and only their output layer is
trained, by that loss instead of the cross-entropy. The server sends a matrix W that whitens the
average, so that SGD converges: psi = W phi.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from algorithms.core.contract import (
    GraphFunction,
    LocalModel,
    ObjectiveMemory,
    Programs,
    TorchTensors,
    Work,
)
from algorithms.core.functional import seeded
from algorithms.models.classifier import Classifier
from algorithms.models.gated import freeze
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.example_weights import RATIO_UNITS, Weighted, WeightedServer, plain_step
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.messages import Evaluate

_MOMENTS = names.response("moments", "second")
_RATIO = names.slot("ratio")
_WHITENING, _FLEET_MEAN = names.received("whitening"), names.received("fleet_mean")
_LEAST = 1e-4
"""Minimum distance of a least-squares probability from 0 and 1."""
_RIDGE = 1e-4
"""Damping of directions of phi, as a share of the largest second moment."""


class DensityRatioServer(WeightedServer):
    """Server's half of `FedDiskAb`: averages second moments of units in a preparation."""

    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        return ObjectiveMemory(
            names.of_role(initial, names.RECEIVED),
            super().begin(initial, seed).info | {"prepared": False},
        )

    def preparing(self, context: ObjectiveMemory) -> bool:
        return not context.info["prepared"]

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        return (
            {"": (Evaluate("train", "moments"),)}
            if self.preparing(context)
            else super().programs(context, work)
        )

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        if not self.preparing(context):
            return super().absorb(context, models, membership, averages)
        stack = np.stack([m.responses[_MOMENTS].astype(np.float64) for m in models])
        second = np.average(stack, axis=0, weights=[m.num_examples for m in models])
        values, vectors = np.linalg.eigh((second + second.T) / 2)
        whitening = vectors.T / np.sqrt(np.maximum(values, 0.0) + _RIDGE * values[-1])[:, None]
        arrays = {_WHITENING: whitening, _FLEET_MEAN: whitening @ second[0]}
        float32_arrays = {
            k: np.ascontiguousarray(v, np.float32) for k, v in arrays.items()
        }  # in the order of a file, so that a restart does not change bits
        return ObjectiveMemory(float32_arrays, {**context.info, "prepared": True})

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        return dict(context.arrays)


class FedDiskAb(Weighted):
    """Weights from a classifier with random hidden units that sees the examples themselves."""

    name: ClassVar[str] = "feddisk-ab"
    citation: ClassVar[str] = "Nguyen et al., IEEE TAI 2023, section VI"
    in_sums = "cannot"
    server: ClassVar[type[DefaultCoordinator]] = DensityRatioServer

    def __init__(self, model: Classifier, *values: Any, **options: Any) -> None:
        super().__init__(model, *values, **options)
        self.hidden = seeded(lambda: freeze(nn.Linear(self.inputs.num_values, RATIO_UNITS)))

    def initial(self) -> TorchTensors:
        size = RATIO_UNITS + 1
        ratio_tensors = {
            _WHITENING: torch.zeros(size, size),
            _FLEET_MEAN: torch.zeros(size),
            _RATIO: torch.zeros(size),
        }
        return super().initial() | ratio_tensors

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "moments": self.moments}

    def units(self, batch: TorchTensors) -> Tensor:
        """Return phi (batch, 101): 1 and the ReLU units."""
        hidden = torch.relu(self.hidden(self.inputs(batch["x"])))
        return torch.cat([torch.ones_like(hidden[:, :1]), hidden], dim=1)

    def moments(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return the sum of phi phi^T over a batch; its first row is the sum of phi."""
        units = self.units(batch)
        return {names.metric("second"): units.T @ units}

    def probabilities(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """Return p = a^T psi (batch,)."""
        return (self.units(batch) @ tensors[_WHITENING].T) @ tensors[_RATIO]

    def tell_apart(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        def loss_of(weights: TorchTensors) -> tuple[Tensor, Tensor]:
            a, p = weights[_RATIO], self.probabilities({**tensors, **weights}, batch)
            fleet = 1 - 2 * (a * tensors[_FLEET_MEAN]).sum() + a.square().sum()
            return fleet + p.square().mean(), (p < 0.5).to(torch.float32).sum()

        return plain_step(loss_of, _RATIO, tensors, hyper["ratio_lr"], batch)

    def log_odds(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        p = self.probabilities(tensors, batch).clamp(_LEAST, 1 - _LEAST)
        return p.log() - (1 - p).log()
