"""What a message from a device means: an event, a reply, or nothing. Reads bytes, changes nothing
but its own counters."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from msgspec.structs import replace

from aggregator.core.admission import Duplicate, Refused, admit, expect
from aggregator.core.plan import asked_alone, place_of_plan
from aggregator.core.ports import Clock, StorageFailed
from aggregator.core.round.asking import is_missing
from aggregator.core.state import (
    DeviceCheckedIn,
    DeviceDeclined,
    DeviceHeard,
    DeviceLost,
    Event,
    RunState,
    UpdateAdmitted,
)
from aggregator.service.campaign import BUSY_S
from aggregator.service.devices import Devices
from aggregator.transfer.assembly import Assembly, NoRoom
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Limits, Tensors, decode_tensors
from wire.bundle import Manifest
from wire.codec import LARGEST_SUM, decode, decode_piece, decode_update, digest, encode
from wire.errors import ConfigError, LimitExceeded, Malformed, UnknownTopic, WireError, printable
from wire.links.port import Delivery
from wire.messages import (
    Acknowledge,
    Busy,
    CheckIn,
    Decline,
    DeviceStatus,
    Fetch,
    InUse,
    Offer,
    Piece,
    Reason,
    Refuse,
    Reply,
    Want,
)
from wire.pieces import MOST_BYTES, check_pieces
from wire.tasks import split_unlabelled
from wire.topics import Topics

log = logging.getLogger("shoal.aggregator")

RESPONSE_BYTES, RESPONSE_TENSORS = 4 * 2**20, 256
"""Room in an update, beside the model's tensors and its graphs' measurements, for responses to
inputs that were sent."""
RATES = {
    **dict.fromkeys(("check-in", "status", "decline", "in-use"), (20.0, 0.5)),
    "fetch": (200.0, 2.0),
    "update": (100.0, 1.0),
    "offer": (20.0, 0.5),
    "piece": (2000.0, 100.0),
}
"""By kind: how many messages a device may send at once, and how many a second on average."""
LOGGED = (50.0, 1.0)
"""By reason: how many refusals are logged at once, and how many a second on average."""
MOST_BUDGETS = 100_000
"""Of so many devices and kinds is it remembered, at most, how many messages they may send."""

MOST_MODELS = 1000
"""Of so many models are the statistics remembered, at most."""


Found = tuple[str, RunState] | None
"""The name and the state of a campaign, if there is one."""


@dataclass
class Reading:
    """What follows from a message: events, in order, replies, an update's bytes to keep, a blob
    that a device asks for, a proof."""

    device_id: str = ""
    about: str = ""
    """The kind of the message's topic."""
    digest: str = ""
    """Of an update, the digest of its bytes."""
    events: list[Event] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    update: bytes | None = None
    fetch: Fetch | None = None
    want: Want | None = None
    """Which pieces of its update a device is to send next."""
    gone: bool = False
    """Whether the device says that it is not there."""
    in_use: InUse | None = None
    """What a device says of the release that it uses."""
    proof: str = ""
    """A signed plan of a greater epoch, which a device showed."""
    campaign: str = ""
    """The name of the campaign that this is for; empty where there is none."""
    state: RunState | None = None
    """That campaign's state."""

    def is_for(self, found: "Found") -> None:
        """Note the campaign that a device or a run belongs to."""
        self.campaign, self.state = found or ("", None)


