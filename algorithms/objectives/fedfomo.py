"""FedFomo: a device mixes in the models of others, weighted by their gain on its held-out data.

M. Zhang, K. Sapra, S. Fidler, S. Yeung, J. M. Alvarez. Personalized Federated Learning with First
Order Model Optimization. ICLR 2021, section 3. Legend: theta_i the device's model, theta_n
another's, L_i the loss on the device's held-out data, w_n the weight of theta_n, P the server's
running sum of the weights that devices gave to each other's models.

w_n = (L_i(theta_i) - L_i(theta_n)) / |theta_n - theta_i|, 0 if negative, divided by their sum;
theta_i <- theta_i + sum_n w_n (theta_n - theta_i), BatchNorm statistics alike; then local SGD on
the other data.

The server sends each device the M models that P favours; in each place, with probability epsilon, a
random model instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import torch

from algorithms.core.contract import (
    GraphFunction,
    LocalModel,
    ObjectiveMemory,
    PlainSgd,
    TorchTensors,
    Work,
    exchanged,
)
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.other_models import (
    PRESENT,
    known_groups,
    no_peer_models,
    peer_key,
    stack_peer_models,
)
from algorithms.objectives.supervised import Supervised, following_values
from algorithms.spec import option
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.messages import Apply, Evaluate, Verb

_LOSSES, _WEIGHTS = names.response("candidates", "loss"), names.response("mix", "weights")
_SMALLEST = 1e-12


class FedFomoServer(DefaultCoordinator):
    """Server's half: stores P and decides which models each device receives."""

    grouping: ClassVar[str] = "individual"
    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    holdout: float = option(
        0.2,
        "share of a device's training data that models are weighed on, and not trained on",
        above=0,
        below=1,
    )
    epsilon: float = option(
        0.3, "how often a model is sent that the weights do not favour", low=0, high=1
    )

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        return ObjectiveMemory(
            info={
                "round": 0,
                "seed": seed,
                "num_others": len(initial[PRESENT]),
                "known": [],
                "affinity": {},
            }
        )

    def training(self, context: ObjectiveMemory, work: Work) -> tuple[Verb, ...]:
        train = msgspec.structs.replace(work.train(), holdout=self.holdout)
        return (Evaluate("holdout", "candidates", holdout=self.holdout), Apply("mix"), train)

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        affinity: dict[str, dict[str, float]] = {
            group: dict(row) for group, row in context.info["affinity"].items()
        }
        for model in models:
            row = affinity.setdefault(membership[model.device_id], {})
            for other, weight in zip(
                self.sent(context, model.start), model.responses[_WEIGHTS], strict=False
            ):
                row[other] = row.get(other, 0.0) + float(weight)
        groups = known_groups(context.info["known"], membership)
        return ObjectiveMemory(
            context.arrays,
            {
                **context.info,
                "round": context.info["round"] + 1,
                "known": groups,
                "affinity": affinity,
            },
        )

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        return stack_peer_models(
            models, models[key], self.sent(context, key), context.info["num_others"]
        )

    def sent(self, context: ObjectiveMemory, key: str) -> list[str]:
        """Return the keys of the models that a device receives in the next round, at most M.

        A newcomer receives none.
        """
        info: dict[str, Any] = context.info
        if key not in info["known"]:
            return []
        rng = np.random.default_rng([info["seed"], info["round"], int(key)])
        worth = info["affinity"].get(key, {})
        others = sorted(
            (k for k in info["known"] if k != key), key=lambda k: (-worth.get(k, 0.0), int(k))
        )
        chosen: list[str] = []
        while others and len(chosen) < info["num_others"]:
            chosen.append(
                others.pop(int(rng.integers(len(others))) if rng.random() < self.epsilon else 0)
            )
        return chosen


class FedFomo(Supervised):
    """Local SGD from a mixture of models.

    ``candidates`` measures the device's model and the others, ``mix`` moves towards the better
    ones, ``step`` is local SGD.
    """

    name: ClassVar[str] = "fedfomo"
    citation: ClassVar[str] = "Zhang et al., ICLR 2021, section 3"
    in_sums = "cannot"
    server: ClassVar[type[DefaultCoordinator]] = FedFomoServer
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {"step": PlainSgd()}

    num_others: int = option(5, "models of others that a device gets", low=1)

    def initial(self) -> TorchTensors:
        tensors = super().initial()
        return tensors | no_peer_models(tensors, self.num_others)

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**super().graphs(), "candidates": self.candidates, "mix": self.mix}

    def candidates(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return the sum of the loss under the device's model and each of the others, (1 + M,)."""
        peers = [
            {**tensors, **{k: tensors[peer_key(k)][n] for k in exchanged(tensors)}}
            for n in range(self.num_others)
        ]
        answers = (self.forward(model, batch, training=False).logits for model in (tensors, *peers))
        sums = [self.task.measured(logits, self.target(batch)).sum() for logits in answers]
        return {names.metric("loss"): torch.stack(sums)}

    def mix(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Move towards the others, and report all weights, negative ones included."""
        apart = {key: tensors[peer_key(key)] - value for key, value in exchanged(tensors).items()}
        squares = [
            v.square().reshape(self.num_others, -1).sum(1)
            for v in names.of_role(apart, names.SHARED).values()
        ]
        distances = torch.stack(squares).sum(0).clamp(min=_SMALLEST).sqrt()
        losses, present = tensors[_LOSSES], tensors[PRESENT]
        weights = (losses[0] - losses[1:]) / distances * present
        useful = weights.clamp(min=0.0)
        shares = useful / useful.sum().clamp(min=_SMALLEST)
        mixed = {
            k: tensors[k] + (shares.reshape(-1, *[1] * (v.dim() - 1)) * v).sum(0)
            for k, v in apart.items()
        }
        return following_values(mixed) | {names.metric("weights"): weights}
