"""Networks as lists of layers, the input of the native engine.

Each layer reads the results of earlier ones.
"""

from dataclasses import dataclass, field

from wire.errors import ConfigError

Pair = tuple[int, int]


class Unsupported(ConfigError):
    """A layer, or an option of one, that the native engine does not support."""


@dataclass(frozen=True)
class Layer:
    """One layer.

    `kind` is conv, linear, norm, relu, max_pool, avg_pool, flatten, sum, pick, gru, attention,
    layer_norm, gelu, table (rows of parameters or constants) or dropout. `inputs` are the numbers
    of the layers whose results it reads, -1 for the network's input. Pairs are of lines and
    columns; a time window has one line. `tensors` maps weight, bias, running_mean and running_var
    to the names of the layer's tensors.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: int = 0
    parts: int = 1
    """Number of equal parts of the outputs.

    They are the three gates of a gru's input, or queries, keys and values.
    """
    row: int = 0
    """Row that pick selects.

    For attention it is the number of heads. For a table it is the number of its rows in front of
    the input's rows; the other rows are added to the input.
    """
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    """Step of the kernel.

    For dropout it is the distance between the random numbers of two rows, and of two channels.
    """
    before: Pair = (0, 0)
    """Zero rows before the first row; `after` is the number after the last row."""
    after: Pair = (0, 0)
    dilation: Pair = (1, 1)
    eps: float = 0.0
    momentum: float = 0.0
    tensors: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    """Number of rows of a table.

    The values of a table are `values`, row by row, or the `places` of its weight, which may be in
    any order.
    """
    places: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    drops: str = ""
    """Name of the dropout layer whose random numbers are used; for dropout and attention.

    `drawn` is the shape of the random numbers for one example, `share` the dropout probability.
    """
    drawn: tuple[int, ...] = ()
    share: float = 0.0


@dataclass(frozen=True)
class Network:
    """A model for windows (channels, time) or images (channels, height, width).

    `shapes` are the tensors' shapes by name, in the model's order.
    """

    window: tuple[int, ...]
    classes: int
    size: tuple[float, ...] | None
    """Size that each channel is divided by; None without scaling."""
    layers: tuple[Layer, ...]
    """Layers in the order of computation; the last one computes the result."""
    shapes: dict[str, tuple[int, ...]]

    @property
    def dropouts(self) -> dict[str, tuple[int, ...]]:
        """Shape of the random numbers of one example, by name of the dropout layer."""
        return {layer.drops: layer.drawn for layer in self.layers if layer.drops}


@dataclass(frozen=True)
class Value:
    r"""The result of a layer, in torch's shape without the batch: (channels, \*sizes)."""

    layer: int
    channels: int
    sizes: tuple[int, ...]
    grid: Pair
    """Lines and columns in the engine."""
    last: bool = False
    """True if channels come after the samples in torch: (samples, channels)."""
