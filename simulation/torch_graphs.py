"""An objective's functions run by torch directly, behind the same port as a bundle's exported graphs."""

import numpy as np
import torch

from algorithms.contract import Objective, TorchTensors
from wire.errors import BundleError
from wire.tensors import Tensors


class TorchGraphs:
    """An `edge_client.ports.Graphs` without an export: the step function itself."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run ``step``, ``evaluate``, ``survey`` or ``predict`` on named arrays, with the names the exported graphs have.

        Raises:
            BundleError: no such graph.
        """
        tensors = {k: torch.from_numpy(np.array(v, copy=v.ndim == 0)) for k, v in inputs.items() if not k.startswith("output/")}
        held = {k: v for k, v in tensors.items() if not k.startswith(("batch/", "hyper/"))}
        batch, hyper = _part(tensors, "batch/"), _part(tensors, "hyper/")
        with torch.no_grad():
            match graph:
                case "step":
                    following, metrics = self._objective.step(held, batch, hyper)
                    results = {f"next/{k}": v for k, v in following.items()} | {f"metric/{k}": v for k, v in metrics.items()}
                case "evaluate":
                    results = {f"metric/{k}": v for k, v in self._objective.evaluate(held, batch).items()}
                case "survey":
                    results = {f"metric/{k}": v for k, v in self._objective.survey(held, batch).items()}
                case "predict":
                    results = {"output/probabilities": self._objective.predict(held, batch["x"])}
                case _:
                    raise BundleError(f"no graph {graph!r}: expected step, evaluate, survey or predict")
        return {k: v.detach().numpy() for k, v in results.items()}


def _part(tensors: TorchTensors, prefix: str) -> TorchTensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
