"""An objective's functions by torch, with the extractor's passes by the native engine.

They are for steps that are more than plain SGD.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from algorithms.core.contract import TorchTensors
from algorithms.models.reading.network import Unsupported, extractor_of, has_hooks
from algorithms.objectives.supervised import Supervised
from export.describe import run_once
from host.native.passes import ForwardPass, Passes
from host.native.plan import Floats
from host.native.trainer import EVALUATION_BATCH
from simulation.engine.graphs.eager import EagerGraphs
from wire.arrays import names


class HybridGraphs(EagerGraphs):
    """Graphs in which the native engine runs a batch's passes through the extractor.

    Losses, heads, optimizers and everything else are torch's.
    """

    def __init__(
        self, objective: Supervised, window: tuple[int, ...], trained: Iterable[str]
    ) -> None:
        """Build the native passes of the objective's extractor.

        `trained` are the graphs with which plans train.

        Raises:
            Unsupported: the native engine does not know a layer of the extractor, is not faster
                than torch, or cannot run a pass of any training graph.
            CannotCompile: the native engine cannot be built here.
        """
        super().__init__(objective)
        network = extractor_of(objective.model, window)
        if network.dropouts:
            raise Unsupported(f"{next(iter(network.dropouts))} is dropout in the extractor")
        if all(layer.kind not in ("conv", "gru") for layer in network.layers):
            raise Unsupported(
                "the extractor has neither convolutions nor recurrent units, so torch is as fast"
            )
        self._extractor = _Extractor(objective.model.extractor, Passes(network))
        if not set(trained) & self._extractor.carries(run_once(objective, window)):
            raise Unsupported(f"steps of {objective.name} read single layers of the model")

    def call(self, graph: str, tensors: TorchTensors) -> TorchTensors:
        if graph == "survey":  # it reads the inputs of the layers
            return super().call(graph, tensors)
        with self._extractor.carried():
            return super().call(graph, tensors)


class _Extractor:
    """A module whose calls the native engine can take over."""

    def __init__(self, module: nn.Module, passes: Passes) -> None:
        """Take the passes of the same layers, whose tensors are called ``extractor.NAME`` there."""
        self._module, self._passes = module, passes
        self._window = passes.network.window
        self._passed = False
        self._usual: Callable[[Tensor], Tensor] = module.forward
        self._layers = [layer for layer in module.modules() if layer is not module]
        paths = [name.removeprefix("extractor.").rpartition(".") for name in passes.names]
        self._places = [(module.get_submodule(path), name) for path, _, name in paths]

    def carries(self, graphs: Iterator[tuple[str, TorchTensors]]) -> set[str]:
        """Return the graphs of which the native engine can run at least one pass."""
        graph_names = set()
        with self.carried():
            for graph, _ in graphs:
                graph_names |= {graph} if self._passed else set()
                self._passed = False
        return graph_names

    @contextmanager
    def carried(self) -> Iterator[None]:
        """Route calls through the native engine, if it has them, while the context is open."""
        self._module.forward = self._forward
        try:
            yield
        finally:
            del self._module.forward

    def _forward(self, x: Tensor) -> Tensor:
        tensors = [
            getattr(layer, name) for layer, name in self._places
        ]  # the tensors that a functional call has put into their places
        if not self._carries(x, tensors):
            return self._usual(x)
        self._passed = True
        if self._module.training:
            output: Tensor = _Carried.apply(self._passes, x, *tensors)
            return output
        flat = _flat(tensors)
        return torch.cat(
            [
                torch.from_numpy(self._passes.forward(flat, _array(part), False).y)
                for part in x.split(EVALUATION_BATCH)
            ]
        )

    def _carries(self, x: Tensor, tensors: Sequence[Tensor]) -> bool:
        """Return True if the native engine can run a pass.

        It runs training passes of examples of the window's shape with gradients by parameters
        alone, on autograd's tape, and evaluation without gradients. It runs none if a hook
        observes a layer, or a layer is in another mode than the others.
        """
        if (
            torch._C._functorch.peek_interpreter_stack() is not None
            or x.dtype != torch.float32
            or x.shape[1:] != self._window
        ):
            return False
        training = self._module.training
        if torch.is_grad_enabled() and (
            x.requires_grad or (not training and any(t.requires_grad for t in tensors))
        ):
            return False
        return all(layer.training == training and not has_hooks(layer) for layer in self._layers)


class _Carried(torch.autograd.Function):
    """A training pass that moves the running statistics among the tensors, with gradients.

    The gradients are those of the parameters.
    """

    @staticmethod
    def forward(ctx: Any, passes: Passes, x: Tensor, *tensors: Tensor) -> Tensor:
        flat = _flat(tensors)
        ctx.passes, ctx.made, ctx.shapes = (
            passes,
            passes.forward(flat, _array(x), training=True),
            [tensor.shape for tensor in tensors],
        )
        for name, tensor, value in zip(
            passes.names, tensors, _tensors(flat, ctx.shapes), strict=True
        ):
            if names.is_running_statistic(name):
                tensor.copy_(value)
        return torch.from_numpy(ctx.made.y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise Unsupported("a step differentiates twice")
        forward_pass: ForwardPass = ctx.made
        gradients = _tensors(ctx.passes.backward(forward_pass, _array(gradient)), ctx.shapes)
        wanted = ctx.needs_input_grad[2:]
        return (
            None,
            None,
            *(value if needed else None for value, needed in zip(gradients, wanted, strict=True)),
        )


def _flat(tensors: Sequence[Tensor]) -> Floats:
    flat: Floats = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy()
    return flat


def _tensors(flat: Floats, shapes: list[torch.Size]) -> list[Tensor]:
    parts = torch.from_numpy(flat).split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _array(x: Tensor) -> Floats:
    array: Floats = x.detach().contiguous().numpy()
    return array
