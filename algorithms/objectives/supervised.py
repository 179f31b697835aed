"""The base of all objectives: roles, initial tensors, steps on the task's loss, evaluation, survey.

An objective overrides `role` (tensors that leave the device), `initial` (further tensors), `loss`
(the minimised loss), `correct` (changes to gradients before they are used) or `step` itself, and
adds graphs of its own.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from algorithms.core.contract import GraphFunction, InSums, PlainSgd, TorchTensors
from algorithms.core.functional import functional
from algorithms.core.probe import named_norms, watch_norms, whole_model
from algorithms.models.adoption.attention import replace_attention
from algorithms.models.adoption.dropout import dropping, keep, replace_dropouts
from algorithms.models.adoption.frozen import frozen_slot, frozen_tensors
from algorithms.models.adoption.stacked import replace_recurrent
from algorithms.models.classifier import (
    Classifier,
    plausible,
    some_examples,
    watch_representation,
)
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.gradients import grad_and_value, is_taping
from algorithms.optimizers.base import Optimizer
from algorithms.optimizers.sgd import Sgd
from algorithms.spec import WithOptions, hyper_of, option
from algorithms.tasks.base import Task
from algorithms.tasks.classification import Classification
from wire.arrays import names
from wire.errors import ConfigError

LR, MOMENTUM = 0.005, 0.9
TRAINING = ("step", "loss", "correct", "forward", "trained", "graphs")
"""Methods that define training.

A class that overrides one of them declares which of its graphs are plain SGD.
"""
LOSS = ("step", "loss", "mean_loss", "losses")
"""Methods that define the loss that training minimises."""
ANSWERS = ("evaluate", "predict", "answer", "forward")
"""Methods that define the answers of a device's model."""


@dataclass
class Pass:
    """One pass of a model over a batch.

    `logits` are (batch, classes) and `features` (batch, K) are the representation; both are (batch,
    steps, ...) for a model of steps. `following` holds tensors that the pass changes besides the
    weights, by ``ROLE/NAME``: running statistics, running means.
    """

    logits: Tensor
    features: Tensor
    following: TorchTensors = field(default_factory=dict)


def count_labels(y: Tensor, num_classes: int) -> Tensor:
    """Return the number of examples of each class in a batch, (classes,) float32."""
    return (y.unsqueeze(1) == torch.arange(num_classes)).to(torch.float32).sum(0)


def metrics_of_answers(probabilities: Tensor, y: Tensor, least: float) -> TorchTensors:
    """Return the metrics of probabilities (batch, classes), with the names of `Supervised.metrics`.

    A probability below `least` has the loss of `least`.
    """
    chosen = probabilities.gather(1, y.unsqueeze(1)).clamp(min=least)
    return {
        names.LOSS_SUM: -chosen.log().sum(),
        names.NUM_CORRECT: (probabilities.argmax(1) == y).to(torch.float32).sum(),
    }


def following_values(tensors: TorchTensors) -> TorchTensors:
    """Return tensors as outputs of a graph: ``next/ROLE/NAME``."""
    return {names.following(key): value for key, value in tensors.items()}


