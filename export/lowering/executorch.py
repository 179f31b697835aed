"""Table for ExecuTorch: layers as batched matrix products and element-wise operators.

The layers are convolutions, linear layers, pooling and BatchNorm, forward and backward.
"""

import functools
from math import prod

import torch
from torch import Tensor

from export.lowering import shared
from export.lowering.shared import (
    Geometry,
    Table,
    convolution_geometry,
    outer,
    shared_decompositions,
    spread,
    taps,
    view,
)

_aten = torch.ops.aten
LARGE = 1e38
"""Factor that makes every positive normal float32 at least 1."""


@functools.cache
def executorch_decompositions() -> Table:
    """Return the whole table: the shared part, and the operators with a form for ExecuTorch.

    ExecuTorch's own convolutions are plain loops, and XNNPACK's need constant weights, which a
    training step does not have. XNNPACK's batched matrix product takes any two tensors. So a
    convolution is the product of its weight with the unfolded input, and so are its gradients.

    ExecuTorch's sums add number after number and lose digits over thousands of them. So a sum over
    a channel is a product with ones, followed by a sum over the batch.

    XNNPACK has no comparisons, and ExecuTorch's are slow. So arithmetic decides which gradients
    pass.
    """
    return {
        **shared_decompositions(),
        _aten.convolution.default: convolution,
        _aten.convolution_backward.default: convolution_backward,
        _aten.max_pool2d_with_indices.default: max_pool,
        _aten.max_pool2d_with_indices_backward.default: max_pool_backward,
        _aten.threshold_backward.default: threshold_backward,
        _aten.mm.default: mm,
        _aten.addmm.default: addmm,
        _aten._native_batch_norm_legit_functional.default: batch_norm,
        _aten._native_batch_norm_legit_no_training.default: batch_norm_without_training,
        _aten.native_batch_norm_backward.default: batch_norm_backward,
    }


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product a b, as a batch of one for XNNPACK."""
    return torch.bmm(a.unsqueeze(0), b.unsqueeze(0)).squeeze(0)


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta * bias + alpha * a b."""
    product = mm(a, b) if alpha == 1 else alpha * mm(a, b)
    return product + (bias if beta == 1 else beta * bias)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """Return a convolution in one to three dimensions.

    Raises:
        ConfigError: it is transposed or has another number of dimensions.
    """
    geometry = convolution_geometry(weight, stride, padding, dilation, transposed)
    result = _convolve(x, weight, geometry, groups, geometry.out(x.shape[2:]))
    return result if bias is None else result + _over_channels(bias, result)


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

    The gradient by the input is the convolution of `grad` with the flipped kernel. For a stride
    above 1, `grad` is spread out first.

    Raises:
        ConfigError: the convolution is transposed or has another number of dimensions.
    """
    geometry = convolution_geometry(weight, stride, padding, dilation, transposed)
    grad_x = grad_weight = grad_bias = None
    if wanted[0]:
        flipped = weight.flip(list(range(2, weight.dim()))).reshape(groups, -1, *weight.shape[1:])
        turned = flipped.transpose(1, 2)
        kernels = turned.reshape(-1, *turned.shape[2:])
        spread_out = outer(spread(grad, geometry.stride), x.shape[2:], geometry)
        grad_x = _convolve(spread_out, kernels, geometry.turned(), groups, x.shape[2:])
    if wanted[1]:
        rows = view(grad.transpose(0, 1), [groups, grad.shape[1] // groups, -1])
        product = torch.bmm(_columns(x, geometry, groups, grad.shape[2:]), rows.transpose(1, 2))
        apart = product.reshape(groups, *geometry.kernel, weight.shape[1], -1)
        grad_weight = apart.movedim(-1, 1).movedim(-1, 2).reshape(weight.shape)
    if wanted[2]:
        grad_bias = channel_sums(grad)
    return grad_x, grad_weight, grad_bias


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the output of BatchNorm and its statistics.

    These are the batch's mean and 1 / sqrt(variance + eps), and the new running mean and variance,
    each (channels,).
    """
    if not training:
        return (
            *batch_norm_without_training(x, weight, bias, running_mean, running_var, momentum, eps),
            running_mean,
            running_var,
        )
    count = x.shape[0] * prod(x.shape[2:])  # number of values of a channel
    mean = channel_sums(x) / count
    centred = x - _over_channels(mean, x)
    variance = channel_sums(centred * centred) / count
    scale = torch.rsqrt(variance + eps)
    following = (
        (1 - momentum) * running_mean + momentum * mean,
        (1 - momentum) * running_var + momentum * (variance * (count / (count - 1))),
    )
    return (_scaled(centred, scale, weight, bias), mean, scale, *following)


