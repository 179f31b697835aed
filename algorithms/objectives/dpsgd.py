"""DP-SGD as a step: every example's gradient is clipped, and the device adds noise to their sum.

M. Abadi et al. Deep Learning with Differential Privacy. CCS 2016, Algorithm 1. BatchNorm would make
examples depend on each other: its layers use the received running statistics, which are neither
moved nor sent. `algorithms.privacy.dp_sgd` has the accounting.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from algorithms.core.contract import PlainSgd, TorchTensors
from algorithms.models.adoption.dropout import dropping
from algorithms.objectives.coordinator import Wrapper
from algorithms.objectives.supervised import Supervised, following_values
from algorithms.privacy.per_example import clipped_gradients
from wire.arrays import names
from wire.errors import ConfigError

NOISE = names.normal("gradient")


class ClippedExamples(Wrapper[Supervised]):
    """An objective on the plain cross-entropy, with clipped and noised gradients."""

    replaces = ("sgd_graphs", "hyper", "random", "step")
    sgd_graphs: ClassVar[Mapping[str, PlainSgd]] = {}

    def __init__(self, whole: Supervised, clip_norm: float, noise_multiplier: float) -> None:
        """Wrap an objective.

        Raises:
            ConfigError: the objective's step is not plain SGD on the cross-entropy, or its update
                does not come from its steps alone.
        """
        if whole.sends_more:
            raise ConfigError(
                "dp-sgd adds noise only to training steps, and with "
                f"{whole.name!r} devices also send other data"
            )
        if whole.sgd_graphs.get("step") != PlainSgd() or whole.columns:
            raise ConfigError(
                "dp-sgd clips the gradient of the plain cross-entropy, and the step of "
                f"{whole.name!r} also uses something else"
            )
        privacy_hyper = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier}
        self.hyper: Mapping[str, float] = {**whole.hyper, **privacy_hyper}
        tensors = whole.parameters()
        size = sum(tensors[key].numel() for key in whole.trained(tensors))
        self.random = {**whole.random, NOISE: (size,)}
        super().__init__(whole)

    def step(self, tensors: TorchTensors, batch: TorchTensors, hyper: TorchTensors) -> TorchTensors:
        """Take a step of SGD with momentum along the noised mean of clipped gradients.

        The direction is (sum of clipped gradients + noise_multiplier * clip_norm * noise) /
        examples.
        """
        # the noise is split in this order, whatever the order of the tensors
        whole, keys = self.whole, sorted(self.whole.trained(tensors))

        def losses() -> tuple[Tensor, Tensor]:
            with dropping(whole.model, whole.factors(batch)):
                logits = whole.forward(tensors, batch, training=False).logits
            return whole.losses(logits, tensors, batch), logits

        sums, logits = clipped_gradients(
            whole.model, losses, [names.name_of(k) for k in keys], hyper["clip_norm"]
        )
        noise, offset, directions = batch[NOISE], 0, {}
        for key, total in zip(keys, sums.values(), strict=True):
            noise_part = noise[offset : offset + total.numel()].reshape(total.shape)
            directions[key] = (
                total + hyper["noise_multiplier"] * hyper["clip_norm"] * noise_part
            ) / batch["y"].shape[0]
            offset += total.numel()
        loss_sum = whole.losses(logits, tensors, batch).sum()
        return following_values(whole.descend(directions, tensors, hyper)) | whole.metrics(
            logits.detach(), batch, loss_sum.detach()
        )
