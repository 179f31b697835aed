"""The device's loop: check in, take a plan, fetch what it needs, carry it out, keep the update until it is acknowledged."""

import logging
import time
from collections.abc import Callable

import msgspec

from edge_client.core import session as core
from edge_client.core.ports import DeviceState, GraphLoader, Health, Windows
from edge_client.executor import Executor, Result, Secret, from_entropy
from wire.bundle import Bundle, PublicKey, check_version, unpack
from wire.codec import decode, decode_update, digest, encode, encode_update
from wire.errors import ConfigError, ShoalError, WireError
from wire.links.port import Delivery, Link, LinkDown, LinkEvent, LinkUp
from wire.messages import (
    Acknowledge,
    AggregatorStatus,
    CheckIn,
    Choose,
    Decline,
    DeviceStatus,
    Fetch,
    Finish,
    Plan,
    Refuse,
    Respond,
    Update,
)
from wire.tensors import Array, Tensors, decode_tensors
from wire.topics import Topics

log = logging.getLogger("shoal.edge")

RESEND_S = (10.0, 300.0)
"""An update without an answer, or a blob that does not come, is sent or asked for again after this many seconds, then twice as
many, up to the second value."""


class Agent:
    """One device. `handle` takes one event and never waits; `run` is the loop over a real link."""

    def __init__(
        self,
        device_id: str,
        topics: Topics,
        link: Link,
        windows: Windows,
        state: DeviceState,
        load_graphs: GraphLoader,
        *,
        trusted: PublicKey | None = None,
        health: Callable[[], Health] = Health,
        clock: Callable[[], float] = time.time,
        runtime: str = "",
        secret: Secret = from_entropy,
    ) -> None:
        self.device_id, self._topics, self.link, self._windows = device_id, topics, link, windows
        self._state, self._load_graphs, self._trusted = state, load_graphs, trusted
        self._health, self._clock, self._runtime, self._secret = health, clock, runtime, secret
        self.session = state.load()
        self._boot_id = ""
        self._bytes_received = 0
        self._bundle: Bundle | None = None
        self._executor: Executor | None = None
        self._wanted: set[str] = set()
        self.retry_at_s = float("inf")
        self._pause_s = RESEND_S[0]
        link.subscribe(topics.device(device_id, "plan"), topics.device(device_id, "reply"), topics.aggregator)

    def run(self, stop: Callable[[], bool]) -> None:
        """Handle events until `stop` says so (asked at least once a second)."""
        while not stop():
            event = self.link.receive(timeout_s=1.0)
            if event is not None:
                self.handle(event)
            self.tick()
        self.link.publish(self._topics.device(self.device_id, "status"), encode(DeviceStatus(self.device_id, False)), retain=True)

    def handle(self, event: LinkEvent) -> None:
        """Act on one event. Whatever arrives, nothing but a broken disk or a defect raises."""
        match event:
            case LinkUp():
                log.info("connected device=%s", self.device_id)
                self._check_in()
                self._resume()
            case LinkDown(reason):
                log.warning("connection lost, trying again device=%s reason=%s", self.device_id, reason)
            case Delivery(topic, payload):
                try:
                    self._on_delivery(topic, payload)
                except WireError as error:
                    log.warning("ignored device=%s topic=%s: %s", self.device_id, topic, error)

    def tick(self) -> None:
        """Send or ask again what had no answer for too long."""
        if self._clock() >= self.retry_at_s:
            self._fetch_wanted()
            self._send_update()
            self._arm(self._pause_s * 2)

    def predict(self, x: Array) -> Array:
        """Class probabilities (n, classes) float32 of examples x (n, \\*window) by the model that the last finished run left here.

        Raises:
            ConfigError: no run has finished on this device, or its model has not come yet.
        """
        final = self._state.blob(self.session.final_model) if self.session.finished else None
        if final is None:
            raise ConfigError(f"device {self.device_id} has no model yet: no run has finished on it")
        private = self._state.private(self.session.run_id, self.session.answered + 1)
        return self._use_bundle(self.session.final_bundle).predict(decode_tensors(final)[0], private, x)

    def _check_in(self) -> None:
        health = self._health()
        message = CheckIn(
            device_id=self.device_id,
            num_train=self._windows.num_train,
            num_test=self._windows.num_test,
            bundle=self._bundle.digest if self._bundle else "",
            client="shoal",
            runtime=self._runtime,
            battery_percent=health.battery_percent,
            unmetered=health.unmetered,
        )
        self._publish("status", encode(DeviceStatus(self.device_id, True)), retain=True)
        self._publish("check-in", encode(message))
        self._send_update()
        self._fetch_wanted()

    def _on_delivery(self, topic: str, payload: bytes) -> None:
        address = self._topics.parse(topic)
        self._bytes_received += len(payload)
        match address.kind:
            case "plan":
                self._on_plan(decode(payload, Plan))
            case "reply":
                self._on_reply(decode(payload, Acknowledge | Refuse | Finish))
            case "blob" if address.digest in self._wanted:
                self._on_blob(address.digest, payload)
            case "aggregator":
                status = decode(payload, AggregatorStatus)
                if status.online and status.boot_id != self._boot_id:
                    self._boot_id = status.boot_id
                    self._check_in()

    def _on_plan(self, plan: Plan) -> None:
        if plan.device_id != self.device_id:
            log.warning("ignored a plan for %s that came to device=%s", plan.device_id, self.device_id)
            return
        changed, action = core.on_plan(self.session, plan)
        self._save(changed)
        if action.kind == "send":
            self._send_update()
        elif action.kind == "work":
            self._state.drop_update()
            self._prepare()

    def _on_reply(self, reply: Acknowledge | Refuse | Finish) -> None:
        if isinstance(reply, Refuse):
            log.warning("refused device=%s round=%s reason=%s: %s", self.device_id, reply.round, reply.reason, reply.detail)
        if isinstance(reply, Finish):
            self._want({reply.model})
        changed, action = core.on_reply(self.session, reply)
        self._save(changed)
        if action.kind == "drop":
            self._state.drop_update()
            self.retry_at_s = float("inf")

    def _on_blob(self, name: str, payload: bytes) -> None:
        if digest(payload) != name:
            log.warning("ignored a blob whose hash is not its name device=%s blob=%s", self.device_id, name)
            return
        self._state.put_blob(name, payload)
        self._wanted.discard(name)
        self.link.unsubscribe(self._topics.blob(name))
        if not self._wanted and self.session.plan is not None:
            self._prepare()

    def _resume(self) -> None:
        """Go on with a plan that a restart interrupted; if its update was finished before the stop, it is not made again."""
        plan, payload = self.session.plan, self._state.update()
        if plan is None:
            return
        if payload is not None:
            done, _ = decode_update(payload)
            if (done.run_id, done.round) == (plan.run_id, plan.round):
                self._save(core.on_executed(self.session, plan))
                self._send_update()
                return
        self._prepare()

    def _prepare(self) -> None:
        """Fetch what the plan needs and is not here; once all is here, work."""
        plan = self.session.plan
        assert plan is not None
        needed = {plan.bundle, plan.model, *(v.inputs for v in plan.verbs if isinstance(v, Respond))}
        needed |= {model for v in plan.verbs if isinstance(v, Choose) for model in v.models}
        self._forget(self._wanted - needed)
        missing = {name for name in needed if self._state.blob(name) is None}
        if missing:
            self._want(missing)
            return
        self._state.keep_blobs(needed)
        try:
            self._work(plan)
        except ShoalError as error:
            log.error("cannot carry out round %s device=%s: %s", plan.round, self.device_id, error)
            self._publish("decline", encode(Decline(plan.run_id, plan.round, self.device_id, str(error)[:1000])))
            self._save(core.on_failed(self.session, plan))

    def _work(self, plan: Plan) -> None:
        executor = self._use_bundle(plan.bundle)
        started_s = time.perf_counter()
        result = executor.execute(plan, self._tensors(plan.model), self._state.private(plan.run_id, plan.round), self._tensors)
        payload = self._encode(plan, result, time.perf_counter() - started_s)
        self._state.put_update(plan.run_id, plan.round, payload, result.private)
        self._save(core.on_executed(self.session, plan))
        log.info(
            "round done device=%s round=%d steps=%d accuracy_received=%.3f",
            self.device_id,
            plan.round,
            result.num_steps,
            result.evaluated.accuracy,
        )
        self._bytes_received = 0
        self._pause_s = RESEND_S[0]
        self._send_update()

    def _encode(self, plan: Plan, result: Result, train_s: float) -> bytes:
        update = Update(
            run_id=plan.run_id,
            round=plan.round,
            device_id=self.device_id,
            model=result.model,
            num_train=self._windows.num_train,
            num_steps=result.num_steps,
            evaluated=result.evaluated,
            trained=result.trained,
            bytes_received=self._bytes_received,
            train_s=round(train_s, 6),
        )
        return encode_update(update, result.tensors)

    def _use_bundle(self, name: str) -> Executor:
        """Verify and load a bundle before anything in it is used; an older version than one used before is refused."""
        if self._bundle is None or self._bundle.digest != name or self._executor is None:
            bundle = unpack(self._read(name), self._trusted)
            check_version(bundle.manifest, self.session.versions)
            self._executor = Executor(bundle, self._load_graphs(bundle), self._windows, self._secret)
            self._bundle = bundle
            versions = self.session.versions | {bundle.manifest.name: bundle.manifest.version}
            self._save(msgspec.structs.replace(self.session, versions=versions))
        return self._executor

    def _read(self, name: str) -> bytes:
        payload = self._state.blob(name)
        assert payload is not None, f"blob {name} was fetched before work began"
        return payload

    def _tensors(self, name: str) -> Tensors:
        return decode_tensors(self._read(name))[0]

    def _want(self, names: set[str]) -> None:
        new = {name for name in names if self._state.blob(name) is None} - self._wanted
        self._wanted |= new
        if new:
            self.link.subscribe(*(self._topics.blob(name) for name in sorted(new)))
            self._arm(RESEND_S[0])

    def _forget(self, names: set[str]) -> None:
        """Stop waiting for blobs that an earlier plan needed: they may never come."""
        if names:
            self.link.unsubscribe(*(self._topics.blob(name) for name in sorted(names)))
            self._wanted -= names

    def _fetch_wanted(self) -> None:
        for name in sorted(self._wanted):
            self._publish("fetch", encode(Fetch(self.device_id, name)))

    def _send_update(self) -> None:
        payload = self._state.update() if self.session.pending else None
        if payload is not None:
            self._publish("update", payload)
            self._arm(self._pause_s)

    def _arm(self, pause_s: float) -> None:
        waiting = self._wanted or self.session.pending
        self._pause_s = min(pause_s, RESEND_S[1]) if waiting else RESEND_S[0]
        self.retry_at_s = self._clock() + self._pause_s if waiting else float("inf")

    def _publish(self, kind: str, payload: bytes, retain: bool = False) -> None:
        self.link.publish(self._topics.device(self.device_id, kind), payload, retain=retain)  # type: ignore[arg-type]

    def _save(self, session: core.Session) -> None:
        if session != self.session:
            self._state.save(session)
            self.session = session
