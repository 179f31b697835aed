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
"""How often the folder is read, at most, where the client changes it meanwhile."""
AGAIN_S = 5.0
"""Seconds after which a model that cannot be loaded is tried again: the client may have mended
it."""


class Model:
    """The model that the client of this state folder has in use::

        model = Model("/var/lib/shoal/state")
        probabilities = model.predict(x)

    It only reads the folder, whether the client runs or not. Before each prediction it looks
    whether the client has another model in use; one that cannot be loaded leaves the one before.
    Several threads may use it.
    """

    current: Current
    """Which model it is: the release, the group, digests of its bundle and its tensors, its run,
    and since when it is in use."""
    classes: tuple[str, ...]
    """The names of the classes, in the order of the probabilities; in another task, of the numbers
    that it answers."""
    task: TaskName
    """Task of the model, which says what its answers are."""
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
        """`runtime`: onnx or executorch, which need not be the one that trains. `provider`: CPU,
        CUDA or Tensorrt, for the first one. `library`: libshoal_executorch.so, for the second.
        `on_replaced` is told when another model answers from then on, by the thread that found it.

        Raises:
            ConfigError: no model is in use, or it cannot be read; or the runtime is not here.
            BundleError: the runtime does not load it.
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
        """Class probabilities (n, classes) float32 of examples x (n, \\*window) in the units that
        the device trains on; of steps (n, steps, classes), of several labels the probability (n,
        names) of each name, the quantities (n, quantities) of a regression, in a reconstruction the
        error (n, 1) of each window.

        Raises:
            DataError: x has another shape, or holds values that are not finite, or that are no ids
                where the model takes ids.
        """
        self.refresh()
        check_windows(to_length(x, self.window), self.window.shape)
        if not len(x):
            return np.zeros(
                (0, *answer_of(self.task, len(self.classes), self.window.steps)), np.float32
            )
        return self._predict(fitting(x, self.window, "x"))

    def refresh(self) -> bool:
        """Take up the model that the client has in use now, if it is another one. Returns whether
        it is."""
        if self._stamp() == self._seen or time.monotonic() < self._read_at_s:
            return False
        before = self.current
        try:
            self._read()
        except ShoalError as error:
            self._read_at_s = time.monotonic() + AGAIN_S
            log.warning("the model before goes on answering: %s", error)
            return False
        if self.current == before:
            return False
        log.info(
            "%s",
            f"another model answers: release {self.current.release}, model "
            f"{self.current.model[:12]}",
        )
        self._on_replaced(self.current)
        return True

    def _stamp(self) -> tuple[int, int] | None:
        """Return what changes whenever another model comes into use; None where there is none."""
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
                    f"state folder {self._folder}: no model is in use: none was released to this "
                    "device, or it is another folder"
                )
            try:
                self._take(current)
            except (
                BlobMissing
            ) as error:  # the client may have taken another model into use, and removed this one's
                if tried == TRIES or self._stamp() == seen:
                    raise ConfigError(
                        f"state folder {self._folder}: {error} of the model in use is missing or "
                        "damaged"
                    ) from None
                continue
            self._seen = seen
            return

    def _take(self, current: Current) -> None:
        """Answer with this model: from its one file; from its bundle where that is not there or
        damaged, and on another runtime."""
        onnx = self._state.onnx(current) if self._load_model is not None and current.onnx else None
        if self._load_model is not None and onnx is not None and current.window is not None:
            window, classes, task, answering = (
                current.window,
                current.classes,
                current.task,
                self._load_model(onnx),
            )
        else:
            bundle = unpack(
                read_blob(self._state.blob, current.bundle)
            )  # the client has checked its signature
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
