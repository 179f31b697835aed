"""Runtimes that exported graphs are checked on: onnxruntime, and ExecuTorch's own."""

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
import torch

from export.capture import quiet
from wire.arrays.tensors import Tensors
from wire.bundle import Bundle

ONNX = "onnx"

Run = Callable[[Tensors], Tensors]
"""Function from a graph's inputs by name to its outputs by name."""


def load_graph(bundle: Bundle, graph: str, runtime: str = ONNX) -> Run:
    """Return a function that runs a bundle's graph on a runtime.

    The runtime is `ONNX`, or one that the bundle has programs for.

    Raises:
        KeyError: the bundle has no such graph.
        BundleError: it has no program of the graph for this runtime.
    """
    described = bundle.manifest.graphs[graph]
    call = (
        _onnx(bundle.graph_bytes(graph))
        if runtime == ONNX
        else _executorch(bundle.program(graph, runtime)[1])
    )

    def run(inputs: Tensors) -> Tensors:
        return dict(
            zip(described.outputs, call([inputs[name] for name in described.inputs]), strict=True)
        )

    return run


def load_whole(onnx: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function from examples to probabilities of a one-file model.

    The file is one of `wire.arrays.onnx_model`.
    """
    call = _onnx(onnx)
    return lambda x: np.asarray(call([x])[0])


def runtimes_of(bundle: Bundle) -> tuple[str, ...]:
    """Return the names of all runtimes that a bundle has graphs for."""
    return (
        ONNX,
        *sorted(
            {runtime for graph in bundle.manifest.graphs.values() for runtime in graph.programs}
        ),
    )


@cache
def registered_operators() -> frozenset[str]:
    """Return the names of ExecuTorch's operators as in programs, for example ``aten::add.out``."""
    return frozenset(_runtime().operator_registry.operator_names)


def _onnx(data: bytes) -> Callable[[list[Any]], list[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return lambda values: session.run(None, dict(zip(names, values, strict=True)))


def _executorch(data: bytes) -> Callable[[list[Any]], list[Any]]:
    method = _runtime().load_program(data).load_method("forward")

    def call(values: list[Any]) -> list[Any]:
        # the runtime accepts 0-d and read-only arrays as torch tensors only, and the next call
        # writes to the memory of its outputs
        outputs = method.execute([torch.from_numpy(np.array(value)) for value in values])
        return [output.numpy().copy() for output in outputs]

    return call


@cache
def _runtime() -> Any:
    with quiet():
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        # ExecuTorch's starting threads list missing files of other boards on standard error
        sys.stderr.flush()
        stderr_copy, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            portable_lib._threadpool_get_thread_count()
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            os.close(nowhere)
        return Runtime.get()
