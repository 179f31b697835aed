"""Loop of a device: check in, take a plan, fetch its blobs, carry it out, send the update.

Faults are contained in three rings. A message that cannot be read is ignored. A fault in a plan
declines that plan. An unforeseen fault ends one event, in `Agent._contained`, and nothing else.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from edge_client.agent.fetching import Fetching, blobs_of, needed
from edge_client.agent.inbox import Inbox, PlanHead
from edge_client.agent.outbox import Outbox
from edge_client.agent.releases import Releases
from edge_client.agent.sending import Sending
from edge_client.agent.traffic import Traffic
from edge_client.core import session as core
from edge_client.core.backoff import AggregatorTime, Backoff
from edge_client.core.checkpoint import USUAL, Pace
from edge_client.core.policy import permitted_facts, reported_classes
from edge_client.core.ports import GraphLoader, Health, Windows
from edge_client.core.report import Machine, killed_report
from edge_client.core.sums import LEAST_SUM, SecretPolicy
from edge_client.models.current import CurrentModel
from edge_client.models.kept import KeptModels
from edge_client.storage.answers import AnswerStore
from edge_client.storage.incidents import Incidents
from edge_client.storage.memory import SessionStore
from edge_client.storage.state import CHECKPOINT, DeviceState
from edge_client.storage.surveys import SurveyStore
from edge_client.work.checkpoints import Checkpoints
from edge_client.work.executor import Secret, from_entropy
from edge_client.work.masking import Masking
from edge_client.work.plan import DeclinedPlan, Done, PlanWork, Stopped, decline_of
from wire import messages as m
from wire.arrays import names
from wire.arrays.quantised import ENCODINGS
from wire.arrays.tensors import Array
from wire.codec import digest, encode
from wire.errors import LimitExceeded, SecondDevice, printable
from wire.identity.certificates import TlsKey, TlsPublicKey
from wire.identity.keys import PublicKey
from wire.links.port import Delivery, Denied, Link, LinkDown, LinkEvent, LinkUp
from wire.messages import CLIENT, PROTOCOL_VERSION
from wire.pieces import MOST_BYTES, WHOLE_BYTES
from wire.topics import RECEIVED, Topics

if TYPE_CHECKING:  # a board that does not record lacks the memory for this
    from edge_client.live.store import LiveData

log = logging.getLogger("shoal.edge")

STATUS_WAIT_S = 3.0
"""Time to wait for the aggregator's status, which has the time, after a new connection."""
ERROR_S = 60.0
"""Minimum interval between error reports."""


