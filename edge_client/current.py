"""The model that answers predictions on this device. It is apart from any run: training never touches it."""

import logging
import threading
from collections.abc import Sequence

import msgspec
import numpy as np

from edge_client.core import session as core
from edge_client.core.ports import BlobReader, Current, DeviceState, GraphLoader, Windows
from edge_client.core.session import Session
from edge_client.executor import Executor
from edge_client.memory import Memory
from edge_client.work import BlobMissing, read_blob
from wire import names
from wire.bundle import Bundle, check_version, unpack
from wire.codec import digest
from wire.errors import BundleError, ConfigError, DataError, ShoalError, printable
from wire.keys import PublicKey
from wire.messages import Policy
from wire.tensors import OWN_FILES, Array, Tensors, check_layout, decode_tensors, encode_tensors

log = logging.getLogger("shoal.edge")

SUM_TOLERANCE = 1e-3
"""The probabilities of a window sum to 1 but for so much."""


class LoadedModel:
    """A model ready to answer."""

    def __init__(self, bundle: Bundle, blobs: BlobReader, current: Current, load_graphs: GraphLoader, windows: Windows) -> None:
        """
        Raises:
            BlobMissing: a blob of it is not there, or was damaged.
            WireError: it is not what its bundle says.
        """
        model = decode_tensors(read_blob(blobs, current.model))[0]
        check_layout(model, [(s.key, s.dtype, s.shape) for s in bundle.manifest.received()], f"model {current.model[:12]}")
        private = decode_tensors(read_blob(blobs, current.private), OWN_FILES)[0] if current.private else {}
        self._executor, self._model, self._private = Executor(bundle, load_graphs(bundle), windows), model, private
        self._lock = threading.Lock()

    def predict(self, x: Array) -> Array:
        """Class probabilities (n, classes) float32 of examples x (n, \\*window)."""
        with self._lock:  # a program of ExecuTorch is not for two threads at a time
            return self._executor.predict(self._model, self._private, x)


class CurrentModel:
    """Which model is in use, and its predictions. It has graphs of its own, so that it answers while a plan is carried out. An offered
    model is tried on one of `windows`."""

    def __init__(self, state: DeviceState, windows: Windows, load_graphs: GraphLoader) -> None:
        """
        Raises:
            ConfigError: the state folder cannot be read.
        """
        self._state, self.windows, self._load_graphs = state, windows, load_graphs
        self.current = state.current()
        self._loaded: LoadedModel | None = None

    @property
    def blobs(self) -> set[str]:
        """What has to stay stored for the model in use."""
        return {self.current.bundle, self.current.model, self.current.private} - {""} if self.current else set()

    @property
    def fetched(self) -> set[str]:
        """Those of `blobs` that an aggregator has."""
        return {self.current.bundle, self.current.model} if self.current else set()

    def predict(self, x: Array) -> Array:
        """Class probabilities (n, classes) float32 of examples x (n, \\*window).

        Raises:
            ConfigError: no model is in use, or it is damaged.
            ShoalError: it cannot be loaded.
        """
        if self.current is None:
            raise ConfigError("this device has no model yet: no run has finished on it")
        if self._loaded is None:
            try:
                bundle = unpack(read_blob(self._state, self.current.bundle))  # its signature was checked when it came into use
                self._loaded = self._load(bundle, self.current)
            except BlobMissing as error:
                raise ConfigError(
                    f"blob {error} of this device's model is damaged or missing; it is fetched again if that can be"
                ) from None
        return self._loaded.predict(x)

    def is_offered(self, session: Session) -> bool:
        """Whether a finish has offered another model than the one in use, which has not failed yet."""
        if not session.final_model or session.final_problem:
            return False
        offered = (session.final_run, session.final_bundle, session.final_model)
        return self.current is None or (self.current.run_id, self.current.bundle, self.current.model) != offered

    def take_up(self, memory: Memory, trusted: Sequence[PublicKey], policy: Policy, now_s: float) -> None:
        """Take the offered model into use, or note why that cannot be; that it begins is stored before it does.

        Raises:
            OSError: something cannot be stored; it may be tried again.
        """
        memory.save(core.on_adopting(memory.session))
        if memory.session.final_problem:
            log.error("%s", f"the offered model is not taken into use, the one before stays: {memory.session.final_problem}")
            return
        problem = ""
        try:
            manifest = self._adopt(memory.session, trusted, policy, now_s).manifest
            versions = memory.session.versions | {manifest.name: manifest.version}
            memory.note(msgspec.structs.replace(memory.session, versions=versions))
        except (BlobMissing, OSError) as error:
            memory.note(msgspec.structs.replace(memory.session, final_tries=memory.session.final_tries - 1))
            if isinstance(error, OSError):
                raise
            return
        except Exception as error:
            problem = printable(f"{type(error).__name__}: {error}")[:1000]
            foreseen = isinstance(error, ShoalError)
            log.error("%s", f"the offered model is not taken into use, the one before stays: {problem}", exc_info=not foreseen)
        memory.note(core.on_adopted(memory.session, problem))

    def _adopt(self, session: Session, trusted: Sequence[PublicKey], policy: Policy, now_s: float) -> Bundle:
        """Take the offered model into use, if its bundle verifies, its graphs load, and it answers on one of this device's windows. If
        anything is raised, the model before stays in use."""
        bundle = unpack(read_blob(self._state, session.final_bundle), trusted)
        check_version(bundle.manifest, session.versions)
        if policy.bundles is not None and bundle.manifest.name not in policy.bundles:
            raise BundleError(f"the policy does not permit the bundle {bundle.manifest.name}")
        private = encode_tensors(names.of_role(self._private(session), names.PRIVATE, names.KEPT))
        offered = Current(
            bundle.digest,
            session.final_model,
            digest(private),
            session.final_run,
            session.final_epoch,
            now_s if np.isfinite(now_s) else 0.0,
        )
        self._state.put_blob(offered.private, private)
        loaded = self._load(bundle, offered)
        self._check_answer(loaded, bundle)
        self._state.put_current(offered)
        self.current, self._loaded = offered, loaded
        log.info("model in use bundle=%s version=%d model=%s", bundle.manifest.name, bundle.manifest.version, offered.model[:12])
        return bundle

    def _private(self, session: Session) -> Tensors:
        return self._state.private(session.final_run, session.final_round + 1) if session.final_round else {}

    def _load(self, bundle: Bundle, current: Current) -> LoadedModel:
        return LoadedModel(bundle, self._state, current, self._load_graphs, self.windows)

    def _check_answer(self, loaded: LoadedModel, bundle: Bundle) -> None:
        stored = self.windows.train_x if self.windows.num_train else self.windows.test_x
        if not len(stored):
            raise DataError("this device has no window to try the model on")
        answer = loaded.predict(stored[:1])
        if answer.shape != (1, len(bundle.manifest.classes)):
            raise BundleError(f"the model answers with shape {answer.shape}, expected (1, {len(bundle.manifest.classes)})")
        total = float(answer.sum(dtype=np.float64))
        if not np.isfinite(answer).all() or abs(total - 1) > SUM_TOLERANCE:
            raise BundleError(f"the model answers with probabilities that sum to {total}, expected 1")
