"""The model in use, for an application beside the client."""

import logging
import time
from pathlib import Path

import numpy as np

from edge_client.adapters.state import StoredModel
from edge_client.core.ports import Current, GraphLoader, Windows
from edge_client.current import LoadedModel
from edge_client.options import load_graphs_of
from edge_client.work import BlobMissing, read_blob
from wire.bundle import Bundle, Window, unpack
from wire.errors import ConfigError, DataError, ShoalError
from wire.tensors import Array

log = logging.getLogger("shoal.edge")

TRIES = 3
"""How often the folder is read, at most, where the client changes it meanwhile."""
AGAIN_S = 5.0
"""Seconds after which a model that cannot be loaded is tried again: the client may have mended it."""


class Model:
    """The model that the client of this state folder has in use::

        model = Model("/var/lib/shoal/state")
        probabilities = model.predict(x)

    It only reads the folder, whether the client runs or not. Before each prediction it looks whether the client has another model in use;
    one that cannot be loaded leaves the one before. Several threads may use it.
    """

    def __init__(
        self, state: Path | str, *, runtime: str = "onnx", provider: str = "CPU", threads: int = 1, library: Path | None = None
    ) -> None:
        """`runtime`: onnx or executorch, which need not be the one that trains. `provider`: CPU, CUDA or Tensorrt, for the first one.
        `library`: libshoal_executorch.so, for the second.

        Raises:
            ConfigError: no model is in use, or it cannot be read; or the runtime is not here.
            BundleError: the runtime does not load it.
        """
        self._stored = StoredModel(Path(state))
        self._load_graphs: GraphLoader = load_graphs_of(runtime, provider, threads, library)
        self._seen: object = None
        self._read_at_s = 0.0
        self._read()

    @property
    def current(self) -> Current:
        """Which model it is: digests of its bundle and its tensors, its run, and since when it is in use."""
        return self._current

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities."""
        return self._bundle.manifest.classes

    @property
    def window(self) -> Window:
        """What one example is."""
        return self._bundle.manifest.window

    def predict(self, x: Array) -> Array:
        """Class probabilities (n, classes) float32 of examples x (n, \\*window) in the units that the device trains on.

        Raises:
            DataError: x has another shape, or holds values that are not finite.
        """
        self.refresh()
        shape = self.window.shape
        if x.ndim != 1 + len(shape) or x.shape[1:] != shape or x.dtype.kind not in "fiu":
            raise DataError(f"x is {x.dtype}{list(x.shape)}, expected numbers of shape (n, {', '.join(map(str, shape))})")
        if not np.isfinite(x).all():
            raise DataError("x holds values that are not finite")
        if not len(x):
            return np.zeros((0, len(self.classes)), np.float32)
        return self._loaded.predict(np.ascontiguousarray(x, np.float32))

    def refresh(self) -> bool:
        """Take up the model that the client has in use now, if it is another one. Returns whether it is."""
        if self._stored.stamp() == self._seen or time.monotonic() < self._read_at_s:
            return False
        before = self._current
        try:
            self._read()
        except ShoalError as error:
            self._read_at_s = time.monotonic() + AGAIN_S
            log.warning("the model before goes on answering: %s", error)
            return False
        return self._current != before

    def _read(self) -> None:
        for tried in range(1, TRIES + 1):
            seen, current = self._stored.stamp(), self._stored.current()
            try:
                bundle: Bundle = unpack(read_blob(self._stored, current.bundle))  # the client has checked its signature
                loaded = LoadedModel(bundle, self._stored, current, self._load_graphs, _no_windows(bundle.manifest.window))
            except BlobMissing as error:  # the client may have taken another model into use, and removed this one's
                if tried == TRIES or self._stored.stamp() == seen:
                    raise ConfigError(f"{self._stored}: blob {error} of the model in use is missing or damaged") from None
                continue
            self._seen, self._current, self._bundle, self._loaded = seen, current, bundle, loaded
            return


def _no_windows(window: Window) -> Windows:
    x, y = np.zeros((0, *window.shape), np.float32), np.zeros(0, np.int64)
    return Windows(x, y, x, y)
