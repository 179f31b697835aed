"""DP-SGD as a step: every example's gradient is clipped, and the device adds noise of its own to
their sum.

M. Abadi et al. Deep Learning with Differential Privacy. CCS 2016, Algorithm 1. BatchNorm would let
examples depend on each other: its layers use the running statistics they were given, which are
neither moved nor sent. `algorithms.privacy.dp_sgd` has the accounting.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from algorithms.core.contract import Sgd, TorchTensors
from algorithms.models.adoption.dropout import dropping
from algorithms.models.classifier import Classifier
from algorithms.objectives.supervised import Supervised, following_values
from algorithms.privacy.per_example import clipped_gradients
from wire.arrays import names
from wire.errors import ConfigError

NOISE = names.normal("gradient")


class ClippedExamples(Supervised):
    """Mixed in before an objective whose step is that of the plain cross-entropy."""

    sgd_graphs: ClassVar[Mapping[str, Sgd]] = {}

    def __init__(self, model: Classifier) -> None:
        super().__init__(model)
        tensors = self.parameters()
        size = sum(tensors[key].numel() for key in self.trained(tensors))
        self.random = {**self.random, NOISE: (size,)}

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """(sum of clipped gradients + noise_multiplier * clip_norm * noise) / examples, then SGD
        with momentum."""
        keys = sorted(
            self.trained(tensors)
        )  # the noise is dealt out in this order, whoever holds the tensors

        def losses() -> tuple[Tensor, Tensor]:
            with dropping(self.model, self.factors(batch)):
                logits = self.forward(tensors, batch, training=False).logits
            return self.losses(logits, tensors, batch), logits

        sums, logits = clipped_gradients(
            self.model, losses, [names.name_of(k) for k in keys], hyper["clip_norm"]
        )
        noise, at, directions = batch[NOISE], 0, {}
        for key, total in zip(keys, sums.values(), strict=True):
            own = noise[at : at + total.numel()].reshape(total.shape)
            directions[key] = (
                total + hyper["noise_multiplier"] * hyper["clip_norm"] * own
            ) / batch["y"].shape[0]
            at += total.numel()
        loss_sum = self.losses(logits, tensors, batch).sum()
        return following_values(self.descend(directions, tensors, hyper)) | self.metrics(
            logits.detach(), batch, loss_sum.detach()
        )


def with_clipped_examples(
    base: type[Supervised], name: str, clip_norm: float, noise_multiplier: float
) -> type[Supervised]:
    """The class of an objective whose step is differentially private for single examples.

    Raises:
        ConfigError: the objective's step does more than follow the gradient of the cross-entropy,
        or not all that a device sends comes from
            its steps.
    """
    if base.sends_more:
        raise ConfigError(
            f"dp-sgd noises training steps alone, and what devices send with {name!r} holds more "
            "of their data than these"
        )
    if base.sgd_graphs.get("step") != Sgd() or base.columns:
        raise ConfigError(
            f"dp-sgd clips the gradient of the plain cross-entropy; the step of {name!r} does "
            "more than follow it"
        )
    hyper: Mapping[str, float] = {
        **base.hyper,
        "clip_norm": clip_norm,
        "noise_multiplier": noise_multiplier,
    }
    own = {
        "name": name,
        "hyper": hyper,
        "citation": base.citation,
        "follows_task": base.follows_task,
    }
    return type(f"{base.__name__}WithClippedExamples", (ClippedExamples, base), own)
