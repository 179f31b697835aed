"""Table for ONNX, which has no operator for the backward pass of a convolution."""

from functools import cache

import torch
from torch import Tensor
from torch._decomp import get_decompositions

from export.lowering.shared import Table, convolution_geometry, shared_decompositions, taps

_aten = torch.ops.aten


@cache
def onnx_decompositions() -> Table:
    """Return the whole table: the shared part, and the backward pass of a convolution."""
    # torch's exporter for ONNX would decompose these two
    torch_decompositions = get_decompositions([_aten.var.correction, _aten.squeeze.dims])
    return {
        **shared_decompositions(),
        **torch_decompositions,
        _aten.convolution_backward.default: convolution_backward,
    }


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of a convolution in one to three dimensions by input, weight and bias.

    The gradient by the input is a convolution with the flipped kernel, or a transposed convolution
    for a stride above 1 or several groups. The gradient by the weight is a matrix product with the
    unfolded input.

    Raises:
        ConfigError: the convolution is transposed or has another number of dimensions.
    """
    geometry = convolution_geometry(weight, stride, padding, dilation, transposed)
    dims = range(2, weight.dim())
    grad_x = grad_weight = grad_bias = None
    if wanted[0] and groups == 1 and all(s == 1 for s in geometry.stride):
        flipped = weight.flip(list(dims)).transpose(0, 1).contiguous()
        outer = [
            extent - 1 - p for extent, p in zip(geometry.extent, geometry.padding, strict=True)
        ]
        ones = [1] * len(dims)
        grad_x = _aten.convolution(
            grad, flipped, None, ones, outer, dilation, False, [0] * len(dims), 1
        )
    elif wanted[0]:
        spans = zip(grad.shape[2:], geometry.stride, geometry.padding, geometry.extent, strict=True)
        reached = [
            (side - 1) * stride - 2 * padding + extent for side, stride, padding, extent in spans
        ]
        missing = [whole - part for whole, part in zip(x.shape[2:], reached, strict=True)]
        grad_x = _aten.convolution(
            grad, weight, None, stride, padding, dilation, True, missing, groups
        )
    if wanted[1]:
        views = taps(x.transpose(0, 1), geometry, grad.shape[2:])
        columns = torch.cat([tap.reshape(groups, x.shape[1] // groups, -1) for tap in views], 1)
        rows = grad.transpose(0, 1).reshape(groups, weight.shape[0] // groups, -1)
        product = torch.matmul(rows, columns.transpose(1, 2)).reshape(
            weight.shape[0], *geometry.kernel, weight.shape[1]
        )
        grad_weight = product.movedim(-1, 1).contiguous()
    if wanted[2]:
        grad_bias = grad.sum([0, *dims])
    return grad_x, grad_weight, grad_bias
