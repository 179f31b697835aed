"""Reads a torch model as a list of the layers that the native engine knows, or refuses and names the first layer that it does not.

The model is traced by `torch.fx`, so that it may have a forward pass of its own: with sums of two branches, for instance.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from algorithms.models import encoder
from algorithms.models.attention import Attention
from algorithms.models.classifier import Classifier, Scale
from algorithms.models.dropout import Dropped
from algorithms.models.layers import Layer, Network, Pair, Unsupported
from wire import names

__all__ = ["Layer", "Network", "Unsupported", "extractor_of", "has_hooks", "network_of"]


def network_of(model: Classifier, window_shape: tuple[int, ...]) -> Network:
    """The network of a model for examples of this shape, (channels, time) or (channels, height, width).

    Raises:
        Unsupported: names the first layer or option that the native engine does not have, and says what it is.
    """
    reader = _reader(model, window_shape, model.named_parameters())
    size = _size_of(model.scale, window_shape)
    made = reader.read(_Whole(model.extractor, model.head))
    if not reader.layers or reader.layers[-1].kind != "linear" or made.layer != len(reader.layers) - 1:
        raise Unsupported(f"head is {type(model.head).__name__}: the last layer must be Linear")
    return reader.network(made, size)


def extractor_of(model: Classifier, window_shape: tuple[int, ...]) -> Network:
    """The network from scaled examples of this shape, (channels, time) or (channels, height, width), to the representation, which is its
    `classes` values.

    Raises:
        Unsupported: as `network_of`.
    """
    reader = _reader(model, window_shape, model.extractor.named_parameters("extractor"))
    made = reader.read(_Whole(model.extractor))
    if not reader.shapes or made.sizes:
        raise Unsupported("extractor: expected layers with parameters, and Flatten behind them")
    return reader.network(made, None)


def _reader(model: Classifier, window_shape: tuple[int, ...], parameters: Iterable[tuple[str, nn.Parameter]]) -> "Reader":
    if len(window_shape) not in (2, 3):
        raise Unsupported(f"examples of shape {window_shape}: only time windows (channels, time) and images (channels, height, width)")
    if type(model).forward is not Classifier.forward:
        raise Unsupported(f"{type(model).__name__} has a forward pass of its own")
    if fixed := [name for name, parameter in model.named_parameters() if not parameter.requires_grad]:
        raise Unsupported(f"{fixed[0]} is frozen")
    if hooked := [name for name, module in model.named_modules() if has_hooks(module)]:
        raise Unsupported(f"{hooked[0] or 'the model'} has a hook")
    if own := [name for name, module in model.named_modules() if type(module).train is not nn.Module.train]:
        raise Unsupported(f"{own[0] or 'the model'} has a way of its own to go into training")
    return Reader(window_shape, {name: tuple(parameter.shape) for name, parameter in parameters})


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody looks at what goes through a layer, or comes back."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks)


def _size_of(scale: nn.Module, window_shape: tuple[int, ...]) -> tuple[float, ...] | None:
    channels, ones = window_shape[0], (1,) * (len(window_shape) - 1)
    if type(scale) is nn.Identity:
        return None
    if type(scale) is not Scale:
        raise Unsupported(f"scale is {type(scale).__name__}")
    if tuple(scale.size.shape) not in ((channels, *ones), (1, *ones)):
        raise Unsupported(f"scale has a size of shape {tuple(scale.size.shape)}: expected one value for each of {channels} channels")
    return tuple(scale.size.flatten().expand(channels).tolist())


class _Whole(nn.Module):
    """Extractor and head under their names."""

    def __init__(self, extractor: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.extractor, self.head = extractor, nn.Identity() if head is None else head

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.extractor(x))
        return made


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (Dropped, Attention)) or super().is_leaf_module(m, module_qualified_name)


@dataclass(frozen=True)
class Value:
    """What a layer gives, as torch sees it without the batch: (channels, \\*sizes)."""

    layer: int
    channels: int
    sizes: tuple[int, ...]
    grid: Pair
    """The engine's lines and columns."""
    last: bool = False
    """Whether torch has the channels behind the samples, (samples, channels)."""


