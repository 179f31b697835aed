"""What a message from a device means: an event, a reply, or nothing. Reads bytes, changes nothing but its own counters."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from aggregator.core.admission import Duplicate, Refused, admit
from aggregator.core.ports import Clock
from aggregator.core.state import DeviceCheckedIn, DeviceDeclined, DeviceHeard, DeviceLost, Event, RunState, UpdateAdmitted
from wire import names
from wire.bundle import Manifest
from wire.codec import decode, decode_update, digest
from wire.errors import LimitExceeded, UnknownTopic, WireError, printable
from wire.links.port import Delivery
from wire.messages import Acknowledge, CheckIn, Decline, DeviceStatus, Fetch, Reason, Refuse, Reply
from wire.tensors import Limits
from wire.topics import Address, Topics

log = logging.getLogger("shoal.aggregator")

RESPONSE_BYTES, RESPONSE_TENSORS = 4 * 2**20, 256
"""Room in an update, beside the model's tensors and its graphs' measurements, for responses to inputs that were sent."""
RATES = {"check-in": (20.0, 0.5), "fetch": (200.0, 2.0), "status": (20.0, 0.5), "decline": (20.0, 0.5)}
"""By kind: how many messages a device may send at once, and how many a second on average."""
MOST_BUDGETS = 100_000
"""Of so many devices and kinds is it remembered, at most, how many messages they may send."""


@dataclass
class Reading:
    """What follows from a message: events, in order, replies, an update's bytes to keep, a blob that a device asks for, a proof."""

    device_id: str = ""
    events: list[Event] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    update: bytes | None = None
    fetch: str = ""
    gone: bool = False
    """Whether the device says that it is not there."""
    proof: str = ""
    """A signed plan of a greater epoch, which a device showed."""


