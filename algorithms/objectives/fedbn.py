"""FedBN: BatchNorm's scale, shift and running statistics stay on the device.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou. FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization. ICLR 2021, Algorithm 1.
"""

from collections.abc import Mapping
from typing import ClassVar

from algorithms.core.contract import PlainSgd
from algorithms.core.probe import norm_layers
from algorithms.models.classifier import Classifier
from algorithms.objectives.supervised import Supervised


class FedBN(Supervised):
    """Local SGD with private tensors in BatchNorm layers."""

    name: ClassVar[str] = "fedbn"
    citation: ClassVar[str] = "Li et al., ICLR 2021, Algorithm 1"
    in_sums = "cannot"
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {"step": PlainSgd()}

    def __init__(self, model: Classifier) -> None:
        super().__init__(model)
        self.private = tuple(f"{layer}." for layer in norm_layers(model))
