"""SimCLR on all of a device's windows, with and without labels, and a linear head on its features.

T. Chen, S. Kornblith, M. Norouzi, G. Hinton. A Simple Framework for Contrastive Learning of Visual
Representations. ICML 2020. In a round a device makes `passes` passes over all its windows. Each
computes the gradient of the contrastive loss by the body, for one step. Then the device trains the
head on the windows with labels; the head's gradient does not reach the body.

Differences from the paper: a window's views are scaled, and a slow wave is added to them; a view is
compared with the other views of the other windows (N - 1 negatives, not 2N - 2); the projection is
linear.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.core.contract import GraphFunction, ObjectiveMemory, TorchTensors, Work
from algorithms.core.functional import seeded
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.gradients import grad_and_value
from algorithms.objectives.supervised import Supervised, following_values
from algorithms.spec import option
from wire.arrays import names
from wire.messages import Apply, Evaluate, Verb

PROJECTION, PASSED = names.shared("projection"), names.slot("passed")
GOLDEN = 2.399963
"""Multiples of the golden angle are spread evenly over a circle."""


class SimClrServer(DefaultCoordinator):
    """Server's half: the plan of a round. Measurements of ``contrast`` stay on the device."""

    passes: int = option(4, "passes over all windows in a round", low=1)

    def training(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        one: tuple[Verb, ...] = (
            Evaluate("windows", "contrast", report=False),
            Apply("follow", report=False),
        )
        return (*one * self.passes, work.train())


class SimClr(Supervised):
    """Device's half: the graphs ``contrast`` and ``follow`` train the body, ``step`` the head."""

    name: ClassVar[str] = "simclr"
    citation: ClassVar[str] = "Chen et al., ICML 2020"
    server: ClassVar[type[DefaultCoordinator]] = SimClrServer
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "body_lr": option(0.1, "learning rate of the body", low=0),
        "tau": option(0.2, "temperature", low=0.05),
        "strength": option(0.3, "how much views are changed", low=0),
    }
    projected: int = option(32, "numbers of a projected representation", low=1)

    def trained(self, tensors: TorchTensors) -> list[str]:
        return [key for key in super().trained(tensors) if names.name_of(key).startswith("head.")]

    def body(self, tensors: TorchTensors) -> list[str]:
        """Return the tensors that the contrastive loss changes: the body, and the projection."""
        return [
            *(key for key in super().trained(tensors) if key not in self.trained(tensors)),
            PROJECTION,
        ]

    def initial(self) -> TorchTensors:
        width = self.model.num_features
        projection = seeded(lambda: torch.randn(width, self.projected)) / width**0.5
        return {**super().initial(), PROJECTION: projection, PASSED: torch.zeros(())}

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "contrast": self.contrast, "follow": self.follow}

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Run a step of the head. The body enters the update as it is after the passes."""
        return following_values(
            {key: torch.clone(tensors[key]) for key in self.body(tensors)}
        ) | super().step(tensors, batch, hyper)

    def contrast(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return the gradient of the contrastive loss by the body, summed over a batch."""

        def loss_of(weights: TorchTensors) -> tuple[Tensor, tuple[()]]:
            current = {**tensors, **weights}
            one, other = (
                self.project(current, self.view(tensors, batch, hyper, number)) for number in (0, 1)
            )
            alike = torch.exp(
                one @ other.T / hyper["tau"]
            )  # at most exp(1 / 0.05), within the range of float32
            positive = (one * other).sum(1) / hyper["tau"]
            return (torch.log(alike.sum(1)) + torch.log(alike.sum(0)) - 2 * positive).mean() / 2, ()

        gradients, _, _ = grad_and_value(loss_of, {key: tensors[key] for key in self.body(tensors)})
        return {
            names.metric(f"gradient.{names.name_of(key)}"): value * batch["x"].shape[0]
            for key, value in gradients.items()
        }

    def view(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors, number: int
    ) -> Tensor:
        """Return one of two views of a batch's windows, which differ between windows and passes."""
        x = batch["x"]
        angle = GOLDEN * (batch["rank"] + 7 * tensors[PASSED] + 0.5 * number)
        angle = angle.reshape(-1, *[1] * (x.dim() - 1))
        wave = torch.sin(torch.linspace(0, 6.283185, x.shape[-1]) * (1 + number) + angle)
        return (
            x * (1 + hyper["strength"] * torch.sin(3 * angle))
            + hyper["strength"] * x.abs().mean(-1, keepdim=True) * wave
        )

    def project(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        """Return projected representations (batch, projected), of length 1.

        BatchNorm uses the statistics of the head's steps.
        """
        features = self.forward(tensors, {"x": x}, training=False).features
        return F.normalize(features @ tensors[PROJECTION], dim=1)

    def follow(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Run a step of the body against the gradient of ``contrast``, clipped to a norm of 1."""
        gradients = {
            key: tensors[names.response("contrast", f"gradient.{names.name_of(key)}")]
            for key in self.body(tensors)
        }
        norm = torch.stack([value.square().sum() for value in gradients.values()]).sum().sqrt()
        factor = hyper["body_lr"] / torch.clamp(norm, min=1.0)
        moved = {key: tensors[key] - factor * value for key, value in gradients.items()}
        return following_values({**moved, PASSED: tensors[PASSED] + 1})
