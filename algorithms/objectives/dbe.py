"""DBE: a private bias memory and a regulariser remove domain bias from representations.

J. Zhang, Y. Hua, J. Cao, H. Wang, T. Song, Z. Xue, R. Ma, H. Guan. Eliminating Domain Bias for
Federated Learning in Representation Space. NeurIPS 2023. Legend: b the bias memory (PRBM,
``private/bias``), m the running mean of the representation in this round (``slot/mean``), m* the
consensus (``received/consensus``), kappa the regulariser's weight, mu the running mean's momentum.

loss + kappa * mean_k(0.5 * (m_k - m*_k)^2), on g(f(x) + b); m <- (1 - mu) * m + mu * mean_batch
f(x), from 0 in every round. The consensus is computed once, in a preparation: every device trains
one pass without DBE and reports the running mean m after this pass, as in the authors' code; m* is
the mean of these, weighted by examples. So m and m* are computed alike: in training mode, with
BatchNorm by the batch, and with the same bias towards their start at 0. Each half can be used alone
(section 5.1), and with other objectives (section 5.4, 5.5). The authors' library puts b before the
whole head of a model, which may have several layers (`cut` of the models).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from algorithms.core.contract import (
    GraphFunction,
    LocalModel,
    ObjectiveMemory,
    PlainSgd,
    Programs,
    TorchTensors,
    Work,
)
from algorithms.objectives.coordinator import DefaultCoordinator, Wrapper
from algorithms.objectives.supervised import Pass, Supervised
from algorithms.spec import WithOptions, option
from wire.arrays import names
from wire.arrays.tensors import Tensors
from wire.messages import Apply, Verb

CITATION = "Zhang et al., NeurIPS 2023, section 4"
_REPRESENTED = names.response("represent", "mean")
_BIAS, _MEAN, _CONSENSUS = names.private("bias"), names.slot("mean"), names.received("consensus")


class PrivateBias(Wrapper[Supervised]):
    """PRBM: an objective whose passes add a private bias to the representation."""

    name: ClassVar[str] = "prbm"
    citation: ClassVar[str] = CITATION
    in_sums = "cannot"
    replaces = ("sgd_graphs", "model_answers", "parameters", "trained", "forward")
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {}
    model_answers: ClassVar[bool] = False

    def parameters(self) -> TorchTensors:
        return {**self.inner.parameters(), _BIAS: torch.zeros(self.whole.model.num_features)}

    def trained(self, tensors: TorchTensors) -> list[str]:
        return [*self.inner.trained(tensors), _BIAS]

    def forward(self, tensors: TorchTensors, batch: TorchTensors, training: bool) -> Pass:
        """Return the representation before the bias is added, and the logits after it."""
        head = self.whole.model.head
        with head.register_forward_pre_hook(lambda _, inputs: (inputs[0] + tensors[_BIAS],)):
            return self.inner.forward(tensors, batch, training)


class MeanRegulariser(Wrapper[Supervised], WithOptions):
    """MR: an objective whose loss ties the mean representation to the consensus."""

    name: ClassVar[str] = "mr"
    citation: ClassVar[str] = CITATION
    in_sums = "cannot"
    kappa: float = option(1.0, "weight of the regulariser", low=0)
    mean_momentum: float = option(0.1, "momentum of the running mean", low=0, high=1)
    replaces = ("sgd_graphs", "model_answers", "hyper", "initial", "graphs", "loss")
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {}
    model_answers: ClassVar[bool] = False

    def __init__(self, whole: Supervised, **options: Any) -> None:
        WithOptions.__init__(self, **options)
        regulariser_hyper = {"kappa": self.kappa, "mean_momentum": self.mean_momentum}
        self.hyper = {**whole.hyper, **regulariser_hyper}
        Wrapper.__init__(self, whole)

    def initial(self) -> TorchTensors:
        width = self.whole.model.num_features
        return {
            **self.inner.initial(),
            _MEAN: torch.zeros(width),
            _CONSENSUS: torch.zeros(width),
        }

    def graphs(self) -> Mapping[str, GraphFunction]:
        return {**self.inner.graphs(), "warm": self.warm, "represent": self.represent}

    def loss(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> tuple[Tensor, Pass]:
        loss, forward_pass = self.inner.loss(tensors, batch, hyper)
        mean = (1 - hyper["mean_momentum"]) * tensors[_MEAN].detach() + hyper[
            "mean_momentum"
        ] * forward_pass.features.flatten(0, -2).mean(0)
        loss = loss + hyper["kappa"] * (0.5 * (mean - tensors[_CONSENSUS]).square()).mean()
        forward_pass.following = {**forward_pass.following, _MEAN: mean.detach()}
        return loss, forward_pass

    def warm(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Take a step of the objective without DBE; the running mean m moves."""
        outputs = self.whole.step(
            {**tensors, _CONSENSUS: tensors[_MEAN]}, batch, {**hyper, "kappa": torch.zeros(())}
        )
        still: tuple[str, ...] = ()
        if _BIAS in tensors:
            still = (_BIAS, *self.whole.optimizer.slots(_BIAS, tensors[_BIAS]))
        return {k: v for k, v in outputs.items() if k not in map(names.following, still)}

    def represent(
        self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors
    ) -> TorchTensors:
        """Return the running mean m after the passes of `warm`."""
        return {names.metric("mean"): torch.clone(tensors[_MEAN])}


class MeanRegulariserServer(Wrapper[DefaultCoordinator]):
    """Server's half, which finds the consensus before the first round."""

    replaces = (
        "responds",
        "absorbs",
        "begin",
        "preparing",
        "programs",
        "absorb",
        "received",
    )
    responds: ClassVar[bool] = True
    absorbs: ClassVar[bool] = True

    def begin(self, initial: Tensors, seed: int) -> ObjectiveMemory:
        context = self.inner.begin(initial, seed)
        return ObjectiveMemory(
            {**context.arrays, _CONSENSUS: initial[_CONSENSUS]},
            {**context.info, "consensus": False},
        )

    def preparing(self, context: ObjectiveMemory) -> bool:
        return not context.info["consensus"] or self.inner.preparing(context)

    def programs(self, context: ObjectiveMemory, work: Work) -> Programs:
        if context.info["consensus"]:
            return self.inner.programs(context, work)
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
            return self.inner.absorb(context, models, membership, averages)
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
        return {**self.inner.received(context, models, key), _CONSENSUS: context.arrays[_CONSENSUS]}
