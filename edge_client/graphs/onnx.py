"""A bundle's graphs on onnxruntime: CPU by default, CUDA or TensorRT if its wheel has them."""

from collections.abc import Callable

import numpy as np
import onnxruntime

from wire.arrays import names
from wire.arrays.onnx_model import INPUT, OUTPUT
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle
from wire.errors import BundleError


def load_session(
    data: bytes,
    providers: tuple[str, ...],
    threads: int,
    origin: str,
    once: bool = False,
    arena: bool = False,
) -> onnxruntime.InferenceSession:
    """Return the session of a graph, ready to run.

    Args:
        data: the ONNX graph.
        providers: names of onnxruntime's execution providers, in order of preference.
        threads: number of threads.
        origin: name of the graph in error messages.
        once: True if the graph runs once only. It is not optimised, which would cost more than it
            saves.
        arena: True to keep the memory of a run for the next one, which is faster for many runs.

    Raises:
        BundleError: onnxruntime refuses the graph.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = not arena  # with an arena, the memory would be held twice
    if once:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(data, options, providers=list(providers))
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        raise BundleError(f"{origin} cannot be loaded: {str(error)[:300]}") from None


def load_model(
    data: bytes, providers: tuple[str, ...] = ("CPUExecutionProvider",), threads: int = 1
) -> Callable[[Array], Array]:
    """Return the prediction function of a one-file model (`wire.arrays.onnx_model`).

    The function returns class probabilities (n, classes) float32 of examples x (n, \\*window). It
    raises BundleError if onnxruntime refuses x.

    Raises:
        BundleError: onnxruntime refuses the file.
    """
    session = load_session(data, providers, threads, "the model in one file")

    def predict(x: Array) -> Array:
        try:
            answer: Array = session.run([OUTPUT], {INPUT: x})[0]
        except Exception as error:
            raise BundleError(f"the model in one file failed: {str(error)[:300]}") from None
        return answer

    return predict


class OnnxGraphs:
    """A bundle's graphs on onnxruntime.

    Only the session of the last graph is in memory, as a device has little of it. A session has one
    thread by default, as the device has other work.
    """

    max_batch: int | None = None

    def __init__(
        self,
        bundle: Bundle,
        providers: tuple[str, ...] = ("CPUExecutionProvider",),
        threads: int = 1,
    ) -> None:
        self._bundle, self._providers, self._threads = bundle, providers, threads
        self._loaded: tuple[str, onnxruntime.InferenceSession] | None = None

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph and return its outputs by name.

        Arrays in `inputs` that the graph does not read are ignored.

        Raises:
            BundleError: the bundle has no such graph, an input is missing, or onnxruntime refuses
                the graph or its inputs.
        """
        if self._loaded is None or self._loaded[0] != graph:
            self._loaded = None  # frees the memory before the next session is loaded
            self._loaded = graph, self._load(graph)
        session, described = self._loaded[1], self._bundle.manifest.graphs[graph]
        if missing := [name for name in described.inputs if name not in inputs]:
            raise BundleError(f"graph {graph!r}: input {missing[0]!r} is missing")
        try:
            outputs = session.run(None, {name: inputs[name] for name in described.inputs})
        except Exception as error:  # onnxruntime's exceptions share no base but Exception
            raise BundleError(f"graph {graph!r} failed: {str(error)[:300]}") from None
        # copies, as an output of a session with an arena keeps the whole arena in memory
        return {
            name: np.array(value) for name, value in zip(described.outputs, outputs, strict=True)
        }

    def answer(self, model: bytes, x: Array) -> Array:
        """Return the answers of a one-file model for examples x (n, \\*window).

        Raises:
            BundleError: onnxruntime refuses the model or its input.
        """
        return load_model(model, self._providers, self._threads)(x)

    def _load(self, graph: str) -> onnxruntime.InferenceSession:
        payload, described = self._bundle.graph_bytes(graph), self._bundle.manifest.graphs[graph]
        once = names.X not in described.inputs
        trains = not once and bool(names.part(dict.fromkeys(described.outputs), names.NEXT))
        origin = f"graph {graph!r}"
        session = load_session(payload, self._providers, self._threads, origin, once, arena=trains)
        if (outputs := len(session.get_outputs())) != len(described.outputs):
            raise BundleError(
                f"{origin} must have {len(described.outputs)} outputs, as in the manifest, got "
                f"{outputs}"
            )
        return session