class _States(tuple[Value, ...]):
    """The states of each layer of recurrent units, as they follow each other; torch has the last of each, (layers, batch, channels)."""


OF_SAMPLES = (nn.Identity, nn.ReLU, nn.Linear, nn.GRU, nn.LayerNorm, nn.GELU, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Layers that take channels behind the samples."""


class Reader:
    """Follows the calls of a traced model with the shapes of what they pass on."""

    def __init__(self, window: tuple[int, ...], parameters: dict[str, tuple[int, ...]]) -> None:
        self.window, self.parameters = window, parameters
        self.layers: list[Layer] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._modules: dict[type[nn.Module], Callable[[str, Any, Value], Any]] = {
            nn.Identity: lambda _name, _module, x: x,
            nn.Conv1d: self._conv,
            nn.Conv2d: self._conv,
            nn.Linear: self.linear,
            nn.BatchNorm1d: self._norm,
            nn.BatchNorm2d: self._norm,
            nn.ReLU: lambda _name, _module, x: self.relu(x),
            nn.MaxPool1d: self._max_pool,
            nn.MaxPool2d: self._max_pool,
            nn.AvgPool1d: self._avg_pool,
            nn.AvgPool2d: self._avg_pool,
            nn.AdaptiveAvgPool1d: self._adaptive,
            nn.AdaptiveAvgPool2d: self._adaptive,
            nn.Flatten: self._flatten,
            nn.GRU: self._gru,
            nn.LayerNorm: partial(encoder.layer_norm, self),
            nn.GELU: self._gelu,
            nn.TransformerEncoderLayer: partial(encoder.encoder_layer, self),
            nn.TransformerEncoder: partial(encoder.encoder, self),
        }
        self._functions: dict[object, Callable[..., Any]] = {
            operator.add: self.sum,
            operator.iadd: self.sum,
            torch.add: self.sum,
            "add": self.sum,
            F.relu: self.relu,
            F.gelu: partial(encoder.gelu, self),
            torch.relu: self.relu,
            "relu": self.relu,
            torch.flatten: self._flattened,
            "flatten": self._flattened,
            torch.mean: self._mean,
            "mean": self._mean,
            "contiguous": lambda x: x,
            operator.getitem: self._item,
            torch.transpose: self._transposed,
            "transpose": self._transposed,
            torch.permute: self._permuted,
            "permute": lambda x, *order: self._permuted(x, order[0] if len(order) == 1 else order),
            "squeeze": self._squeezed,
        }

    def read(self, whole: _Whole) -> Value:
        """What the model gives. It is followed in training and in evaluation, which must be alike."""
        modes = {module: module.training for module in whole.modules()}
        found = []
        try:
            for training in (False, True):
                for module in modes:
                    module.training = training
                self.layers, self.shapes = [], {}
                made = self._follow(whole, _trace(whole))
                found.append((made, self.layers, self.shapes))
        finally:
            for module, mode in modes.items():
                module.training = mode
        if found[0] != found[1]:
            raise Unsupported("the model does something else in training than outside of it")
        return made

    def network(self, made: Value, size: tuple[float, ...] | None) -> Network:
        """What was met."""
        if unused := self.parameters.keys() - self.shapes.keys():
            raise Unsupported(f"{min(unused)} is a parameter of no layer")
        order = [n for n in self.parameters if n in self.shapes] + [n for n in self.shapes if n not in self.parameters]
        return Network(self.window, made.channels, size, tuple(self.layers), {n: self.shapes[n] for n in order})

    def _follow(self, whole: _Whole, graph: fx.Graph) -> Value:
        values: dict[fx.Node, Any] = {}
        lookup: Callable[[fx.Node], Any] = values.__getitem__
        for node in graph.nodes:
            if _in_place(node, whole) and not _alone(node.args[0], whole):
                raise Unsupported(f"{_place(node)} changes in place what others read")
            args, kwargs = (fx.node.map_arg(given, lookup) for given in (node.args, node.kwargs))
            if node.op == "placeholder":
                sizes = self.window[1:]
                values[node] = Value(-1, self.window[0], sizes, _pair(sizes, len(sizes), 1))
            elif node.op == "output":
                return self._result(args[0])
            elif node.op == "call_module":
                values[node] = self.call(str(node.target), whole.get_submodule(node.target), *args, **kwargs)
            else:
                values[node] = self._apply(_place(node), node.target, *args, **kwargs)
        raise AssertionError("a graph without an output")

    def _result(self, made: object) -> Value:
        if not isinstance(made, Value):
            raise Unsupported(f"the model gives {type(made).__name__}: expected one tensor")
        return made

    def call(self, name: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What a layer of this name makes of what it is given."""
        kind = type(module)
        if isinstance(module, Attention) and len(args) == 3 and args[0] is args[1] is args[2] and kwargs.keys() <= {"need_weights"}:
            return encoder.attention(self, name, module, args[0]), None
        if kind not in self._modules:
            raise Unsupported(f"{name} is {kind.__name__}")
        if kwargs or len(args) != 1 or not isinstance(args[0], Value):
            raise Unsupported(f"{name} is {kind.__name__} and is given more than one tensor")
        if args[0].last and kind not in OF_SAMPLES:
            raise Unsupported(f"{name} is {kind.__name__}, and gets channels behind the samples")
        return self._modules[kind](name, module, args[0])

    def _apply(self, place: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        called = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        if target not in self._functions:
            raise Unsupported(f"{place} calls {called}")
        try:
            return self._functions[target](*args, **kwargs)
        except TypeError:
            raise Unsupported(f"{place} calls {called} with other arguments than the engine knows") from None
        except Unsupported as error:
            raise Unsupported(f"{place} calls {called} {error}") from None

    def add(self, kind: str, x: Value, channels: int, sizes: tuple[int, ...], grid: Pair, **others: Any) -> Value:
        self.layers.append(Layer(kind, (x.layer,), **others))
        return Value(len(self.layers) - 1, channels, sizes, grid)

    def tensors(self, name: str, module: nn.Module, statistics: tuple[str, ...] = (), prefix: str = "", suffix: str = "") -> dict[str, str]:
        """The names of a layer's tensors by what they are to it, whose shapes are noted."""
        found: dict[str, str] = {}
        for part in ("weight", "bias", *statistics):
            own = prefix + part + suffix
            value, full = getattr(module, own, None), f"{name}.{own}"
            if value is None:
                continue
            if full not in self.parameters and part not in statistics:
                raise Unsupported(f"{full} is not a parameter of its own")
            if value.dtype != torch.float32:
                raise Unsupported(f"{full} is {value.dtype}: expected float32")
            if full in self.shapes:
                raise Unsupported(f"{name} is called more than once")
            found[part], self.shapes[full] = full, tuple(value.shape)
        return found

    def _require(self, name: str, module: nn.Module, **expected: object) -> None:
        for option, value in expected.items():
            if (found := getattr(module, option)) not in (value, (value,), (value, value)):
                raise Unsupported(f"{name} is {type(module).__name__} with {option}={found}: only {value}")

    def _expect(self, name: str, module: nn.Module, channels: int, x: Value) -> None:
        if channels != x.channels:
            raise Unsupported(f"{name} is {type(module).__name__} of {channels} inputs, and gets {x.channels}")

    def _dimensions(self, name: str, module: nn.Module, x: Value) -> int:
        """1 for layers of time windows, 2 for those of images."""
        dims = 2 if type(module).__name__.endswith("2d") else 1
        if not x.sizes:
            raise Unsupported(f"{name} is {type(module).__name__} after Flatten")
        if len(x.sizes) != dims or prod(x.grid) != prod(x.sizes) or (dims == 1 and x.grid[0] != 1):
            raise Unsupported(f"{name} is {type(module).__name__}, and gets {x.channels} channels of {' x '.join(map(str, x.sizes))}")
        return dims

    def _after(self, name: str, x: Value, grid: Pair, dims: int) -> tuple[tuple[int, ...], Pair]:
        if min(grid) < 1:
            raise Unsupported(f"{name} leaves nothing of {' x '.join(map(str, x.sizes))} samples")
        return grid[2 - dims :], grid

    def _conv(self, name: str, module: nn.Conv1d | nn.Conv2d, x: Value) -> Value:
        dims = self._dimensions(name, module, x)
        self._require(name, module, groups=1, padding_mode="zeros")
        self._expect(name, module, module.in_channels, x)
        kernel, stride, dilation = (_pair(getattr(module, option), dims, 1) for option in ("kernel_size", "stride", "dilation"))
        around = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if module.padding == "same":
            before: Pair = (around[0] // 2, around[1] // 2)
            after: Pair = (around[0] - before[0], around[1] - before[1])
        else:
            before = after = (0, 0) if isinstance(module.padding, str) else _pair(module.padding, dims, 0)
        lines, columns = ((n + b + a - r - 1) // s + 1 for n, b, a, r, s in zip(x.grid, before, after, around, stride, strict=True))
        sizes, grid = self._after(name, x, (lines, columns), dims)
        looks = {"kernel": kernel, "stride": stride, "before": before, "after": after, "dilation": dilation}
        outputs, tensors = module.out_channels, self.tensors(name, module)
        return self.add("conv", x, outputs, sizes, grid, outputs=outputs, tensors=tensors, **looks)

    def linear(self, name: str, module: nn.Linear, x: Value) -> Value:
        if x.last:  # of every sample: a convolution of one
            self._expect(name, module, module.in_features, x)
            made = self.add(
                "conv", x, module.out_features, x.sizes, x.grid, outputs=module.out_features, tensors=self.tensors(name, module)
            )
            return replace(made, last=True)
        if x.sizes:
            raise Unsupported(f"{name} is Linear before Flatten")
        self._expect(name, module, module.in_features, x)
        return self.add("linear", x, module.out_features, (), (1, 1), outputs=module.out_features, tensors=self.tensors(name, module))

    def _gru(self, name: str, module: nn.GRU, x: Value) -> Any:
        if not x.last or x.grid[0] > 1:
            raise Unsupported(f"{name} is GRU, and does not get (samples, channels) of a window")
        self._require(name, module, batch_first=True, bidirectional=False, dropout=0.0)
        self._expect(name, module, module.input_size, x)
        units, states = module.hidden_size, []
        for number in range(module.num_layers):
            tensors = self.tensors(name, module, suffix=f"_ih_l{number}")
            x = self.add("conv", x, 3 * units, x.sizes, x.grid, outputs=3 * units, parts=3, tensors=tensors)
            tensors = self.tensors(name, module, suffix=f"_hh_l{number}")
            x = replace(self.add("gru", x, units, x.sizes, x.grid, outputs=units, parts=3, tensors=tensors), last=True)
            states.append(x)
        return x, _States(states)

    def _item(self, x: Any, at: Any) -> Any:
        """One of the results of recurrent units, or one sample."""
        if isinstance(x, _States) and isinstance(at, int) and -len(x) <= at < len(x):
            return self._pick(x[at], -1)
        if type(x) is tuple and isinstance(at, int) and -len(x) <= at < len(x):
            return x[at]
        whole = slice(None)
        if isinstance(x, Value) and isinstance(at, tuple) and len(x.sizes) == 1:
            *others, sample = at[:2] if x.last else at
            if isinstance(sample, int) and others == [whole] * (1 if x.last else 2) and at[2:] in ((), (whole,), (sample,)):
                return self._pick(x, sample)
        raise Unsupported(f"of {at}: only one sample of a window")

    def _pick(self, x: Value, sample: int) -> Value:
        (count,) = x.sizes
        if x.grid[0] > 1:
            raise Unsupported("of an image")
        if not -count <= sample < count:
            raise Unsupported(f"of sample {sample} of {count}")
        return self.add("pick", x, x.channels, (), (1, 1), row=sample % count)

    def _transposed(self, x: Value, one: int, other: int) -> Value:
        if len(x.sizes) != 1 or {one % 3, other % 3} != {1, 2}:
            raise Unsupported(f"of {one} and {other}: only of channels and samples")
        return replace(x, last=not x.last)

    def _permuted(self, x: Value, order: Any) -> Value:
        if [d % 3 for d in order] != [0, 2, 1]:
            raise Unsupported(f"to {tuple(order)}: only of channels and samples")
        return self._transposed(x, 1, 2)

    def _squeezed(self, x: Any, dim: int) -> Value:
        if not isinstance(x, _States) or len(x) != 1 or dim != 0:
            raise Unsupported("of what is not the state of one layer")
        return self._pick(x[0], -1)

    def _norm(self, name: str, module: nn.BatchNorm1d | nn.BatchNorm2d, x: Value) -> Value:
        if x.sizes or isinstance(module, nn.BatchNorm2d):
            self._dimensions(name, module, x)
        self._expect(name, module, module.num_features, x)
        if module.momentum is None or not module.track_running_stats:
            raise Unsupported(f"{name} is {type(module).__name__} without running statistics that move by a fixed momentum")
        tensors = self.tensors(name, module, (names.RUNNING_MEAN, names.RUNNING_VAR))
        return self.add("norm", x, x.channels, x.sizes, x.grid, eps=module.eps, momentum=module.momentum, tensors=tensors)

    def _pool(self, name: str, kind: str, x: Value, kernel: Pair, dims: int) -> Value:
        sizes, grid = self._after(name, x, (x.grid[0] // kernel[0], x.grid[1] // kernel[1]), dims)
        return self.add(kind, x, x.channels, sizes, grid, kernel=kernel) if kernel != (1, 1) else x

    def _max_pool(self, name: str, module: nn.MaxPool1d | nn.MaxPool2d, x: Value) -> Value:
        dims = self._dimensions(name, module, x)
        self._require_apart(name, module, dims)
        self._require(name, module, padding=0, dilation=1, ceil_mode=False, return_indices=False)
        return self._pool(name, "max_pool", x, _pair(module.kernel_size, dims, 1), dims)

    def _avg_pool(self, name: str, module: nn.AvgPool1d | nn.AvgPool2d, x: Value) -> Value:
        dims = self._dimensions(name, module, x)
        self._require_apart(name, module, dims)
        self._require(name, module, padding=0, ceil_mode=False)
        if getattr(module, "divisor_override", None) is not None:
            raise Unsupported(f"{name} is {type(module).__name__} with a divisor of its own")
        return self._pool(name, "avg_pool", x, _pair(module.kernel_size, dims, 1), dims)

    def _require_apart(self, name: str, module: Any, dims: int) -> None:
        """Pools that do not overlap, and leave nothing between them."""
        if _pair(module.stride, dims, 1) != _pair(module.kernel_size, dims, 1):
            raise Unsupported(
                f"{name} is {type(module).__name__} with stride={module.stride}: only that of its kernel, {module.kernel_size}"
            )

    def _adaptive(self, name: str, module: nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d, x: Value) -> Value:
        dims = self._dimensions(name, module, x)
        self._require(name, module, output_size=1)
        return self._pool(name, "avg_pool", x, x.grid, dims)

    def _flatten(self, name: str, module: nn.Flatten, x: Value) -> Value:
        self._require(name, module, start_dim=1, end_dim=-1)
        return self._flattened(x, 1)

    def relu(self, x: Value, inplace: bool = False) -> Value:
        del inplace  # see _in_place
        return replace(self.add("relu", x, x.channels, x.sizes, x.grid), last=x.last)

    def _gelu(self, name: str, module: nn.GELU, x: Value) -> Value:
        try:
            return encoder.gelu(self, x, module.approximate)
        except Unsupported as error:
            raise Unsupported(f"{name} is GELU {error}") from None

    def sum(self, x: Value, other: Value) -> Value:
        if not isinstance(x, Value) or not isinstance(other, Value):
            raise Unsupported("with what is no layer's result")
        if replace(x, layer=0) != replace(other, layer=0):
            raise Unsupported(f"of {x.channels} channels of {x.sizes} and {other.channels} of {other.sizes}")
        self.layers.append(Layer("sum", (x.layer, other.layer)))
        return replace(x, layer=len(self.layers) - 1)

    def _flattened(self, x: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
        last = len(x.sizes) + 1
        if x.last:
            raise Unsupported("of channels behind the samples")
        if end_dim not in (-1, last) or start_dim not in (1, 2):
            raise Unsupported(f"from dimension {start_dim} to {end_dim}")
        if start_dim == 2:
            return replace(x, sizes=(prod(x.sizes),))
        return self.add("flatten", x, x.channels * prod(x.sizes), (), (1, 1)) if x.sizes else x

    def _mean(self, x: Value, dim: int | tuple[int, ...] = (), keepdim: bool = False) -> Value:
        given = (dim,) if isinstance(dim, int) else tuple(dim)
        over = {1} if x.last else set(range(2, len(x.sizes) + 2))
        if {d % (len(x.sizes) + 2) for d in given} != over or keepdim or not x.sizes:
            raise Unsupported(f"over {dim}: only over all but examples and channels")
        pooled = x if x.grid == (1, 1) else self.add("avg_pool", x, x.channels, (1,), (1, 1), kernel=x.grid)
        return replace(self._flattened(replace(pooled, sizes=(1,), last=False), 1), channels=x.channels)


def _trace(whole: _Whole) -> fx.Graph:
    try:
        graph = _Tracer().trace(whole)
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise Unsupported(f"what the model does cannot be followed: {said}") from None
    fx.GraphModule(whole, graph).graph.eliminate_dead_code()
    return graph


def _in_place(node: fx.Node, whole: nn.Module) -> bool:
    """Whether a call overwrites its first input."""
    if node.op == "call_module":
        return bool(getattr(whole.get_submodule(str(node.target)), "inplace", False))
    return node.target is operator.iadd or bool(node.kwargs.get("inplace")) or (node.target is F.relu and len(node.args) > 1)


def _alone(node: Any, whole: nn.Module) -> bool:
    """Whether a result has one reader, and where it may be a view of another one, that one too."""
    if len(node.users) != 1:
        return False
    layer = type(whole.get_submodule(node.target)) if node.op == "call_module" else None
    view = layer in (nn.Identity, nn.Flatten) or (node.op != "call_module" and node.target in ("flatten", "contiguous", torch.flatten))
    return not view or _alone(node.args[0], whole)


def _place(node: fx.Node) -> str:
    """The name of the module whose forward pass makes a call."""
    stack = node.meta.get("nn_module_stack") or {}
    return next(reversed([str(name) for name, _ in stack.values()]), "") or "the model"


def _pair(value: int | tuple[int, ...], dims: int, one: int) -> Pair:
    """An option of a layer by lines and columns; `one` is that of the only line of a time window."""
    given = (value,) * dims if isinstance(value, int) else tuple(value)
    return (one, given[0]) if dims == 1 else (given[0], given[1])