class Inbox:
    """Reads what devices send. Nothing that arrives raises: it is refused with a reason, or counted."""

    def __init__(self, topics: Topics, manifest: Manifest, clock: Clock) -> None:
        self._topics, self._clock = topics, clock
        shapes = [shape for graph in manifest.graphs for _, _, shape in manifest.responses(graph)]
        measured = sum(4 * prod(shape) for shape in shapes)
        specs = manifest.of_role(*names.EXCHANGED)
        self._limits = Limits.for_layout(specs, measured + RESPONSE_BYTES, len(shapes) + RESPONSE_TENSORS)
        self._budgets: dict[tuple[str, str], tuple[float, float]] = {}
        self.refused: dict[str, int] = {}
        """How often something that arrived was refused, by reason."""
        self.heard: dict[str, float] = {}
        """By device, when something last came from it."""

    def read(self, state: RunState, delivery: Delivery) -> Reading:
        """What follows from one message in this state."""
        try:
            address = self._topics.parse(delivery.topic)
        except UnknownTopic as error:
            self.count("unknown-topic", str(error))
            return Reading()
        device_id = address.device_id
        reading = Reading(device_id)
        if not self._affords(address):
            return reading
        try:
            self._read(state, address, delivery.payload, delivery.retained, reading)
        except WireError as error:
            reason: Reason = "too-large" if isinstance(error, LimitExceeded) else "malformed"
            self._refuse(reading, device_id, reason, str(error), address.kind, delivery)
            if address.kind == "update":  # the device would send the same again
                self._excuse(state, device_id, reading)
        except Exception as error:  # a defect of a reader must not end the service: the message is refused as what it is, not understood
            log.exception("defect in reading a message topic=%s", printable(delivery.topic))
            self._refuse(reading, device_id, "malformed", f"{type(error).__name__}: {error}", address.kind, delivery)
        return reading

    def count(self, reason: str, detail: str) -> None:
        """Count and log something that was refused."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        log.warning("refused reason=%s %s", reason, printable(detail))

    def unknown_blob(self, reading: Reading) -> Refuse:
        """The refusal of a fetch of what is not on offer."""
        self.count("unknown-blob", f"device={reading.device_id}: {reading.fetch}")
        return Refuse(reading.device_id, "unknown-blob", f"blob {reading.fetch[:12]} is not on offer", "fetch")

    def silent(self, state: RunState, since_s: float) -> list[str]:
        """The devices that count as online, and of which nothing has come since then."""
        return [d for d, known in state.devices.items() if known.online and max(known.last_seen_s, self.heard.get(d, 0.0)) < since_s]

    def _read(self, state: RunState, address: Address, payload: bytes, retained: bool, reading: Reading) -> None:
        readers: dict[str, Callable[[RunState, str, bytes, Reading], None]] = {
            "check-in": self._check_in,
            "update": self._update,
            "decline": self._decline,
            "fetch": self._fetch,
            "status": self._status,
        }
        if (reader := readers.get(address.kind)) is not None:
            reader(state, address.device_id, payload, reading)
            if not retained:
                self._hear(state, address.device_id, reading)

    def _check_in(self, _state: RunState, device_id: str, payload: bytes, reading: Reading) -> None:
        message: CheckIn = decode(payload, CheckIn)
        if self._own(message, device_id, "check-in", reading):
            said = (message.num_train, message.num_test, message.runtime, message.bundle)
            reading.events.append(DeviceCheckedIn(self._clock(), device_id, *said))

    def _update(self, state: RunState, device_id: str, payload: bytes, reading: Reading) -> None:
        name = digest(payload)
        message, tensors = decode_update(payload, self._limits)
        verdict = admit(state, device_id, message, tensors, name, len(payload))
        match verdict:
            case Refused(reason, detail):
                self._refuse(reading, device_id, reason, detail, "update", Delivery("", payload))
                if reason in ("wrong-layout", "not-finite", "norm-too-large"):
                    self._excuse(state, device_id, reading)
            case Duplicate():
                reading.replies.append(Acknowledge(device_id, name))
            case _:
                reading.update = payload
                reading.events.append(UpdateAdmitted(self._clock(), device_id, message.round, verdict))

    def _decline(self, state: RunState, device_id: str, payload: bytes, reading: Reading) -> None:
        message: Decline = decode(payload, Decline)
        if not self._own(message, device_id, "decline", reading):
            return
        log.warning("declined device=%s round=%d reason=%s: %s", device_id, message.round, message.reason, printable(message.detail))
        if (message.run_id, message.round, message.attempt) == (state.settings.run_id, state.round, state.attempt):
            if message.reason == "stale":
                reading.proof = message.proof
            else:
                self._excuse(state, device_id, reading, message.reason != "expired")

    def _excuse(self, state: RunState, device_id: str, reading: Reading, failed: bool = True) -> None:
        """Stop waiting in this round for the device, if the round does."""
        if device_id in state.cohort and device_id not in state.received:
            reading.events.append(DeviceDeclined(self._clock(), device_id, state.round, failed))

    def _fetch(self, _state: RunState, device_id: str, payload: bytes, reading: Reading) -> None:
        message: Fetch = decode(payload, Fetch)
        if self._own(message, device_id, "fetch", reading):
            reading.fetch = message.digest

    def _status(self, state: RunState, device_id: str, payload: bytes, reading: Reading) -> None:
        message: DeviceStatus = decode(payload, DeviceStatus)
        reading.gone = not message.online
        known = state.devices.get(device_id)
        if self._own(message, device_id, "status", reading) and reading.gone and known is not None and known.online:
            reading.events.append(DeviceLost(self._clock(), device_id))

    def _own(self, message: CheckIn | Decline | Fetch | DeviceStatus, device_id: str, kind: str, reading: Reading) -> bool:
        if message.device_id == device_id:
            return True
        detail = f"{kind} of {message.device_id} on the topic of {device_id}"
        self._refuse(reading, device_id, "wrong-device", detail, kind, Delivery("", b""))
        return False

    def _hear(self, state: RunState, device_id: str, reading: Reading) -> None:
        """A device that sends something is there, unless it says that it goes."""
        known = state.devices.get(device_id)
        if known is None or reading.gone:
            return
        self.heard[device_id] = self._clock()
        if not known.online and not any(isinstance(event, DeviceCheckedIn) for event in reading.events):
            reading.events.insert(0, DeviceHeard(self._clock(), device_id))

    def _refuse(self, reading: Reading, device_id: str, reason: Reason, detail: str, about: str, delivery: Delivery) -> None:
        self.count(reason, f"device={device_id}: {detail}")
        update = digest(delivery.payload) if about == "update" else ""
        reading.replies.append(Refuse(device_id, reason, printable(detail)[:1000], about, update))

    def _affords(self, address: Address) -> bool:
        """Whether the device may send one more of these messages now."""
        if address.kind not in RATES:
            return True
        most, a_second = RATES[address.kind]
        if len(self._budgets) > MOST_BUDGETS:
            self._budgets.clear()
        now_s, key = self._clock(), (address.device_id, address.kind)
        left, at_s = self._budgets.get(key, (most, now_s))
        left = min(most, left + a_second * (now_s - at_s))
        if left < 1:
            self.refused["too-many"] = self.refused.get("too-many", 0) + 1
            return False
        self._budgets[key] = left - 1, now_s
        return True