def batch_norm_without_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output of BatchNorm with the running statistics, and two empty tensors."""
    centred = x - _over_channels(running_mean, x)
    return (
        _scaled(centred, torch.rsqrt(running_var + eps), weight, bias),
        x.new_empty(0),
        x.new_empty(0),
    )


def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    training: bool,
    eps: float,
    wanted: list[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of BatchNorm by input, weight and bias.

    See S. Ioffe, C. Szegedy, ICML 2015, section 3.
    """
    if not training:
        assert running_mean is not None
        assert running_var is not None
        mean, scale = running_mean, torch.rsqrt(running_var + eps)
    centred = x - _over_channels(mean, x)
    by_bias, product = channel_sums(grad), channel_sums(grad * centred)
    slope = scale if weight is None else scale * weight
    grad_x = grad * _over_channels(slope, x)
    if training:
        count = x.shape[0] * prod(x.shape[2:])  # number of values of a channel
        grad_x = (
            grad_x
            - centred * _over_channels(slope * scale * scale * (product / count), x)
            - _over_channels(slope * (by_bias / count), x)
        )
    return grad_x, product * scale if wanted[1] else None, by_bias if wanted[2] else None


def channel_sums(x: Tensor) -> Tensor:
    """Return the sums (channels,) of x (batch, channels, \\*size)."""
    channels, size = x.shape[1], prod(x.shape[2:])
    if x.dim() > 2 and size > 1:
        ones = torch.ones((1, size, 1), dtype=x.dtype, device=x.device)
        x = torch.bmm(view(x, [1, -1, size]), ones)
        return view(x, [-1, channels]).sum(0)
    return x.flatten(1).sum(0)


def _over_channels(values: Tensor, x: Tensor) -> Tensor:
    """Return values (channels,) in a shape that broadcasts to x (batch, channels, \\*size)."""
    return values.reshape(1, -1, *[1] * (x.dim() - 2))


