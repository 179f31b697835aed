"""Runs the round core: messages and deadlines become events, an event a new state, which is saved, and commands, which are carried out.

The service runs this, and so does a simulation by messages (`simulation.engine.messages`); only their adapters differ.
"""

import heapq
import logging
from collections.abc import Callable
from math import prod

from aggregator.aggregation import aggregate, check_fit, start_run
from aggregator.core.admission import Duplicate, Refused, admit
from aggregator.core.ports import Blobs, Clock, Store
from aggregator.core.record import record_of
from aggregator.core.round import step
from aggregator.core.state import (
    Acknowledge,
    Aggregate,
    Command,
    DeadlinePassed,
    DeviceCheckedIn,
    DeviceDeclined,
    DeviceLost,
    Event,
    FinishRun,
    Resumed,
    RunSettings,
    RunState,
    SendPlan,
    SetDeadline,
    UpdateAdmitted,
)
from aggregator.fleet import Fleet
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Probe
from wire import messages, names
from wire.bundle import Bundle
from wire.codec import decode, decode_update, digest
from wire.errors import LimitExceeded, UnknownTopic, WireError
from wire.links.port import Delivery, Link, LinkDown, LinkEvent, LinkUp
from wire.messages import CheckIn, Choose, Decline, DeviceStatus, Fetch, Refuse
from wire.tensors import Limits

log = logging.getLogger("shoal.aggregator")

Observer = Callable[[RunState, Event], None]
"""Called with the new state after every event, before commands are carried out."""

RESPONSE_BYTES, RESPONSE_TENSORS = 4 * 2**20, 256
"""Room in an update, beside the model's tensors and its graphs' measurements, for responses to inputs that were sent."""


