"""The model in use, inside the client. Training never changes it."""

import logging
import threading
import time

import numpy as np

from edge_client.core.ports import Current, GraphLoader, Windows
from edge_client.data.padding import to_length
from edge_client.models.loaded import LoadedModel, check_windows
from edge_client.storage.state import DeviceState
from edge_client.work.plan import BlobMissing, read_blob
from wire.arrays.tensors import Array
from wire.bundle import Bundle, unpack
from wire.errors import ConfigError, DataError, ShoalError

log = logging.getLogger("shoal.edge")

AGAIN_S = 5.0
"""Seconds before a model that cannot be loaded is tried again."""


class CurrentModel:
    """The model in use and its predictions.

    It has its own graphs, so it can answer while a plan is carried out. If it cannot be loaded, the
    previous model answers.
    """

    def __init__(self, state: DeviceState, windows: Windows, load_graphs: GraphLoader) -> None:
        """Read from the state folder which model is in use.

        Raises:
            ConfigError: the state folder cannot be read.
        """
        self._state, self._windows, self._load_graphs = state, windows, load_graphs
        self.before = state.before()
        self.current = state.current() or self.before
        self._loaded: LoadedModel | None = None
        self._stand_in: LoadedModel | None = None
        self.problem = ""
        """Error that keeps the model in use from loading. Empty unless the previous one answers."""
        self._load_at_s = 0.0
        self._lock, self.failures = threading.Lock(), 0
        """Number of failed predictions since the last `drain_failures`."""

    @property
    def blobs(self) -> set[str]:
        """Names of the blobs of the model in use and the previous one. They must stay stored."""
        return {
            name
            for model in (self.current, self.before)
            if model
            for name in (model.bundle, model.model, model.private)
        } - {""}

    def predict(self, x: Array) -> Array:
        """Return class probabilities (n, classes) float32 of examples x (n, \\*window).

        Failures are counted in `failures`, except for a fault in x.

        Raises:
            ConfigError: no model is in use, or both the model in use and the previous one are
                damaged.
            DataError: x has another shape, or has values that are not finite.
            ShoalError: the model cannot be loaded.
        """
        if self.current is None:
            raise ConfigError(
                "This device has no model yet: none was released to it, and no campaign has "
                "finished on it"
            )
        try:
            loaded = self.loaded()
            window = loaded.bundle.manifest.window
            check_windows(to_length(x, window), window.shape)
            answer = (
                loaded.predict(x)
                if len(x)
                else np.zeros((0, len(loaded.bundle.manifest.classes)), np.float32)
            )
        except DataError:
            raise
        except Exception:
            self._count_failure()
            raise
        if not np.isfinite(answer).all():
            self._count_failure()
        return answer

    def loaded(self) -> LoadedModel:
        """Return the model in use, or the previous one if that cannot be loaded.

        Raises:
            ConfigError: neither can be loaded, as a blob is damaged or missing.
            ShoalError: neither can be loaded.
        """
        assert self.current is not None
        if self._loaded is None and (self._stand_in is None or time.monotonic() >= self._load_at_s):
            self._load_at_s = time.monotonic() + AGAIN_S
            try:
                self._loaded, self._stand_in, self.problem = self.load(self.current), None, ""
            except ShoalError as error:
                if self.before is None or self.before == self.current:
                    raise
                self._stand_in, self.problem = self._stand_in or self.load(self.before), str(error)
                self._count_failure()
                log.error("Model in use cannot be loaded, the previous one answers: %s", error)
        loaded = self._loaded or self._stand_in
        assert loaded is not None
        return loaded

    def try_load(self, bundle: Bundle, current: Current) -> LoadedModel:
        """Return another model, ready to answer. The model in use does not change.

        Raises:
            BlobMissing: one of its blobs is missing or damaged.
            ShoalError: it cannot be loaded.
        """
        return LoadedModel(bundle, self._state.blob, current, self._load_graphs, self._windows)

    def replace(self, current: Current, loaded: LoadedModel, onnx: bytes) -> None:
        """Take a loaded model into use.

        `onnx` is the whole model as one ONNX file, or empty.

        Raises:
            OSError: it cannot be stored. The model in use does not change.
        """
        self._state.put_current(current, onnx)
        self.before = self._state.before()
        self.current, self._loaded, self._stand_in, self.problem = current, loaded, None, ""
        self.drain_failures()

    def drain_failures(self) -> int:
        """Return the number of failed predictions since the last call, and reset it."""
        with self._lock:
            failures, self.failures = self.failures, 0
        return failures

    def _count_failure(self) -> None:
        with self._lock:
            self.failures += 1

    def load(self, current: Current) -> LoadedModel:
        """Return a model that was in use, ready to answer. The model in use does not change.

        Raises:
            ConfigError: one of its blobs is missing or damaged.
            ShoalError: it cannot be loaded.
        """
        try:
            # the bundle's signature was checked when the model came into use
            bundle = unpack(read_blob(self._state.blob, current.bundle))
            return self.try_load(bundle, current)
        except BlobMissing as error:
            if str(error) == current.private:
                raise ConfigError(
                    "The personal tensors of this device's model are damaged or missing. Restart "
                    "the client, which reports it to the service."
                ) from None
            raise ConfigError(
                f"Blob {error} of this device's model is damaged or missing. The client fetches it "
                "again if the service still has it."
            ) from None
