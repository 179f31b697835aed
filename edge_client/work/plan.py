"""The work on one plan, and what keeps its failures inside: whatever a plan, a bundle or a blob
holds, the work ends with a result or a reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from edge_client.core import session as core
from edge_client.core.policy import broken_rule
from edge_client.core.ports import (
    GraphLoader,
    Graphs,
    ReadBlob,
    Windows,
)
from edge_client.core.verbs import measuring
from edge_client.data.layout import windows_for
from edge_client.storage.incidents import Incidents
from edge_client.storage.memory import Memory
from edge_client.storage.state import DeviceState
from edge_client.work.checkpoints import Checkpoints
from edge_client.work.executor import Between, Executor, Result, Secret
from edge_client.work.job import Unfit
from wire.arrays import names
from wire.arrays.quantised import encoded
from wire.arrays.tensors import RECEIVED_FILES, Tensors, decode_tensors
from wire.bundle import Bundle, check_version, unpack
from wire.codec import LARGEST_SUM, encode_update
from wire.errors import BundleError, ConfigError, DataError, ShoalError
from wire.identity.keys import PublicKey
from wire.messages import DeclineReason, Evaluate, Plan, Policy, Update

if TYPE_CHECKING:
    from edge_client.live.store import LiveData


class Declined(Exception):
    """A plan is not carried out."""

    def __init__(self, reason: DeclineReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class Stopped(Exception):
    """The client is to end in good order; the work is not done."""


@dataclass(frozen=True)
class Done:
    """A plan was carried out."""

    result: Result
    seconds: float

    def update(self, plan: Plan, num_train: int, bytes_received: int) -> bytes:
        """The update that answers the plan. `bytes_received`: what came since the update before."""
        update = Update(
            run_id=plan.run_id,
            epoch=plan.epoch,
            round=plan.round,
            attempt=plan.attempt,
            device_id=plan.device_id,
            model=self.result.model,
            num_train=num_train,
            num_steps=self.result.num_steps,
            evaluated=self.result.evaluated,
            trained=self.result.trained,
            bytes_received=bytes_received,
            train_s=round(self.seconds, 6),
        )
        return encode_update(
            update, encoded(self.result.tensors, plan.encoding, plan.seed, plan.device_id)
        )


class BlobMissing(Exception):
    """A stored blob is gone, or was damaged and set aside: it has to be fetched again."""


def read_blob(blob: ReadBlob, name: str) -> bytes:
    """A stored blob.

    Raises:
        BlobMissing: it is not there, or was damaged.
    """
    payload = blob(name)
    if payload is None:
        raise BlobMissing(name)
    return payload


class Work:
    """Carries out plans, with one bundle loaded at a time. `bundle` is that one, `windows` are
    those of the last plan."""

    def __init__(
        self,
        windows: Windows,
        memory: Memory,
        state: DeviceState,
        load_graphs: GraphLoader,
        trusted: Sequence[PublicKey],
        policy: Policy,
        secret: Secret,
        incidents: Incidents,
        checkpoints: Checkpoints,
        live: "LiveData | None" = None,
    ) -> None:
        """`live`: where windows are taken from anew for each plan."""
        self._checkpoints = checkpoints
        self._stored, self._live, self._memory, self._state, self._load_graphs = (
            windows,
            live,
            memory,
            state,
            load_graphs,
        )
        self._trusted, self._policy, self._secret, self._incidents = (
            trusted,
            policy,
            secret,
            incidents,
        )
        self.windows = windows
        """Those that the last plan was carried out over."""
        self.bundle: Bundle | None = None
        self._graphs: Graphs | None = None
        self._executor: Executor | None = None

    def attempt(self, plan: Plan, between: Between) -> Done | Declined | None:
        """Carry out the plan of the session, whatever it holds; that it begins is stored before it
        does. None if it has to be attempted again: the client is to end, or a blob was damaged."""
        try:
            session, action = core.on_start(self._memory.session)
            if action.kind == "decline":
                return Declined(action.reason, action.detail)
            self._memory.save(session)
            self._open(plan)
            result = self._run(plan, between)
            for metrics in (result.trained, result.evaluated):
                if (
                    not abs(metrics.loss_sum) <= LARGEST_SUM
                    or not 0 <= metrics.num_correct <= metrics.num_examples
                ):
                    raise Declined(
                        "failed",
                        f"measurements that cannot be, and that no aggregator takes: {metrics}",
                    )
            if self._live is not None and any(
                isinstance(verb, Evaluate) and verb.model == "initial" for verb in plan.verbs
            ):
                self._live.surveyed()
            return Done(result, self._checkpoints.worked_s)
        except (Stopped, BlobMissing):
            self._memory.note(core.on_stopped(self._memory.session))
            return None
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            if not isinstance(cause, Declined):
                self._incidents.add("failed to carry out a plan", cause)
            return decline_of(error)

    def _open(self, plan: Plan) -> None:
        """Verify the plan's bundle, hold the plan against the policy, and only then load graphs.

        Raises:
            Declined: the plan breaks a rule of the policy, or the bundle cannot be used.
            BlobMissing: the bundle has to be fetched again.
        """
        if self.bundle is None or self.bundle.digest != plan.bundle:
            self.bundle = self._graphs = self._executor = None
            payload = read_blob(self._state.blob, plan.bundle)
            try:
                self.bundle = unpack(payload, self._trusted)
            # whatever it is, it is the bundle's fault: these bytes have the hash that the plan
            # names
            except Exception as error:
                raise Declined("bundle", _text(error)) from error
        bundle = self.bundle
        check_version(bundle.manifest, self._memory.session.versions)
        if self._live is not None:
            self._stored, self._executor = (
                self._live.now(bundle.manifest.window, bundle.manifest.classes),
                None,
            )
        if self._executor is None:  # another bundle, or other windows
            self.windows = windows_for(bundle.manifest, self._stored)
        windows, asking = self.windows, measuring(bundle.manifest)
        rule = broken_rule(
            self._policy, plan, bundle.manifest.name, asking, windows.train_y, windows.num_test
        )
        if rule is not None:
            raise Declined("policy", rule)
        if self._executor is None:
            try:
                self._graphs = self._graphs or self._load_graphs(bundle)
                self._executor = Executor(bundle, self._graphs, self.windows, self._secret)
            except (DataError, ConfigError):
                raise
            except Exception as error:
                raise Declined(
                    "bundle", f"bundle {bundle.manifest.name} cannot be loaded: {_text(error)}"
                ) from error
        versions = self._memory.session.versions | {bundle.manifest.name: bundle.manifest.version}
        self._memory.save(msgspec.structs.replace(self._memory.session, versions=versions))

    def _run(self, plan: Plan, between: Between) -> Result:
        assert self._executor is not None
        private = self._state.private(plan.run_id, plan.round)
        if self._live is not None:  # columns are of the windows of an earlier plan
            private = {
                key: value for key, value in private.items() if names.role_of(key) != names.COLUMN
            }
        executor, model, checkpoints = self._executor, self._tensors(plan.model), self._checkpoints

        def paused() -> None:
            try:
                between()
            except Stopped:
                checkpoints.write()
                raise
            checkpoints.between()

        resumed = checkpoints.begin(plan, executor)
        if resumed is not None:
            try:
                return executor.execute(plan, model, private, self._tensors, paused, resumed)
            except Unfit as error:
                checkpoints.drop(str(error))
        return executor.execute(plan, model, private, self._tensors, paused)

    def _tensors(self, name: str) -> Tensors:
        return decode_tensors(read_blob(self._state.blob, name), RECEIVED_FILES)[0]


def decline_of(error: Exception) -> Declined:
    """What an exception that ended work is to the aggregator."""
    match error:
        case Declined():
            return error
        case BundleError():
            return Declined("bundle", str(error))
        case DataError():
            return Declined("data", str(error))
        case OSError():
            return Declined("failed", f"{type(error).__name__}: {error.strerror or error}")
    return Declined("failed", _text(error))


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
