"""Stacked recurrent layers, with dropout between them that draws nothing itself."""

from typing import Any

import torch
from torch import Tensor, nn

from algorithms.models.adoption.replaced import check_replaceable, replace_layer
from wire.errors import ConfigError

_ONE_LAYER: dict[str, Any] = {
    "GRU": torch.gru,
    "LSTM": torch.lstm,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}
_OPTIONS = (
    "mode",
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
    "bidirectional",
    "proj_size",
)

States = Tensor | tuple[Tensor, Tensor]
"""States of GRU and RNN (layers, batch, units); for LSTM, the states and the cells."""


class Stacked(nn.Module):
    """Replacement of a `torch.nn.GRU`, `LSTM` or `RNN` of several layers.

    Parameters and options have the same names. An `nn.Dropout` follows every layer but the last,
    ``drop_l0``, ``drop_l1`` and so on. Torch's own is one operator, which draws the random numbers
    of its dropout itself.
    """

    mode: str
    input_size: int
    hidden_size: int
    proj_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    bidirectional: bool

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        for option in _OPTIONS:
            setattr(self, option, getattr(layer, option))
        self.names = layer._all_weights
        """Names of the parameters, per layer and direction."""
        for parameter_name, value in layer.named_parameters():
            self.register_parameter(parameter_name, value)
        for number in range(self.num_layers - 1):
            self.add_module(f"drop_l{number}", nn.Dropout(layer.dropout))

    def forward(self, x: Tensor, hx: States | None = None) -> tuple[Tensor, States]:
        """Return the result of torch's layer for inputs with a batch.

        Raises:
            ConfigError: inputs without a batch, or packed ones.
        """
        if not isinstance(x, Tensor) or x.dim() != 3:
            inputs = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ConfigError(
                f"{self._get_name()} with dropout needs a tensor of three dimensions, with a "
                f"batch, got {inputs}"
            )
        x = x if self.batch_first else x.transpose(0, 1)
        last = []
        for number in range(self.num_layers):
            x, *states = self._layer(number, x, hx)
            last.append(states)
            if number < self.num_layers - 1:
                x = self.get_submodule(f"drop_l{number}")(x)
        ended = [torch.cat(states) for states in zip(*last, strict=True)]
        return x if self.batch_first else x.transpose(0, 1), (
            ended[0],
            ended[1],
        ) if self.mode == "LSTM" else ended[0]

    def _get_name(self) -> str:
        return self.mode.partition("_")[0]

    def flatten_parameters(self) -> None:
        """Do nothing; torch's own rearranges weights for GPUs."""

    def _layer(self, number: int, x: Tensor, hx: States | None) -> tuple[Tensor, ...]:
        """Return the output of one layer and its last states, each (directions, batch, units).

        The output is (batch, samples, directions * units).
        """
        directions = 2 if self.bidirectional else 1
        rows = slice(directions * number, directions * (number + 1))
        weights = [getattr(self, name) for names in self.names[rows] for name in names]
        starts = (
            self._zeros(x)
            if hx is None
            else [state[rows] for state in (hx if isinstance(hx, tuple) else (hx,))]
        )
        start = starts if self.mode == "LSTM" else starts[0]
        output_and_states: tuple[Tensor, ...] = _ONE_LAYER[self.mode](
            x, start, weights, self.bias, 1, 0.0, self.training, self.bidirectional, True
        )
        return output_and_states

    def _zeros(self, x: Tensor) -> list[Tensor]:
        directions = 2 if self.bidirectional else 1
        widths = (
            (self.proj_size or self.hidden_size, self.hidden_size)
            if self.mode == "LSTM"
            else (self.hidden_size,)
        )
        return [x.new_zeros(directions, x.shape[0], width) for width in widths]


def replace_recurrent(model: nn.Module) -> None:
    """Replace every recurrent layer of torch with dropout between its layers by a `Stacked`.

    Raises:
        ConfigError: a layer does more than torch's own, or drops everything.
    """
    for name, layer in [
        (n, m)
        for n, m in model.named_modules()
        if isinstance(m, nn.RNNBase) and m.dropout and m.num_layers > 1
    ]:
        check_replaceable(name, layer, nn.GRU, nn.LSTM, nn.RNN)
        if layer.dropout == 1:
            raise ConfigError(f"layer {name!r}: dropout must be below 1, got 1")
        replace_layer(model, layer, Stacked(layer))
