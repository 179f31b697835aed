"""A model ready to answer."""

import threading

import numpy as np

from edge_client.core.kept import own_tensors
from edge_client.core.ports import Current, GraphLoader, Graphs, ReadBlob, WholeModels, Windows
from edge_client.data.layout import fitting, likely_meant
from edge_client.work.executor import Between, Executor
from edge_client.work.plan import read_blob
from wire.arrays.tensors import (
    OWN_FILES,
    RECEIVED_FILES,
    Array,
    Tensors,
    check_layout,
    decode_tensors,
)
from wire.bundle import Bundle
from wire.errors import DataError
from wire.messages import Metrics


class LoadedModel:
    """A bundle's model with this device's private tensors, ready to answer."""

    def __init__(
        self,
        bundle: Bundle,
        blob: ReadBlob,
        current: Current,
        load_graphs: GraphLoader,
        windows: Windows,
    ) -> None:
        """Load the model `current` of the bundle.

        Raises:
            BlobMissing: one of its blobs is missing or damaged.
            WireError: its tensors are not those of the bundle's manifest.
        """
        model = decode_tensors(read_blob(blob, current.model), RECEIVED_FILES)[0]
        check_layout(
            model,
            [(s.key, s.dtype, s.shape) for s in bundle.manifest.received()],
            f"model {current.model[:12]}",
        )
        private = (
            decode_tensors(read_blob(blob, current.private), OWN_FILES)[0]
            if current.private
            else {}
        )
        self.bundle, self._model, self._private = bundle, model, private
        self._graphs: Graphs = load_graphs(bundle)
        self._executor = Executor(bundle, self._graphs, windows)
        self._lock = threading.Lock()

    @property
    def tensors(self) -> Tensors:
        """Tensors that the model's graph may read, by ``ROLE/NAME``."""
        return own_tensors(self.bundle, self._model, self._private)

    def predict(self, x: Array) -> Array:
        """Return class probabilities (n, classes) float32 of examples x (n, \\*window)."""
        with self._lock:  # ExecuTorch programs must not be run by two threads at a time
            return self._executor.predict(self._model, self._private, x)

    def evaluate(self, x: Array, y: Array, between: Between) -> Metrics:
        """Return the metrics over examples x (n, \\*window) with the task's labels y.

        `between` is called before each batch.
        """
        with self._lock:
            return self._executor.evaluate(self._model, self._private, x, y, between)

    def answer(self, onnx: bytes, x: Array) -> Array | None:
        """Return the answers of a one-file ONNX model for examples x (n, \\*window).

        None if this runtime cannot read the file.
        """
        x = fitting(x, self.bundle.manifest.window, "windows to predict")
        return self._graphs.answer(onnx, x) if isinstance(self._graphs, WholeModels) else None


def check_windows(x: Array, shape: tuple[int, ...]) -> None:
    """Raise DataError unless x holds examples (n, \\*shape) of finite numbers."""
    if x.ndim != 1 + len(shape) or x.shape[1:] != shape or x.dtype.kind not in "fiu":
        raise DataError(
            f"x must be numbers of shape (n, {', '.join(map(str, shape))}), got "
            f"{x.dtype}{list(x.shape)}{likely_meant(x.shape[1:], shape)}"
        )
    if not np.isfinite(x).all():
        raise DataError("x must hold finite values, got NaN or infinity")