class Runner:
    """Runs one run, in one thread. `state` is immutable and replaced as a whole, so that other threads may read it."""

    def __init__(
        self,
        algorithm: Algorithm,
        bundle: Bundle,
        probe: Probe,
        store: Store,
        blobs: Blobs,
        fleet: Fleet,
        clock: Clock,
        observe: Observer = lambda _state, _event: None,
    ) -> None:
        self._algorithm, self._bundle, self._probe = algorithm, bundle, probe
        self._store, self._blobs, self._fleet, self._clock, self._observe = store, blobs, fleet, clock, observe
        manifest = bundle.manifest
        shapes = [shape for graph in manifest.graphs for _, _, shape in manifest.responses(graph)]
        measured = sum(4 * prod(shape) for shape in shapes)
        specs = manifest.of_role(*names.EXCHANGED)
        self._limits = Limits.for_layout(specs, measured + RESPONSE_BYTES, len(shapes) + RESPONSE_TENSORS)
        self._deadlines: list[tuple[float, int]] = []  # a heap of (second, round)
        self._was_connected = False
        self._views = {record.views for record in store.rounds() if record.views}
        self.refused: dict[str, int] = {}
        """How often something that arrived was refused, by reason."""
        self.state: RunState | None = store.load()

    def start_or_resume(self, settings: RunSettings) -> RunState:
        """Start the run, or go on with it from the state in the store.

        Raises:
            ConfigError: the algorithm does not fit the bundle.
        """
        if self.state is None:
            check_fit(settings, self._algorithm, self._bundle.manifest)
            self._blobs.put(self._bundle.payload)
            self.dispatch(start_run(settings, self._algorithm, self._probe, self._bundle.initial, self._blobs, self._clock()))
        else:
            self._fleet.offer({name: self._blobs.get(name) for name in _offered(self.state)})
            self.dispatch(Resumed(self._clock()))
        assert self.state is not None
        return self.state

    @property
    def link(self) -> Link:
        """The link whose events `handle` takes."""
        return self._fleet.link

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self.state is not None and self.state.phase == "finished"

    def run(self, stop: Callable[[], bool]) -> None:
        """Handle messages and deadlines until `stop` returns true; it is called at least every half second."""
        while not stop():
            event = self._fleet.link.receive(timeout_s=min(0.5, max(0.0, self.next_deadline_s() - self._clock())))
            if event is not None:
                self.handle(event)
            self.tick()

    def next_deadline_s(self) -> float:
        """The clock's second at which the next deadline is due; infinity when none is set."""
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def tick(self) -> None:
        """Dispatch an event for every deadline that is due."""
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            at_s, number = heapq.heappop(self._deadlines)
            self.dispatch(DeadlinePassed(max(at_s, self._clock()), number))

    def handle(self, event: LinkEvent) -> None:
        """Act on one event of the link. Whatever a message holds, it raises nothing: it is refused with a reason."""
        match event:
            case LinkUp():
                self._fleet.announce(self.state.settings.run_id if self.state else "")
                if self._was_connected:
                    self._fleet.offer_again()
                self._was_connected = True
            case LinkDown(reason):
                log.warning("connection to the broker lost, trying again reason=%s", reason)
            case Delivery(topic, payload):
                self._on_delivery(topic, payload)

    def _on_delivery(self, topic: str, payload: bytes) -> None:
        try:
            address = self._fleet.topics.parse(topic)
        except UnknownTopic as error:
            self._count("unknown-topic", str(error))
            return
        try:
            match address.kind:
                case "check-in":
                    self._on_check_in(address.device_id, decode(payload, CheckIn))
                case "update":
                    self._on_update(address.device_id, payload)
                case "decline":
                    self._on_decline(address.device_id, decode(payload, Decline))
                case "fetch":
                    self._on_fetch(address.device_id, decode(payload, Fetch))
                case "status":
                    self._on_status(address.device_id, decode(payload, DeviceStatus))
        except WireError as error:
            reason: messages.Reason = "too-large" if isinstance(error, LimitExceeded) else "malformed"
            self._refuse(address.device_id, reason, str(error), about=address.kind)
            if address.kind == "update":
                self._excuse(address.device_id)

    def _on_check_in(self, device_id: str, message: CheckIn) -> None:
        if message.device_id != device_id:
            self._refuse(device_id, "wrong-device", f"check-in of {message.device_id} on the topic of {device_id}")
            return
        self.dispatch(DeviceCheckedIn(self._clock(), device_id, message.num_train, message.num_test, message.runtime, message.bundle))

    def _on_update(self, device_id: str, payload: bytes) -> None:
        assert self.state is not None
        message, tensors = decode_update(payload, self._limits)
        verdict = admit(self.state, device_id, message, tensors, digest(payload), len(payload))
        match verdict:
            case Refused(reason, detail):
                self._refuse(device_id, reason, detail, message.run_id, message.round, "update")
                if reason in ("wrong-layout", "not-finite", "norm-too-large"):
                    self._excuse(device_id)
            case Duplicate():
                self._carry_out(Acknowledge(device_id, message.round))
            case _:
                self._blobs.put(payload)
                self.dispatch(UpdateAdmitted(self._clock(), device_id, message.round, verdict))

    def _excuse(self, device_id: str) -> None:
        """Stop waiting in this round for a device whose update was refused for what it holds: the device would send the same again."""
        assert self.state is not None
        if device_id in self.state.cohort and device_id not in self.state.received:
            self.dispatch(DeviceDeclined(self._clock(), device_id, self.state.round))

    def _on_decline(self, device_id: str, message: Decline) -> None:
        state = self.state
        assert state is not None
        if message.device_id != device_id:
            self._refuse(device_id, "wrong-device", f"decline of {message.device_id} on the topic of {device_id}")
        elif (message.run_id, message.round) == (state.settings.run_id, state.round) and device_id in state.cohort:
            log.warning("declined device=%s round=%d: %s", device_id, message.round, message.detail)
            self.dispatch(DeviceDeclined(self._clock(), device_id, message.round))

    def _on_fetch(self, device_id: str, message: Fetch) -> None:
        if not self._fleet.offer_again(message.digest):
            self._refuse(device_id, "unknown-blob", f"blob {message.digest[:12]} is not on offer")

    def _on_status(self, device_id: str, message: DeviceStatus) -> None:
        assert self.state is not None
        known = self.state.devices.get(device_id)
        if message.device_id == device_id and not message.online and known is not None and known.online:
            self.dispatch(DeviceLost(self._clock(), device_id))

    def dispatch(self, event: Event) -> None:
        """Take in one event: compute the new state, save the event, then carry out what follows.

        A command is carried out only when its event is safe, and may be carried out again after a crash (`Resumed`).
        """
        state, commands = step(self.state, event)
        self._save(event, state)
        self.state = state
        self._observe(state, event)
        for command in commands:
            self._carry_out(command)

    def _save(self, event: Event, state: RunState) -> None:
        record = record_of(self.state, event, state)
        if record is None:
            self._store.append(event)
            return
        self._store.put_round(record)  # before the event: after a crash between the two the round closes, and is recorded, once more
        self._store.append(event)
        self._store.snapshot(state)
        self._views |= {record.views} - {""}
        self._fleet.withdraw_all_but(_offered(state))
        self._blobs.keep(_offered(state) | self._views | {state.memory} | {r.blob for r in state.received.values()})

    def _carry_out(self, command: Command) -> None:
        assert self.state is not None
        run_id = self.state.settings.run_id
        match command:
            case SendPlan(plan):
                chosen = [model for verb in plan.verbs if isinstance(verb, Choose) for model in verb.models]
                self._fleet.offer({name: self._blobs.get(name) for name in (plan.bundle, plan.model, *chosen)})
                self._fleet.send(plan.device_id, plan, "plan")
            case SetDeadline(number, at_s):
                heapq.heappush(self._deadlines, (at_s, number))
            case Acknowledge(device_id, number):
                self._fleet.send(device_id, messages.Acknowledge(run_id, number), "reply")
            case Aggregate():
                self.dispatch(aggregate(self.state, self._algorithm, self._probe, self._blobs, self._clock()))
            case FinishRun(device_id, model):
                self._fleet.offer({model: self._blobs.get(model)})
                self._fleet.send(device_id, messages.Finish(run_id, self.state.settings.bundle, model), "reply")

    def _refuse(self, device_id: str, reason: messages.Reason, detail: str, run_id: str = "", number: int = 0, about: str = "") -> None:
        self._count(reason, f"device={device_id}: {detail}")
        self._fleet.send(device_id, Refuse(reason, detail[:1000], run_id, number, about), "reply")

    def _count(self, reason: str, detail: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        log.warning("refused reason=%s %s", reason, detail)


def _offered(state: RunState) -> set[str]:
    """The digests of the blobs that devices may fetch in this state."""
    return {state.settings.bundle, *state.models.values()}
