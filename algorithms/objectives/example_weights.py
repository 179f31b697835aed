"""Objectives with weighted examples: an example's weight is the ratio of the fleet's density to the
device's own, where it lies.

H. Nguyen, P. Wu, J. M. Chang. Federated Learning for Distribution Skewed Data Using Sample Weights.
IEEE Transactions on Artificial Intelligence, 2023. Legend: h the binary classifier (``ratio``),
alpha the weights (column ``weight``). With p the probability that h gives to label 1, the fleet's,
for an example of the device, alpha = p / (1 - p) (Eq. 16). What h sees is up to the objective:
`feddisk` shows it two density models' outputs, `feddisk_ab` the examples themselves. A device finds
its weights once, before it first trains.

The paper does not normalise alpha. Its mean over the device's examples is 1 in theory (the
expectation of p / q under q), but h sees two networks' outputs for the same examples: the longer it
is trained, the better it tells the networks apart and the nearer all alpha come to 0, and with them
the step size. So alpha is divided by its mean unless `mean_one` is off.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import log
from typing import ClassVar

from torch import Tensor

from algorithms.core.contract import (
    GraphFunction,
    LocalModel,
    ObjectiveMemory,
    Programs,
    TorchTensors,
    Work,
)
from algorithms.models.classifier import Classifier
from algorithms.models.made import UnitInputs
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.gradients import grad_and_value
from algorithms.objectives.supervised import LR, MOMENTUM, Supervised, following_values
from algorithms.spec import AT_LEAST_ONE, NOT_NEGATIVE, Limits
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.errors import ConfigError
from wire.messages import MOST_EPOCHS, Annotate, Evaluate, Verb

RATIO_UNITS = 100
"""Hidden units of the binary classifier (section VII-B4)."""


class Weighted(Supervised):
    """A classifier whose examples count by weights, which the device finds once."""

    hyper: Mapping[str, float] = {"lr": LR, "momentum": MOMENTUM, "ratio_lr": 0.01}
    columns: Mapping[str, tuple[int, ...]] = {"weight": ()}
    limits: ClassVar[Mapping[str, Limits]] = {
        "density_features": AT_LEAST_ONE,
        "max_weight": AT_LEAST_ONE,
        "ratio_lr": NOT_NEGATIVE,
    }

    def __init__(self, model: Classifier, density_features: int, max_weight: float) -> None:
        super().__init__(model)
        if not model.shape:
            raise ConfigError(
                f"{self.name}: expected a model whose `shape` says that of one example"
            )
        if model.vocabulary:
            raise ConfigError(
                f"{self.name}: it estimates the density of measurements, and these windows hold ids"
            )
        self.inputs = UnitInputs(model.scale, model.shape, density_features)
        self.max_log_weight = log(max_weight)

    def log_odds(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """log p / (1 - p) (batch,), p the probability that a binary classifier gives to label 1 for
        the device's examples."""
        raise NotImplementedError

    def tell_apart(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """A step of the binary classifier: label 1 for the fleet, 0 for the device."""
        raise NotImplementedError

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {
            **super().graphs(),
            "ratio": self.tell_apart,
            "mean_weight": lambda tensors, batch, hyper: {
                names.metric("mean"): self.weights(tensors, batch).sum()
            },
            "weigh": lambda tensors, batch, hyper: {
                names.output("weight"): self.weights(tensors, batch)
            },
            "weigh_to_mean_one": lambda tensors, batch, hyper: {
                names.output("weight"): self.weights(tensors, batch)
                / tensors[names.response("mean_weight", "mean")]
            },
        }

    def weights(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """p / (1 - p) (batch,) of the device's examples, Eq. 16, at most `max_weight` and at least
        its inverse."""
        return self.log_odds(tensors, batch).clamp(-self.max_log_weight, self.max_log_weight).exp()


def plain_step(
    loss_of: Callable[[TorchTensors], tuple[Tensor, Tensor]],
    prefix: str,
    tensors: TorchTensors,
    lr: Tensor,
    batch: TorchTensors,
) -> TorchTensors:
    """w <- w - lr * gradient for the tensors of this prefix; `loss_of` returns the loss and how
    much was right."""
    weights = {key: value for key, value in tensors.items() if key.startswith(prefix)}
    gradients, loss, right = grad_and_value(loss_of, weights)
    moved = {key: value - lr * gradients[key] for key, value in weights.items()}
    return following_values(moved) | {
        names.LOSS_SUM: loss * batch["x"].shape[0],
        names.NUM_CORRECT: right,
    }


class WeightedServer(DefaultCoordinator):
    """Knows which devices have weights; the others find theirs before they train. `ratio_epochs`:
    passes of the binary classifier; `mean_one`: whether a device's weights are divided by their
    mean."""

    absorbs: ClassVar[bool] = True
    limits: ClassVar[Mapping[str, Limits]] = {"ratio_epochs": Limits(low=1, high=MOST_EPOCHS)}

    def __init__(self, ratio_epochs: int = 10, mean_one: bool = True) -> None:
        self.ratio_epochs, self.mean_one = ratio_epochs, mean_one

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        return ObjectiveMemory(info={"weighted": []})

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        training = self.training(context, work)
        ready: Programs = {f"device:{d}": (Evaluate(), *training) for d in context.info["weighted"]}
        return {"": (Evaluate(), *self.weighing(work), *training), **ready}

    def weighing(self, work: Work) -> tuple[Verb, ...]:
        """How a device finds its weights; nothing of it is reported."""
        tell_apart = work.train("ratio", epochs=self.ratio_epochs, report=False)
        if not self.mean_one:
            return (tell_apart, Annotate("weigh", "weight"))
        return (
            tell_apart,
            Evaluate("train", "mean_weight", report=False),
            Annotate("weigh_to_mean_one", "weight"),
        )

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        weighted = sorted({*context.info["weighted"], *(m.device_id for m in models)})
        return ObjectiveMemory(context.arrays, {**context.info, "weighted": weighted})

    def forget(
        self, context: ObjectiveMemory, device_id: str, alone: str | None
    ) -> ObjectiveMemory:
        kept = super().forget(context, device_id, alone)
        return replace(
            kept,
            info={**kept.info, "weighted": [d for d in kept.info["weighted"] if d != device_id]},
        )
