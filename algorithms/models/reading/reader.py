"""Reader of a model's traced forward pass, which lists the layers for the native engine."""

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from algorithms.models.adoption.attention import Attention
from algorithms.models.adoption.dropout import Dropped
from algorithms.models.adoption.stacked import Stacked
from algorithms.models.reading import arranged, encoder, grids, recurrent, views
from algorithms.models.reading.grids import pair
from algorithms.models.reading.layers import Network, Unsupported, Value
from algorithms.models.reading.notes import Notes
from algorithms.models.reading.traced import Whole, alone, in_place, place, trace
from algorithms.models.reading.views import View
from wire.arrays import names

OF_SAMPLES = (
    nn.Identity,
    nn.ReLU,
    nn.Linear,
    nn.GRU,
    Stacked,
    nn.LayerNorm,
    nn.GELU,
    nn.TransformerEncoderLayer,
    nn.TransformerEncoder,
    Dropped,
)
"""Layers that accept channels after the samples."""
OF_VIEWS = (
    operator.add,
    operator.iadd,
    torch.add,
    "add",
    operator.getitem,
    torch.cat,
    F.scaled_dot_product_attention,
    getattr,
    "size",
)
"""Functions that accept parameters, constants, and a layer's result in another order."""


class Reader(Notes):
    """Follows the calls of a traced model with the shapes of their results."""

    def __init__(self, window: tuple[int, ...], parameters: dict[str, tuple[int, ...]]) -> None:
        super().__init__(window, parameters)
        self._modules: dict[type[nn.Module], Callable[[str, Any, Value], Any]] = {
            nn.Identity: lambda _name, _module, x: x,
            nn.Conv1d: partial(grids.conv, self),
            nn.Conv2d: partial(grids.conv, self),
            nn.Linear: self.linear,
            nn.BatchNorm1d: partial(grids.norm, self),
            nn.BatchNorm2d: partial(grids.norm, self),
            nn.ReLU: lambda _name, _module, x: self.relu(x),
            nn.MaxPool1d: partial(grids.max_pool, self),
            nn.MaxPool2d: partial(grids.max_pool, self),
            nn.AvgPool1d: partial(grids.avg_pool, self),
            nn.AvgPool2d: partial(grids.avg_pool, self),
            nn.AdaptiveAvgPool1d: partial(grids.adaptive, self),
            nn.AdaptiveAvgPool2d: partial(grids.adaptive, self),
            nn.Flatten: partial(arranged.flatten, self),
            nn.GRU: partial(recurrent.gru, self),
            Stacked: partial(recurrent.gru, self),
            nn.LayerNorm: partial(encoder.layer_norm, self),
            nn.GELU: self._gelu,
            Dropped: self.dropped,
            nn.TransformerEncoderLayer: partial(encoder.encoder_layer, self),
            nn.TransformerEncoder: partial(encoder.encoder, self),
        }
        self._functions: dict[object, Callable[..., Any]] = {
            operator.add: self._sum,
            operator.iadd: self._sum,
            torch.add: self._sum,
            "add": self._sum,
            F.relu: self.relu,
            F.gelu: partial(encoder.gelu, self),
            torch.relu: self.relu,
            "relu": self.relu,
            torch.flatten: partial(arranged.flattened, self),
            "flatten": partial(arranged.flattened, self),
            torch.mean: partial(arranged.mean, self),
            "mean": partial(arranged.mean, self),
            "contiguous": lambda x: x,
            operator.getitem: partial(recurrent.item, self),
            torch.transpose: partial(arranged.transposed, self),
            "transpose": partial(arranged.transposed, self),
            torch.permute: partial(arranged.permuted, self),
            "permute": lambda x, *order: arranged.permuted(
                self, x, order[0] if len(order) == 1 else order
            ),
            "squeeze": partial(recurrent.squeezed, self),
            "view": partial(arranged.reshaped, self, "view"),
            "reshape": partial(arranged.reshaped, self, "reshape"),
            getattr: self._attribute,
            "size": views.size,
            operator.floordiv: partial(_whole_number, operator.floordiv),
            operator.mul: partial(_whole_number, operator.mul),
            torch.cat: partial(views.joined, self),
            F.scaled_dot_product_attention: partial(views.attended, self),
        }

    def read(self, whole: Whole) -> Value:
        """Return the result of the model.

        The model is followed in training and in evaluation mode, which must be alike.
        """
        modes = {module: module.training for module in whole.modules()}
        readings = []
        try:
            for training in (False, True):
                for module in modes:
                    module.training = training
                self.layers, self.shapes = [], {}
                output = self._follow(whole, trace(whole))
                self._check_heads()
                readings.append((output, self.layers, self.shapes))
        finally:
            for module, mode in modes.items():
                module.training = mode
        if readings[0] != readings[1]:
            raise Unsupported("the model does something else in training than outside of it")
        return output

    def _check_heads(self) -> None:
        """Raise Unsupported if the input of attention has other readers: its layout is special."""
        for layer in self.layers:
            if (
                layer.kind == "attention"
                and sum(layer.inputs[0] in other.inputs for other in self.layers) > 1
            ):
                raise Unsupported("queries, keys and values are read by others than attention")

    def network(self, value: Value, size: tuple[float, ...] | None) -> Network:
        """Return the network of all layers so far."""
        if unused := self.parameters.keys() - self.shapes.keys():
            raise Unsupported(f"{min(unused)} is a parameter of no layer")
        order = [n for n in self.parameters if n in self.shapes] + [
            n for n in self.shapes if n not in self.parameters
        ]
        return Network(
            self.window,
            value.channels,
            size,
            tuple(self.layers),
            {n: self.shapes[n] for n in order},
        )

    def _follow(self, whole: Whole, graph: fx.Graph) -> Value:
        values: dict[fx.Node, Any] = {}
        lookup: Callable[[fx.Node], Any] = values.__getitem__
        for node in graph.nodes:
            if in_place(node, whole) and not alone(node.args[0], whole):
                raise Unsupported(f"{place(node)} changes in place what others read")
            args, kwargs = (fx.node.map_arg(part, lookup) for part in (node.args, node.kwargs))
            if node.op == "placeholder":
                sizes = self.window[1:]
                values[node] = Value(-1, self.window[0], sizes, pair(sizes, len(sizes), 1))
            elif node.op == "output":
                if not isinstance(args[0], Value):
                    raise Unsupported(
                        f"the model gives {type(args[0]).__name__}: expected one tensor"
                    )
                return args[0]
            elif node.op == "get_attr":
                values[node] = self._held(whole, str(node.target))
            elif node.op == "call_module":
                values[node] = self.call(
                    str(node.target), whole.get_submodule(node.target), *args, **kwargs
                )
            else:
                values[node] = self._apply(place(node), node.target, *args, **kwargs)
        raise AssertionError("a graph without an output")

    def _held(self, whole: nn.Module, name: str) -> View:
        """Return a view of a parameter that belongs to no layer, or of a constant."""
        path, _, attribute = name.rpartition(".")
        value = getattr(whole.get_submodule(path), attribute)
        if (
            isinstance(value, Tensor)
            and value.dtype == torch.float32
            and not names.is_running_statistic(name)
        ):
            if name in self.parameters:
                return views.viewed(name, value.shape)
            if not isinstance(value, nn.Parameter):
                return views.viewed(value, value.shape)
        raise Unsupported(f"the model reads {name}: expected parameters or constants, float32")

    def _attribute(self, x: Any, name: str) -> tuple[Any, ...]:
        if name != "shape" or not isinstance(x, (Value, View)):
            raise Unsupported(f"for {name}")
        return views.shape_of(x)

    def call(self, name: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the layer of this name for these arguments."""
        kind = type(module)
        if (
            isinstance(module, Attention)
            and len(args) == 3
            and args[0] is args[1] is args[2]
            and kwargs.keys() <= {"need_weights"}
        ):
            return encoder.attention(self, name, module, args[0]), None
        if kind not in self._modules:
            raise Unsupported(f"{name} is {kind.__name__}")
        if kwargs or len(args) != 1 or not isinstance(args[0], Value):
            raise Unsupported(f"{name} is {kind.__name__} and is given more than one tensor")
        if args[0].last and kind not in OF_SAMPLES:
            raise Unsupported(f"{name} is {kind.__name__}, and gets channels behind the samples")
        return self._modules[kind](name, module, args[0])

    def _apply(self, place: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        callee = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        function = self._functions.get(target)
        if (
            callee in views.MOVING
            and args
            and (isinstance(args[0], View) or (function is None and isinstance(args[0], Value)))
        ):
            function = partial(views.moved, callee)
        elif target not in OF_VIEWS and any(isinstance(argument, View) for argument in args):
            function = None
        if function is None:
            raise Unsupported(f"{place} calls {callee}")
        try:
            return function(*args, **kwargs)
        except TypeError:
            raise Unsupported(
                f"{place} calls {callee} with other arguments than the engine knows"
            ) from None
        except Unsupported as error:
            raise Unsupported(f"{place} calls {callee} {error}") from None

    def dropped(self, name: str, module: Dropped, x: Value) -> Value:
        """Return the result of dropout, with a random number per value or per channel of torch."""
        shape, (drawn, *others) = tuple(views.shape_of(x)[1:]), module.shapes
        if others:
            raise Unsupported(f"{name} is called {len(module.shapes)} times")
        if drawn == shape:
            stride = (x.channels, 1) if x.last else (1, prod(x.sizes)) if x.sizes else (0, 1)
        elif drawn == (shape[0], *[1] * (len(shape) - 1)):
            stride = (1, 0) if x.last else (0, 1)
        else:
            raise Unsupported(f"{name} drops {list(drawn)}, and gets {list(shape)}")
        dropping = {"drops": name, "drawn": drawn, "share": module.share}
        return replace(
            self.add("dropout", x, x.channels, x.sizes, x.grid, stride=stride, **dropping),
            last=x.last,
        )

    def _gelu(self, name: str, module: nn.GELU, x: Value) -> Value:
        try:
            return encoder.gelu(self, x, module.approximate)
        except Unsupported as error:
            raise Unsupported(f"{name} is GELU {error}") from None

    def _sum(self, x: Any, other: Any) -> Value:
        """Return the sum of two layers' results, or of one and parameters or constants."""
        for one, table in ((x, other), (other, x)):
            if isinstance(one, Value) and isinstance(table, View):
                return views.added(self, one, table)
        if not isinstance(x, Value) or not isinstance(other, Value):
            raise Unsupported("with a value that is not the result of a layer")
        return self.sum(x, other)


def _whole_number(function: Callable[[int, int], int], a: Any, b: Any) -> int:
    """Return the result of an integer function of sizes of a shape."""
    if not isinstance(a, int) or not isinstance(b, int):
        raise Unsupported("with values that are not sizes")
    return function(a, b)
