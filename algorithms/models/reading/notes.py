"""State of the conversion of a model: the layers and tensors so far."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from algorithms.models.reading.layers import Layer, Pair, Unsupported, Value


class Notes:
    """The layers so far, and the shapes of their tensors."""

    def __init__(self, window: tuple[int, ...], parameters: dict[str, tuple[int, ...]]) -> None:
        self.window, self.parameters = window, parameters
        self.layers: list[Layer] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def made_by(self, x: Value) -> str:
        """Return the kind of the layer that computed x, ignoring dropout."""
        layer = self.layers[x.layer]
        while layer.kind == "dropout":
            layer = self.layers[layer.inputs[0]]
        return layer.kind

    def call(self, name: str, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the layer of this name for these arguments."""
        raise NotImplementedError

    def add(
        self, kind: str, x: Value, channels: int, sizes: tuple[int, ...], grid: Pair, **others: Any
    ) -> Value:
        self.layers.append(Layer(kind, (x.layer,), **others))
        return Value(len(self.layers) - 1, channels, sizes, grid)

    def tensors(
        self,
        name: str,
        module: nn.Module,
        statistics: tuple[str, ...] = (),
        prefix: str = "",
        suffix: str = "",
    ) -> dict[str, str]:
        """Return the names of a layer's tensors by their part, and record their shapes.

        Parts are weight, bias, and the `statistics`.
        """
        names_by_part: dict[str, str] = {}
        for part in ("weight", "bias", *statistics):
            attribute = prefix + part + suffix
            value, full = getattr(module, attribute, None), f"{name}.{attribute}"
            if value is None:
                continue
            if full not in self.parameters and part not in statistics:
                raise Unsupported(f"{full} is not a parameter of its own")
            if value.dtype != torch.float32:
                raise Unsupported(f"{full} is {value.dtype}: expected float32")
            if full in self.shapes:
                raise Unsupported(f"{name} is called more than once")
            names_by_part[part], self.shapes[full] = full, tuple(value.shape)
        return names_by_part

    def require(self, name: str, module: nn.Module, **expected: object) -> None:
        for option, value in expected.items():
            if (actual := getattr(module, option)) not in (value, (value,), (value, value)):
                raise Unsupported(
                    f"{name} is {module._get_name()} with {option}={actual}, not {value}"
                )

    def expect(self, name: str, module: nn.Module, channels: int, x: Value) -> None:
        if channels != x.channels:
            raise Unsupported(
                f"{name} is {module._get_name()} of {channels} inputs, and gets {x.channels}"
            )

    def linear(self, name: str, module: nn.Linear, x: Value) -> Value:
        # a linear layer on every sample is a convolution of one
        if x.last:
            self.expect(name, module, module.in_features, x)
            value = self.add(
                "conv",
                x,
                module.out_features,
                x.sizes,
                x.grid,
                outputs=module.out_features,
                tensors=self.tensors(name, module),
            )
            return replace(value, last=True)
        if x.sizes:
            raise Unsupported(f"{name} is Linear before Flatten")
        self.expect(name, module, module.in_features, x)
        return self.add(
            "linear",
            x,
            module.out_features,
            (),
            (1, 1),
            outputs=module.out_features,
            tensors=self.tensors(name, module),
        )

    def relu(self, x: Value, inplace: bool = False) -> Value:
        del inplace  # see traced.in_place
        return replace(self.add("relu", x, x.channels, x.sizes, x.grid), last=x.last)

    def sum(self, x: Value, other: Value) -> Value:
        """Return the sum of two layers' results."""
        if replace(x, layer=0) != replace(other, layer=0):
            raise Unsupported(
                f"of {x.channels} channels of {x.sizes} and {other.channels} of {other.sizes}"
            )
        self.layers.append(Layer("sum", (x.layer, other.layer)))
        return replace(x, layer=len(self.layers) - 1)
