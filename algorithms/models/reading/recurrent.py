"""Rules of `algorithms.models.reading.reader` for recurrent units, and for one sample of them."""

from dataclasses import replace
from typing import Any

from torch import nn

from algorithms.models.adoption.stacked import Stacked
from algorithms.models.reading import views
from algorithms.models.reading.layers import Unsupported, Value
from algorithms.models.reading.notes import Notes
from algorithms.models.reading.views import View


class States(tuple[Value, ...]):
    """The states of each layer of recurrent units for all samples.

    Torch has only the last state of each, (layers, batch, channels).
    """


def gru(reader: Notes, name: str, module: nn.GRU | Stacked, x: Value) -> Any:
    """Return the states of every sample, and of each layer.

    A layer is a convolution of the inputs, and the units for one sample after another.
    """
    if module.mode != "GRU":
        raise Unsupported(f"{name} is {module._get_name()}")
    if not x.last or x.grid[0] > 1:
        raise Unsupported(f"{name} is GRU, and does not get (samples, channels) of a window")
    dropout = {"dropout": 0.0} if isinstance(module, nn.GRU) else {}
    reader.require(name, module, batch_first=True, bidirectional=False, **dropout)
    reader.expect(name, module, module.input_size, x)
    units, states = module.hidden_size, []
    for number in range(module.num_layers):
        tensors = reader.tensors(name, module, suffix=f"_ih_l{number}")
        x = reader.add(
            "conv", x, 3 * units, x.sizes, x.grid, outputs=3 * units, parts=3, tensors=tensors
        )
        tensors = reader.tensors(name, module, suffix=f"_hh_l{number}")
        x = replace(
            reader.add("gru", x, units, x.sizes, x.grid, outputs=units, parts=3, tensors=tensors),
            last=True,
        )
        states.append(x)
        if isinstance(module, Stacked) and number < module.num_layers - 1:
            drop = f"drop_l{number}"
            x = reader.call(f"{name}.{drop}", module.get_submodule(drop), x)
    return x, States(states)


def item(reader: Notes, x: Any, at: Any) -> Any:
    """Return one of the results of recurrent units, or one sample."""
    if isinstance(x, States) and isinstance(at, int) and -len(x) <= at < len(x):
        return pick(reader, x[at], -1)
    if type(x) is tuple and isinstance(at, int) and -len(x) <= at < len(x):
        return x[at]
    if isinstance(x, View):
        return views.item(x, at)
    whole = slice(None)
    if isinstance(x, Value) and isinstance(at, tuple) and len(x.sizes) == 1:
        *others, sample = at[:2] if x.last else at
        if (
            isinstance(sample, int)
            and others == [whole] * (1 if x.last else 2)
            and at[2:] in ((), (whole,), (sample,))
        ):
            return pick(reader, x, sample)
    raise Unsupported(f"of {at}: only one sample of a window")


def pick(reader: Notes, x: Value, sample: int) -> Value:
    """Return one sample of a window."""
    (count,) = x.sizes
    if x.grid[0] > 1:
        raise Unsupported("of an image")
    if not -count <= sample < count:
        raise Unsupported(f"of sample {sample} of {count}")
    return reader.add("pick", x, x.channels, (), (1, 1), row=sample % count)


def squeezed(reader: Notes, x: Any, dim: int) -> Value:
    """Return the last state of the only layer."""
    if not isinstance(x, States) or len(x) != 1 or dim != 0:
        raise Unsupported("of a value that is not the state of one layer")
    return pick(reader, x[0], -1)