class Inbox:
    """Reads what devices send. Nothing that arrives raises: it is refused with a reason, or
    counted."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        offered: Callable[[str], bytes],
        devices: Devices,
        assembly: Assembly | None = None,
    ) -> None:
        """`offered`: the bytes of a blob that is on offer, by its digest. `assembly`: where large
        updates are put together; without, they have to come whole."""
        self._topics, self._clock, self._offered, self._devices, self._assembly = (
            topics,
            clock,
            offered,
            devices,
            assembly,
        )
        self._statistics = lru_cache(MOST_MODELS)(self._read_statistics)
        self._limits = Limits(0, 0, 0)
        self._budgets: dict[tuple[str, str], tuple[float, float]] = {}
        self.refused: dict[str, int] = {}
        """Number of refused messages by reason."""
        self._readers: dict[str, Callable[[bytes, Reading], None]] = {
            "check-in": self._check_in,
            "update": self._update,
            "offer": self._offer,
            "piece": self._piece,
            "decline": self._decline,
            "fetch": self._fetch,
            "status": self._status,
            "in-use": self._in_use,
        }
        self.heard: dict[str, float] = {}
        """By device, when something last came from it."""

    def admit_updates_of(self, manifest: Manifest) -> None:
        """Read updates that are as large as those of this bundle.

        Raises:
            ConfigError: they may be larger than what this service takes.
        """
        shapes = [shape for graph in manifest.graphs for _, _, shape in manifest.responses(graph)]
        measured = sum(4 * prod(shape) for shape in shapes)
        specs = manifest.of_role(*names.EXCHANGED)
        tensors = len(specs) + len(shapes) + RESPONSE_TENSORS
        header = 256 * tensors + 64 * 2**10
        data = sum(spec.num_bytes for spec in specs) + measured + RESPONSE_BYTES
        limits = Limits(8 + header + data, header, tensors)
        most = self._assembly.most_bytes if self._assembly is not None else MOST_BYTES
        if limits.total_bytes > most:
            update = f"an update of bundle {manifest.name} may have {limits.total_bytes} bytes"
            raise ConfigError(
                f"{update}, {most} are the most that are taken: --max-payload permits more, here "
                "and on devices"
            )
        self._limits = Limits(*map(max, self._limits, limits))

    def forget(self, device_id: str) -> None:
        """Remember nothing of a device."""
        self.heard.pop(device_id, None)
        self._budgets = {
            key: budget for key, budget in self._budgets.items() if key[0] != device_id
        }

    def read(
        self, delivery: Delivery, of_device: Callable[[str], Found], of_run: Callable[[str], Found]
    ) -> Reading:
        """What follows from one message. `of_device`, `of_run`: the campaign that a device works
        for, and that a run is."""
        try:
            address = self._topics.parse(delivery.topic)
        except UnknownTopic as error:
            self.count("unknown-topic", str(error))
            return Reading()
        reading = Reading(address.device_id, address.kind)
        if address.kind not in self._readers:
            return reading
        if self._devices.is_banned(address.device_id):
            self.count("banned", f"device={address.device_id} {address.kind}")
            return reading
        if not self._affords((address.device_id, address.kind), *RATES[address.kind]):
            self.refused["too-many"] = self.refused.get("too-many", 0) + 1
            return reading
        if address.kind == "update":
            reading.digest = digest(delivery.payload)
        self._of_run, self._of_device = of_run, of_device
        reading.is_for(of_device(reading.device_id))
        try:
            self._readers[address.kind](delivery.payload, reading)
            if not delivery.retained:
                self._hear(reading)
        except WireError as error:
            self.refuse(
                reading,
                "too-large" if isinstance(error, LimitExceeded) else "malformed",
                str(error),
            )
            if reading.about == "update":  # the device would send the same again
                self._excuse(reading)
        # a defect of a reader must not end the service: the message is refused as what it is, not
        # understood
        except Exception as error:
            log.exception("defect in reading a message topic=%s", printable(delivery.topic))
            self.refuse(reading, "malformed", f"{type(error).__name__}: {error}")
        return reading

    def count(self, reason: str, detail: str) -> None:
        """Count and log something that was refused."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if self._affords(("", reason), *LOGGED):
            log.warning(
                "refused reason=%s times=%d %s", reason, self.refused[reason], printable(detail)
            )

    def _check_in(self, payload: bytes, reading: Reading) -> None:
        message: CheckIn = decode(payload, CheckIn)
        if not self._own(message, reading):
            return
        texts = {
            name: printable(getattr(message, name)) for name in ("client", "runtime", "hardware")
        }
        message = replace(message, **texts)
        self._devices.on_check_in(message)
        reading.is_for(self._of_device(reading.device_id))  # by what it says now
        if reading.state is not None:
            counts = message.num_train, message.num_test
            if not reading.state.settings.needs_labels:
                counts = split_unlabelled(*counts, message.num_unlabelled)
            said = (*counts, message.runtime, message.bundle, message.moved)
            eligible = self._devices.may_be_asked(reading.device_id, reading.state.settings.where)
            withholds = message.policy is not None and message.policy.withholds
            untested = message.policy is not None and 0 < counts[1] < message.policy.min_windows
            # what decides if it can carry out a plan: its windows, its programs, its policy
            terms = CheckIn(
                "",
                message.num_train,
                message.num_test,
                message.bundle,
                message.client,
                message.runtime,
                num_unlabelled=message.num_unlabelled,
                policy=message.policy,
            )
            short = digest(encode(terms))[:16]
            own = (eligible, message.encodings, withholds, short, untested)
            reading.events.append(
                DeviceCheckedIn(self._clock(), reading.device_id, *said, *own, held=message.kept)
            )

    def _update(self, payload: bytes, reading: Reading) -> None:
        message, tensors = decode_update(payload, self._limits)
        if (found := self._of_run(message.run_id)) is not None:
            reading.is_for(found)
        if reading.state is None:
            self.refuse(reading, "unknown-run", f"run {message.run_id[:12]} is not here")
            return
        verdict = admit(
            reading.state,
            reading.device_id,
            message,
            tensors,
            reading.digest,
            len(payload),
            self._statistics,
        )
        match verdict:
            case Refused(reason, detail):
                self.refuse(reading, reason, detail)
                if reason in ("wrong-layout", "not-finite", "norm-too-large"):
                    self._excuse(reading)
            case Duplicate():
                reading.replies.append(Acknowledge(reading.device_id, reading.digest))
            case _:
                reading.update = payload
                reading.events.append(
                    UpdateAdmitted(self._clock(), reading.device_id, message.round, verdict)
                )
                asked = bool(reading.state.settings.candidates) and reading.state.phase in (
                    "evaluating",
                    "finished",
                )
                self._devices.on_update(message, len(payload), chooses=asked)
                if verdict.kept is not None:
                    self._devices.on_kept(
                        reading.device_id, reading.state.settings.name, message.round, verdict.kept
                    )

    def _offer(self, payload: bytes, reading: Reading) -> None:
        message: Offer = decode(payload, Offer)
        if not self._own(message, reading):
            return
        reading.about, reading.digest = "update", message.pieces.digest
        reading.is_for(self._of_run(message.run_id))
        check_pieces(message.pieces, self._limits.total_bytes)
        self._assemble(message, reading)

    def _piece(self, payload: bytes, reading: Reading) -> None:
        message, piece = decode_piece(payload)
        offer = self._assembly.offer_of(reading.device_id) if self._assembly is not None else None
        if (
            not self._own(message, reading)
            or offer is None
            or offer.pieces.digest != message.update
        ):
            return  # of an update that is done with
        reading.about, reading.digest = "update", message.update
        reading.is_for(self._of_run(offer.run_id))
        self._assemble(offer, reading, message, piece)

    def _assemble(
        self, offer: Offer, reading: Reading, piece: Piece | None = None, payload: bytes = b""
    ) -> None:
        """Go on with an update that comes in pieces, as long as it may still come; once it is whole
        it is read as any other."""
        if reading.state is None or self._assembly is None:
            self.refuse(
                reading, "unknown-run", f"run {offer.run_id[:12]} is not here, or takes no pieces"
            )
            return
        device_id, assembly = reading.device_id, self._assembly
        problem, whole = (
            expect(reading.state, device_id, offer.run_id, offer.round, reading.digest),
            None,
        )
        try:
            if problem is None:
                assembly.begin(offer)
                if piece is not None and not assembly.put(
                    device_id, piece.update, piece.index, payload
                ):
                    problem = Refused(
                        "malformed",
                        f"piece {piece.index} of update {piece.update[:12]} is not what was "
                        "offered",
                    )
            if problem is None and (wanted := assembly.wanted(device_id)):
                reading.want = Want(device_id, reading.digest, wanted)
                return
            whole = assembly.take(device_id) if problem is None else None
        except NoRoom as error:
            self.count("no-room", f"device={device_id}: {error}")
            reading.replies.append(Busy(device_id, reading.digest, BUSY_S))
            return
        if isinstance(problem, Duplicate):
            reading.replies.append(Acknowledge(device_id, reading.digest))
        elif problem is not None or whole is None:
            problem = problem or Refused(
                "malformed",
                f"the pieces of update {reading.digest[:12]} have another hash together",
            )
            self.refuse(reading, problem.reason, problem.detail)
            if problem.reason == "malformed":
                self._excuse(reading)
        else:
            try:
                self._update(whole, reading)
            except WireError:
                assembly.drop(device_id)
                raise
        if reading.update is None:  # else it stays until it is safe
            assembly.drop(device_id)

    def _read_statistics(self, model: str) -> Tensors:
        tensors, _ = decode_tensors(self._offered(model), OWN_FILES)
        return {
            name: array.copy() for name, array in names.of_role(tensors, names.STATISTIC).items()
        }

    def _decline(self, payload: bytes, reading: Reading) -> None:
        message: Decline = decode(payload, Decline)
        if not self._own(message, reading):
            return
        reading.is_for(self._of_run(message.run_id))
        detail = printable(message.detail)
        log.warning(
            "declined device=%s round=%d reason=%s: %s",
            reading.device_id,
            message.round,
            message.reason,
            detail,
        )
        state = reading.state
        self._devices.on_decline(message, reading.campaign, detail)
        if state is not None and (message.round, message.attempt) == place_of_plan(
            state, reading.device_id
        ):
            if message.reason == "stale":
                reading.proof = message.proof
            else:
                self._excuse(
                    reading,
                    message.reason != "expired",
                    message.reason == "policy",
                    message.reason == "failed",
                )

    def _fetch(self, payload: bytes, reading: Reading) -> None:
        message: Fetch = decode(payload, Fetch)
        if self._own(message, reading):
            reading.fetch = message

    def _in_use(self, payload: bytes, reading: Reading) -> None:
        message: InUse = decode(payload, InUse)
        sums = (message.evaluated, message.before)
        if not all(
            abs(m.loss_sum) <= LARGEST_SUM and m.num_correct <= m.num_examples for m in sums
        ):
            raise Malformed(f"in-use: metrics that cannot be: {sums}")
        if not 0 <= message.latency_ms <= LARGEST_SUM:
            raise Malformed(f"in-use: latency_ms {message.latency_ms}")
        if self._own(message, reading):
            reading.in_use = message = replace(
                message, problem=printable(message.problem), alone=printable(message.alone)
            )
            self._devices.change(
                message.device_id,
                release=message.number,
                release_problem=message.problem,
                release_alone=message.alone,
            )

    def _status(self, payload: bytes, reading: Reading) -> None:
        if not payload:  # it was cleared
            reading.gone = True
            return
        message: DeviceStatus = decode(payload, DeviceStatus)
        reading.gone = not message.online
        known = reading.state.devices.get(reading.device_id) if reading.state is not None else None
        if not self._own(message, reading):
            return
        if reading.gone and known is not None and known.online:
            reading.events.append(DeviceLost(self._clock(), reading.device_id))
        if not message.withdrawn:
            return
        # confirmed once it is safe; what cannot be noted is said again by the device
        reading.gone = True
        self._excuse(reading, failed=False)
        try:
            self._devices.withdraw(reading.device_id)
        except StorageFailed as error:
            log.error("the withdrawal of device=%s is not noted: %s", reading.device_id, error)
            return
        log.info("withdrawn device=%s", reading.device_id)
        reading.replies.append(Acknowledge(reading.device_id, digest(payload)))

    def _excuse(
        self, reading: Reading, failed: bool = True, forbidden: bool = False, again: bool = False
    ) -> None:
        """Stop waiting in this round for the device, if the round does, or for what it is to tell
        of its inputs."""
        state = reading.state
        if state is not None and (
            is_missing(state, reading.device_id)
            or asked_alone(state, reading.device_id) is not None
        ):
            reading.events.append(
                DeviceDeclined(
                    self._clock(), reading.device_id, state.round, failed, forbidden, again
                )
            )

    def _own(
        self,
        message: CheckIn | Decline | Offer | Piece | Fetch | DeviceStatus | InUse,
        reading: Reading,
    ) -> bool:
        if message.device_id == reading.device_id:
            return True
        self.refuse(
            reading,
            "wrong-device",
            f"{reading.about} of {message.device_id} on the topic of {reading.device_id}",
        )
        return False

    def _hear(self, reading: Reading) -> None:
        """A device that sends something is there, unless it says that it goes. One that has not
        checked in is told to: the broker may have dropped what it sent."""
        if reading.state is None:
            return
        known = reading.state.devices.get(reading.device_id)
        if known is None or reading.gone:
            if reading.about == "status" and not reading.gone and not reading.replies:
                detail = "it has not checked in: it is to do so"
                reading.replies.append(
                    Refuse(reading.device_id, "unknown-device", detail, reading.about)
                )
            return
        self.heard[reading.device_id] = self._clock()
        self._devices.on_heard(reading.device_id)
        if not known.online and not any(
            isinstance(event, DeviceCheckedIn) for event in reading.events
        ):
            reading.events.insert(0, DeviceHeard(self._clock(), reading.device_id))

    def refuse(self, reading: Reading, reason: Reason, detail: str) -> None:
        """Refuse a message with a reply; count and log it."""
        self.count(reason, f"device={reading.device_id}: {detail}")
        reading.replies.append(
            Refuse(
                reading.device_id, reason, printable(detail)[:1000], reading.about, reading.digest
            )
        )

    def _affords(self, key: tuple[str, str], most: float, a_second: float) -> bool:
        """Whether there may be one more now of what there may be `most` at once, and so many a
        second on average."""
        if len(self._budgets) > MOST_BUDGETS:
            self._budgets.clear()
        now_s = self._clock()
        left, at_s = self._budgets.get(key, (most, now_s))
        left = min(most, left + a_second * (now_s - at_s))
        if left < 1:
            return False
        self._budgets[key] = left - 1, now_s
        return True
