"""What the native engine knows of: a network as a list of layers, each of which reads the results of earlier ones."""

from dataclasses import dataclass, field

from wire.errors import ConfigError

Pair = tuple[int, int]


class Unsupported(ConfigError):
    """A layer, or an option of one, that the native engine does not have."""


@dataclass(frozen=True)
class Layer:
    """One layer. `kind`: conv, linear, norm, relu, max_pool, avg_pool, flatten, sum, pick, gru, attention,
    layer_norm or gelu; `inputs`: the numbers of the layers whose
    results it reads, -1 for the network's input. Pairs are of lines and columns; a time window has one line. `tensors` maps weight, bias,
    running_mean and running_var to the tensors' names, those it has."""

    kind: str
    inputs: tuple[int, ...]
    outputs: int = 0
    parts: int = 1
    """Into how many equal parts the outputs fall: the three gates of what a gru reads, or queries, keys and values."""
    row: int = 0
    """The one that is picked; of attention, the number of heads."""
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    before: Pair = (0, 0)
    """Zero rows before the first one; `after` those after the last one."""
    after: Pair = (0, 0)
    dilation: Pair = (1, 1)
    eps: float = 0.0
    momentum: float = 0.0
    tensors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A model for windows (channels, time) or images (channels, height, width): what is done to x, and the tensors' shapes by name, in the
    model's order."""

    window: tuple[int, ...]
    classes: int
    size: tuple[float, ...] | None
    """What every channel is divided by, or None."""
    layers: tuple[Layer, ...]
    """In the order in which they are computed; the last one gives the result."""
    shapes: dict[str, tuple[int, ...]]
