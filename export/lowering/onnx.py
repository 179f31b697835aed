"""For ONNX, which has no operator for the backward of a convolution.

The gradient of its input is a convolution with the flipped kernel (a transposed one where the stride is not 1), the gradient of its
weight a matrix product over the unfolded input.
"""

import torch
from torch import Tensor

from export.lowering.shared import Table, check_convolution, per_dimension, shared_decompositions, taps

_aten = torch.ops.aten


def onnx_decompositions() -> Table:
    """The table for ONNX."""
    return {**shared_decompositions(), _aten.convolution_backward.default: convolution_backward}


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
    """Gradients of a convolution in one or two dimensions, by input, weight and bias."""
    check_convolution(weight, dilation, transposed, groups)
    kernel, dims = weight.shape[2:], range(2, weight.dim())
    stride, padding = (per_dimension(values, len(kernel)) for values in (stride, padding))
    grad_x = grad_weight = grad_bias = None
    if wanted[0] and all(s == 1 for s in stride):
        flipped = weight.flip(list(dims)).transpose(0, 1).contiguous()
        outer = [k - 1 - p for k, p in zip(kernel, padding, strict=True)]
        grad_x = _aten.convolution(grad, flipped, None, [1] * len(kernel), outer, [1] * len(kernel), False, [0] * len(kernel), 1)
    elif wanted[0]:
        missing = [x.shape[d] - ((grad.shape[d] - 1) * stride[d - 2] - 2 * padding[d - 2] + kernel[d - 2]) for d in dims]
        grad_x = _aten.convolution(grad, weight, None, stride, padding, dilation, True, missing, 1)
    if wanted[1]:
        columns = torch.cat([tap.reshape(x.shape[1], -1) for tap in taps(x.transpose(0, 1), kernel, stride, padding, grad.shape[2:])], 0)
        rows = grad.transpose(0, 1).reshape(grad.shape[1], -1)
        product = torch.mm(rows, columns.transpose(0, 1)).reshape(weight.shape[0], *kernel, weight.shape[1])
        grad_weight = product.movedim(-1, 1).contiguous()
    if wanted[2]:
        grad_bias = grad.sum([0, *dims])
    return grad_x, grad_weight, grad_bias
