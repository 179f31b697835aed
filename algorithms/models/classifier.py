"""Base class of all models: a fixed scaling, an extractor f and a head g.

The head is one linear layer, or a ``Sequential`` that ends in one. The place of the split decides
which tensors an objective averages, keeps on the device or shifts.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from wire.errors import ConfigError


class Scale(nn.Module):
    """Division of each channel by a fixed size.

    A device can then feed raw sensor units and cannot scale them wrongly.
    """

    size: Tensor

    def __init__(self, size: Tensor, num_dims: int = 1) -> None:
        """`size`: (channels,) float32, positive, in the sensor's units.

        `num_dims` is the number of dimensions after the channels.
        """
        super().__init__()
        self.register_buffer("size", size.reshape(-1, *[1] * num_dims))

    def forward(self, x: Tensor) -> Tensor:
        return x / self.size


LOUDEST = 64.0
"""Maximum mean square of a channel in one window, relative to the channel's own over the fleet.

A higher one is a glitch of the sensor. Real windows stay far below: the loudest in the sensor data
sets examined has 21.
"""


class Classifier(nn.Module):
    r"""x (batch, \*window) -> scale -> extractor -> head -> logits (batch, classes).

    The extractor returns the representation (batch, K). A model that answers each step has a
    representation (batch, steps, K) and logits (batch, steps, classes).
    """

    scale: nn.Module
    extractor: nn.Module
    head: nn.Linear | nn.Sequential
    shape: tuple[int, ...] = ()
    """Shape of one example; empty if unknown."""
    vocabulary: int = 0
    """Number of ids if examples are int64 ids; 0 if they are float32 measurements."""
    steps: int = 0
    """Number of steps of an example with logits; 0 if the logits are those of the whole example."""

    def __init__(
        self, scale: nn.Module, extractor: nn.Module, head: nn.Linear | nn.Sequential
    ) -> None:
        """Check the head.

        Raises:
            ConfigError: the head does not begin and end with a linear layer, or has running
                statistics.
        """
        super().__init__()
        self.scale, self.extractor, self.head = scale, extractor, head
        layers = list(head) if isinstance(head, nn.Sequential) else [head]
        if not (isinstance(layers[0], nn.Linear) and isinstance(layers[-1], nn.Linear)):
            raise ConfigError(
                "A model's head must be Linear, or a Sequential that begins and ends with Linear"
            )
        if any(True for _ in self.head.buffers()):
            raise ConfigError(
                "A model's head must have no BatchNorm: running statistics belong to the extractor"
            )
        self.num_features = layers[0].in_features
        """K, the size of the representation."""
        self.num_classes = layers[-1].out_features
        """Number of logits."""
        self.last_layer = f"head.{len(layers) - 1}" if isinstance(head, nn.Sequential) else "head"
        """Name of the last linear layer: ``head``, or ``head.N`` of a `Sequential`."""

    def linear_head(self, why: str) -> nn.Linear:
        """Return the head if it is one linear layer; `why` is the start of the error.

        Raises:
            ConfigError: the head has more than one layer.
        """
        if isinstance(self.head, nn.Linear):
            return self.head
        raise ConfigError(
            f"{why}. That needs a head of one linear layer, and the model's has {len(self.head)} "
            "layers: split it with cut=last."
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extractor(self.scale(x)))
        return logits


def plausible(model: Classifier, x: Tensor) -> Tensor:
    r"""Return windows x (batch, channels, \*shape) with glitches of the sensor scaled down.

    A channel of a window is scaled down if its mean square is above `LOUDEST` times the channel's
    own. The factor is smaller the larger the excess, so that one glitch does not dominate the
    statistics. Ids are unchanged.
    """
    if model.vocabulary:
        return x
    loud: Tensor = model.scale(x).square().flatten(2).mean(2)
    return x * (LOUDEST / loud.clamp(min=LOUDEST)).reshape(*loud.shape, *[1] * (x.dim() - 2))


@contextmanager
def watch_representation(model: Classifier) -> Iterator[list[Tensor]]:
    """Yield a list to which each call of `model` appends the representation (batch, K).

    It is the representation before any hook of the head changes it.
    """
    seen: list[Tensor] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    with model.head.register_forward_pre_hook(note, prepend=True):
        yield seen


def some_examples(
    count: int, shape: tuple[int, ...], vocabulary: int, drawing: torch.Generator | None = None
) -> Tensor:
    r"""Return random examples (count, \*shape).

    They are standard normal float32. With a `vocabulary` they are int64 ids from all of it, the
    first and the last included. `drawing` is their random generator; without one they are always
    the same.
    """
    drawing = drawing or torch.Generator().manual_seed(0)
    if not vocabulary:
        return torch.randn(count, *shape, generator=drawing)
    drawn = torch.randint(vocabulary, (count, *shape), generator=drawing)
    drawn.view(-1)[0], drawn.view(-1)[-1] = 0, vocabulary - 1
    return drawn
