"""Rules of `algorithms.models.reading.reader` for transformer encoders.

These are LayerNorm, GELU, attention between a window's samples, and torch's encoder layers, which
consist of these.
"""

from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import nn

from algorithms.models.adoption.attention import Attention
from algorithms.models.adoption.dropout import Dropped
from algorithms.models.reading.layers import Unsupported, Value
from algorithms.models.reading.notes import Notes


def layer_norm(reader: Notes, name: str, module: nn.LayerNorm, x: Value) -> Value:
    """Return the result of LayerNorm over the channels of each sample."""
    if not x.last and (x.sizes or reader.made_by(x) not in ("linear", "pick")):
        raise Unsupported(
            f"{name} is LayerNorm, and does not get (samples, channels) of a window or one sample "
            "of it"
        )
    if tuple(module.normalized_shape) != (x.channels,):
        raise Unsupported(
            f"{name} is LayerNorm of {list(module.normalized_shape)}, and gets {x.channels} "
            "channels"
        )
    value = reader.add(
        "layer_norm",
        x,
        x.channels,
        x.sizes,
        x.grid,
        eps=module.eps,
        tensors=reader.tensors(name, module),
    )
    return replace(value, last=x.last)


def gelu(reader: Notes, x: Value, approximate: str = "none") -> Value:
    """Return the result of the exact GELU."""
    if approximate != "none":
        raise Unsupported(f"approximated by {approximate}")
    if not x.sizes and reader.made_by(x) not in ("linear", "pick", "layer_norm"):
        raise Unsupported("of flattened samples")
    return replace(reader.add("gelu", x, x.channels, x.sizes, x.grid), last=x.last)


def attention(reader: Notes, name: str, module: Attention, x: Value) -> Value:
    """Return the result of attention between the samples of a window."""
    if not x.last or x.grid[0] > 1 or not module.batch_first:
        raise Unsupported(
            f"{name} is MultiheadAttention, and does not get (batch, samples, channels) of a window"
        )
    drop: nn.Module = module.drop
    dropping: dict[str, Any] = {}
    if isinstance(drop, Dropped):
        if len(drop.shapes) > 1:
            raise Unsupported(f"{name} is called {len(drop.shapes)} times")
        dropping = {"drops": f"{name}.drop", "drawn": drop.shapes[0], "share": drop.share}
    elif type(drop) is not nn.Identity and (type(drop) is not nn.Dropout or drop.p):
        raise Unsupported(f"{name} is MultiheadAttention with dropout that draws by itself")
    width = x.channels
    tensors = reader.tensors(name, module, prefix="in_proj_")
    x = reader.add(
        "conv", x, 3 * width, x.sizes, x.grid, outputs=3 * width, parts=3, tensors=tensors
    )
    x = replace(
        reader.add(
            "attention",
            x,
            width,
            x.sizes,
            x.grid,
            outputs=width,
            parts=3,
            row=module.num_heads,
            **dropping,
        ),
        last=True,
    )
    return reader.linear(f"{name}.out_proj", module.out_proj, x)


def encoder(reader: Notes, name: str, module: nn.TransformerEncoder, x: Value) -> Value:
    """Return the result of all layers in sequence, and of a final norm if there is one."""
    for number, layer in enumerate(module.layers):
        x = reader.call(f"{name}.layers.{number}", layer, x)
    return x if module.norm is None else reader.call(f"{name}.norm", module.norm, x)


def encoder_layer(reader: Notes, name: str, module: nn.TransformerEncoderLayer, x: Value) -> Value:
    """Return the result of an encoder layer: attention, and two linear layers.

    Each of the two is added to its input, with a norm before it or after the sum.
    """

    def attended(y: Value) -> Value:
        self_attention = module.self_attn
        layer = (
            self_attention
            if isinstance(self_attention, Attention)
            else Attention(self_attention, f"{name}.self_attn")
        )
        value: Value = reader.call(
            f"{name}.dropout1", module.dropout1, attention(reader, f"{name}.self_attn", layer, y)
        )
        return value

    def fed(y: Value) -> Value:
        y = _activated(
            reader,
            f"{name}.activation",
            module.activation,
            reader.call(f"{name}.linear1", module.linear1, y),
        )
        y = reader.call(
            f"{name}.linear2", module.linear2, reader.call(f"{name}.dropout", module.dropout, y)
        )
        value: Value = reader.call(f"{name}.dropout2", module.dropout2, y)
        return value

    for part, number in ((attended, 1), (fed, 2)):
        layer = f"{name}.norm{number}", getattr(module, f"norm{number}")
        x = (
            reader.sum(x, part(reader.call(*layer, x)))
            if module.norm_first
            else reader.call(*layer, reader.sum(x, part(x)))
        )
    return x


def _activated(reader: Notes, name: str, activation: object, x: Value) -> Value:
    if isinstance(activation, nn.Module):
        value: Value = reader.call(name, activation, x)
        return value
    if activation is F.relu:
        return reader.relu(x)
    if activation is F.gelu:
        return gelu(reader, x)
    raise Unsupported(f"{name} is {getattr(activation, '__name__', activation)}")
