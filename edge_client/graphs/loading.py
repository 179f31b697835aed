"""The runtimes that a device may have, and what loads bundles and models on them. A runtime is
imported when it is asked for: a board has one of them."""

from collections.abc import Callable
from pathlib import Path

from edge_client.core.ports import GraphLoader
from wire.arrays.tensors import Array
from wire.errors import ConfigError

Predict = Callable[[Array], Array]
"""Answers of a model, (n, answers), of examples x (n, \\*window)."""
RUNTIMES = {"onnx": "onnxruntime", "executorch": "executorch"}
"""Name of each runtime in a check-in."""


def load_graphs_of(
    runtime: str, provider: str = "CPU", threads: int = 1, library: Path | None = None
) -> GraphLoader:
    """Return the loader of bundles for a runtime of `RUNTIMES`.

    The other runtime's package need not be installed.

    Raises:
        ConfigError: there is no such runtime, or it is not here.
    """
    if runtime not in RUNTIMES:
        raise ConfigError(f"runtime {runtime!r}: expected one of {', '.join(RUNTIMES)}")
    try:
        if runtime == "executorch":
            from edge_client.graphs.executorch import ExecutorchGraphs
            from edge_client.graphs.executorch_library import load_library

            load_library(library)
            return lambda bundle: ExecutorchGraphs(bundle, threads, library)
        from edge_client.graphs.onnx import OnnxGraphs
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--runtime {runtime}: the package {error.name} is not installed"
        ) from None
    return lambda bundle: OnnxGraphs(bundle, _providers(provider), threads)


def load_model_of(provider: str = "CPU", threads: int = 1) -> Callable[[bytes], Predict]:
    """Return the loader of models in one file.

    Raises:
        ConfigError: onnxruntime is not here.
    """
    try:
        from edge_client.graphs.onnx import load_model
    except ModuleNotFoundError as error:
        raise ConfigError(f"--runtime onnx: the package {error.name} is not installed") from None
    return lambda data: load_model(data, _providers(provider), threads)


def _providers(provider: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((f"{provider}ExecutionProvider", "CPUExecutionProvider")))