class Supervised(WithOptions):
    """A classifier trained by an optimizer on the loss of a task.

    The optimizer's state is in slots, which start at zero in every round.
    """

    name: ClassVar[str]
    citation: ClassVar[str]
    hyper: Mapping[str, Any] = {
        "lr": option(LR, "learning rate", low=0),
        "momentum": option(MOMENTUM, "momentum of SGD", low=0, below=1),
    }
    """Hyperparameters that the graphs take.

    On the class, `option`s define their ranges; a derived class may replace defaults by plain
    numbers.
    """
    columns: Mapping[str, tuple[int, ...]] = {}
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {}
    """Training graphs that are plain SGD.

    A class that overrides a method of `TRAINING` does not inherit them: it declares its own.
    """
    model_answers: ClassVar[bool] = True
    """True if the model alone answers.

    A class that overrides a method of `ANSWERS` does not inherit it.
    """
    has_memory: ClassVar[bool] = False
    optimizer: Optimizer = Sgd()
    """Rule by which gradients move tensors; to be set before `initial` is called."""
    task: Task = Classification()
    """Task, which defines the loss of an example."""
    follows_task: ClassVar[bool] = True
    """True if training minimises the task's loss (`mean_loss`), so that the task's options apply.

    A class that overrides a method of `LOSS` does not inherit it: it declares its own.
    """
    sends_more: ClassVar[bool] = False
    """True if a device's update reveals more of its windows than its training steps put into it."""
    in_sums: ClassVar[InSums] = "cannot"
    """Declaration for secret mode."""
    own_rule: ClassVar[bool] = False
    """True if no other optimizer can replace the rule of its steps."""
    server: ClassVar[type[DefaultCoordinator]] = DefaultCoordinator
    """Class of the server's half."""
    private: tuple[str, ...] = ()
    """Prefixes of the names of parameters and running statistics that stay on the device."""
    wrapped_by: ClassVar[tuple[str, ...]] = ()
    """Names of the options that may wrap the objective (`algorithms.objectives.dbe`)."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if _overrides(cls, TRAINING, declared="sgd_graphs"):
            cls.sgd_graphs = {}
        if _overrides(cls, LOSS, declared="follows_task"):
            cls.follows_task = False
        if _overrides(cls, ANSWERS, declared="model_answers"):
            cls.model_answers = False

    def __init__(self, model: Classifier, *values: Any, **options: Any) -> None:
        """Replace attention, recurrent and dropout layers of `model` by equivalents for graphs.

        Raises:
            ConfigError: the model has a layer that draws random numbers which cannot be inputs, or
                its last layer is frozen.
        """
        super().__init__(*values, **options)
        self.hyper = {key: each.default for key, each in hyper_of(type(self)).items()}
        self.model = model
        replace_attention(model)
        replace_recurrent(model)
        self.dropouts = replace_dropouts(model, model.shape)
        self.frozen = frozen_tensors(model)
        if f"{model.last_layer}.weight" in self.frozen:
            raise ConfigError(
                f"layer {model.last_layer!r} is frozen, and the last layer of a model must train"
            )
        buffers = (name for name, _ in model.named_buffers() if names.is_running_statistic(name))
        self._statistics = frozenset(name for name in buffers if name not in self.frozen)
        still = self._without_gradient() if model.shape else frozenset[str]()
        self._moves = frozenset(name for name, _ in model.named_parameters()) - still
        self.random: Mapping[str, tuple[int, ...]] = {
            names.uniform(drawn): shape
            for name, layer in self.dropouts.items()
            for drawn, shape in layer.draws(name).items()
        }

    # Tensors

    def role(self, name: str) -> str:
        """Return the role of a parameter or statistic, which decides if it leaves the device."""
        if name.startswith(self.private):
            return names.PRIVATE
        return names.STATISTIC if name in self._statistics else names.SHARED

    def parameters(self) -> TorchTensors:
        """Return the model's parameters that are not frozen, by ``ROLE/NAME``."""
        moving = {n: p for n, p in self.model.named_parameters() if n not in self.frozen}
        return {names.key_of(self.role(n), n): p.detach().clone() for n, p in moving.items()}

    def statistics(self) -> TorchTensors:
        """Return BatchNorm's running statistics by ``ROLE/NAME``.

        Buffers that training does not change (a fixed input scaling) are constants of a bundle's
        graphs, not tensors of the bundle.
        """
        return {
            names.key_of(self.role(n), n): b.clone()
            for n, b in self.model.named_buffers()
            if n in self._statistics
        }

    def initial(self) -> TorchTensors:
        tensors = self.parameters() | self.statistics()
        tensors |= {frozen_slot(name): value.clone() for name, value in self.frozen.items()}
        return tensors | self.slots(tensors, self.trained(tensors))

    def trained(self, tensors: TorchTensors) -> list[str]:
        """Return the keys of the tensors that ``step`` moves down the gradient of `loss`.

        These are the model's parameters, shared or private, that have a gradient in a pass.
        """
        return [
            k
            for k in names.of_role(tensors, names.SHARED, names.PRIVATE)
            if names.name_of(k) in self._moves
        ]

    def _without_gradient(self) -> frozenset[str]:
        """Return the names of the parameters on which the logits of a pass do not depend.

        An optimizer of torch does not move these either.
        """
        tensors = whole_model(self.model)
        leaves = {
            key: value.clone().requires_grad_()
            for key, value in names.of_role(tensors, names.SHARED).items()
        }
        x = some_examples(2, self.model.shape, self.model.vocabulary)
        with torch.enable_grad():
            logits, _ = functional(self.model, tensors | leaves, x, training=True)
            gradients = torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
        return frozenset(
            names.name_of(key)
            for key, gradient in zip(leaves, gradients, strict=True)
            if gradient is None
        )

    def key(self, tensors: TorchTensors, name: str) -> str:
        """Return the key (``ROLE/NAME``) of the model's parameter of this name."""
        return next(
            k for k in tensors if k in (names.shared(name), names.private(name), frozen_slot(name))
        )

    # Graphs

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {
            "step": self.step,
            "evaluate": lambda tensors, batch, hyper: self.evaluate(tensors, batch),
            "survey": lambda tensors, batch, hyper: self.survey(tensors, batch),
            "predict": lambda tensors, batch, hyper: {
                names.PROBABILITIES: self.predict(tensors, batch["x"])
            },
        }

    def sgd(self) -> Mapping[str, PlainSgd]:
        dropped = {n for name, layer in self.dropouts.items() for n in layer.draws(name)}
        drawn = self.random.keys() - set(map(names.uniform, dropped))
        return (
            self.sgd_graphs
            if self.optimizer.plain
            and self.task.plain
            and not (self.columns or drawn or self.frozen)
            else {}
        )

    def factors(self, batch: TorchTensors) -> dict[str, list[Tensor]]:
        """Return the dropout factors in training for each call of a layer, by its name."""
        return {
            name: [keep(batch[names.uniform(drawn)], layer.share) for drawn in layer.draws(name)]
            for name, layer in self.dropouts.items()
        }

    def forward(self, tensors: TorchTensors, batch: TorchTensors, training: bool) -> Pass:
        """Run the model with these tensors.

        In training its running statistics move and its dropout layers drop.
        """
        with (
            watch_representation(self.model) as seen,
            dropping(self.model, self.factors(batch) if training else {}),
        ):
            logits, statistics = functional(self.model, tensors, batch["x"], training)
        return Pass(logits, seen[0], statistics if training else {})

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        """Return the loss that ``step`` minimises, as a mean over the batch, and its pass."""
        forward_pass = self.forward(tensors, batch, training=True)
        return self.mean_loss(forward_pass.logits, tensors, batch), forward_pass

    def mean_loss(self, logits: Tensor, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """Return the task's loss as a mean over the batch.

        Examples are weighted by the column ``weight`` if the batch has one.
        """
        each = self.losses(logits, tensors, batch)
        return (each * batch["weight"]).mean() if "weight" in batch else each.mean()

    def losses(self, logits: Tensor, tensors: TorchTensors, batch: TorchTensors) -> Tensor:
        """Return the task's loss of each example (batch,)."""
        return self.task.losses(logits, self.target(batch))

    def target(self, batch: TorchTensors) -> Tensor:
        """Return the targets with which the logits of a batch are compared."""
        if type(self.task).target is Task.target:  # the labels, whatever the examples are
            return batch["y"]
        return self.task.target(self.model.scale(batch["x"]), batch["y"])

    def metrics(self, logits: Tensor, batch: TorchTensors, loss_sum: Tensor) -> TorchTensors:
        """Return ``metric/loss_sum`` and ``metric/num_correct`` of a batch, float32 scalars."""
        return {
            names.LOSS_SUM: loss_sum,
            names.NUM_CORRECT: self.task.right(logits, self.target(batch)).sum(),
        }

    def correct(
        self, gradients: TorchTensors, tensors: TorchTensors, hyper: TorchTensors
    ) -> tuple[TorchTensors, TorchTensors]:
        """Return the directions of a step from the gradients, and other changed tensors."""
        return gradients, {}

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Take a step of the optimizer against the gradient.

        Running statistics move as BatchNorm updates them.
        """
        gradients, loss, forward_pass = differentiate(
            self.loss, self.trained(tensors), tensors, batch, hyper
        )
        directions, others = self.correct(gradients, tensors, hyper)
        moved = self.descend(directions, tensors, hyper)
        return following_values(forward_pass.following | others | moved) | self.metrics(
            forward_pass.logits, batch, loss * batch["x"].shape[0]
        )

    def slots(self, tensors: TorchTensors, keys: Iterable[str]) -> TorchTensors:
        """Return the optimizer's slots of these tensors before the first step."""
        return {
            slot: zero
            for key in keys
            for slot, zero in self.optimizer.slots(key, tensors[key]).items()
        }

    def descend(
        self, directions: TorchTensors, tensors: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return tensors and their slots after one step of the optimizer.

        `directions` are by the keys of their tensors.
        """
        clipped, lr = self.optimizer.clipped(directions, hyper), hyper["lr"]
        if is_taping():
            return self.optimizer.move_all(clipped, tensors, hyper, lr)
        moved: TorchTensors = {}
        for key, direction in clipped.items():
            moved |= self.optimizer.move(key, direction, tensors, hyper, lr)
        return moved

    def answer(self, tensors: TorchTensors, x: Tensor) -> Pass:
        """Return the logits and the representation of examples x by the model in use."""
        return self.forward(tensors, {"x": x}, training=False)

    def evaluate(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        logits = self.answer(tensors, batch["x"]).logits
        return self.metrics(logits, batch, self.task.measured(logits, self.target(batch)).sum())

    def predict(self, tensors: TorchTensors, x: Tensor) -> Tensor:
        """Return the task's answer by the model in use.

        For classification it is the class probabilities (batch, classes).
        """
        return self.task.answer(self.answer(tensors, x).logits, self.model.scale(x))

    def labels(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return the number of examples of each class: a graph for objectives that need it."""
        return {names.metric("share"): count_labels(batch["y"], self.model.num_classes)}

    def survey(self, tensors: TorchTensors, batch: TorchTensors) -> TorchTensors:
        """Return sums over the batch that distinguish data distributions.

        They are ``mean.LAYER`` and ``variance.LAYER`` (channels,) at the input of each BatchNorm
        layer, and ``gradient`` (outputs, inputs) of the task's loss by the weights of the last
        layer. If the loss needs labels, windows without one have no part in the gradient.
        """
        last = self.key(tensors, f"{self.model.last_layer}.weight")

        def loss_of(weights: TorchTensors) -> tuple[Tensor, TorchTensors]:
            with watch_norms(self.model) as met:
                logits, _ = functional(
                    self.model,
                    {**tensors, **weights},
                    plausible(self.model, batch["x"]),
                    training=True,
                )
            return self.task.measured(logits, self.target(batch)).sum(), named_norms(met)

        gradients, _, seen = grad_and_value(loss_of, {last: tensors[last]})
        size = batch["x"].shape[0]
        return {names.metric(name): value * size for name, value in seen.items()} | {
            names.metric("gradient"): gradients[last]
        }


def _overrides(cls: type, methods: tuple[str, ...], declared: str) -> bool:
    """Return True if a method is overridden after the declaration.

    A class that overrides it then comes before the declaring one in the order of inheritance.
    """
    declares = next(i for i, base in enumerate(cls.__mro__) if declared in vars(base))
    return any(method in vars(base) for base in cls.__mro__[:declares] for method in methods)


Loss = Callable[[TorchTensors, TorchTensors, TorchTensors], tuple[Tensor, Pass]]


def differentiate(
    loss: Loss, trained: list[str], tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
) -> tuple[TorchTensors, Tensor, Pass]:
    """Return the gradient of a loss by the named tensors, its value, and its pass."""

    def loss_of(weights: TorchTensors) -> tuple[Tensor, tuple[Tensor, Tensor, TorchTensors]]:
        value, forward_pass = loss({**tensors, **weights}, batch, hyper)
        return value, (forward_pass.logits, forward_pass.features, forward_pass.following)

    gradients, value, aux = grad_and_value(loss_of, {key: tensors[key] for key in trained})
    return gradients, value, Pass(*aux)
