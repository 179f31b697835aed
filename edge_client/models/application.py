"""The model in use, for an application beside the client."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edge_client.core.ports import Current, GraphLoader
from edge_client.data.layout import fitting, no_windows
from edge_client.data.padding import to_length
from edge_client.graphs.loading import load_graphs_of, load_model_of
from edge_client.models.loaded import LoadedModel, check_windows
from edge_client.storage.files import CURRENT
from edge_client.storage.state import MODEL_JSON, DeviceState
from edge_client.work.plan import BlobMissing, read_blob
from wire.arrays.tensors import Array
from wire.bundle import Window, unpack
from wire.errors import ConfigError, ShoalError
from wire.tasks import TaskName, answer_of

log = logging.getLogger("shoal.edge")

TRIES = 3
"""Maximum number of attempts to read the folder while the client changes it."""
AGAIN_S = 5.0
"""Seconds before a model that cannot be loaded is tried again. The client may repair it."""


class Model:
    """The model in use of the client with this state folder::

        model = Model("/var/lib/shoal/state")
        probabilities = model.predict(x)

    It only reads the folder, and the client need not run. Each prediction first takes up the
    client's model in use if that has changed. If the new model cannot be loaded, the previous one
    keeps answering. Several threads may use it.
    """

    current: Current
    """Identity of the model in use.

    It has the release, the group, the digests of bundle and tensors, the campaign, and the time
    since when the model is in use.
    """
    classes: tuple[str, ...]
    """Names of the classes in the order of the probabilities, or of the numbers in other tasks."""
    task: TaskName
    """Task of the model. It decides the meaning of the answers."""
    window: Window
    """Shape, channels and rate of one example."""

    def __init__(
        self,
        state: Path | str,
        *,
        runtime: str = "onnx",
        provider: str = "CPU",
        threads: int = 1,
        library: Path | None = None,
        on_replaced: Callable[[Current], None] = lambda _current: None,
    ) -> None:
        """Load the model in use.

        Args:
            state: path of the client's state folder.
            runtime: ``onnx`` or ``executorch``. The client may train with the other one.
            provider: CPU, CUDA or Tensorrt, for ``onnx``.
            threads: number of threads of a prediction.
            library: path of libshoal_executorch.so, for ``executorch``.
            on_replaced: called when another model starts to answer, in the thread that found it.

        Raises:
            ConfigError: no model is in use, it cannot be read, or the runtime is not installed.
            BundleError: the runtime cannot load the model.
        """
        self._folder = Path(state)
        self._state = DeviceState(self._folder, read_only=True)
        self._load_graphs: GraphLoader = load_graphs_of(runtime, provider, threads, library)
        self._load_model = load_model_of(provider, threads) if runtime == "onnx" else None
        self._on_replaced = on_replaced
        self._seen: object = None
        self._read_at_s = 0.0
        self._read()

    def predict(self, x: Array) -> Array:
        """Return class probabilities (n, classes) float32 of examples x (n, \\*window).

        The examples are in the units that the device trains on. Other tasks have other answers:

        - a class per step: probabilities (n, steps, classes)
        - several labels: the probability of each name (n, names)
        - regression: quantities (n, quantities)
        - reconstruction: the error of each window (n, 1)

        Raises:
            DataError: x has another shape, has values that are not finite, or has values that are
                not ids while the model takes ids.
        """
        self.refresh()
        check_windows(to_length(x, self.window), self.window.shape)
        if not len(x):
            return np.zeros(
                (0, *answer_of(self.task, len(self.classes), self.window.steps)), np.float32
            )
        return self._predict(fitting(x, self.window, "x"))

    def refresh(self) -> bool:
        """Take up the client's model in use; return True if it is another one than before.

        If the new model cannot be loaded, the previous one keeps answering, and the result is
        False.
        """
        if self._stamp() == self._seen or time.monotonic() < self._read_at_s:
            return False
        before = self.current
        try:
            self._read()
        except ShoalError as error:
            self._read_at_s = time.monotonic() + AGAIN_S
            log.warning("New model not loaded, the previous one answers: %s", error)
            return False
        if self.current == before:
            return False
        log.info(
            "New model answers: release=%d model=%s", self.current.release, self.current.model[:12]
        )
        self._on_replaced(self.current)
        return True

    def _stamp(self) -> tuple[int, int] | None:
        """Return a stamp that changes with the model in use, or None if no model is in use."""
        try:
            status = (self._folder / CURRENT / MODEL_JSON).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _read(self) -> None:
        for tried in range(1, TRIES + 1):
            seen, current = self._stamp(), self._state.current()
            if current is None:
                raise ConfigError(
                    f"state folder {self._folder} has no model in use: none was released to this "
                    "device yet, or it is the wrong folder"
                )
            try:
                self._take(current)
            # the client may have taken another model into use and deleted the files of this one
            except BlobMissing as error:
                if tried == TRIES or self._stamp() == seen:
                    raise ConfigError(
                        f"state folder {self._folder}: blob {error} of the model in use is missing "
                        "or damaged"
                    ) from None
                continue
            self._seen = seen
            return

    def _take(self, current: Current) -> None:
        """Answer with this model from now on.

        On onnxruntime it is loaded from its single ONNX file. If that is missing or damaged, and on
        another runtime, it is loaded from its bundle.
        """
        onnx = self._state.onnx(current) if self._load_model is not None and current.onnx else None
        if self._load_model is not None and onnx is not None and current.window is not None:
            window, classes, task, answering = (
                current.window,
                current.classes,
                current.task,
                self._load_model(onnx),
            )
        else:
            # the client has checked the bundle's signature
            bundle = unpack(read_blob(self._state.blob, current.bundle))
            window, classes, task = (
                bundle.manifest.window,
                bundle.manifest.classes,
                bundle.manifest.task,
            )
            answering = LoadedModel(
                bundle, self._state.blob, current, self._load_graphs, no_windows(window)
            ).predict
        self.current, self.classes, self.task, self.window, self._predict = (
            current,
            classes,
            task,
            window,
            answering,
        )