def _scaled(centred: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = centred * _over_channels(scale if weight is None else scale * weight, centred)
    return scaled if bias is None else scaled + _over_channels(bias, centred)


def max_pool(
    x: Tensor,
    kernel: list[int],
    stride: list[int] = (),  # type: ignore[assignment]
    padding: list[int] = (0, 0),  # type: ignore[assignment]
    dilation: list[int] = (1, 1),  # type: ignore[assignment]
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the maxima and their places, for windows that do not overlap.

    The places are flat indices over the last two dimensions of x. Windows that overlap keep torch's
    operator.
    """
    if not _apart(kernel, stride, padding, dilation, ceil_mode):
        return NotImplemented  # type: ignore[no-any-return]  # torch then keeps the operator
    parts = _windows(x, kernel)
    best = functools.reduce(torch.maximum, parts)
    # a training step does not read the places, and they are removed from its graph
    shares = _first_best(torch.ones_like(best), best, parts)
    offsets = [x.shape[3] * (k // kernel[1]) + k % kernel[1] for k in range(len(parts))]
    inside = functools.reduce(
        torch.add, [share * offset for share, offset in zip(shares, offsets, strict=True)]
    )
    rows, columns = (torch.arange(best.shape[d], device=x.device) * kernel[d - 2] for d in (2, 3))
    return best, inside.to(torch.int64) + rows[:, None] * x.shape[3] + columns


def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Return the gradient by x: it goes to the first value that is the maximum of its window."""
    if not _apart(kernel, stride, padding, dilation, ceil_mode):
        return shared.max_pool_backward(
            grad, x, kernel, stride, padding, dilation, ceil_mode, indices
        )
    parts = _windows(x, kernel)
    shares = _first_best(grad, functools.reduce(torch.maximum, parts), parts)
    channels, (height, width) = x.shape[1], grad.shape[2:]
    stacked = view(
        torch.cat([share.unsqueeze(0) for share in shares]), [*kernel, -1, channels, height, width]
    )
    size = height * kernel[0], width * kernel[1]
    whole = view(stacked.permute(2, 3, 4, 0, 5, 1), [-1, channels, *size])
    rest = x.shape[3] - size[1], x.shape[2] - size[0]
    return (
        _aten.constant_pad_nd.default(whole, [0, rest[0], 0, rest[1]], 0.0) if any(rest) else whole
    )


def threshold_backward(grad: Tensor, result: Tensor, threshold: float) -> Tensor:
    """Return the gradient of ReLU, which is `grad` for results above 0."""
    if threshold != 0:
        return torch.where(result <= threshold, 0.0, grad)
    return grad * _is_positive(torch.relu(result))


def _apart(
    kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> bool:
    """Return True if the windows do not overlap: every value is in at most one."""
    return (
        list(stride or kernel) == list(kernel)
        and not any(padding)
        and all(d == 1 for d in dilation)
        and not ceil_mode
        and len(kernel) == 2
    )


def _windows(x: Tensor, kernel: list[int]) -> list[Tensor]:
    """Return the values at each place of a window, in the order of the places.

    Each is (batch, channels, windows down, windows across).
    """
    channels, height, width = x.shape[1], x.shape[2] // kernel[0], x.shape[3] // kernel[1]
    for d, size in ((2, height * kernel[0]), (3, width * kernel[1])):
        x = x.narrow(d, 0, size) if size < x.shape[d] else x
    parts = (
        view(x, [-1, channels, height, kernel[0], width, kernel[1]])
        .permute(3, 5, 0, 1, 2, 4)
        .contiguous()
    )
    flat = view(parts, [prod(kernel), -1, channels, height, width])
    return [flat.select(0, k) for k in range(prod(kernel))]


def _first_best(values: Tensor, best: Tensor, parts: list[Tensor]) -> list[Tensor]:
    """Return for each part: `values` where it is the first that equals `best`, and 0 elsewhere."""
    shares, rest = [], values
    for candidate in parts[:-1]:
        passed = rest * _is_positive(best - candidate)
        shares.append(rest - passed)
        rest = passed
    return [*shares, rest]


def _is_positive(x: Tensor) -> Tensor:
    """Return 1 where x is above 0, and 0 where it is 0. x must not be negative.

    For a subnormal float32 the result is between 0 and 1.
    """
    return torch.minimum(x * LARGE, torch.ones(1, dtype=x.dtype, device=x.device))


def _columns(x: Tensor, geometry: Geometry, groups: int, out: torch.Size) -> Tensor:
    """Return the input under each kernel position, (groups, positions * channels, batch * out).

    `channels` are those of a group.
    """
    views = taps(x.transpose(0, 1), geometry, out)
    if groups > 1:
        views = [view(tap, [groups, x.shape[1] // groups, -1]) for tap in views]
        return torch.cat(views, 1) if len(views) > 1 else views[0]
    return view(
        torch.cat(views, 0) if len(views) > 1 else views[0], [1, len(views) * x.shape[1], -1]
    )


def _convolve(
    x: Tensor, weight: Tensor, geometry: Geometry, groups: int, out: torch.Size
) -> Tensor:
    """Return the convolution (batch, outputs, \\*out).

    For each group it is weight (outputs, positions * channels) times columns (positions * channels,
    batch * out).
    """
    rows = weight.movedim(1, -1).reshape(groups, weight.shape[0] // groups, -1)
    product = torch.bmm(rows, _columns(x, geometry, groups, out))
    return view(product, [weight.shape[0], -1, *out]).transpose(0, 1).contiguous()
