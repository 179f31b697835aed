"""An objective's functions run by torch directly, in place of a bundle's exported graphs."""

import threading
from collections.abc import Sequence

import numpy as np
import torch

from algorithms.core.contract import TorchTensors
from algorithms.objectives.gradients import tape
from algorithms.objectives.supervised import Supervised
from export.describe import named
from wire.arrays import names
from wire.arrays.tensors import Array, Tensors
from wire.errors import BundleError

PROCESSOR = torch.device("cpu")


class EagerGraphs:
    """An `edge_client.core.ports.Graphs` of the objective's functions, without an export."""

    max_batch: int | None = None

    def __init__(self, objective: Supervised, device: torch.device = PROCESSOR) -> None:
        """Take an objective whose model lies on `device`."""
        self.device = device
        self._lock = (
            threading.Lock()
        )  # a functional call puts its tensors into the module while it runs
        self._graphs = {name: named(function) for name, function in objective.graphs().items()}
        self._examples_alone = not objective.columns and not objective.random

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph on named arrays, with the names of the exported graph.

        Raises:
            BundleError: no such graph.
        """
        if graph not in self._graphs:
            raise BundleError(
                f"No graph {graph!r}. Known graphs: {', '.join(sorted(self._graphs))}."
            )
        with self._lock, torch.no_grad(), tape():
            outputs = self.call(graph, self._tensors(inputs))
        return {
            k: (v.float() if v.dtype == torch.bfloat16 else v).detach().cpu().numpy()
            for k, v in outputs.items()
        }

    def trains(self, graph: str) -> bool:
        """Return True if a batch of the graph is nothing but examples and their labels."""
        return self._examples_alone and graph in self._graphs

    def train(
        self,
        graph: str,
        tensors: Tensors,
        x: Array,
        y: Array,
        batches: Sequence[Array],
        hyper: Tensors,
    ) -> Tensors:
        """Train over batches (see `edge_client.core.ports.WholeTraining`).

        The result has the bits of `run` batch by batch; tensors stay with torch between the
        batches.
        """
        inputs = self._tensors(tensors | hyper)
        sums = {names.LOSS_SUM: 0.0, names.NUM_CORRECT: 0.0}
        following: TorchTensors = {}
        with self._lock, torch.no_grad(), tape():
            for chosen in batches:
                outputs = self.call(
                    graph, inputs | self._tensors({names.X: x[chosen], names.Y: y[chosen]})
                )
                following = {k: v.detach() for k, v in names.part(outputs, names.NEXT).items()}
                inputs |= following
                for key in sums:
                    sums[key] += float(outputs[key])
        return {names.following(k): v.cpu().numpy() for k, v in following.items()} | {
            k: np.asarray(v) for k, v in sums.items()
        }

    def call(self, graph: str, tensors: TorchTensors) -> TorchTensors:
        """Run a graph on torch tensors."""
        return self._graphs[graph](tensors)

    def _tensors(self, arrays: Tensors) -> TorchTensors:
        return {
            k: torch.from_numpy(np.array(v, copy=v.ndim == 0)).to(self.device)
            for k, v in arrays.items()
        }
