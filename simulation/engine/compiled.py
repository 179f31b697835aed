"""Training graphs compiled by inductor, for models that the native path does not know.

The gradient is traced into ordinary operators first, for one batch size; a smaller last batch runs uncompiled. Compiled code is kept in
the user's cache folder, so that the next run of the same model does not wait for the compiler.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from algorithms.contract import Objective, TorchTensors
from export.describe import example_inputs
from simulation.torch_graphs import TorchGraphs


def cache_folder() -> Path:
    """Where compiled code is kept: ``$XDG_CACHE_HOME/shoal``, or ``~/.cache/shoal``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"


class CompiledGraphs(TorchGraphs):
    """An objective's functions, some of them compiled for batches of `batch_size` examples of shape `window`."""

    def __init__(self, objective: Objective, window: tuple[int, ...], compiled: Iterable[str], batch_size: int) -> None:
        super().__init__(objective)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
        self._batch_size = batch_size
        example = example_inputs(objective, window, batch_size)
        self._compiled = {name: _compile(self._graphs[name], example) for name in compiled}

    def call(self, graph: str, tensors: TorchTensors) -> TorchTensors:
        if graph in self._compiled and len(tensors["batch/x"]) == self._batch_size:
            return self._compiled[graph](tensors)
        return super().call(graph, tensors)


def _compile(function: Callable[[TorchTensors], TorchTensors], example: TorchTensors) -> Callable[[TorchTensors], TorchTensors]:
    read, outputs = list(example), list[str]()
    with torch.no_grad():

        def positional(*values: Tensor) -> list[Tensor]:
            results = function(dict(zip(read, values, strict=True)))
            outputs[:] = results
            return list(results.values())

        traced = make_fx(positional, _allow_non_fake_inputs=True)(*example.values())
        fast = torch.compile(traced, dynamic=False)
        fast(*example.values())  # compile now: worker processes inherit the code

    def run(tensors: TorchTensors) -> TorchTensors:
        return dict(zip(outputs, fast(*(tensors[name] for name in read)), strict=True))

    return run
