"""Training graphs compiled ahead of time, for models that the native engine does not know.

They are compiled for one batch size; a smaller last batch runs uncompiled.
"""

from collections.abc import Iterable

from algorithms.core.contract import Objective, TorchTensors
from export.describe import example_inputs
from host.compiled import compile_ahead
from simulation.engine.graphs.eager import EagerGraphs
from wire.arrays import names


class CompiledGraphs(EagerGraphs):
    """An objective's functions, some of them compiled for batches of `batch_size` examples of shape
    `window`."""

    def __init__(
        self,
        objective: Objective,
        window: tuple[int, ...],
        compiled: Iterable[str],
        batch_size: int,
    ) -> None:
        """
        Raises:
            CannotCompile: the cache folder cannot be written.
        """
        super().__init__(objective)
        self._batch_size = batch_size
        example = {
            k: v.detach().contiguous()
            for k, v in example_inputs(objective, window, batch_size).items()
        }
        self._compiled = {name: compile_ahead(self._graphs[name], example) for name in compiled}

    def call(self, graph: str, tensors: TorchTensors) -> TorchTensors:
        if graph in self._compiled and len(tensors[names.X]) == self._batch_size:
            return self._compiled[graph](tensors)
        return super().call(graph, tensors)
