"""Reads a torch model as a list of the layers that the native engine knows, or refuses and names the first layer that it does not."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from algorithms.models.classifier import Classifier, Scale
from wire import names
from wire.errors import ConfigError


class Unsupported(ConfigError):
    """A layer, or an option of one, that the native engine does not have."""


@dataclass(frozen=True)
class Layer:
    """One layer. `kind`: conv, linear, norm, relu, max_pool, avg_pool or flatten; `tensors` maps weight, bias, running_mean and
    running_var to the tensors' names, those it has."""

    kind: str
    outputs: int = 0
    kernel: int = 1
    stride: int = 1
    padding: int = 0
    eps: float = 0.0
    momentum: float = 0.0
    tensors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A model for windows (channels, time): what is done to x, in order, and the tensors' shapes by name, in the model's order."""

    channels: int
    time: int
    classes: int
    size: tuple[float, ...] | None
    """What every channel is divided by, or None."""
    layers: tuple[Layer, ...]
    shapes: dict[str, tuple[int, ...]]


def network_of(model: Classifier, window_shape: tuple[int, ...]) -> Network:
    """The network of a model for examples of this shape, (channels, time).

    Raises:
        Unsupported: names the first layer or option that the native engine does not have, and says what it is.
    """
    walk = _walk(model, window_shape, model.named_parameters())
    size = _size_of(model.scale, walk.channels)
    walk.visit("extractor", model.extractor)
    walk.visit("head", model.head)
    if not walk.layers or walk.layers[-1].kind != "linear":
        raise Unsupported(f"head is {type(model.head).__name__}: the last layer must be Linear")
    return walk.network(size)


def extractor_of(model: Classifier, window_shape: tuple[int, ...]) -> Network:
    """The network from scaled examples of this shape, (channels, time), to the representation, which is its `classes` values.

    Raises:
        Unsupported: as `network_of`.
    """
    walk = _walk(model, window_shape, model.extractor.named_parameters("extractor"))
    walk.visit("extractor", model.extractor)
    if not walk.shapes or not walk.flat:
        raise Unsupported("extractor: expected layers with parameters, and Flatten behind them")
    return walk.network(None)


def _walk(model: Classifier, window_shape: tuple[int, ...], parameters: Iterable[tuple[str, nn.Parameter]]) -> "_Walk":
    if len(window_shape) != 2:
        raise Unsupported(f"examples of shape {window_shape}: only time windows (channels, time)")
    if type(model).forward is not Classifier.forward:
        raise Unsupported(f"{type(model).__name__} has a forward pass of its own")
    if fixed := [name for name, parameter in model.named_parameters() if not parameter.requires_grad]:
        raise Unsupported(f"{fixed[0]} is frozen")
    if hooked := [name for name, module in model.named_modules() if has_hooks(module)]:
        raise Unsupported(f"{hooked[0] or 'the model'} has a hook")
    if own := [name for name, module in model.named_modules() if type(module).train is not nn.Module.train]:
        raise Unsupported(f"{own[0] or 'the model'} has a way of its own to go into training")
    channels, time = window_shape
    return _Walk(channels, time, {name: tuple(parameter.shape) for name, parameter in parameters})


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody looks at what goes through a layer, or comes back."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def _size_of(scale: nn.Module, channels: int) -> tuple[float, ...] | None:
    if type(scale) is nn.Identity:
        return None
    if type(scale) is not Scale:
        raise Unsupported(f"scale is {type(scale).__name__}")
    if tuple(scale.size.shape) not in ((channels, 1), (1, 1)):
        raise Unsupported(f"scale has a size of shape {tuple(scale.size.shape)}: expected one value for each of {channels} channels")
    return tuple(scale.size.flatten().expand(channels).tolist())


class _Walk:
    """Follows the layers with the shape of what they pass on: (channels, time), or (channels,) once `flat`."""

    def __init__(self, channels: int, time: int, parameters: dict[str, tuple[int, ...]]) -> None:
        self.window = channels, time
        self.channels, self.time, self.flat = channels, time, False
        self.parameters = parameters
        self.layers: list[Layer] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def visit(self, name: str, module: nn.Module) -> None:
        kind = type(module)
        if isinstance(module, nn.Sequential) and kind is nn.Sequential:
            for child, part in zip(module._modules, module, strict=True):  # `named_children` leaves out a layer that came before
                self.visit(f"{name}.{child}", part)
            return
        if kind is nn.Identity:
            return
        known: dict[type[nn.Module], Callable[[str, Any], None]] = {
            nn.Conv1d: self._conv,
            nn.Linear: self._linear,
            nn.BatchNorm1d: self._norm,
            nn.ReLU: lambda name, module: self.layers.append(Layer("relu")),
            nn.MaxPool1d: self._max_pool,
            nn.AvgPool1d: self._avg_pool,
            nn.AdaptiveAvgPool1d: self._adaptive,
            nn.Flatten: self._flatten,
        }
        if kind not in known:
            raise Unsupported(f"{name} is {kind.__name__}")
        known[kind](name, module)

    def network(self, size: tuple[float, ...] | None) -> Network:
        """What was met."""
        if unused := self.parameters.keys() - self.shapes.keys():
            raise Unsupported(f"{min(unused)} is a parameter of no layer")
        order = [n for n in self.parameters if n in self.shapes] + [n for n in self.shapes if n not in self.parameters]
        return Network(*self.window, self.channels, size, tuple(self.layers), {n: self.shapes[n] for n in order})

    def _tensors(self, name: str, module: nn.Module, statistics: tuple[str, ...] = ()) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in ("weight", "bias", *statistics):
            value, full = getattr(module, part), f"{name}.{part}"
            if value is None:
                continue
            if full not in self.parameters and part not in statistics:
                raise Unsupported(f"{full} is not a parameter of its own")
            if value.dtype != torch.float32:
                raise Unsupported(f"{full} is {value.dtype}: expected float32")
            found[part], self.shapes[full] = full, tuple(value.shape)
        return found

    def _require(self, name: str, module: nn.Module, **expected: object) -> None:
        for option, value in expected.items():
            if (found := getattr(module, option)) not in (value, (value,)):
                raise Unsupported(f"{name} is {type(module).__name__} with {option}={found}: only {value}")

    def _expect(self, name: str, module: nn.Module, channels: int) -> None:
        if channels != self.channels:
            raise Unsupported(f"{name} is {type(module).__name__} of {channels} inputs, and gets {self.channels}")

    def _in_time(self, name: str, module: nn.Module) -> None:
        if self.flat:
            raise Unsupported(f"{name} is {type(module).__name__} after Flatten")

    def _after(self, name: str, time: int) -> None:
        if time < 1:
            raise Unsupported(f"{name} leaves nothing of {self.time} samples")
        self.time = time

    def _conv(self, name: str, module: nn.Conv1d) -> None:
        self._in_time(name, module)
        self._require(name, module, dilation=1, groups=1, padding_mode="zeros")
        self._expect(name, module, module.in_channels)
        kernel, stride, padding = module.kernel_size[0], module.stride[0], module.padding
        if isinstance(padding, str):
            if padding == "same" and kernel % 2 == 0:
                raise Unsupported(f"{name} is Conv1d with padding='same' and an even kernel")
            padding = ((kernel - 1) // 2 if padding == "same" else 0,)
        self._after(name, (self.time + 2 * padding[0] - kernel) // stride + 1)
        self.channels = module.out_channels
        self.layers.append(Layer("conv", self.channels, kernel, stride, padding[0], tensors=self._tensors(name, module)))

    def _linear(self, name: str, module: nn.Linear) -> None:
        if not self.flat:
            raise Unsupported(f"{name} is Linear before Flatten")
        self._expect(name, module, module.in_features)
        self.channels = module.out_features
        self.layers.append(Layer("linear", self.channels, tensors=self._tensors(name, module)))

    def _norm(self, name: str, module: nn.BatchNorm1d) -> None:
        self._expect(name, module, module.num_features)
        if module.momentum is None or not module.track_running_stats:
            raise Unsupported(f"{name} is BatchNorm1d without running statistics that move by a fixed momentum")
        tensors = self._tensors(name, module, (names.RUNNING_MEAN, names.RUNNING_VAR))
        self.layers.append(Layer("norm", self.channels, eps=module.eps, momentum=module.momentum, tensors=tensors))

    def _pool(self, name: str, module: nn.Module, kind: str, kernel: int) -> None:
        self._in_time(name, module)
        self._after(name, self.time // kernel)
        if kernel > 1:
            self.layers.append(Layer(kind, self.channels, kernel))

    def _max_pool(self, name: str, module: nn.MaxPool1d) -> None:
        kernel = _one(module.kernel_size)
        self._require(name, module, stride=kernel, padding=0, dilation=1, ceil_mode=False, return_indices=False)
        self._pool(name, module, "max_pool", kernel)

    def _avg_pool(self, name: str, module: nn.AvgPool1d) -> None:
        kernel = _one(module.kernel_size)
        self._require(name, module, stride=kernel, padding=0, ceil_mode=False)
        self._pool(name, module, "avg_pool", kernel)

    def _adaptive(self, name: str, module: nn.AdaptiveAvgPool1d) -> None:
        self._require(name, module, output_size=1)
        self._pool(name, module, "avg_pool", self.time)

    def _flatten(self, name: str, module: nn.Flatten) -> None:
        self._require(name, module, start_dim=1, end_dim=-1)
        if not self.flat:
            self.layers.append(Layer("flatten"))
            self.channels, self.time, self.flat = self.channels * self.time, 1, True


def _one(kernel: int | tuple[int, ...]) -> int:
    return kernel if isinstance(kernel, int) else kernel[0]
