"""A bundle's graphs on onnxruntime: CPU by default, CUDA or TensorRT where its wheel has them."""

import onnxruntime

from wire.bundle import Bundle
from wire.errors import BundleError
from wire.tensors import Tensors


class OnnxGraphs:
    """Sessions are made when a graph is first run. One thread per session: a device has other work to do."""

    max_batch: int | None = None

    def __init__(self, bundle: Bundle, providers: tuple[str, ...] = ("CPUExecutionProvider",), threads: int = 1) -> None:
        self._bundle, self._providers, self._threads = bundle, list(providers), threads
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}

    def run(self, graph: str, inputs: Tensors) -> Tensors:
        """Run a graph on the arrays it names; others in `inputs` are ignored.

        Raises:
            BundleError: the bundle has no such graph, an input is missing, or onnxruntime refuses the graph or its inputs.
        """
        session = self._sessions.get(graph) or self._load(graph)
        described = self._bundle.manifest.graphs[graph]
        if missing := [name for name in described.inputs if name not in inputs]:
            raise BundleError(f"graph {graph!r}: input {missing[0]!r} is missing")
        try:
            outputs = session.run(None, {name: inputs[name] for name in described.inputs})
        except Exception as error:  # onnxruntime's exceptions share no base but Exception
            raise BundleError(f"graph {graph!r}: {str(error)[:300]}") from None
        return dict(zip(described.outputs, outputs, strict=True))

    def _load(self, graph: str) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(self._bundle.graph_bytes(graph), options, providers=self._providers)
        except BundleError:
            raise
        except Exception as error:
            raise BundleError(f"graph {graph!r}: {str(error)[:300]}") from None
        expected = len(self._bundle.manifest.graphs[graph].outputs)
        if len(session.get_outputs()) != expected:
            raise BundleError(f"graph {graph!r}: {len(session.get_outputs())} outputs, its manifest says {expected}")
        self._sessions[graph] = session
        return session
