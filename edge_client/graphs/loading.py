"""Runtimes of a device, and loaders of bundles and models for them.

A runtime is imported at the first use only, as most boards have just one.
"""

from collections.abc import Callable
from pathlib import Path

from edge_client.core.ports import GraphLoader
from wire.arrays.tensors import Array
from wire.errors import ConfigError

Predict = Callable[[Array], Array]
"""Function from examples x (n, \\*window) to a model's answers (n, answers)."""
RUNTIMES = {"onnx": "onnxruntime", "executorch": "executorch"}
"""Names of the runtimes in a check-in, by their names in the settings."""


def load_graphs_of(
    runtime: str, provider: str = "CPU", threads: int = 1, library: Path | None = None
) -> GraphLoader:
    """Return the loader of bundles for a runtime of `RUNTIMES`.

    The other runtime's package need not be installed.

    Raises:
        ConfigError: there is no such runtime, or its package is not installed.
    """
    if runtime not in RUNTIMES:
        raise ConfigError(f"runtime must be one of {', '.join(RUNTIMES)}, got {runtime!r}")
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
    """Return the loader of one-file ONNX models.

    Raises:
        ConfigError: onnxruntime is not installed.
    """
    try:
        from edge_client.graphs.onnx import load_model
    except ModuleNotFoundError as error:
        raise ConfigError(f"--runtime onnx: the package {error.name} is not installed") from None
    return lambda data: load_model(data, _providers(provider), threads)


def _providers(provider: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((f"{provider}ExecutionProvider", "CPUExecutionProvider")))
