"""Work on a plan, which always ends with a result or a reason to decline.

No content of a plan, a bundle or a blob makes it fail in another way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from edge_client.core import session as core
from edge_client.core.policy import broken_rule, mask_of, surveying
from edge_client.core.ports import (
    GraphLoader,
    Graphs,
    ReadBlob,
    Windows,
)
from edge_client.core.report import Machine
from edge_client.core.sums import Declined
from edge_client.core.verbs import measuring
from edge_client.data.layout import windows_for
from edge_client.storage.incidents import Incidents
from edge_client.storage.memory import SessionStore
from edge_client.storage.state import DeviceState
from edge_client.work.checkpoints import Checkpoints
from edge_client.work.executor import Between, Executor, PlanResult, Secret
from edge_client.work.job import Unfit
from edge_client.work.masking import Masking
from wire.arrays import names
from wire.arrays.quantised import encoded
from wire.arrays.tensors import RECEIVED_FILES, Tensors, decode_tensors
from wire.bundle import Bundle, check_version, unpack
from wire.codec import LARGEST_SUM, encode_update
from wire.errors import BundleError, ConfigError, DataError, ShoalError
from wire.identity.keys import PublicKey
from wire.messages import (
    DeclineReason,
    Evaluate,
    Metrics,
    Plan,
    Policy,
    SurveySum,
    TellGroup,
    Update,
)
from wire.secret.question import SignedShare

if TYPE_CHECKING:
    from edge_client.live.store import LiveData


class DeclinedPlan(Exception):
    """A plan that the device declines, with the reason for the aggregator."""

    def __init__(self, reason: DeclineReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class Stopped(Exception):
    """A request to stop the client, raised before the work is finished."""


@dataclass(frozen=True)
class Done:
    """A finished plan: its result and the seconds that it took.

    `masked` is the answer to the plan's question, if it has one. `node` is the one that the plan
    asks the device to tell.
    """

    result: PlanResult
    seconds: float
    masked: tuple[SignedShare, Tensors] | None = None
    node: str = ""

    def update(self, plan: Plan, num_train: int | None, bytes_received: int) -> bytes:
        """Return the encoded update that answers the plan.

        Args:
            plan: the plan that was carried out.
            num_train: number of training windows of the device; None if the owner does not permit
                to report counts and metrics.
            bytes_received: bytes received since the previous update.
        """
        share, masked = self.masked or (None, {})
        is_open = share is None and num_train is not None and not self.node
        update = Update(
            run_id=plan.run_id,
            epoch=plan.epoch,
            round=plan.round,
            attempt=plan.attempt,
            device_id=plan.device_id,
            model=self.result.model,
            num_train=num_train or 0 if is_open else 0,
            num_steps=self.result.num_steps if is_open else 0,
            evaluated=self.result.evaluated if is_open else Metrics(),
            trained=self.result.trained if is_open else Metrics(),
            bytes_received=bytes_received,
            train_s=round(self.seconds, 6) if is_open else 0.0,
            share=share,
            node=self.node,
        )
        if share is not None or self.node:
            return encode_update(update, masked)
        return encode_update(
            update, encoded(self.result.tensors, plan.encoding, plan.seed, plan.device_id)
        )


class BlobMissing(Exception):
    """A stored blob that is missing, or damaged and set aside. It must be fetched again."""


def read_blob(blob: ReadBlob, name: str) -> bytes:
    """Return the bytes of a stored blob.

    Raises:
        BlobMissing: the blob is missing or damaged.
    """
    payload = blob(name)
    if payload is None:
        raise BlobMissing(name)
    return payload


class PlanWork:
    """Work on plans, with one bundle loaded at a time.

    `bundle` is the loaded bundle, `windows` are the windows of the last plan.
    """

    def __init__(
        self,
        windows: Windows,
        memory: SessionStore,
        state: DeviceState,
        load_graphs: GraphLoader,
        trusted: Sequence[PublicKey],
        policy: Policy,
        secret: Secret,
        incidents: Incidents,
        checkpoints: Checkpoints,
        live: "LiveData | None" = None,
        masking: Masking | None = None,
    ) -> None:
        """Prepare the work on plans.

        Without `masking`, a plan that asks for a secret sum is declined. If `live` is not
        None, each plan takes its windows from there instead of from `windows`.
        """
        self._checkpoints, self._masking = checkpoints, masking
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
        """Windows of the last plan."""
        self.bundle: Bundle | None = None
        self._graphs: Graphs | None = None
        self._executor: Executor | None = None

    def attempt(
        self, plan: Plan, between: Between, machine: Machine, now_s: Callable[[], float]
    ) -> Done | DeclinedPlan | None:
        """Carry out the session's plan and return its result or the reason to decline it.

        Return None if the plan must be attempted again: the client is stopping, or a blob was
        damaged. The start, on `machine`, is stored before the work begins. No exception leaves this
        method. `now_s` returns the aggregator's time.
        """
        try:
            session, action = core.on_start(self._memory.session, machine)
            if action.kind == "decline":
                return DeclinedPlan(action.reason, action.detail)
            self._memory.save(session)
            self._open(plan)
            masks, survey = mask_of(plan) is not None, surveying(plan)
            if survey is not None:
                self._bind(plan, survey)  # else one that declines could be asked about every plane
            always = masks and survey is None
            result = self._always(plan, between) if always else self._run(plan, between)
            for metrics in (result.trained, result.evaluated):
                if not masks and (
                    not abs(metrics.loss_sum) <= LARGEST_SUM
                    or not 0 <= metrics.num_correct <= metrics.num_examples
                ):
                    raise DeclinedPlan(
                        "failed",
                        f"impossible metrics, which the service would refuse: {metrics}",
                    )
            if self._live is not None and any(
                isinstance(verb, Evaluate) and verb.model == "initial" for verb in plan.verbs
            ):
                self._live.surveyed()
            masked, node = None, ""
            if masks:
                masked, result.private = self._masked(plan, result, now_s()), {}
            elif survey is not None:
                node, result.private = self._node(plan, result), {}
            return Done(result, self._checkpoints.worked_s, masked, node)
        except (Stopped, BlobMissing):
            self._memory.note(core.on_stopped(self._memory.session))
            return None
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            if not isinstance(cause, DeclinedPlan):
                self._incidents.add("Plan failed", cause)
            return decline_of(error)

    def _open(self, plan: Plan) -> None:
        """Verify the plan's bundle, check the plan against the policy, and only then load graphs.

        Raises:
            DeclinedPlan: the plan breaks a rule of the policy, or the bundle cannot be used.
            BlobMissing: the bundle must be fetched again.
        """
        if self.bundle is None or self.bundle.digest != plan.bundle:
            self.bundle = self._graphs = self._executor = None
            payload = read_blob(self._state.blob, plan.bundle)
            try:
                self.bundle = unpack(payload, self._trusted)
            # the bytes have the hash that the plan names, so every error is the bundle's fault
            except Exception as error:
                raise DeclinedPlan("bundle", _text(error)) from error
        bundle = self.bundle
        check_version(bundle.manifest, self._memory.session.versions)
        if self._live is not None:
            self._stored, self._executor = (
                self._live.now(bundle.manifest.window, bundle.manifest.classes),
                None,
            )
        if self._executor is None:  # the bundle or the windows changed
            self.windows = windows_for(bundle.manifest, self._stored)
        windows, asking = self.windows, measuring(bundle.manifest)
        rule = broken_rule(
            self._policy, plan, bundle.manifest.name, asking, windows.train_y, windows.num_test
        )
        if rule is not None:
            raise DeclinedPlan("policy", rule)
        if self._executor is None:
            try:
                self._graphs = self._graphs or self._load_graphs(bundle)
                self._executor = Executor(bundle, self._graphs, self.windows, self._secret)
            except (DataError, ConfigError):
                raise
            except Exception as error:
                raise DeclinedPlan(
                    "bundle", f"bundle {bundle.manifest.name} cannot be loaded: {_text(error)}"
                ) from error
        versions = self._memory.session.versions | {bundle.manifest.name: bundle.manifest.version}
        self._memory.save(msgspec.structs.replace(self._memory.session, versions=versions))

    def _run(self, plan: Plan, between: Between) -> PlanResult:
        assert self._executor is not None
        # a plan for this device alone could have prepared what a masked one starts from
        masks = mask_of(plan) is not None or surveying(plan) is not None
        private = {} if masks else self._state.private(plan.run_id, plan.round)
        if self._live is not None:  # the columns belong to the windows of an earlier plan
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

    def _always(self, plan: Plan, between: Between) -> PlanResult:
        """Return the result of a plan; one without any change if the work fails.

        That a device declines would tell of its data.
        """
        try:
            return self._run(plan, between)
        except (Stopped, BlobMissing):
            raise
        except Exception as error:
            self._incidents.add("Plan failed, and is answered without a change", error)
            return PlanResult(plan.model)

    def _masked(self, plan: Plan, result: PlanResult, now_s: float) -> tuple[SignedShare, Tensors]:
        masking, received = self._means_to_mask(), self._tensors(plan.model)
        try:
            return masking.answer(plan, result, received, now_s)
        except Declined as error:
            raise DeclinedPlan("policy", f"min_sum: {error}") from None

    def _node(self, plan: Plan, result: PlanResult) -> str:
        try:
            return self._means_to_mask().node(plan, result)
        except Declined as error:
            raise DeclinedPlan("policy", f"min_sum: {error}") from None

    def _bind(self, plan: Plan, survey: SurveySum | TellGroup) -> None:
        try:
            self._means_to_mask().surveys.bind(plan.bundle, survey)
        except Declined as error:
            raise DeclinedPlan("policy", f"min_sum: {error}") from None

    def _means_to_mask(self) -> Masking:
        if self._masking is None:
            raise DeclinedPlan(
                "policy", "min_sum: this device has no helpers' keys (--helpers), so no secret sums"
            )
        return self._masking

    def _tensors(self, name: str) -> Tensors:
        return decode_tensors(read_blob(self._state.blob, name), RECEIVED_FILES)[0]


def decline_of(error: Exception) -> DeclinedPlan:
    """Return the decline that reports an exception from the work to the aggregator."""
    match error:
        case DeclinedPlan():
            return error
        case BundleError():
            return DeclinedPlan("bundle", str(error))
        case DataError():
            return DeclinedPlan("data", str(error))
        case OSError():
            return DeclinedPlan("failed", f"{type(error).__name__}: {error.strerror or error}")
    return DeclinedPlan("failed", _text(error))


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
