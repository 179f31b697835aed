"""A bundle's graphs on onnxruntime: CPU by default, CUDA or TensorRT where its wheel has them."""

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
    """Return a graph, ready to run. `origin` names it in the error. One that runs `once` is not
    optimised, which would take longer than it saves. An `arena` keeps the memory of one run for the
    next: faster where there are many.

    Raises:
        BundleError: onnxruntime refuses it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = not arena  # an arena and a pattern would both hold the memory
    if once:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(data, options, providers=list(providers))
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        raise BundleError(f"{origin}: {str(error)[:300]}") from None


def load_model(
    data: bytes, providers: tuple[str, ...] = ("CPUExecutionProvider",), threads: int = 1
) -> Callable[[Array], Array]:
    """Return a function that answers with a model in one file (`wire.arrays.onnx_model`): class
    probabilities (n, classes) float32 of examples x (n, \\*window). It raises BundleError where
    onnxruntime refuses x.

    Raises:
        BundleError: onnxruntime refuses the file.
    """
    session = load_session(data, providers, threads, "the model in one file")

    def predict(x: Array) -> Array:
        try:
            answer: Array = session.run([OUTPUT], {INPUT: x})[0]
        except Exception as error:
            raise BundleError(f"the model in one file: {str(error)[:300]}") from None
        return answer

    return predict


class OnnxGraphs:
    """Holds the session of one graph at a time, that of the last run: a device has little memory.
    One thread per session: it has other work to do."""

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
        """Run a graph on the arrays it names; others in `inputs` are ignored.

        Raises:
            BundleError: the bundle has no such graph, an input is missing, or onnxruntime refuses
            the graph or its inputs.
        """
        if self._loaded is None or self._loaded[0] != graph:
            self._loaded = None  # its memory is free before the next one takes some
            self._loaded = graph, self._load(graph)
        session, described = self._loaded[1], self._bundle.manifest.graphs[graph]
        if missing := [name for name in described.inputs if name not in inputs]:
            raise BundleError(f"graph {graph!r}: input {missing[0]!r} is missing")
        try:
            outputs = session.run(None, {name: inputs[name] for name in described.inputs})
        except Exception as error:  # onnxruntime's exceptions share no base but Exception
            raise BundleError(f"graph {graph!r}: {str(error)[:300]}") from None
        # copies: an output of a session with an arena keeps the whole of it
        return {
            name: np.array(value) for name, value in zip(described.outputs, outputs, strict=True)
        }

    def answer(self, model: bytes, x: Array) -> Array:
        """Return what a model in one file says of examples.

        Raises:
            BundleError: onnxruntime refuses it or its input.
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
                f"{origin}: {outputs} outputs, its manifest says {len(described.outputs)}"
            )
        return session