class Agent:
    """Client of one device.

    `handle` processes one event and never waits; `run` is the loop over a real link.
    """

    def __init__(
        self,
        device_id: str,
        topics: Topics,
        link: Link,
        windows: Windows,
        state: DeviceState,
        load_graphs: GraphLoader,
        *,
        trusted: Sequence[PublicKey] = (),
        policy: m.Policy | None = None,
        health: Callable[[], Health] = Health,
        machine: Callable[[], Machine] = Machine,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        runtime: str = "",
        secret: Secret = from_entropy,
        live: "LiveData | None" = None,
        most_bytes: int = MOST_BYTES,
        most_whole: int = WHOLE_BYTES,
        pace: Pace = USUAL,
        helpers: Sequence[TlsPublicKey] = (),
        key: TlsKey | None = None,
    ) -> None:
        """Open the state folder and subscribe to the device's topics.

        Args:
            device_id: id of the device.
            topics: topics of the fleet.
            link: connection to the broker.
            windows: the device's examples, unless `live` is set.
            state: the state folder.
            load_graphs: loader of a bundle's graphs.
            trusted: root keys; without any, every message is believed.
            policy: what the owner permits.
            health: function that reads the state of the hardware.
            machine: function that reads the machine's start and memory.
            clock: seconds, from a clock that cannot be set.
            wall: Unix time, which may be wrong.
            runtime: name and version of the runtime.
            secret: source of the noise that protects updates.
            live: recorded data, from which each plan gets new windows.
            most_bytes: size of the largest blob and update.
            most_whole: size of the largest update that is sent whole.
            pace: interval between checkpoints.
            helpers: keys of the helpers of secret sums; without any, the device takes part in none.
            key: key that signs the device's answers in secret sums.

        Raises:
            ConfigError: the state folder cannot be read.
            SecondDevice: another device uses this identity.
        """
        self.device_id, self._topics, self.link, self._windows = device_id, topics, link, windows
        self._live = live
        self._state, self._trusted, self._policy = state, trusted, policy
        self._health, self._clock, self._wall, self._runtime = health, clock, wall, runtime
        self._machine, self._permitted = machine, policy or m.Policy()
        self.incidents = Incidents(device_id, self._now_s, machine)
        self._time, self._is_denied = AggregatorTime(clock), False
        self._inbox = Inbox(device_id, topics, trusted, self._now_s, most_bytes)
        self._traffic = Traffic(state, wall)
        self._outbox = Outbox(
            device_id,
            topics,
            link,
            self._traffic,
            self.incidents,
            clock,
            wall,
            self._permitted.tells_errors,
        )
        self._fetching = Fetching(topics, link, state, self._inbox.open_pieces, most_bytes)
        self._start = state.begin(secrets.randbelow(m.LARGEST_COUNT) + 1)
        self._memory = SessionStore(device_id, state, self.incidents)
        self._model = CurrentModel(state, windows, load_graphs)
        self._sending = Sending(
            device_id,
            state,
            self._outbox,
            self._traffic,
            self._permitted.max_bytes_a_day,
            most_whole,
        )
        self._most_bytes = most_bytes
        self._own = KeptModels(state, self._memory)
        around = (self._memory, self._own, self._outbox, trusted, self._permitted, clock)
        # how well a model does on this device's windows would tell of them
        tried = self._windows_now if self._permitted.min_sum is None else self._no_windows
        self._releases = Releases(device_id, self._model, state, tried, *around)
        self._checkpoints = Checkpoints(device_id, state, runtime, pace, self._progressed, clock)
        around_work = (self._permitted, secret, self.incidents, self._checkpoints)
        masking = None
        if helpers and key is not None:
            policy_of_sums = SecretPolicy(helpers, self._permitted.min_sum or LEAST_SUM)
            answers = AnswerStore(state.files)
            surveys = SurveyStore(state.files)
            masking = Masking(policy_of_sums, key, answers, surveys, secrets.token_bytes)
        self._work = PlanWork(
            windows, self._memory, state, load_graphs, trusted, *around_work, live, masking
        )
        self._stop: Callable[[], bool] = lambda: False
        self._boot_id, self._bytes_received, self._work_began_s = "", 0, 0.0
        self._ready_at_s = math.inf
        self._second_device: SecondDevice | None = None
        """Reason that the client ends; None while it takes part."""
        self._backoff = Backoff(clock)
        self._unstored: Delivery | None = None
        self._is_error_due, self._error_at_s = False, 0.0
        self._free_bytes: int | None = None
        """Free storage that the last check-in reported."""
        self._room_at_s = 0.0
        """Time of the next look at the free storage."""
        self._note_end()
        link.subscribe(*(topics.device(device_id, kind) for kind in RECEIVED), topics.aggregator)

    @property
    def session(self) -> core.Session:
        """Memory of the device."""
        return self._memory.session

    @property
    def retry_at_s(self) -> float:
        """Time of the next task of `tick`, by the agent's clock; infinity if nothing waits.

        The heartbeat does not count.
        """
        has_work = self.session.stage == "working" or self._releases.offer is not None
        return min(
            self._backoff.at_s,
            self._ready_at_s if has_work and self._clock() < self._ready_at_s else math.inf,
        )

    def run(self, stop: Callable[[], bool]) -> None:
        """Handle events until `stop` returns True.

        `stop` is called at least once a second, and between batches.

        Raises:
            SecondDevice: another device uses this identity. Nothing more is published: the status
                of the identity is that of the other device.
        """
        self._stop = lambda: stop() or self._second_device is not None
        while not self._stop():
            event = self.link.receive(timeout_s=1.0)
            if event is not None:
                self.handle(event)
            self.tick()
        self._contained("stop", self._traffic.save)
        if self._second_device is not None:
            raise self._second_device
        status = m.DeviceStatus(self.device_id, online=False)
        self._outbox.publish("status", encode(status), retain=True)

    def handle(self, event: LinkEvent) -> None:
        """Handle one event, and continue with the work that it makes possible."""
        self._contained("event", lambda: self._on_event(event))
        self._contained("work", self._go_on)

    def tick(self) -> None:
        """Retry requests without an answer, and continue with postponed work."""
        self._contained("heartbeat", self._beat)
        self._contained("retry", self._retry)
        self._contained("look at free storage", self._look_at_room)
        self._contained(
            "look at live data",
            lambda: self._check_in() if self._live is not None and self._live.look() else None,
        )
        self._contained("work", self._go_on)
        self._contained(
            "comparison with the model before",
            lambda: self._releases.compare(self._between_windows),
        )

    def predict(self, x: Array) -> Array:
        """Return the class probabilities (n, classes) float32 of examples x (n, \\*window).

        The model in use answers: the last model that a release or a finished campaign offered and
        that passed its trial. Any thread may call this.

        Raises:
            ConfigError: there is no model yet, or it is damaged.
            DataError: x has not the shape of the model's windows.
        """
        return self._model.predict(x)

    def _contained(self, what: str, act: Callable[[], None]) -> None:
        """Run `act` as the outermost ring: count, log and survive an unforeseen fault.

        Then report the last error.
        """
        for each in (act, self._report_error):
            try:
                each()
            except Exception as error:
                self.incidents.add(f"{what.capitalize()} failed", error)

    def _on_event(self, event: LinkEvent) -> None:
        match event:
            case LinkUp():
                log.info("Connected: device=%s", self.device_id)
                self._outbox.connected, self._ready_at_s = True, self._clock() + STATUS_WAIT_S
                self._is_denied = False
                self._check_in()
            case LinkDown(reason):
                self._outbox.connected = False
                log.warning(
                    "Connection lost, trying again: device=%s reason=%s", self.device_id, reason
                )
            case Denied(action, topic, reason):
                log.log(
                    logging.DEBUG if self._is_denied else logging.ERROR,
                    "The broker denies access to a topic: device=%s action=%s topic=%s reason=%s: "
                    "is the device banned? The operator sees it in `shoal devices show`",
                    self.device_id,
                    action,
                    topic,
                    reason,
                )
                self._is_denied = True  # the first denial of a connection says enough
            case Delivery():
                self._bytes_received += len(event.payload)
                self._outbox.count(event.payload)
                self._on_delivery(event)

    def _on_delivery(self, delivery: Delivery) -> None:
        try:
            message = self._inbox.open(delivery)
        except (
            Exception
        ) as error:  # the innermost ring: an unreadable message costs one line of the log
            self.incidents.add("Message ignored", error, reported=False)
            return
        try:
            self._act(message, delivery.payload)
        except OSError as error:
            self.incidents.add("Message not stored", error)
            if isinstance(message, m.Plan):
                self._outbox.decline(message, decline_of(error))
            elif isinstance(message, m.Finish | m.Release):
                self._unstored = delivery
                self._backoff.begin()

    def _act(
        self,
        message: m.Plan | PlanHead | m.Reply | m.Release | m.Want | m.AggregatorStatus | str,
        payload: bytes,
    ) -> None:
        match message:
            case m.Plan():
                text = payload.decode(errors="replace")
                now_s = self._time.for_epoch(message.epoch)
                changed, action = core.on_plan(self.session, message, text, now_s)
                self._memory.save(changed)
                if action.kind == "decline":
                    declined = DeclinedPlan(action.reason, action.detail)
                    self._outbox.decline(message, declined, action.proof)
                elif action.kind == "send":
                    self._send_update()
            case PlanHead():
                self._outbox.decline(message, DeclinedPlan("outdated", message.problem))
            case m.Release():
                self._releases.on_release(message)
                self._unstored = None
            case m.Want() if self._sending.on_want(message, self.session):
                self._backoff.begin()
            case m.AggregatorStatus() if self._time.hear(message):
                self._ready_at_s = self._clock()
                if message.online and message.boot_id != self._boot_id:
                    self._boot_id = message.boot_id
                    self._check_in()
            case m.Acknowledge() | m.Refuse() | m.Busy() | m.Finish():
                self._on_reply(message)
            case str():
                self._on_blob(message, payload)

    def _on_reply(self, reply: m.Acknowledge | m.Refuse | m.Busy | m.Finish) -> None:
        if isinstance(reply, m.Refuse) and self._start.is_meant_by(reply):
            self._second_device = self._state.refuse(self._start)
        elif isinstance(reply, m.Refuse):
            log.warning(
                "Message refused by the service: device=%s about=%s reason=%s: %s",
                self.device_id,
                reply.about,
                reply.reason,
                reply.detail,
            )
            if reply.reason == "unknown-device":
                self._check_in()
        if (
            isinstance(reply, m.Busy)
            and self.session.stage == "pending"
            and reply.update == self.session.update
        ):
            self._backoff.after(reply.retry_s)
        changed, action = core.on_reply(self.session, reply)
        if isinstance(reply, m.Finish):
            self._unstored = None
        self._memory.save(changed)
        if action.kind == "drop":
            self._rest()

    def _on_blob(self, name: str, payload: bytes) -> None:
        try:
            if self._fetching.take(name, payload, self._kept()):
                self._backoff.begin()  # something comes: no request has to be repeated
        except (OSError, LimitExceeded) as error:
            plan = self.session.plan
            if self.session.stage != "working" or plan is None or name not in blobs_of(plan):
                raise
            self.incidents.add("Blob not stored", error)
            self._decline(plan, decline_of(error))
        self._rest()

    def _check_in(self) -> None:
        """Report the device's facts, and send unanswered messages again."""
        windows, health = self._windows_now(), self._health()
        self._free_bytes = health.free_bytes
        message = m.CheckIn(
            self.device_id,
            windows.num_train,
            windows.num_test,
            bundle=self._work.bundle.digest if self._work.bundle else "",
            client=CLIENT,
            runtime=self._runtime,
            policy=self._policy,
            classes=reported_classes(self._permitted, windows.train_y),
            moved=self._live is not None and self._live.has_moved,
            encodings=ENCODINGS,
            num_unlabelled=windows.num_unlabelled,
            personal_models=self._own.models(),
            protocol=PROTOCOL_VERSION,
            start=self._start.number,
            instance=self._start.instance,
            **asdict(health),
        )
        self._outbox.publish("check-in", encode(permitted_facts(self._permitted, message)))
        self._outbox.beat(now=True)
        self._releases.report()
        self._is_error_due = self.session.error is not None
        self._send_update()
        self._outbox.ask(self._fetching.unknown)

    def _no_windows(self) -> Windows:
        return self._windows_now().none()

    def _windows_now(self) -> Windows:
        """Return the windows that the next plan would use."""
        return self._windows if self._live is None else self._live.now()

    def _retry(self) -> None:
        if (
            self._clock() < self._backoff.at_s or not self._outbox.connected
        ):  # the link queues messages while it is down: every retry would add one
            return
        self._backoff.tried()
        self._outbox.ask(self._fetching.unanswered)
        self._send_update(again=True)
        if self._unstored is not None:
            self._on_delivery(self._unstored)
        self._rest()

    def _rest(self) -> None:
        """Stop the retries if nothing waits for an answer."""
        if not (
            self._fetching.wanted or self.session.stage == "pending" or self._unstored is not None
        ):
            self._backoff.end()

    def _go_on(self) -> None:
        """Fetch blobs, take up an offered model and carry out the plan, as far as possible."""
        plan = self._plan_in_work()
        if plan is not None and (
            exceeded := self._traffic.exceeds(self._permitted.max_bytes_a_day)
        ):
            self._decline(plan, DeclinedPlan("policy", exceeded))
        if self._fetching.need(needed(self.session, self._model)):
            self._backoff.begin()
        if self._clock() < self._ready_at_s or self._stop():
            return
        offer = self._releases.offer
        if offer is not None and not self._fetching.wanted & {offer.bundle, offer.model}:
            self._releases.take_up(self._now_s(), self._between_windows)
        plan = self._plan_in_work()
        if plan is None:
            return
        if (over_s := self._time.for_epoch(plan.epoch) - plan.deadline_at_s) > 0:
            self._decline(
                plan, DeclinedPlan("expired", f"its deadline was over {over_s:.0f} s ago")
            )
        elif not self._fetching.wanted & blobs_of(plan):
            self._carry_out(plan)

    def _plan_in_work(self) -> m.Plan | None:
        return self.session.plan if self.session.stage == "working" else None

    def _carry_out(self, plan: m.Plan) -> None:
        self._contained("removal of old blobs", lambda: self._state.keep_blobs(self._kept()))
        self._work_began_s = self._clock()
        outcome = self._work.attempt(
            plan, self._between, self._machine(), lambda: self._time.for_epoch(plan.epoch)
        )
        if isinstance(outcome, Done):
            try:
                outcome = self._store_update(plan, outcome)
            except Exception as error:
                self.incidents.add("Update not stored", error)
                outcome = decline_of(error)
        if isinstance(outcome, DeclinedPlan):
            self._decline(plan, outcome)
        self._contained("traffic", self._traffic.save)

    def _store_update(self, plan: m.Plan, outcome: Done) -> DeclinedPlan | None:
        """Store the update and send it, or return the reason to decline the plan."""
        payload = self._encode(plan, outcome)
        if len(payload) > self._most_bytes:
            return DeclinedPlan(
                "failed",
                f"the update has {len(payload)} bytes, at most {self._most_bytes} are sent "
                "(--max-payload)",
            )
        if exceeded := self._traffic.exceeds(self._permitted.max_bytes_a_day, len(payload)):
            return DeclinedPlan("policy", exceeded)
        self._own.put(plan, outcome.result)
        private = names.of_role(outcome.result.private, names.PRIVATE, names.COLUMN)
        try:
            self._state.put_update(plan.run_id, plan.round, payload, private)
        except OSError:
            self._state.files.delete(CHECKPOINT)  # so there may be space
            self._state.put_update(plan.run_id, plan.round, payload, private)
        self._memory.note(core.on_executed(self.session, plan, digest(payload)))
        log.info(
            "Plan carried out: device=%s round=%d steps=%d",
            self.device_id,
            plan.round,
            outcome.result.num_steps,
        )
        self._bytes_received = 0
        self._backoff.begin()
        self._send_update()
        return None

    def _encode(self, plan: m.Plan, outcome: Done) -> bytes:
        num_train = self._work.windows.num_train if self._permitted.min_sum is None else None
        return outcome.update(plan, num_train, self._bytes_received)

    def _between(self) -> None:
        """Send a heartbeat before each batch, and end the work if it has to end.

        Raises:
            DeclinedPlan: the work takes longer than the policy permits.
            Stopped: the client stops.
        """
        self._between_windows()
        most_s, took_s = (
            self._permitted.max_seconds,
            self._checkpoints.before_s + self._clock() - self._work_began_s,
        )
        if most_s is not None and took_s > most_s:
            raise DeclinedPlan("policy", f"max_seconds: the work takes longer than {most_s:g} s")

    def _between_windows(self) -> None:
        """Send a heartbeat between two windows outside a plan.

        Raises:
            Stopped: the client stops.
        """
        self._contained("heartbeat", self._beat)
        if self._stop():
            raise Stopped

    def _progressed(self, runs: int, resumed: bool) -> None:
        """Remember that a checkpoint of the plan was stored, or that work resumed from it."""
        if self.session.plan is not None:
            on = core.on_resumed if resumed else core.on_progress
            changed = on(self.session, self.session.plan, runs)
            if changed != self.session:
                changed = replace(changed, machine=self._machine())
            self._memory.note(changed)

    def _beat(self) -> None:
        self._outbox.beat()
        self._releases.beat()

    def _note_end(self) -> None:
        """Report it if the last start of the client ended in the midst of a plan."""
        session, error = self.session, self.session.error
        if core.was_killed(session) and session.plan is not None and session.machine is not None:
            error = killed_report(
                self.device_id, session.plan, session.machine, self._machine(), self._now_s()
            )
            log.error("%s: device=%s %s", error.what, self.device_id, error.message)
            session = replace(session, machine=None)
        error = error if self._permitted.tells_errors else None
        self._memory.note(replace(session, error=error))

    def _report_error(self) -> None:
        """Store the report of the last error, and send it, at most once in `ERROR_S`."""
        report, self.incidents.last = self.incidents.last, None
        if report is not None and self._permitted.tells_errors:
            self._memory.note(replace(self.session, error=report))
            self.incidents.last = None  # if it cannot be stored, that is no further error
            self._is_error_due = True
        report = self.session.error
        if (
            report is not None
            and self._is_error_due
            and self._outbox.connected
            and self._clock() >= self._error_at_s
        ):
            self._is_error_due, self._error_at_s = False, self._clock() + ERROR_S
            self._outbox.publish("error", encode(report))

    def _decline(self, plan: m.Plan, declined: DeclinedPlan) -> None:
        """Decline the current plan."""
        changed, _ = core.on_declined(
            self.session, plan, declined.reason, printable(declined.detail)[:1000]
        )
        self._memory.note(changed)
        self._outbox.decline(plan, declined)

    def _look_at_room(self) -> None:
        """Check in if the free storage is far from the reported one.

        The aggregator gives a device with more room than before an assignment at once.
        """
        if self._clock() < self._room_at_s or not self._outbox.connected:
            return
        self._room_at_s = self._clock() + m.HEARTBEAT_S
        free, reported = self._health().free_bytes, self._free_bytes
        if free is None or reported is None:
            return
        if not reported / 2 - m.ROOM < free < 2 * reported + m.ROOM:
            self._check_in()

    def _kept(self) -> set[str]:
        """Return the digests of the blobs that must stay in the state folder.

        They are the needed blobs, the private tensors of the model in use, the personal models, the
        last offered model, which may be tried again, and the loaded bundle.
        """
        loaded = {self._work.bundle.digest} if self._work.bundle else set()
        offer = self.session.offer
        offered = {offer.bundle, offer.model} if offer is not None else set()
        return (
            needed(self.session, self._model)
            | self._model.blobs
            | {personal_model.tensors for personal_model in self.session.personal_models}
            | offered
            | loaded
        )

    def _now_s(self) -> float:
        """Return Unix time: the later of the device's clock and the aggregator's."""
        return max(self._wall(), self._time.now_s)

    def _send_update(self, again: bool = False) -> None:
        if self._sending.begin(self.session, again) and self._backoff.at_s == math.inf:
            self._backoff.begin()
