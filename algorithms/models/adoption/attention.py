"""Multi-head attention from operators of every runtime, with dropout that draws nothing itself."""

import math

import torch
from torch import Tensor, nn

from algorithms.models.adoption.replaced import check_replaceable, replace_layer
from algorithms.models.reading.plain import additive
from wire.errors import ConfigError


class Attention(nn.Module):
    """Replacement of a `torch.nn.MultiheadAttention`: softmax(q k^T / sqrt(d)) v.

    Its parameters have the same names. Torch's own is one operator on some machines and another one
    on others, and the devices' runtimes support none of them.
    """

    _qkv_same_embed_dim = False
    """Flag by which `torch.nn.TransformerEncoderLayer` decides to bypass a layer's forward pass."""

    in_proj_weight: Tensor
    in_proj_bias: Tensor | None

    def __init__(self, layer: nn.MultiheadAttention, name: str) -> None:
        """Take the parameters of `layer`; `name` is for errors.

        Raises:
            ConfigError: the layer has an option that this class does not support.
        """
        super().__init__()
        if layer.in_proj_weight is None or layer.bias_k is not None or layer.add_zero_attn:
            raise ConfigError(
                f"layer {name!r} is MultiheadAttention with kdim, vdim, add_bias_kv or "
                "add_zero_attn, which are not supported"
            )
        self.num_heads, self.batch_first = layer.num_heads, layer.batch_first
        # parameters, or buffers of an extractor that was frozen
        for tensor_name in (
            "in_proj_weight",
            "in_proj_bias",
        ):
            value = getattr(layer, tensor_name)
            self.register_parameter(tensor_name, value) if value is None or isinstance(
                value, nn.Parameter
            ) else self.register_buffer(tensor_name, value)
        self.out_proj = layer.out_proj
        self.drop = nn.Dropout(layer.dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result of `torch.nn.MultiheadAttention` for inputs with a batch.

        `is_causal` needs the mask, as in torch.

        Raises:
            ConfigError: inputs without a batch.
        """
        if query.dim() != 3:
            raise ConfigError(
                "MultiheadAttention needs inputs of three dimensions, with a batch, got "
                f"{list(query.shape)}"
            )
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (  # (batch, heads, length, width of a head)
            nn.functional.linear(x, w, b).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            mask = (
                attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (-1, self.num_heads))
            )
            scores = scores + additive(mask, scores)
        if key_padding_mask is not None:
            scores = scores + additive(key_padding_mask[:, None, None], scores)
        shares = self.drop(torch.softmax(scores, -1))
        output: Tensor = self.out_proj((shares @ v).transpose(1, 2).flatten(2))
        attention_weights = (
            (shares.mean(1) if average_attn_weights else shares) if need_weights else None
        )
        return output if self.batch_first else output.transpose(0, 1), attention_weights


def replace_attention(model: nn.Module) -> None:
    """Replace every `torch.nn.MultiheadAttention` of a model by an `Attention`.

    Raises:
        ConfigError: a layer has an option that `Attention` does not support, or does more than
            torch's own; the text has its name.
    """
    for name, layer in [
        (n, m) for n, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)
    ]:
        check_replaceable(name, layer, nn.MultiheadAttention)
        replace_layer(model, layer, Attention(layer, name))
