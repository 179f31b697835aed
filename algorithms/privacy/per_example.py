"""Per-example gradients, clipped, in operators that can be exported with a dynamic batch.

``vmap(grad(...))`` turns convolutions into grouped ones with one group per example, which no
exporter accepts with a dynamic batch. Here zeros are added to the output of each layer, and one
ordinary backward pass gives the gradient at these zeros. This gradient and the layer's input yield
the gradient of each example.

I. Goodfellow. Efficient per-example gradient computations. arXiv 1510.01799, 2015 (linear layers).
G. Rochette, A. Manoel, E. W. Tramel. Efficient per-example gradient computations in convolutional
neural networks. arXiv 1912.06015.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from wire.errors import ConfigError

T = TypeVar("T")

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class _Call:
    """One call of a layer: the input of its parameters, and the zeros added to its output."""

    layer: str
    module: nn.Module
    x: Tensor
    zeros: Tensor


def clipped_gradients(
    model: nn.Module,
    losses: Callable[[], tuple[Tensor, T]],
    trained: Collection[str],
    clip_norm: float | Tensor,
) -> tuple[TorchTensors, T]:
    """Return the sum over the batch of each example's clipped gradient, and the rest of `losses`.

    Each example's gradient is scaled to a norm of at most `clip_norm`, over all `trained`
    parameters together.

    Args:
        losses: calls `model` (through `functional` or directly) and returns the loss of each
            example (batch,), which depends on that example alone, and any other value, which is
            passed on.
        trained: names as in ``model.named_parameters()``; the keys of the result, in the same
            order.

    Raises:
        ConfigError: a layer has no rule for per-example gradients, or lets examples depend on each
            other.
    """
    gradients, rest = example_gradients(model, losses, trained)
    norms = torch.stack([(g * g).flatten(1).sum(1) for g in gradients.values()]).sum(0).sqrt()
    factors = (clip_norm / norms).clamp(max=1.0).unsqueeze(0)
    return {
        name: torch.mm(factors, g.flatten(1)).reshape(g.shape[1:]) for name, g in gradients.items()
    }, rest


def example_gradients(
    model: nn.Module, losses: Callable[[], tuple[Tensor, T]], trained: Collection[str]
) -> tuple[TorchTensors, T]:
    r"""Return each example's gradient (batch, \*parameter) by name, and the rest of `losses`.

    Arguments and errors are those of `clipped_gradients`.
    """
    names = _parameter_names(model, trained)
    with torch.enable_grad(), _watched(model, names) as calls:
        values, rest = losses()
        outer = (
            torch.autograd.grad(
                values.sum(), [call.zeros for call in calls], materialize_grads=True
            )
            if calls
            else ()
        )
    gradients: TorchTensors = {}
    for call, gradient in zip(calls, outer, strict=True):
        if gradient.shape[0] != values.shape[0] or call.x.shape[0] != values.shape[0]:
            raise ConfigError(
                f"layer {call.layer}: the first dimension must be the example's for a gradient per "
                "example"
            )
        for local, each in _GRADIENTS[type(call.module)](call.module, call.x, gradient).items():
            name = names.get((call.layer, local))
            if name is not None:
                gradients[name] = gradients[name] + each if name in gradients else each
    if missing := [name for name in trained if name not in gradients]:
        raise ConfigError(
            f"parameter {missing[0]!r} has no gradient per example, because its layer is not called"
        )
    return {name: gradients[name] for name in trained}, rest


def _parameter_names(model: nn.Module, trained: Collection[str]) -> dict[tuple[str, str], str]:
    """Return the model's name of each trained parameter, by (layer, the layer's name of it).

    Two layers may share one parameter.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters() if name in trained}
    if unknown := sorted(set(trained) - set(names.values())):
        every = ", ".join(name for name, _ in model.named_parameters())
        raise ConfigError(f"The model has no parameter {unknown[0]!r}. Its parameters: {every}.")
    if not names:
        raise ConfigError(
            "Gradients per example need a trained parameter, got none. Set requires_grad of at "
            "least one parameter."
        )
    parameter_names = {
        (layer, local): names[id(parameter)]
        for layer, module in model.named_modules()
        for local, parameter in module.named_parameters(recurse=False)
        if id(parameter) in names
    }
    for layer, module in model.named_modules():
        if any(key[0] == layer for key in parameter_names):
            _check(layer, module)
    return parameter_names


