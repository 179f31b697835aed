"""What every model is: a fixed scaling, an extractor f and a head g, so that objectives can tell
body from head.

The head is one linear layer, or a ``Sequential`` that ends in one: where a model is split decides
what is averaged, kept or shifted.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from wire.errors import ConfigError


class Scale(nn.Module):
    """x / size per channel, with fixed values, so that a device feeds raw sensor units and cannot
    scale them wrongly."""

    size: Tensor

    def __init__(self, size: Tensor, num_dims: int = 1) -> None:
        """`size`: (channels,) float32, positive, in the sensor's units; `num_dims` dimensions
        follow the channels."""
        super().__init__()
        self.register_buffer("size", size.reshape(-1, *[1] * num_dims))

    def forward(self, x: Tensor) -> Tensor:
        return x / self.size


LOUDEST = 64.0
"""A channel of a window whose mean square is above so many times that of the channel is a glitch of
the sensor. Real ones stay far below: the loudest of the sensor sets that were looked at has 21
times."""


class Classifier(nn.Module):
    """x (batch, \\*window) -> scale -> extractor -> representation (batch, K) -> head -> logits
    (batch, classes).

    A model of steps makes a representation (batch, steps, K), of which the head makes logits
    (batch, steps, classes).
    """

    scale: nn.Module
    extractor: nn.Module
    head: nn.Linear | nn.Sequential
    shape: tuple[int, ...] = ()
    """Shape of one example, where it is known."""
    vocabulary: int = 0
    """How many ids there are, where examples are ids, int64; 0 where they are measurements,
    float32."""
    steps: int = 0
    """Of how many steps of an example it gives the logits; 0 where it gives those of the whole."""

    def __init__(
        self, scale: nn.Module, extractor: nn.Module, head: nn.Linear | nn.Sequential
    ) -> None:
        """
        Raises:
            ConfigError: the head does not begin and end with a linear layer, or has running
            statistics.
        """
        super().__init__()
        self.scale, self.extractor, self.head = scale, extractor, head
        layers = list(head) if isinstance(head, nn.Sequential) else [head]
        if not (isinstance(layers[0], nn.Linear) and isinstance(layers[-1], nn.Linear)):
            raise ConfigError(
                "a model's head: expected Linear, or a Sequential that begins and ends with Linear"
            )
        if any(True for _ in self.head.buffers()):
            raise ConfigError(
                "a model's head: expected no BatchNorm in it, whose running statistics belong to "
                "the extractor"
            )
        self.num_features = layers[0].in_features
        """K, the size of the representation."""
        self.num_classes = layers[-1].out_features
        """Number of logits."""
        self.last_layer = f"head.{len(layers) - 1}" if isinstance(head, nn.Sequential) else "head"
        """Name of the linear layer that gives the logits: ``head``, or ``head.N`` of a
        `Sequential`."""

    def linear_head(self, why: str) -> nn.Linear:
        """The head, for what works with one linear layer alone; `why` begins the error.

        Raises:
            ConfigError: the model is split before the last layer.
        """
        if isinstance(self.head, nn.Linear):
            return self.head
        raise ConfigError(
            f"{why}: expected a head of one linear layer, the model's has {len(self.head)} layers "
            "(split it with cut=last)"
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.extractor(self.scale(x)))
        return logits


def plausible(model: Classifier, x: Tensor) -> Tensor:
    r"""Windows x (batch, channels, \*shape) of which a channel of a window is made smaller where
    its mean square is above `LOUDEST` of the channel's own: the more, the further, so that one
    glitch of a sensor is not in all statistics. Ids stay as they are."""
    if model.vocabulary:
        return x
    loud: Tensor = model.scale(x).square().flatten(2).mean(2)
    return x * (LOUDEST / loud.clamp(min=LOUDEST)).reshape(*loud.shape, *[1] * (x.dim() - 2))


@contextmanager
def watch_representation(model: Classifier) -> Iterator[list[Tensor]]:
    """While the context is open, every call of `model` notes the representation (batch, K) that
    enters its head."""
    seen: list[Tensor] = []

    def note(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    hook: torch.utils.hooks.RemovableHandle = model.head.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def some_examples(
    count: int, shape: tuple[int, ...], vocabulary: int, drawing: torch.Generator | None = None
) -> Tensor:
    """Examples (count, \\*shape): standard normal float32; with a `vocabulary` ids, int64, from all
    over it, the first and the last among them. `drawing` is what they are drawn from, else they are
    always the same."""
    drawing = drawing or torch.Generator().manual_seed(0)
    if not vocabulary:
        return torch.randn(count, *shape, generator=drawing)
    drawn = torch.randint(vocabulary, (count, *shape), generator=drawing)
    drawn.view(-1)[0], drawn.view(-1)[-1] = 0, vocabulary - 1
    return drawn
