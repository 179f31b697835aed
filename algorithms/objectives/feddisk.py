"""FedDisk: examples are weighted by the fleet's density over the device's density.

Every device then minimises the fleet's risk.

H. Nguyen, P. Wu, J. M. Chang. Federated Learning for Distribution Skewed Data Using Sample Weights.
IEEE Transactions on Artificial Intelligence, 2023. Legend: gd the global MADE (``shared/made``),
ld_k the local one (``slot/best_made``), h the binary classifier (``slot/ratio``), alpha the weights
(`example_weights`).

Phase 1 (Algorithm 1): the fleet trains gd by FedAvg until its validation loss rises; these rounds
are preparations. Then every device, once and without exchange, trains ld_k, trains h to distinguish
gd's output vectors from ld_k's, and stores alpha = p / (1 - p) (Eq. 16), p = h(ld_k(x)). Phase 2:
FedAvg on the weighted loss (Eq. 10). A device that joins later trains ld_k and h in its first
round.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

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
from algorithms.models.made import Made, negative_log_likelihood
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.example_weights import RATIO_UNITS, Weighted, WeightedServer, plain_step
from algorithms.objectives.supervised import following_values
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.messages import MOST_EPOCHS, Apply, Evaluate, Train, Verb

_NOT_YET = 1e30
"""Initial value of the least validation loss."""
_VALIDATION = names.response("validate", "loss")
_FLEET, _LOCAL, _BEST, _CLASSIFIER = (
    names.shared("made."),
    names.slot("local_made."),
    names.slot("best_made."),
    names.slot("ratio."),
)
_LEAST_LOSS = names.slot("least_loss")


class FedDiskServer(WeightedServer):
    """Server's half: first lets the fleet train the global density model.

    Its training ends when its validation loss has not fallen for `patience` rounds, or after
    `preparations` rounds. A share `holdout` of the training windows is for validation. The local
    density model is validated `local_checks` times, each after `local_epochs` passes, and its best
    state counts.
    """

    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    holdout: float = option(0.15, "share of the training windows that validates", above=0, below=1)
    preparations: int = option(100, "rounds of the global density model, at most", low=1)
    patience: int = option(1, "rounds without a lower validation loss that end them", low=1)
    local_checks: int = option(  # each takes three verbs of a plan, which is limited to 64 KiB
        20, "validations of the local density model", low=1, high=100
    )
    local_epochs: int = option(3, "passes before each of them", low=1, high=MOST_EPOCHS)

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        info: dict[str, Any] = {"losses": [], "prepared": False}
        return ObjectiveMemory(info=super().begin(initial, seed).info | info)

    def preparing(self, context: ObjectiveMemory) -> bool:
        return not context.info["prepared"]

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        if not self.preparing(context):
            return super().programs(context, work)
        return {
            "": (
                Evaluate("holdout", "validate", holdout=self.holdout),
                self._fit("density", work, work.local_epochs, report=True),
            )
        }

    def weighing(self, work: Work) -> tuple[Verb, ...]:
        validate = Evaluate("holdout", "local_validate", holdout=self.holdout, report=False)
        check = (
            self._fit("local_density", work, self.local_epochs, report=False),
            validate,
            Apply("keep_best"),
        )
        return (*check * self.local_checks, *super().weighing(work))

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        if not self.preparing(context):
            return super().absorb(context, models, membership, averages)
        losses: list[float | None] = [*context.info["losses"], validation_loss(models)]
        actual_losses = [loss for loss in losses if loss is not None]
        rising = len(actual_losses) > self.patience and min(actual_losses[-self.patience :]) >= min(
            actual_losses[: -self.patience]
        )
        return ObjectiveMemory(
            context.arrays,
            {
                **context.info,
                "losses": losses,
                "prepared": rising or len(losses) >= self.preparations,
            },
        )

    def _fit(self, graph: str, work: Work, epochs: int, report: bool) -> Train:
        return Train(
            work.batch_size,
            epochs,
            hyper=dict(work.hyper),
            graph=graph,
            report=report,
            holdout=self.holdout,
        )


class FedDisk(Weighted):
    """Weights from a binary classifier that sees the outputs of two density models."""

    name: ClassVar[str] = "feddisk"
    citation: ClassVar[str] = "Nguyen et al., IEEE TAI 2023, Algorithm 1"
    in_sums = "cannot"
    server: ClassVar[type[DefaultCoordinator]] = FedDiskServer
    hyper: Mapping[str, Any] = {
        **Weighted.hyper,
        "density_lr": option(0.01, "learning rate of the density models", low=0),
    }
    density_units: int = option(50, "hidden units of the density models", low=1)

    def __init__(self, model: Classifier, *values: Any, **options: Any) -> None:
        super().__init__(model, *values, **options)
        size = self.inputs.num_values
        self.made = seeded(lambda: Made(size, self.density_units))
        self.ratio = seeded(
            lambda: nn.Sequential(
                nn.Linear(size, RATIO_UNITS), nn.ReLU(), nn.Linear(RATIO_UNITS, 2)
            )
        )

    def initial(self) -> TorchTensors:
        density_tensors = {
            key: value
            for prefix in (_FLEET, _LOCAL, _BEST)
            for key, value in tensors_of(self.made, prefix).items()
        }
        return (
            super().initial()
            | density_tensors
            | tensors_of(self.ratio, _CLASSIFIER)
            | {_LEAST_LOSS: torch.tensor(_NOT_YET)}
        )

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {
            **super().graphs(),
            "density": lambda tensors, batch, hyper: self.fit(tensors, batch, hyper, _FLEET),
            "validate": lambda tensors, batch, hyper: {
                names.metric("loss"): self.misfit(tensors, batch, _FLEET).sum()
            },
            "local_density": lambda tensors, batch, hyper: self.fit(tensors, batch, hyper, _LOCAL),
            "local_validate": lambda tensors, batch, hyper: {
                names.metric("loss"): self.misfit(tensors, batch, _LOCAL).sum()
            },
            "keep_best": self.keep_best,
        }

    def misfit(self, tensors: TorchTensors, batch: TorchTensors, prefix: str) -> Tensor:
        """Return -log p(x) (batch,) under one of the density models."""
        x = self.inputs(batch["x"])
        return negative_log_likelihood(call(self.made, tensors, prefix, x), x)

    def fit(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors, prefix: str
    ) -> TorchTensors:
        """Take a step of one of the density models."""

        def loss_of(weights: TorchTensors) -> tuple[Tensor, Tensor]:
            return self.misfit(weights, batch, prefix).mean(), torch.zeros(())

        return plain_step(loss_of, prefix, tensors, hyper["density_lr"], batch)

    def keep_best(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Store the local density model as the best one if its validation loss is the least so far.

        Among equal losses the latest model is stored, for example if no windows are held out.
        """
        loss = tensors[names.response("local_validate", "loss")]
        better = loss <= tensors[_LEAST_LOSS]
        best = {_LEAST_LOSS: torch.where(better, loss, tensors[_LEAST_LOSS])}
        for name, _ in self.made.named_parameters():
            best[_BEST + name] = torch.where(better, tensors[_LOCAL + name], tensors[_BEST + name])
        return following_values(best)

    def outputs(self, tensors: TorchTensors, batch: TorchTensors, prefix: str) -> Tensor:
        """Return the conditional probabilities (batch, D) of one of the density models."""
        return torch.sigmoid(call(self.made, tensors, prefix, self.inputs(batch["x"])))

    def tell_apart(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Take a step of the binary classifier on the outputs of both density models.

        The loss is the mean cross-entropy over their outputs for the same examples.
        """
        fleet, device = self.outputs(tensors, batch, _FLEET), self.outputs(tensors, batch, _BEST)

        def loss_of(weights: TorchTensors) -> tuple[Tensor, Tensor]:
            one, zero = self.odds(weights, fleet), self.odds(weights, device)
            right = (one > 0).to(torch.float32).sum() + (zero <= 0).to(torch.float32).sum()
            return (F.softplus(-one).mean() + F.softplus(zero).mean()) / 2, right / 2

        return plain_step(loss_of, _CLASSIFIER, tensors, hyper["ratio_lr"], batch)

    def log_odds(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        return self.odds(tensors, self.outputs(tensors, batch, _BEST))

    def odds(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        """Return log p / (1 - p) (batch,) for a density model's outputs.

        p is the binary classifier's probability of the second of two classes.
        """
        logits = call(self.ratio, tensors, _CLASSIFIER, x)
        return logits[:, 1] - logits[:, 0]


def tensors_of(module: nn.Module, prefix: str) -> TorchTensors:
    """Return a module's parameters as tensors of a bundle."""
    return {f"{prefix}{name}": value.detach().clone() for name, value in module.named_parameters()}


def call(module: nn.Module, tensors: TorchTensors, prefix: str, x: Tensor) -> Tensor:
    """Return the output of a module for x, with the parameters of this prefix."""
    output: Tensor = functional_call(
        module,
        {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)},
        (x,),
    )
    return output


def validation_loss(models: Sequence[LocalModel]) -> float | None:
    """Return the mean validation loss of the received model, weighted by examples.

    The mean is None if no device reported a finite loss.
    """
    measured = [
        (float(m.responses[_VALIDATION]), m.num_examples)
        for m in models
        if _VALIDATION in m.responses
    ]
    finite = [(loss, count) for loss, count in measured if isfinite(loss)]
    return (
        float(np.average([loss for loss, _ in finite], weights=[count for _, count in finite]))
        if finite
        else None
    )
