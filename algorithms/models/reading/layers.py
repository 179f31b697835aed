"""What the native engine knows of: a network as a list of layers, each of which reads the results
of earlier ones."""

from dataclasses import dataclass, field

from wire.errors import ConfigError

Pair = tuple[int, int]


class Unsupported(ConfigError):
    """A layer, or an option of one, that the native engine does not have."""


@dataclass(frozen=True)
class Layer:
    """One layer. `kind`: conv, linear, norm, relu, max_pool, avg_pool, flatten, sum, pick, gru,
    attention, layer_norm, gelu, table (rows of parameters or constants) or dropout; `inputs`: the
    numbers of the layers whose results it reads, -1 for the network's input. Pairs are of lines and
    columns; a time window has one line. `tensors` maps weight, bias, running_mean and running_var
    to the tensors' names, those it has."""

    kind: str
    inputs: tuple[int, ...]
    outputs: int = 0
    parts: int = 1
    """Into how many equal parts the outputs fall: the three gates of what a gru reads, or queries,
    keys and values."""
    row: int = 0
    """The one that is picked; of attention, the number of heads; of a table, how many of its rows
    are in front of the input's, to which the others are added."""
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    """Of dropout, from the random numbers of a row to those of the next one, and from that of a
    channel to the next one's."""
    before: Pair = (0, 0)
    """Zero rows before the first one; `after` those after the last one."""
    after: Pair = (0, 0)
    dilation: Pair = (1, 1)
    eps: float = 0.0
    momentum: float = 0.0
    tensors: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    """Of a table. Its values are `values`, row by row, or `places` of its weight, which may be in
    another order."""
    places: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    drops: str = ""
    """Of dropout, and of attention with dropout: the name of the layer whose random numbers say
    what is dropped, the shape of an example's numbers, and the share that is dropped."""
    drawn: tuple[int, ...] = ()
    share: float = 0.0


@dataclass(frozen=True)
class Network:
    """A model for windows (channels, time) or images (channels, height, width): what is done to x,
    and the tensors' shapes by name, in the model's order."""

    window: tuple[int, ...]
    classes: int
    size: tuple[float, ...] | None
    """What every channel is divided by, or None."""
    layers: tuple[Layer, ...]
    """In the order in which they are computed; the last one gives the result."""
    shapes: dict[str, tuple[int, ...]]

    @property
    def dropouts(self) -> dict[str, tuple[int, ...]]:
        """The layers that drop, by name, with the shape of the random numbers that each takes for
        an example."""
        return {layer.drops: layer.drawn for layer in self.layers if layer.drops}


@dataclass(frozen=True)
class Value:
    """What a layer gives, as torch sees it without the batch: (channels, \\*sizes)."""

    layer: int
    channels: int
    sizes: tuple[int, ...]
    grid: Pair
    """The engine's lines and columns."""
    last: bool = False
    """Whether torch has the channels behind the samples, (samples, channels)."""
