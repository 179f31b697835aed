"""APPLE: a device learns the weights with which it adds up the core models of all devices.

J. Luo, S. Wu. Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning.
IJCAI 2022, Algorithm 1. Legend: w_j the core model of device j (the one exchanged, and
``received/others.NAME``), p the directed relationship vector, with the device's own place first
(stored as its distance from p_0, ``private/relation``), p_0 each device's share of the examples
(``received/prior``), lambda the schedule from the global to the local objective
(``received/schedule``), mu the weight of the tie to p_0, dr_lr the rate of p.

The model in use is sum_j p_j w_j. It minimises cross-entropy + lambda * mu / 2 * |p - p_0|^2 by the
device's w and p. lambda falls from 1 to 0 over `schedule_rounds` rounds along half a cosine.

Different from the paper: a device gets M core models, chosen once, so that the places of p keep
their meaning (M equal to the number of other devices is the paper's cross-silo setting). BatchNorm
statistics stay on the device; ``settle`` estimates them again when other core models have arrived.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from algorithms.core.contract import (
    GraphFunction,
    LocalModel,
    ObjectiveMemory,
    Programs,
    TorchTensors,
    Work,
)
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.other_models import (
    PRESENT,
    known_groups,
    no_peer_models,
    peer_key,
    stack_peer_models,
)
from algorithms.objectives.supervised import LR, Pass, Supervised, differentiate, following_values
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.messages import Evaluate, Train, Verb

_RELATION, _PRIOR, _SCHEDULE = (
    names.private("relation"),
    names.received("prior"),
    names.received("schedule"),
)


class AppleServer(DefaultCoordinator):
    """Server's half: sends core models, and the number of examples behind each."""

    grouping: ClassVar[str] = "individual"
    absorbs: ClassVar[bool] = True

    schedule_rounds: int = option(100, "rounds from the global to the local objective", low=1)

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        return {"": (self._settle(work), Evaluate(), *self.training(context, work))}

    def closing(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        return (self._settle(work), Evaluate())

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        return ObjectiveMemory(
            info={
                "round": 0,
                "num_others": len(initial[PRESENT]),
                "known": [],
                "others": {},
                "examples": {},
            }
        )

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        info = context.info
        examples = {**info["examples"], **{membership[m.device_id]: m.num_examples for m in models}}
        groups = known_groups(info["known"], membership)
        peers = {}
        for position, key in enumerate(
            groups
        ):  # the next devices in order, so that all are chosen equally often; earlier choices stay
            before = info["others"].get(key, [])
            fresh = [k for k in (*groups[position + 1 :], *groups[:position]) if k not in before]
            peers[key] = [*before, *fresh][: info["num_others"]]
        return ObjectiveMemory(
            context.arrays,
            {
                **info,
                "round": info["round"] + 1,
                "known": groups,
                "others": peers,
                "examples": examples,
            },
        )

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        info = context.info
        peers = info["others"].get(key, [])
        stacks = stack_peer_models(models, models[key], peers, info["num_others"])
        counts = np.zeros(1 + info["num_others"], np.float64)
        counts[0] = info["examples"].get(key, 1)
        counts[1 : 1 + len(peers)] = [info["examples"].get(peer, 0) for peer in peers]
        counts[1:] *= stacks[PRESENT]
        schedule = (
            math.cos(math.pi * min(1.0, info["round"] / max(1, self.schedule_rounds))) + 1
        ) / 2
        return stacks | {
            _PRIOR: (counts / counts.sum()).astype(np.float32),
            _SCHEDULE: np.asarray(schedule, np.float32),
        }

    def _settle(self, work: Work) -> Train:
        return work.train("settle", epochs=1, report=False)


class Apple(Supervised):
    """Training of the core model, the only one exchanged, and of the relationship vector."""

    name: ClassVar[str] = "apple"
    citation: ClassVar[str] = "Luo & Wu, IJCAI 2022, Algorithm 1"
    in_sums = "cannot"
    server: ClassVar[type[DefaultCoordinator]] = AppleServer
    follows_task: ClassVar[bool] = True
    model_answers: ClassVar[bool] = False
    hyper: Mapping[str, Any] = {
        **Supervised.hyper,
        "lr": 10 * LR,
        "momentum": 0.0,
        "dr_lr": option(0.001, "learning rate of the relationship vector", low=0),
        "mu": option(0.1, "weight of the tie to the devices' examples", low=0),
    }
    num_others: int = option(5, "core models of others that a device gets", low=1)

    def role(self, name: str) -> str:
        return names.PRIVATE if super().role(name) == names.STATISTIC else names.SHARED

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        prior = torch.cat([torch.ones(1), torch.zeros(self.num_others)])
        relation_tensors = {
            _RELATION: torch.zeros(1 + self.num_others),
            _PRIOR: prior,
            _SCHEDULE: torch.ones(()),
        }
        return tensors | relation_tensors | no_peer_models(tensors, self.num_others)

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "settle": self.settle}

    def personal_model(self, tensors: TorchTensors) -> TorchTensors:
        """Return tensors with the model in use in place of the core model."""
        weights = tensors[_PRIOR] + tensors[_RELATION]
        peers = weights[1:] * tensors[PRESENT]
        shared = [
            (k, tensors[k], tensors[peer_key(k)]) for k in names.of_role(tensors, names.SHARED)
        ]
        return {
            **tensors,
            **{
                k: weights[0] * w + (peers.reshape(-1, *[1] * w.dim()) * stack).sum(0)
                for k, w, stack in shared
            },
        }

    def forward(self, tensors: TorchTensors, batch: TorchTensors, training: bool) -> Pass:
        return super().forward(self.personal_model(tensors), batch, training)

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        loss, forward_pass = super().loss(tensors, batch, hyper)
        norm = tensors[_RELATION].square().sum()
        return loss + tensors[_SCHEDULE] * hyper["mu"] / 2 * norm, forward_pass

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Move the core model with momentum, and p without."""
        gradients, loss, forward_pass = differentiate(
            self.loss, [*self.trained(tensors), _RELATION], tensors, batch, hyper
        )
        relation = tensors[_RELATION] - hyper["dr_lr"] * gradients.pop(_RELATION)
        moved = self.descend(gradients, tensors, hyper) | {_RELATION: relation}
        return following_values(forward_pass.following | moved) | self.metrics(
            forward_pass.logits, batch, loss * batch["x"].shape[0]
        )

    def settle(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Move the running statistics only.

        Other core models have arrived since they were estimated.
        """
        loss, forward_pass = self.loss(tensors, batch, hyper)
        return following_values(forward_pass.following) | self.metrics(
            forward_pass.logits, batch, loss * batch["x"].shape[0]
        )
