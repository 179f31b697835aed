"""Objectives that weight examples by the ratio of the fleet's density to the device's.

H. Nguyen, P. Wu, J. M. Chang. Federated Learning for Distribution Skewed Data Using Sample Weights.
IEEE Transactions on Artificial Intelligence, 2023. Legend: h the binary classifier (``ratio``),
alpha the weights (column ``weight``). With p the probability that h gives to label 1, the fleet's,
for an example of the device, alpha = p / (1 - p) (Eq. 16). The input of h depends on the objective:
the outputs of two density models in `feddisk`, the examples themselves in `feddisk_ab`. A device
computes its weights once, before it first trains.

The paper does not normalise alpha. Its mean over the device's examples is 1 in theory (the
expectation of p / q under q), but h sees two networks' outputs for the same examples. The longer h
is trained, the better it distinguishes the networks and the nearer all alpha come to 0, and with
them the step size. So alpha is divided by its mean unless `mean_one` is off.
"""

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import Any, ClassVar

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
from algorithms.objectives.supervised import Supervised, following_values
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.errors import ConfigError
from wire.messages import MOST_EPOCHS, Annotate, Evaluate, Verb

RATIO_UNITS = 100
"""Number of hidden units of the binary classifier (section VII-B4)."""


class Weighted(Supervised):
    """A classifier whose examples have weights, which the device computes once."""

    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "ratio_lr": option(0.01, "learning rate of the binary classifier", low=0),
    }
    density_features: int = option(784, "values of an example that are looked at, at most", low=1)
    max_weight: float = option(100.0, "largest weight; its inverse is the least", low=1)
    columns: Mapping[str, tuple[int, ...]] = {"weight": ()}

    def __init__(self, model: Classifier, *values: Any, **options: Any) -> None:
        super().__init__(model, *values, **options)
        if not model.shape:
            raise ConfigError(
                f"{self.name} needs the shape of one example. Set the model's `shape`."
            )
        if model.vocabulary:
            raise ConfigError(
                f"{self.name} estimates the density of measurements, and these windows hold ids"
            )
        self.inputs = UnitInputs(model.scale, model.shape, self.density_features)
        self.max_log_weight = log(self.max_weight)

    def log_odds(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """Return log p / (1 - p) (batch,) of the device's examples.

        p is the probability that the binary classifier gives to label 1.
        """
        raise NotImplementedError

    def tell_apart(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Take a step of the binary classifier: label 1 for the fleet, 0 for the device."""
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
        """Return p / (1 - p) (batch,) of the device's examples (Eq. 16).

        Values are limited to `max_weight` and its inverse.
        """
        return self.log_odds(tensors, batch).clamp(-self.max_log_weight, self.max_log_weight).exp()


def plain_step(
    loss_of: Callable[[TorchTensors], tuple[Tensor, Tensor]],
    prefix: str,
    tensors: TorchTensors,
    lr: Tensor,
    batch: TorchTensors,
) -> TorchTensors:
    """Return w - lr * gradient for the tensors of this prefix, with metrics.

    `loss_of` returns the loss and the number of correct answers.
    """
    weights = {key: value for key, value in tensors.items() if key.startswith(prefix)}
    gradients, loss, right = grad_and_value(loss_of, weights)
    moved = {key: value - lr * gradients[key] for key, value in weights.items()}
    return following_values(moved) | {
        names.LOSS_SUM: loss * batch["x"].shape[0],
        names.NUM_CORRECT: right,
    }


class WeightedServer(DefaultCoordinator):
    """Server's half: devices without weights compute them before they train."""

    absorbs: ClassVar[bool] = True
    by_device: ClassVar[bool] = True

    ratio_epochs: int = option(10, "passes of the binary classifier", low=1, high=MOST_EPOCHS)
    mean_one: bool = option(True, "a device's weights are divided by their mean")

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        return ObjectiveMemory(info={"weighted": []})

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        training = self.training(context, work)
        ready: Programs = {f"device:{d}": (Evaluate(), *training) for d in context.info["weighted"]}
        return {"": (Evaluate(), *self.weighing(work), *training), **ready}

    def weighing(self, work: Work) -> tuple[Verb, ...]:
        """Return the verbs by which a device computes its weights, without reports."""
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