def _check(layer: str, module: nn.Module) -> None:
    if type(module) not in _GRADIENTS:
        kind_names = ", ".join(kind.__name__ for kind in _GRADIENTS)
        raise ConfigError(
            f"layer {layer}: a {type(module).__name__} has no gradients per example. Layers that "
            f"have them: {kind_names}."
        )
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        plain = (
            module.groups == 1
            and all(d == 1 for d in module.dilation)
            and module.padding_mode == "zeros"
        )
        if not plain:
            raise ConfigError(
                f"layer {layer}: a {type(module).__name__} has gradients per example only with "
                f"groups=1, dilation=1 and padding_mode='zeros', got groups={module.groups}, "
                f"dilation={module.dilation}, padding_mode={module.padding_mode!r}"
            )


@contextmanager
def _watched(model: nn.Module, names: dict[tuple[str, str], str]) -> Iterator[list[_Call]]:
    """Yield the calls of the layers with these parameters, and add zeros to their outputs."""
    calls: list[_Call] = []
    layers = {layer for layer, _ in names}

    def add_zeros(layer: str) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if isinstance(module, _NORMS) and (module.training or module.running_mean is None):
                raise ConfigError(
                    f"layer {layer}: {type(module).__name__} mixes examples of a batch in "
                    "training; its statistics must be fixed (eval mode)"
                )
            if layer not in layers:
                return None
            zeros = torch.zeros_like(output).requires_grad_()
            calls.append(_Call(layer, module, _met(module, inputs[0].detach()), zeros))
            return output + zeros

        return hook

    watched = [
        (layer, module)
        for layer, module in model.named_modules()
        if layer in layers or isinstance(module, _NORMS)
    ]
    hooks = [module.register_forward_hook(add_zeros(layer)) for layer, module in watched]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _met(module: nn.Module, x: Tensor) -> Tensor:
    """Return the tensor that a layer multiplies its parameters with.

    This is the layer's input; for a normalisation layer it is the input normalised with the
    statistics of this call.
    """
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    return x.clone()  # it may be changed in place afterwards


# Rules per layer: from the input of the parameters and the gradient at the output, the gradient
# (batch, *parameter) by the layer's own names


def _linear(module: nn.Module, x: Tensor, gradient: Tensor) -> TorchTensors:
    x, gradient = _positions(x), _positions(gradient)
    return {"weight": torch.bmm(gradient.transpose(1, 2), x), "bias": gradient.sum(1)}


def _positions(x: Tensor) -> Tensor:
    """Return (batch, ..., features) as (batch, positions, features)."""
    return x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)


def _convolution(module: nn.Module, x: Tensor, gradient: Tensor) -> TorchTensors:
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    columns = _unfold(module, x, gradient.shape[2:])
    weight = torch.bmm(gradient.flatten(2), columns.transpose(1, 2)).unflatten(
        2, (*module.kernel_size, module.in_channels)
    )
    return {"weight": weight.movedim(-1, 2), "bias": gradient.flatten(2).sum(2)}


def _unfold(module: nn.Conv1d | nn.Conv2d, x: Tensor, out: torch.Size) -> Tensor:
    """Return the values under each kernel position.

    The shape is (batch, kernel positions * channels, output positions).
    """
    padded = F.pad(x, _padding(module))
    taps = []
    for position in range(prod(module.kernel_size)):
        tap, rest = padded, position
        for axis in reversed(range(len(out))):
            rest, offset = divmod(rest, module.kernel_size[axis])
            step = module.stride[axis]
            tap = torch.ops.aten.slice.Tensor(
                tap, axis + 2, offset, offset + (out[axis] - 1) * step + 1, step
            )
        taps.append(tap.flatten(2))
    return torch.cat(taps, 1)


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """Return the padding in the order of `F.pad`: before and after, last dimension first."""
    if isinstance(module.padding, str):
        around = [k - 1 if module.padding == "same" else 0 for k in reversed(module.kernel_size)]
        return [n for k in around for n in (k // 2, k - k // 2)]
    return [n for p in reversed(module.padding) for n in (p, p)]


def _channel_norm(module: nn.Module, x: Tensor, gradient: Tensor) -> TorchTensors:
    """Return the gradients of an affine map per channel; channels are the second dimension."""
    return {"weight": _channels(gradient * x), "bias": _channels(gradient)}


def _channels(x: Tensor) -> Tensor:
    return x.flatten(2).sum(2) if x.dim() > 2 else x


def _layer_norm(module: nn.Module, x: Tensor, gradient: Tensor) -> TorchTensors:
    assert isinstance(module, nn.LayerNorm)
    shape = (gradient.shape[0], -1, *module.normalized_shape)
    return {"weight": (gradient * x).reshape(shape).sum(1), "bias": gradient.reshape(shape).sum(1)}


_GRADIENTS: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor], TorchTensors]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _channel_norm,
    nn.BatchNorm2d: _channel_norm,
    nn.GroupNorm: _channel_norm,
    nn.LayerNorm: _layer_norm,
}
