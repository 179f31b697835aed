"""Plain operators for functions of torch that exported graphs cannot use.

The operators of these functions differ between machines, or need the number of examples as a
constant.
"""

import inspect
import linecache
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_stack, walk_tb
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from algorithms.outside import is_users
from wire.errors import ConfigError


def at_line(error: BaseException | None = None) -> str:
    """Return the file, line and code of a user that raised an error, or else that runs, or "".

    The text is the end of a clause.
    """
    running = walk_stack(inspect.currentframe())
    for frame, line in running if error is None else reversed([*walk_tb(error.__traceback__)]):
        if is_users(frame):
            file = frame.f_code.co_filename
            code = linecache.getline(file, line).strip()
            return f" in {Path(file).name}, line {line}{f': {code}' if code else ''}"
    return ""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""Return the linear map of x (batch, \*sizes, inputs), as one product of two matrices.

    The result is (batch, \*sizes, outputs).
    """
    if x.dim() <= 2:
        return F.linear(x, weight, bias)
    return F.linear(x.reshape(-1, x.shape[-1]), weight, bias).view(
        -1, *x.shape[1:-1], weight.shape[0]
    )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return softmax(q k^T * scale) v, as torch's `scaled_dot_product_attention` does.

    Shapes are q (..., L, d), k (..., S, d), v (..., S, e).

    Raises:
        ConfigError: dropout, whose random numbers could not be inputs, or heads that share keys.
    """
    if dropout_p or enable_gqa:
        option = f"dropout_p={dropout_p}" if dropout_p else "enable_gqa=True"
        raise ConfigError(
            f"scaled_dot_product_attention with {option} is not supported{at_line()}. For dropout, "
            "use torch.nn.Dropout."
        )
    scores = (
        query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    )
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if attn_mask is not None:
        scores = scores + additive(
            ~attn_mask if attn_mask.dtype == torch.bool else attn_mask, scores
        )
    output: Tensor = torch.softmax(scores, -1) @ value
    return output


def additive(mask: Tensor, scores: Tensor) -> Tensor:
    """Return a mask as a summand of the scores.

    A boolean mask is minus infinity where it is True, else 0; another mask is unchanged.
    """
    return (
        torch.zeros_like(mask, dtype=scores.dtype).masked_fill(mask, -math.inf)
        if mask.dtype == torch.bool
        else mask
    )


def pad(
    x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Return x padded as torch's `pad` does, in mode ``circular`` without writing in place."""
    if mode != "circular" or min(pad) < 0:
        return F.pad(x, list(pad), mode, value)
    for at, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.dim() - 1 - at
        end = x.narrow(dim, x.shape[dim] - before, before)
        x = torch.cat([end, x, x.narrow(dim, 0, after)], dim)
    return x


class PlainOperators(TorchFunctionMode):
    """Mode in which torch uses the functions of this module.

    They replace `linear` with more than two dimensions, `scaled_dot_product_attention` and circular
    padding.
    """

    operators: ClassVar[dict[Any, Callable[..., Any]]] = {
        F.linear: linear,
        F.pad: pad,
        F.scaled_dot_product_attention: attention,
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.operators.get(func, func)(*args, **(kwargs or {}))


class OperatorMode(TorchDispatchMode):
    """Mode that meets every operator of torch; the base of records of what code does."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that torch does not load its compiler (1.6 s) at the first operator."""
        return False
