"""A bundle's graphs on onnxruntime: CPU by default, CUDA or TensorRT where its wheel has them."""

import onnxruntime

from wire.arrays import names
from wire.arrays.onnx_model import INPUT, OUTPUT
from wire.arrays.tensors import Array, Tensors
from wire.bundle import Bundle
from wire.errors import BundleError

_Loaded = tuple[onnxruntime.InferenceSession, onnxruntime.RunOptions | None]
"""A session, and how it is run."""


def load_session(
    data: bytes, providers: tuple[str, ...], threads: int, origin: str, once: bool = False
) -> onnxruntime.InferenceSession:
    """A graph, ready to run. `origin` names it in the error. One that runs `once` is not optimised,
    which would take longer than it saves.

    Raises:
        BundleError: onnxruntime refuses it.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if once:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(data, options, providers=list(providers))
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        raise BundleError(f"{origin}: {str(error)[:300]}") from None


class OnnxModel:
    """A model in one file (`wire.arrays.onnx_model`), ready to answer."""

    def __init__(
        self, data: bytes, providers: tuple[str, ...] = ("CPUExecutionProvider",), threads: int = 1
    ) -> None:
        """
        Raises:
            BundleError: onnxruntime refuses it.
        """
        self._session = load_session(data, providers, threads, "the model in one file")

    def predict(self, x: Array) -> Array:
        """Class probabilities (n, classes) float32 of examples x (n, \\*window).

        Raises:
            BundleError: onnxruntime refuses x.
        """
        try:
            answer: Array = self._session.run([OUTPUT], {INPUT: x})[0]
        except Exception as error:
            raise BundleError(f"the model in one file: {str(error)[:300]}") from None
        return answer


class OnnxGraphs:
    """Sessions are made when a graph is first run. One thread per session: a device has other work
    to do. It has little memory, too: only graphs that train keep theirs between two runs, and a
    graph over the tensors alone has its session for one run."""

    max_batch: int | None = None

    def __init__(
        self,
        bundle: Bundle,
        providers: tuple[str, ...] = ("CPUExecutionProvider",),
        threads: int = 1,
    ) -> None:
        self._bundle, self._providers, self._threads = bundle, list(providers), threads
        self._sessions: dict[str, _Loaded] = {}
        self._frugal = onnxruntime.RunOptions()
        self._frugal.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph on the arrays it names; others in `inputs` are ignored.

        Raises:
            BundleError: the bundle has no such graph, an input is missing, or onnxruntime refuses
            the graph or its inputs.
        """
        session, options = self._sessions.get(graph) or self._load(graph)
        described = self._bundle.manifest.graphs[graph]
        if missing := [name for name in described.inputs if name not in inputs]:
            raise BundleError(f"graph {graph!r}: input {missing[0]!r} is missing")
        try:
            outputs = session.run(None, {name: inputs[name] for name in described.inputs}, options)
        except Exception as error:  # onnxruntime's exceptions share no base but Exception
            raise BundleError(f"graph {graph!r}: {str(error)[:300]}") from None
        return dict(zip(described.outputs, outputs, strict=True))

    def answer(self, model: bytes, x: Array) -> Array:
        """What a model in one file says of examples.

        Raises:
            BundleError: onnxruntime refuses it or its input.
        """
        return OnnxModel(model, tuple(self._providers), self._threads).predict(x)

    def _load(self, graph: str) -> _Loaded:
        payload, described = self._bundle.graph_bytes(graph), self._bundle.manifest.graphs[graph]
        of_examples, origin = names.X in described.inputs, f"graph {graph!r}"
        session = load_session(
            payload, tuple(self._providers), self._threads, origin, once=not of_examples
        )
        if (made := len(session.get_outputs())) != len(described.outputs):
            raise BundleError(
                f"{origin}: {made} outputs, its manifest says {len(described.outputs)}"
            )
        trains = of_examples and any(
            names.role_of(output) == names.NEXT for output in described.outputs
        )
        loaded = session, None if trains else self._frugal
        if of_examples:
            self._sessions[graph] = loaded
        return loaded
