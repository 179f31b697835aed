"""FedGen: the server learns to generate representations by class, and devices train on them too.

Z. Zhu, J. Hong, J. Zhou. Data-Free Knowledge Distillation for Heterogeneous Federated Learning.
ICML 2021, Algorithm 1, with the terms and settings of the authors' code. Legend: G the generator,
noise and label to representation; g_k the head of device k, g the model's; n_kc device k's examples
of class c.

Server, after every round, for each group: sum_k n_kc / n_c * cross-entropy(g_k(G(noise, c)), c) +
diversity of G's outputs for different noise (`diversity`), by Adam. Device: cross-entropy + s *
(alpha * cross-entropy(g(G(noise, c)), c), c among the classes that the fleet has, + beta *
KL(g(G(noise, y)) || model(x))); s = 0.98^round, 0 in the first.

Different from the paper: a device does not receive G but a bank of its outputs, ``received/bank``
(rows, classes, K). A step takes some rows in turn, counted by ``slot/cursor``, so that every class
is drawn equally often. Adam starts from zero in every round. alpha is 1 and beta 0, while the
authors' code has 10 and 10: with these, training diverges at learning rates that work for FedAvg.
"""

from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.core.contract import GraphFunction, LocalModel, ObjectiveMemory, TorchTensors
from algorithms.core.keys import NEWCOMER
from algorithms.models.classifier import Classifier
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.supervised import Pass, Supervised
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.messages import Evaluate

_SENT = ("bank", "classes", "strength")
_BANK, _CLASSES, _STRENGTH = map(names.received, _SENT)
_CURSOR = names.slot("cursor")
_SHARE = names.response("labels", "share")
DECAY = 0.98
WEIGHT_DECAY = 0.01


class FedGenServer(DefaultCoordinator):
    """Server's half: trains a generator for each group, by `generator_steps` steps a round."""

    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    before = (Evaluate("train", "labels"),)
    generator_steps: int = option(50, "steps of Adam in a round", low=0)
    generator_lr: float = option(3e-4, "learning rate of the generator", low=0)
    generator_batch: int = option(128, "examples of a step; BatchNorm needs two", low=2)
    noise_dim: int = option(32, "numbers of noise", low=1)
    hidden_dim: int = option(256, "hidden units of the generator", low=1)

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        return ObjectiveMemory(
            {f"{NEWCOMER}/{name}": initial[names.received(name)] for name in _SENT},
            {"round": 0, "seed": seed},
        )

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        arrays, number = dict(context.arrays), context.info["round"] + 1
        shape = arrays[f"{NEWCOMER}/bank"].shape
        for group in sorted({membership[m.device_id] for m in models}):
            members = [m for m in models if membership[m.device_id] == group]
            counts = np.stack(
                [m.responses[_SHARE].astype(np.float64) * m.num_examples for m in members]
            )
            prefix = f"{group}/generator."
            before = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
            rng = np.random.default_rng([context.info["seed"], number, crc32(group.encode())])
            heads = [
                (m.tensors[names.shared("head.weight")], m.tensors[names.shared("head.bias")])
                for m in members
            ]
            generator = train_generator(
                before or first_generator(rng, self.noise_dim, shape[1], self.hidden_dim, shape[2]),
                heads,
                counts,
                rng,
                self.generator_steps,
                self.generator_lr,
                self.generator_batch,
            )
            arrays |= {f"{prefix}{name}": value for name, value in generator.items()}
            arrays[f"{group}/bank"] = make_bank(generator, shape[1], rng, shape[0])
            arrays[f"{group}/classes"] = (counts.sum(0) > 0).astype(np.float32)
            arrays[f"{group}/strength"] = np.asarray(DECAY**number, np.float32)
        return ObjectiveMemory(arrays, {**context.info, "round": number})

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        group = key if f"{key}/bank" in context.arrays else NEWCOMER
        return {names.received(name): context.arrays[f"{group}/{name}"] for name in _SENT}


