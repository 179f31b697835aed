"""An objective's functions run by torch directly, behind the same port as a bundle's exported graphs."""

import threading

import numpy as np
import torch

from algorithms.contract import Objective, TorchTensors
from algorithms.objectives.gradients import tape
from export.describe import named
from wire.errors import BundleError
from wire.tensors import Tensors

PROCESSOR = torch.device("cpu")


class TorchGraphs:
    """An `edge_client.ports.Graphs` without an export: the objective's functions themselves."""

    max_batch: int | None = None

    def __init__(self, objective: Objective, device: torch.device = PROCESSOR) -> None:
        """`device`: where the objective's model lies."""
        self.device = device
        self._lock = threading.Lock()  # a functional call puts its tensors into the module while it runs
        self._graphs = {name: named(function) for name, function in objective.graphs().items()}

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph on named arrays, with the names the exported graph has.

        Raises:
            BundleError: no such graph.
        """
        if graph not in self._graphs:
            raise BundleError(f"no graph {graph!r}: expected one of {', '.join(sorted(self._graphs))}")
        tensors = {k: torch.from_numpy(np.array(v, copy=v.ndim == 0)).to(self.device) for k, v in inputs.items()}
        with self._lock, torch.no_grad(), tape():
            outputs = self.call(graph, tensors)
        return {k: v.detach().cpu().numpy() for k, v in outputs.items()}

    def call(self, graph: str, tensors: TorchTensors) -> TorchTensors:
        """The same on torch tensors."""
        return self._graphs[graph](tensors)
