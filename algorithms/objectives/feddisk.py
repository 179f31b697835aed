"""FedDisk: examples count by the ratio of the fleet's density to the device's own, so that every device minimises the fleet's risk.

H. Nguyen, P. Wu, J. M. Chang. Federated Learning for Distribution Skewed Data Using Sample Weights. IEEE Transactions on Artificial
Intelligence, 2023. Legend: gd the global MADE (``shared/made``), ld_k the local one (``slot/best_made``), h the binary classifier
(``slot/ratio``), alpha the weights (column ``weight``).

Phase 1 (Algorithm 1): the fleet trains gd by FedAvg until its validation loss rises; these rounds are preparations. Then every device, once
and by itself: trains ld_k, trains h to tell gd's output vectors from ld_k's, and stores alpha = p / (1 - p) (Eq. 16), p = h(ld_k(x)). Phase
2: FedAvg on the weighted loss (Eq. 10). A device that joins later catches up in its first round.

The paper does not normalise alpha. Its mean over the device's examples is 1 in theory (the expectation of p / q under q), but h sees
two networks' outputs for the same examples: the longer it is trained, the better it tells the networks apart and the nearer all
alpha come to 0, and with them the step size. So alpha is divided by its mean unless `mean_one` is off.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, log
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from algorithms.core.contract import Context, GraphFunction, LocalModel, Programs, TorchTensors, Work
from algorithms.models.classifier import Classifier
from algorithms.models.gated import freeze
from algorithms.models.made import Made, UnitInputs, negative_log_likelihood
from algorithms.objectives.coordinator import Plain
from algorithms.objectives.gradients import grad_and_value
from algorithms.objectives.supervised import LR, MOMENTUM, Supervised, following_values
from wire import names
from wire.errors import ConfigError
from wire.messages import Annotate, Apply, Evaluate, Train, Verb
from wire.tensors import Tensors

RATIO_UNITS = 100
"""Hidden units of the binary classifier (section VII-B4)."""
_NOT_YET = 1e30
"""The least validation loss before there was one."""
_VALIDATION, _MOMENTS = names.response("validate", "loss"), names.response("moments", "second")
_FLEET, _LOCAL, _BEST, _CLASSIFIER = names.shared("made."), names.slot("local_made."), names.slot("best_made."), names.slot("ratio.")
_LEAST_LOSS, _RATIO = names.slot("least_loss"), names.slot("ratio")
_WHITENING, _FLEET_MEAN = names.received("whitening"), names.received("fleet_mean")
_LEAST = 1e-4
"""A least-squares probability nearer to 0 or 1 counts as this near."""
_RIDGE = 1e-4
"""Directions of phi with less than this share of the largest second moment are damped."""

Net = TypeVar("Net", bound=nn.Module)


class Weighted(Supervised):
    """A classifier whose examples count by weights, which the device finds once."""

    hyper: Mapping[str, float] = {"lr": LR, "momentum": MOMENTUM, "ratio_lr": 0.01}
    columns: Mapping[str, tuple[int, ...]] = {"weight": ()}

    def __init__(self, model: Classifier, density_features: int, max_weight: float) -> None:
        super().__init__(model)
        if not model.shape:
            raise ConfigError(f"{self.name}: expected a model whose `shape` says that of one example")
        self.inputs = UnitInputs(model.scale, model.shape, density_features)
        self.max_log_weight = log(max_weight)

    def log_odds(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """log p / (1 - p) (batch,), p the probability that a binary classifier gives to label 1 for the device's examples."""
        raise NotImplementedError

    def tell_apart(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """A step of the binary classifier: label 1 for the fleet, 0 for the device."""
        raise NotImplementedError

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {
            **super().graphs(),
            "ratio": self.tell_apart,
            "mean_weight": lambda tensors, batch, hyper: {names.metric("mean"): self.weights(tensors, batch).sum()},
            "weigh": lambda tensors, batch, hyper: {names.output("weight"): self.weights(tensors, batch)},
            "weigh_to_mean_one": lambda tensors, batch, hyper: {
                names.output("weight"): self.weights(tensors, batch) / tensors[names.response("mean_weight", "mean")]
            },
        }

    def weights(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """p / (1 - p) (batch,) of the device's examples, Eq. 16, at most `max_weight` and at least its inverse."""
        return self.log_odds(tensors, batch).clamp(-self.max_log_weight, self.max_log_weight).exp()


class FedDisk(Weighted):
    """The binary classifier sees what the two density models make of the device's examples."""

    name: ClassVar[str] = "feddisk"
    citation: ClassVar[str] = "Nguyen et al., IEEE TAI 2023, Algorithm 1"
    hyper: Mapping[str, float] = {**Weighted.hyper, "density_lr": 0.01}

    def __init__(self, model: Classifier, density_units: int = 50, density_features: int = 784, max_weight: float = 100.0) -> None:
        """`density_units`: hidden units of the density models; `density_features`: how many values of an example they see at most."""
        super().__init__(model, density_features, max_weight)
        size = self.inputs.num_values
        self.made = seeded(lambda: Made(size, density_units))
        self.ratio = seeded(lambda: nn.Sequential(nn.Linear(size, RATIO_UNITS), nn.ReLU(), nn.Linear(RATIO_UNITS, 2)))

    def initial(self) -> TorchTensors:
        own = {key: value for prefix in (_FLEET, _LOCAL, _BEST) for key, value in tensors_of(self.made, prefix).items()}
        return super().initial() | own | tensors_of(self.ratio, _CLASSIFIER) | {_LEAST_LOSS: torch.tensor(_NOT_YET)}

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {
            **super().graphs(),
            "density": lambda tensors, batch, hyper: self.fit(tensors, batch, hyper, _FLEET),
            "validate": lambda tensors, batch, hyper: {names.metric("loss"): self.misfit(tensors, batch, _FLEET).sum()},
            "local_density": lambda tensors, batch, hyper: self.fit(tensors, batch, hyper, _LOCAL),
            "local_validate": lambda tensors, batch, hyper: {names.metric("loss"): self.misfit(tensors, batch, _LOCAL).sum()},
            "keep_best": self.keep_best,
        }

    def misfit(self, tensors: TorchTensors, batch: TorchTensors, prefix: str) -> Tensor:
        """-log p(x) (batch,) under one of the density models."""
        x = self.inputs(batch["x"])
        return negative_log_likelihood(call(self.made, tensors, prefix, x), x)

    def fit(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors, prefix: str) -> TorchTensors:
        """A step of one of the density models."""

        def loss_of(weights: TorchTensors) -> tuple[Tensor, Tensor]:
            return self.misfit(weights, batch, prefix).mean(), torch.zeros(())

        return plain_step(loss_of, prefix, tensors, hyper["density_lr"], batch)

    def keep_best(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """The local density model becomes the best one if its validation loss is the least so far."""
        loss = tensors[names.response("local_validate", "loss")]
        better = loss < tensors[_LEAST_LOSS]
        kept = {_LEAST_LOSS: torch.where(better, loss, tensors[_LEAST_LOSS])}
        for name, _ in self.made.named_parameters():
            kept[_BEST + name] = torch.where(better, tensors[_LOCAL + name], tensors[_BEST + name])
        return following_values(kept)

    def outputs(self, tensors: TorchTensors, batch: TorchTensors, prefix: str) -> Tensor:
        """The conditional probabilities (batch, D) that one of the density models gives."""
        return torch.sigmoid(call(self.made, tensors, prefix, self.inputs(batch["x"])))

    def tell_apart(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """The mean cross-entropy over the outputs of both density models for the same examples."""
        fleet, device = self.outputs(tensors, batch, _FLEET), self.outputs(tensors, batch, _BEST)

        def loss_of(weights: TorchTensors) -> tuple[Tensor, Tensor]:
            one, zero = odds_of(call(self.ratio, weights, _CLASSIFIER, fleet)), odds_of(call(self.ratio, weights, _CLASSIFIER, device))
            return (F.softplus(-one).mean() + F.softplus(zero).mean()) / 2, count_right(one, zero)

        return plain_step(loss_of, _CLASSIFIER, tensors, hyper["ratio_lr"], batch)

    def log_odds(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        return odds_of(call(self.ratio, tensors, _CLASSIFIER, self.outputs(tensors, batch, _BEST)))


class FedDiskAb(Weighted):
    """The ablation of section VI: the binary classifier sees the raw examples themselves, and there is no density model.

    The paper pools the raw data of all clients on one machine. Here they stay where they are. With label 1 for the fleet, 0 for the
    device and p = a^T phi(x), the squared loss E_fleet (1 - p)^2 + E_device p^2 needs no more of the fleet than the mean of phi phi^T: an
    average, weighted by examples, found in a preparation and the same as over pooled data. So of the paper's classifier the 100
    ReLU units phi keep their random weights, and only their output layer is trained, by that loss instead of the
    cross-entropy. The server sends the average as a matrix W that makes it the unit matrix, for SGD to converge: psi = W phi.
    """

    name: ClassVar[str] = "feddisk-ab"
    citation: ClassVar[str] = "Nguyen et al., IEEE TAI 2023, section VI"

    def __init__(self, model: Classifier, density_features: int = 784, max_weight: float = 100.0) -> None:
        """`density_features`: how many values of an example the binary classifier sees at most."""
        super().__init__(model, density_features, max_weight)
        self.hidden = seeded(lambda: freeze(nn.Linear(self.inputs.num_values, RATIO_UNITS)))

    def initial(self) -> TorchTensors:
        size = RATIO_UNITS + 1
        own = {_WHITENING: torch.zeros(size, size), _FLEET_MEAN: torch.zeros(size), _RATIO: torch.zeros(size)}
        return super().initial() | own

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "moments": self.moments}

    def units(self, batch: TorchTensors) -> Tensor:
        """phi (batch, 101): 1 and the ReLU units."""
        hidden = torch.relu(self.hidden(self.inputs(batch["x"])))
        return torch.cat([torch.ones_like(hidden[:, :1]), hidden], dim=1)

    def moments(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """The sum of phi phi^T over a batch; its first row is the sum of phi."""
        units = self.units(batch)
        return {names.metric("second"): units.T @ units}

    def probabilities(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """p = a^T psi (batch,)."""
        return (self.units(batch) @ tensors[_WHITENING].T) @ tensors[_RATIO]

    def tell_apart(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        def loss_of(weights: TorchTensors) -> tuple[Tensor, Tensor]:
            a, p = weights[_RATIO], self.probabilities({**tensors, **weights}, batch)
            fleet = 1 - 2 * (a * tensors[_FLEET_MEAN]).sum() + a.square().sum()
            return fleet + p.square().mean(), (p < 0.5).to(torch.float32).sum()

        return plain_step(loss_of, _RATIO, tensors, hyper["ratio_lr"], batch)

    def log_odds(self, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        p = self.probabilities(tensors, batch).clamp(_LEAST, 1 - _LEAST)
        return p.log() - (1 - p).log()


def seeded(make: Callable[[], Net], seed: int = 0) -> Net:
    """A module whose initial weights do not depend on torch's random state, which is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def tensors_of(module: nn.Module, prefix: str) -> TorchTensors:
    """A module's parameters, as tensors of a bundle."""
    return {f"{prefix}{name}": value.detach().clone() for name, value in module.named_parameters()}


def call(module: nn.Module, tensors: TorchTensors, prefix: str, x: Tensor) -> Tensor:
    """What a module makes of x with the parameters of this prefix."""
    made: Tensor = functional_call(module, {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}, (x,))
    return made


def odds_of(logits: Tensor) -> Tensor:
    """log p / (1 - p) (batch,), p the softmax output for the second of two classes."""
    return logits[:, 1] - logits[:, 0]


def count_right(fleet: Tensor, device: Tensor) -> Tensor:
    """How many of each pair of vectors, given their log odds, are told right, as a number of examples."""
    return ((fleet > 0).to(torch.float32).sum() + (device <= 0).to(torch.float32).sum()) / 2


def plain_step(
    loss_of: Callable[[TorchTensors], tuple[Tensor, Tensor]], prefix: str, tensors: TorchTensors, lr: Tensor, batch: TorchTensors
) -> TorchTensors:
    """w <- w - lr * gradient for the tensors of this prefix; `loss_of` returns the loss and how much was right."""
    weights = {key: value for key, value in tensors.items() if key.startswith(prefix)}
    gradients, loss, right = grad_and_value(loss_of, weights)
    moved = {key: value - lr * gradients[key] for key, value in weights.items()}
    return following_values(moved) | {names.LOSS_SUM: loss * batch["x"].shape[0], names.NUM_CORRECT: right}


class WeightedServer(Plain):
    """Knows which devices have weights; the others find theirs before they train. `ratio_epochs`: passes of the binary classifier;
    `mean_one`: whether a device's weights are divided by their mean."""

    absorbs: ClassVar[bool] = True

    def __init__(self, ratio_epochs: int = 10, mean_one: bool = True) -> None:
        self.ratio_epochs, self.mean_one = ratio_epochs, mean_one

    def begin(self, initial: Tensors) -> Context:
        return Context(info={"weighted": []})

    def programs(self, context: Context, work: Work) -> Programs:
        training = self.training(context, work)
        ready: Programs = {f"device:{d}": (Evaluate(), *training) for d in context.info["weighted"]}
        return {"": (Evaluate(), *self.weighing(work), *training), **ready}

    def weighing(self, work: Work) -> tuple[Verb, ...]:
        """How a device finds its weights; nothing of it is reported."""
        tell_apart = work.train("ratio", epochs=self.ratio_epochs, report=False)
        if not self.mean_one:
            return (tell_apart, Annotate("weigh", "weight"))
        return (tell_apart, Evaluate("train", "mean_weight", report=False), Annotate("weigh_to_mean_one", "weight"))

    def absorb(
        self, context: Context, models: Sequence[LocalModel], membership: Mapping[str, str], averages: Mapping[str, Tensors]
    ) -> Context:
        weighted = sorted({*context.info["weighted"], *(m.device_id for m in models)})
        return Context(context.arrays, {**context.info, "weighted": weighted})


class FedDiskServer(WeightedServer):
    """Lets the fleet train the global density model, until its validation loss has not fallen for `patience` rounds, at most
    `preparations` rounds. A share `holdout` of the training windows validates; the local density model is validated `local_checks`
    times, every `local_epochs` passes, and its best state counts.
    """

    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    def __init__(
        self,
        holdout: float = 0.15,
        preparations: int = 100,
        patience: int = 1,
        local_checks: int = 20,
        local_epochs: int = 3,
        ratio_epochs: int = 10,
        mean_one: bool = True,
    ) -> None:
        super().__init__(ratio_epochs, mean_one)
        if not 0 < holdout < 1 or preparations < 1 or patience < 1:
            raise ConfigError(
                f"feddisk: holdout={holdout}, preparations={preparations}, patience={patience}: expected 0 < holdout < 1, others >= 1"
            )
        self.holdout, self.preparations, self.patience = holdout, preparations, patience
        self.local_checks, self.local_epochs = local_checks, local_epochs

    def begin(self, initial: Tensors) -> Context:
        info: dict[str, Any] = {"losses": [], "prepared": False}
        return Context(info=super().begin(initial).info | info)

    def preparing(self, context: Context) -> bool:
        return not context.info["prepared"]

    def programs(self, context: Context, work: Work) -> Programs:
        if not self.preparing(context):
            return super().programs(context, work)
        return {"": (Evaluate("holdout", "validate", holdout=self.holdout), self._fit("density", work, work.local_epochs, report=True))}

    def weighing(self, work: Work) -> tuple[Verb, ...]:
        validate = Evaluate("holdout", "local_validate", holdout=self.holdout, report=False)
        check = (self._fit("local_density", work, self.local_epochs, report=False), validate, Apply("keep_best"))
        return (*check * self.local_checks, *super().weighing(work))

    def absorb(
        self, context: Context, models: Sequence[LocalModel], membership: Mapping[str, str], averages: Mapping[str, Tensors]
    ) -> Context:
        if not self.preparing(context):
            return super().absorb(context, models, membership, averages)
        losses: list[float | None] = [*context.info["losses"], validation_loss(models)]
        known = [loss for loss in losses if loss is not None]
        rising = len(known) > self.patience and min(known[-self.patience :]) >= min(known[: -self.patience])
        return Context(context.arrays, {**context.info, "losses": losses, "prepared": rising or len(losses) >= self.preparations})

    def _fit(self, graph: str, work: Work, epochs: int, report: bool) -> Train:
        return Train(work.batch_size, epochs, hyper=dict(work.hyper), graph=graph, report=report, holdout=self.holdout)


class DensityRatioServer(WeightedServer):
    """The server's half of `FedDiskAb`: one preparation, in which it averages what devices say of their units."""

    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    def begin(self, initial: Tensors) -> Context:
        return Context(names.of_role(initial, names.RECEIVED), super().begin(initial).info | {"prepared": False})

    def preparing(self, context: Context) -> bool:
        return not context.info["prepared"]

    def programs(self, context: Context, work: Work) -> Programs:
        return {"": (Evaluate("train", "moments"),)} if self.preparing(context) else super().programs(context, work)

    def absorb(
        self, context: Context, models: Sequence[LocalModel], membership: Mapping[str, str], averages: Mapping[str, Tensors]
    ) -> Context:
        if not self.preparing(context):
            return super().absorb(context, models, membership, averages)
        stack = np.stack([m.responses[_MOMENTS].astype(np.float64) for m in models])
        second = np.average(stack, axis=0, weights=[m.num_examples for m in models])
        values, vectors = np.linalg.eigh((second + second.T) / 2)
        whitening = vectors.T / np.sqrt(np.maximum(values, 0.0) + _RIDGE * values[-1])[:, None]
        arrays = {_WHITENING: whitening, _FLEET_MEAN: whitening @ second[0]}
        return Context({k: v.astype(np.float32) for k, v in arrays.items()}, {**context.info, "prepared": True})

    def received(self, context: Context, models: Mapping[str, Tensors], key: str) -> Tensors:
        return dict(context.arrays)


def validation_loss(models: Sequence[LocalModel]) -> float | None:
    """The mean of what devices measured on the model they received, weighted by examples; None where nothing finite was measured."""
    measured = [(float(m.responses[_VALIDATION]), m.num_examples) for m in models if _VALIDATION in m.responses]
    finite = [(loss, count) for loss, count in measured if isfinite(loss)]
    return float(np.average([loss for loss, _ in finite], weights=[count for _, count in finite])) if finite else None


def effective_rounds(accuracies: Sequence[float], target: float) -> int | None:
    """The first round, counted from 1, whose accuracy reaches `target` (section VII-C2: the best one of the methods compared with)."""
    return next((i for i, accuracy in enumerate(accuracies, start=1) if accuracy >= target), None)


def effective_cost(size: int, rounds: int, density_size: int = 0, density_rounds: int = 0) -> int:
    """Numbers that one device exchanges, both ways: 2 * (S_MADE * ECR_MADE + S_cls * ECR_cls), Eq. 18 and 19."""
    return 2 * (density_size * density_rounds + size * rounds)
