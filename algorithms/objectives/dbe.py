"""DBE: a private bias memory takes what is particular to a device out of its representation, a
regulariser holds the rest together.

J. Zhang, Y. Hua, J. Cao, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan. Eliminating Domain Bias for
Federated Learning in Representation Space. NeurIPS 2023. Legend: b the bias memory (PRBM,
``private/bias``), m the running mean of the representation in this round (``slot/mean``), m* the
consensus (``received/consensus``), kappa the regulariser's weight, mu the running mean's momentum.

loss + kappa * mean_k(0.5 * (m_k - m*_k)^2), on g(f(x) + b); m <- (1 - mu) * m + mu * mean_batch
f(x), from 0 in every round. The consensus is found once, in a preparation: every device trains one
pass without DBE and reports the running mean m that this pass leaves, as the authors' code does; m*
is the mean of these, weighted by examples. So m and m* are taken alike: in training mode, with
BatchNorm by the batch, and as near to their beginning at 0. Both halves can be used alone (section
5.1), and on top of other objectives (section 5.4, 5.5). The authors' library puts b before the
whole head of a model, which may have several layers (`cut` of the models).
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from algorithms.core.contract import (
    GraphFunction,
    LocalModel,
    ObjectiveMemory,
    Programs,
    Sgd,
    TorchTensors,
    Work,
)
from algorithms.core.limits import NOT_NEGATIVE, SHARE, Limits
from algorithms.models.adoption.dropout import dropping
from algorithms.models.classifier import answers_of_head
from algorithms.objectives.coordinator import DefaultCoordinator
from algorithms.objectives.supervised import Pass, Supervised
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.messages import Apply, Verb

_REPRESENTED = names.response("represent", "mean")
_BIAS, _MEAN, _CONSENSUS = names.private("bias"), names.slot("mean"), names.received("consensus")


class DomainBias(Supervised):
    """Mixed in before an objective: its passes get the bias memory, its loss the regulariser."""

    sgd_graphs: ClassVar[Mapping[str, Sgd]] = {}
    model_answers: ClassVar[bool] = False
    memory: ClassVar[bool] = True
    """PRBM."""
    regularised: ClassVar[bool] = True
    """MR."""
    limits: ClassVar[Mapping[str, Limits]] = {"kappa": NOT_NEGATIVE, "mean_momentum": SHARE}

    def parameters(self) -> TorchTensors:
        own = {_BIAS: torch.zeros(self.model.num_features)} if self.memory else {}
        return {**super().parameters(), **own}

    def initial(self) -> TorchTensors:
        width = self.model.num_features
        own = (
            {_MEAN: torch.zeros(width), _CONSENSUS: torch.zeros(width)} if self.regularised else {}
        )
        return {**super().initial(), **own}

    def trained(self, tensors: TorchTensors) -> list[str]:
        own = [_BIAS] if self.memory else []
        return [*super().trained(tensors), *own]

    def graphs(self) -> Mapping[str, GraphFunction]:
        graphs = super().graphs()
        return (
            {**graphs, "warm": self.warm, "represent": self.represent}
            if self.regularised
            else graphs
        )

    def forward(self, tensors: TorchTensors, batch: TorchTensors, training: bool) -> Pass:
        """The representation before the bias is added, and the logits after it."""
        made = super().forward(tensors, batch, training)
        if self.memory:
            head = {
                f"head.{n}": tensors[self.key(tensors, f"head.{n}")]
                for n, _ in self.model.head.named_parameters()
            }
            with dropping(self.model, self.factors(batch) if training else {}):
                made.logits = answers_of_head(self.model, head, made.features + tensors[_BIAS])
        return made

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        loss, made = super().loss(tensors, batch, hyper)
        if self.regularised:
            mean = (1 - hyper["mean_momentum"]) * tensors[_MEAN].detach() + hyper[
                "mean_momentum"
            ] * made.features.flatten(0, -2).mean(0)
            loss = loss + hyper["kappa"] * (0.5 * (mean - tensors[_CONSENSUS]).square()).mean()
            made.following = {**made.following, _MEAN: mean.detach()}
        return loss, made

    def warm(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """A step of the objective without DBE; the running mean m moves on."""
        outputs = super().step(
            {**tensors, _CONSENSUS: tensors[_MEAN]}, batch, {**hyper, "kappa": torch.zeros(())}
        )
        own = (_BIAS, *self.optimizer.slots(_BIAS, tensors[_BIAS])) if self.memory else ()
        return {k: v for k, v in outputs.items() if k not in map(names.following, own)}

    def represent(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """The running mean m that the passes of `warm` left."""
        return {names.metric("mean"): torch.clone(tensors[_MEAN])}


def with_domain_bias(
    base: type[Supervised], name: str, *, memory: bool = True, regularised: bool = True
) -> type[Supervised]:
    """The class of an objective with DBE, or one half of it, on top of it."""
    hyper = {**base.hyper, "kappa": 1.0, "mean_momentum": 0.1} if regularised else dict(base.hyper)
    own = {
        "name": name,
        "citation": DbeServer.citation,
        "hyper": hyper,
        "memory": memory,
        "regularised": regularised,
    }
    own["follows_task"] = base.follows_task
    return type(f"{base.__name__}WithDomainBias", (DomainBias, base), own)


class DbeServer(DefaultCoordinator):
    """Mixed in before the server's half of an objective: finds the consensus before the first
    round."""

    citation: ClassVar[str] = "Zhang et al., NeurIPS 2023, section 4"
    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        context = super().begin(initial, seed)
        return ObjectiveMemory(
            {**context.arrays, _CONSENSUS: initial[_CONSENSUS]},
            {**context.info, "consensus": False},
        )

    def preparing(self, context: ObjectiveMemory) -> bool:
        return not context.info["consensus"] or super().preparing(context)

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        if context.info["consensus"]:
            return super().programs(context, work)
        verbs: tuple[Verb, ...] = (work.train("warm", epochs=1, report=False), Apply("represent"))
        return {"": verbs}

    def absorb(
        self,
        context: ObjectiveMemory,
        models: Sequence[LocalModel],
        membership: Mapping[str, str],
        averages: Mapping[str, Tensors],
    ) -> ObjectiveMemory:
        if context.info["consensus"]:
            return super().absorb(context, models, membership, averages)
        means = np.stack([m.responses[_REPRESENTED] for m in models])
        consensus = np.average(means, axis=0, weights=[m.num_examples for m in models]).astype(
            np.float32
        )
        return ObjectiveMemory(
            {**context.arrays, _CONSENSUS: consensus}, {**context.info, "consensus": True}
        )

    def received(
        self, context: ObjectiveMemory, models: Mapping[str, Tensors], key: str
    ) -> Tensors:
        return {**super().received(context, models, key), _CONSENSUS: context.arrays[_CONSENSUS]}


def coordinate_domain_bias(base: type[DefaultCoordinator]) -> type[DefaultCoordinator]:
    """The server's half of an objective with the regulariser on top of it."""
    return type(f"{base.__name__}WithConsensus", (DbeServer, base), {})