class FedGen(Supervised):
    """FedAvg's loss, with the loss on generated representations."""

    name: ClassVar[str] = "fedgen"
    citation: ClassVar[str] = "Zhu et al., ICML 2021, Algorithm 1"
    in_sums = "cannot"
    wrapped_by: ClassVar[tuple[str, ...]] = ("prbm", "mr")
    server: ClassVar[type[DefaultCoordinator]] = FedGenServer
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "alpha": option(1.0, "weight of the loss on what was generated", low=0),
        "beta": option(0.0, "weight of the distance to what the head says of it", low=0),
    }
    bank_size: int = option(256, "representations that a device receives", low=1)
    generated_batch: int = option(32, "of these, how many a step takes", low=1)

    def __init__(self, model: Classifier, *values: Any, **options: Any) -> None:
        """Set the number of rows in the bank and in a step.

        A row has one representation of each class, and a step takes whole rows.
        """
        super().__init__(model, *values, **options)
        classes = model.linear_head(
            "fedgen generates inputs of heads, which the server computes itself"
        ).out_features
        self.rows = ceil(self.bank_size / classes)
        self.rows_per_step = min(self.rows, max(1, round(self.generated_batch / classes)))

    def initial(self) -> TorchTensors:
        classes, width = self.model.num_classes, self.model.num_features
        bank = {
            _BANK: torch.zeros(self.rows, classes, width),
            _CLASSES: torch.zeros(classes),
            _STRENGTH: torch.zeros(()),
        }
        return super().initial() | bank | {_CURSOR: torch.zeros(())}

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "labels": self.labels}

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        loss, forward_pass = super().loss(tensors, batch, hyper)
        cursor = tensors[_CURSOR]
        regulariser = hyper["alpha"] * self._drawn(tensors, cursor) + hyper["beta"] * self._alike(
            tensors, cursor, forward_pass, batch["y"]
        )
        return loss + tensors[_STRENGTH] * regulariser, Pass(
            forward_pass.logits,
            forward_pass.features,
            {**forward_pass.following, _CURSOR: cursor + 1},
        )

    def _drawn(self, tensors: TorchTensors, cursor: Tensor) -> Tensor:
        """Return the head's cross-entropy on generated representations of the fleet's classes."""
        classes = self.model.num_classes
        rows = torch.remainder(
            cursor * self.rows_per_step + torch.arange(self.rows_per_step), self.rows
        ).to(torch.int64)
        logits = self._head(tensors, tensors[_BANK].index_select(0, rows))
        labels = torch.arange(classes).repeat(self.rows_per_step)
        each = F.cross_entropy(logits.reshape(-1, classes), labels, reduction="none")
        weights = tensors[_CLASSES].repeat(self.rows_per_step)
        return (each * weights).sum() / weights.sum().clamp(min=1.0)

    def _alike(self, tensors: TorchTensors, cursor: Tensor, made: Pass, y: Tensor) -> Tensor:
        """Return KL from the head's answer to generated representations to the model's answer.

        A generated representation is of the class of its example.
        """
        bank = tensors[_BANK]
        rows = torch.remainder(cursor + torch.arange(y.shape[0]), self.rows).to(torch.int64)
        generated = bank.reshape(-1, bank.shape[2]).index_select(0, rows * bank.shape[1] + y)
        target = F.log_softmax(self._head(tensors, generated), dim=1).detach()
        each = (target.exp() * (target - F.log_softmax(made.logits, dim=1))).sum(1)
        return (each * tensors[_CLASSES].index_select(0, y)).mean()

    def _head(self, tensors: TorchTensors, features: Tensor) -> Tensor:
        return F.linear(
            features,
            tensors[self.key(tensors, "head.weight")],
            tensors[self.key(tensors, "head.bias")],
        )


def generate(generator: TorchTensors, noise: Tensor, labels: Tensor, training: bool) -> Tensor:
    """Return the output of a generator for noise and labels.

    Its layers are linear, BatchNorm, ReLU, linear, as in the authors' code.
    """
    num_classes = generator["in.weight"].shape[1] - noise.shape[1]
    inputs = torch.cat([noise, F.one_hot(labels, num_classes).to(torch.float32)], dim=1)
    hidden = F.linear(inputs, generator["in.weight"], generator["in.bias"])
    hidden = F.batch_norm(
        hidden,
        generator[names.RUNNING_MEAN],
        generator[names.RUNNING_VAR],
        generator["norm.weight"],
        generator["norm.bias"],
        training,
    )
    return F.linear(F.relu(hidden), generator["out.weight"], generator["out.bias"])


