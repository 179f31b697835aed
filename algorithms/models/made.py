"""MADE: an autoencoder whose output d depends only on the inputs before d, for density estimation.

M. Germain, K. Gregor, I. Murray, H. Larochelle. MADE: Masked Autoencoder for Distribution
Estimation. ICML 2015, Eq. 8 and 9. Legend: D values, m(k) the last value that hidden unit k may
see.

It has one hidden layer. m(k) is spread evenly over 1 .. D - 1 instead of drawn, and the values keep
their order, so that all devices have the same masks without communication. Values lie in [0, 1] and
are treated as Bernoulli probabilities (Eq. 2 there).
"""

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UnitInputs(nn.Module):
    r"""x (batch, \*shape) -> (batch, D) in [0, 1].

    Images are unchanged; sensor windows become (1 + tanh) / 2 of their scaled values. An example of
    more than `most` values is first averaged over neighbours (in time, or in height and width) by
    the smallest integer factor that makes it fit. Remaining samples at the end are ignored.
    """

    def __init__(self, scale: nn.Module, shape: tuple[int, ...], most: int) -> None:
        """`shape`: (channels, time), or (channels, height, width) of an image.

        `scale` brings sensor units to the order of 1.
        """
        super().__init__()
        channels, *sides = shape
        self.scale, self.is_image = scale, len(sides) == 2
        self.factor = next(
            f
            for f in range(1, max(sides) + 1)
            if f == max(sides) or channels * prod(_fewer(sides, f)) <= most
        )
        self.sides = _fewer(sides, self.factor)
        self.num_values = channels * prod(self.sides)

    def forward(self, x: Tensor) -> Tensor:
        values = x.clamp(0.0, 1.0) if self.is_image else (1 + torch.tanh(self.scale(x))) / 2
        if self.factor > 1:
            for axis, side in enumerate(self.sides, start=2):
                width = min(self.factor, values.shape[axis])
                values = (
                    values.narrow(axis, 0, side * width)
                    .unflatten(axis, (side, width))
                    .mean(axis + 1)
                )
        return values.flatten(1)


def _fewer(sides: list[int], factor: int) -> list[int]:
    return [max(1, side // factor) for side in sides]


class Made(nn.Module):
    """x (batch, D) in [0, 1] -> logits (batch, D) of p(x_d = 1 | x_1 .. x_d-1)."""

    hidden_mask: Tensor
    output_mask: Tensor

    def __init__(self, num_values: int, num_hidden: int) -> None:
        super().__init__()
        self.hidden, self.output = (
            nn.Linear(num_values, num_hidden),
            nn.Linear(num_hidden, num_values),
        )
        value = torch.arange(1, num_values + 1)
        last_seen = torch.linspace(1, max(1, num_values - 1), num_hidden).round()
        self.register_buffer(
            "hidden_mask", (last_seen[:, None] >= value[None, :]).to(torch.float32)
        )
        self.register_buffer("output_mask", (value[:, None] > last_seen[None, :]).to(torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(F.linear(x, self.hidden.weight * self.hidden_mask, self.hidden.bias))
        return F.linear(hidden, self.output.weight * self.output_mask, self.output.bias)


def negative_log_likelihood(logits: Tensor, x: Tensor) -> Tensor:
    """Return -log p(x) (batch,): the Bernoulli cross-entropy, summed over the D values.

    `x` in [0, 1] and `logits` are (batch, D).
    """
    return (F.softplus(logits) - x * logits).sum(1)