def train_generator(
    arrays: Tensors,
    heads: Sequence[tuple[Array, Array]],
    counts: Array,
    rng: np.random.Generator,
    steps: int,
    lr: float,
    batch: int,
) -> Tensors:
    """Return a generator's parameters and running statistics after `steps` steps of Adam.

    The loss is the heads' loss plus `diversity`. For a class, a head has the weight of its device's
    number of examples of this class (`counts` (devices, classes)).
    """
    generator = {key: torch.from_numpy(value.copy()) for key, value in arrays.items()}
    still = (names.RUNNING_MEAN, names.RUNNING_VAR)
    moving = [value.requires_grad_() for key, value in generator.items() if key not in still]
    width = generator["in.weight"].shape[1] - counts.shape[1]
    classes = np.flatnonzero(counts.sum(0) > 0)
    shares = torch.from_numpy((counts / np.maximum(counts.sum(0), 1.0)).astype(np.float32))
    weight, bias = (torch.from_numpy(np.stack(parts)) for parts in zip(*heads, strict=True))
    optimiser = torch.optim.Adam(moving, lr=lr, weight_decay=WEIGHT_DECAY)
    with torch.enable_grad():
        for _ in range(steps):
            labels = torch.from_numpy(rng.choice(classes, batch))
            noise = torch.from_numpy(rng.standard_normal((batch, width), np.float32))
            features = generate(generator, noise, labels, training=True)
            logits = torch.einsum("bk,dck->dbc", features, weight) + bias.unsqueeze(1)
            losses = F.cross_entropy(
                logits.flatten(0, 1), labels.repeat(len(heads)), reduction="none"
            ).reshape(len(heads), batch)
            loss = (losses * shares[:, labels]).sum(0).mean() + diversity(noise, features)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return {key: value.detach().numpy() for key, value in generator.items()}


def make_bank(arrays: Tensors, num_classes: int, rng: np.random.Generator, rows: int) -> Array:
    """Return `rows` representations of every class, (rows, classes, K) float32."""
    generator = {key: torch.from_numpy(value) for key, value in arrays.items()}
    width = generator["in.weight"].shape[1] - num_classes
    labels = torch.arange(num_classes).repeat(rows)
    noise = torch.from_numpy(rng.standard_normal((len(labels), width), np.float32))
    with torch.no_grad():
        features: Array = generate(generator, noise, labels, training=False).numpy()
    return features.reshape(rows, num_classes, -1)


def first_generator(
    rng: np.random.Generator, noise_dim: int, num_classes: int, hidden_dim: int, width: int
) -> Tensors:
    """Return a generator's tensors before the first round; linear layers are torch's defaults."""

    def uniform(*shape: int, fan_in: int) -> Array:
        return rng.uniform(-1 / sqrt(fan_in), 1 / sqrt(fan_in), shape).astype(np.float32)

    inputs = noise_dim + num_classes
    return {
        "in.weight": uniform(hidden_dim, inputs, fan_in=inputs),
        "in.bias": uniform(hidden_dim, fan_in=inputs),
        "norm.weight": np.ones(hidden_dim, np.float32),
        "norm.bias": np.zeros(hidden_dim, np.float32),
        "out.weight": uniform(width, hidden_dim, fan_in=hidden_dim),
        "out.bias": uniform(width, fan_in=hidden_dim),
        names.RUNNING_MEAN: np.zeros(hidden_dim, np.float32),
        names.RUNNING_VAR: np.ones(hidden_dim, np.float32),
    }


def diversity(noise: Tensor, samples: Tensor) -> Tensor:
    """Return exp(-mean over pairs of noise distance * output distance).

    The noise distance is the mean square, the output distance the mean absolute difference.
    """
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(2)
    differ = torch.cdist(samples, samples, p=1) / samples.shape[1]
    return torch.exp(-(apart * differ).mean())
