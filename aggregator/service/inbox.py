"""Reading of devices' messages: a message becomes events of the fleet, a reply, or nothing.

Reading changes nothing but counters and telemetry. No message raises an error: a bad one is refused
with a reason.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite, prod

import msgspec
from msgspec.structs import replace

from aggregator.aggregation.admission import (
    Duplicate,
    Refusal,
    admit,
    assignment_in,
    campaign_of_run,
    expect,
)
from aggregator.aggregation.sums import masks_blob
from aggregator.fleet.eligibility import outdated
from aggregator.fleet.events import (
    AssignmentDeclined,
    CheckedIn,
    Event,
    Seen,
    SumAnswered,
    Updated,
    UsesRelease,
)
from aggregator.fleet.records import MOST_TAGS, Fleet
from aggregator.ports import BlobLost, Clock, StorageFailed
from aggregator.service.telemetry import Telemetry
from aggregator.transfer.assembly import Assembly, NoRoom
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Limits, Tensors, decode_tensors
from wire.bundle import Manifest
from wire.codec import LARGEST_SUM, decode, decode_piece, decode_update, digest
from wire.errors import (
    ConfigError,
    LimitExceeded,
    Malformed,
    ShoalError,
    UnknownTopic,
    WireError,
    printable,
)
from wire.identity.certificates import new_tls_key
from wire.links.port import Delivery
from wire.messages import (
    ERROR_BYTES,
    LONGEST_TEXT,
    Acknowledge,
    Busy,
    CheckIn,
    Decline,
    DeviceStatus,
    ErrorReport,
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
from wire.secret.messages import MaskSums
from wire.secret.payloads import decode_answer, read_sums, unseal_sums
from wire.topics import Kind, Topics

log = logging.getLogger("shoal.aggregator")

BUSY_S = 30.0
"""Seconds after which a device sends its update again if the service is busy."""
RESPONSE_BYTES, RESPONSE_TENSORS = 4 * 2**20, 256
"""Bytes and number of tensors of an update that are reserved for responses to inputs.

They come in addition to the model's tensors and the measurements of its graphs.
"""
RATES = {
    **dict.fromkeys(("check-in", "status", "decline", "in-use"), (20.0, 0.5)),
    "fetch": (200.0, 2.0),
    "update": (100.0, 1.0),
    "offer": (20.0, 0.5),
    "piece": (2000.0, 100.0),
    "error": (5.0, 0.1),
}
"""Maximum burst of messages of a device, and messages per second on average, by kind."""
ANSWERS = (200.0, 20.0)
"""Maximum burst of messages of a helper, and messages per second on average."""
LOGGED = (50.0, 1.0)
"""Maximum burst of logged refusals of a reason, and refusals per second on average."""
MOST_BUDGETS = 100_000
"""Maximum number of pairs of device and kind whose recent messages are counted."""
MOST_MODELS = 1000
"""Maximum number of models whose statistics are cached."""


class ClientName(msgspec.Struct, frozen=True):
    """Versions of the client that wrote a message, if the message has them."""

    client: str = ""
    app: str = ""
    protocol: str = ""


@dataclass
class Reading:
    """Consequences of a message."""

    device_id: str = ""
    about: str = ""
    """Kind of the message's topic; ``update`` for offers and pieces of updates."""
    digest: str = ""
    """Digest of an update's bytes."""
    campaign: str = ""
    """Name of the campaign that an update or a decline belongs to; empty if there is none."""
    events: list[Event] = field(default_factory=list)
    """Events of the fleet, in order."""
    update: bytes | None = None
    """Bytes of an update, to be stored before its event."""
    replies: list[Reply] = field(default_factory=list)
    """Replies to send after the events are stored. They are not sent if storing fails."""
    fetch: Fetch | None = None
    """Request of the device for a blob."""
    want: Want | None = None
    """Pieces of the update that the device should send next."""
    masks: bytes | None = None
    """Blob with a helper's sums of masks, to be stored before its event."""
    proof: str = ""
    """Signed plan of a greater epoch that the device has presented."""
    is_leaving: bool = False
    """True if the device reports that it is going offline."""
    clears: tuple[Kind, ...] = ()
    """Kind of the device's topic on which the broker retains a message that must be cleared."""


class FleetInbox:
    """Reader of devices' messages, with limits for each device."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        offered: Callable[[str], bytes],
        telemetry: Telemetry,
        assembly: Assembly | None = None,
        *,
        silence_s: float = float("inf"),
        tags: Callable[[str], tuple[str, ...]] = lambda _device_id: (),
    ) -> None:
        """Create a reader without devices.

        `offered`: returns the bytes of an offered blob by its digest, or raises KeyError.
        `assembly`: joins the pieces of large updates; without it, updates must come whole.
        `silence_s`: seconds of silence after which a device is considered offline. `tags`: returns
        the tags of a device's enrolment.
        """
        self._topics, self._clock, self._offered = topics, clock, offered
        self._telemetry, self._assembly = telemetry, assembly
        self._silence_s, self._enrolment_tags = silence_s, tags
        self._fleet = Fleet()
        self._read = lru_cache(MOST_MODELS)(self._read_statistics)
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
            "error": self._error,
        }
        self.sums_key = new_tls_key()
        """Key to which helpers seal sums; after a start, they are asked again for another one."""
        self._heard: dict[str, float] | None = None
        """Time of each device's last message, in the order of these times.

        None before the first check for silent devices.
        """

    def admit_updates_of(self, manifest: Manifest) -> None:
        """Raise the limits so that updates of this bundle can be read.

        Raises:
            ConfigError: the updates may be larger than this service accepts.
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
            update = f"bundle {manifest.name}: an update may have {limits.total_bytes} bytes"
            raise ConfigError(
                f"{update}, but at most {most} are accepted; raise --max-payload here and on "
                "devices"
            )
        self._limits = Limits(*map(max, self._limits, limits))

    def forget(self, device_id: str) -> None:
        """Delete everything that is remembered of a device."""
        if self._heard is not None:
            self._heard.pop(device_id, None)
        if self._assembly is not None:
            self._assembly.drop(device_id)
        self._budgets = {
            key: budget for key, budget in self._budgets.items() if key[0] != device_id
        }

    def silent(self, fleet: Fleet) -> list[Event]:
        """Return the events by which silent devices are taken for offline.

        After a start, devices have `silence_s` seconds to be heard. The cost depends on the number
        of silent devices only.
        """
        now_s = self._clock()
        if self._heard is None:
            online = sorted(d for d, device in fleet.devices.items() if device.online)
            self._heard = dict.fromkeys(online, now_s)
        events = list[Event]()
        for device_id in list(self._before(now_s - self._silence_s)):
            device = fleet.devices.get(device_id)
            if device is not None and device.online:
                events.append(Seen(at_s=now_s, device_id=device_id, online=False))
            else:
                del self._heard[device_id]
        return events

    def read(self, delivery: Delivery, fleet: Fleet) -> Reading:
        """Return the consequences of one message. `fleet`: the fleet after all earlier messages."""
        self._fleet = fleet
        try:
            address = self._topics.parse(delivery.topic)
        except UnknownTopic as error:
            self.count("unknown-topic", str(error))
            return Reading()
        if address.helper:
            return self._answer(address.helper, delivery.payload)
        reading = Reading(address.device_id, address.kind)
        # without a payload, it is a retained message that was cleared
        if address.kind not in self._readers or not delivery.payload:
            return reading
        device = fleet.devices.get(address.device_id)
        is_banned = device is not None and device.ban is not None
        # a new device may have been online before the service
        if delivery.retained and (is_banned or address.kind != "status"):
            self._clear(reading, address.kind, delivery)
            return reading
        is_afforded = self._affords((address.device_id, address.kind), *RATES[address.kind])
        if is_banned:
            self.count("banned", f"device={address.device_id} {address.kind}")
            # the broker may retain it: a delivery to a subscriber does not tell
            reading.clears = (address.kind,) if is_afforded else ()
            return reading
        if not is_afforded:
            self.refused["too-many"] = self.refused.get("too-many", 0) + 1
            return reading
        if address.kind == "update":
            reading.digest = digest(delivery.payload)
        try:
            self._readers[address.kind](delivery.payload, reading)
            if not delivery.retained:
                self._hear(reading)
        except WireError as error:
            if delivery.retained:
                self._clear(reading, address.kind, delivery)
                return reading
            reason: Reason = "too-large" if isinstance(error, LimitExceeded) else "malformed"
            detail = f"{error}{self._advice(delivery.payload, reading)}"
            self.refuse(reading, reason, detail)
            # the device would send the same update again
            if reading.about == "update":
                self._refuse_update(reading, reason, detail)
        except (BlobLost, StorageFailed) as error:
            self.count("blob-unread", f"device={reading.device_id}: {error}")
            reading.events = []
            reading.replies = [Busy(reading.device_id, reading.digest, BUSY_S)]
        # A defect of a reader must not end the service, so the message is refused as malformed.
        except Exception as error:
            topic = printable(delivery.topic)
            log.exception("Message not read because of a defect: topic=%s", topic)
            reading.events, reading.update = [], None
            self.refuse(reading, "malformed", f"{type(error).__name__}: {error}")
        return reading

    def _answer(self, name: str, payload: bytes) -> Reading:
        """Return the consequences of a helper's message."""
        reading, problem = Reading(), ""
        if not payload or not self._affords((name, "answer"), *ANSWERS):
            return reading
        for campaign in self._fleet.campaigns.values():
            helper = next((h for h in campaign.settings.helpers if h.name == name), None)
            if not campaign.sums or helper is None:
                continue
            try:
                answer, signature, sealed = decode_answer(payload, helper.public)
                if isinstance(answer, MaskSums):
                    secret = next((s for s in campaign.sums.values() if s.set == answer.set), None)
                    if secret is None:
                        continue  # sums of an earlier set
                    text = unseal_sums(sealed, self.sums_key, secret.set)
                    read_sums(secret.question, answer.helper, text)
                    reading.masks = masks_blob(answer, text)
            except WireError as error:  # also an answer from before a start, to another key
                problem = str(error)
                continue
            except Exception as error:  # a defect of the reader must not end the service
                log.exception("Answer not read because of a defect: helper=%s", name)
                self.count("bad-answer", f"helper={name}: {type(error).__name__}")
                continue
            reading.campaign = campaign.name
            reading.events = [
                SumAnswered(
                    at_s=self._clock(),
                    campaign=campaign.name,
                    answer=answer,
                    signature=signature,
                    blob=digest(reading.masks) if reading.masks is not None else "",
                )
            ]
            return reading
        if problem:
            self.count("bad-answer", f"helper={name}: {problem}")
        return reading

    def _clear(self, reading: Reading, kind: Kind, delivery: Delivery) -> None:
        """Have a message cleared that a device should not have had the broker retain.

        It is counted, also under the device if the fleet has a record of it, and the log names the
        device.
        """
        reading.clears = (kind,)
        if reading.device_id in self._fleet.devices:
            self._telemetry.on_retained(reading.device_id)
        size = len(delivery.payload)
        self.count("retained", f"device={reading.device_id} topic={kind} bytes={size}: cleared")

    def count(self, reason: str, detail: str) -> None:
        """Count a refusal, and log it within the limit."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if self._affords(("", reason), *LOGGED):
            message, times = "Message refused: reason=%s times=%d %s", self.refused[reason]
            log.warning(message, reason, times, printable(detail))

    def _check_in(self, payload: bytes, reading: Reading) -> None:
        message: CheckIn = decode(payload, CheckIn)
        if not self._is_own(message, reading):
            return
        device = self._fleet.devices.get(reading.device_id)
        if device is not None and device.is_second(message) and device.facts is not None:
            detail = (
                f"another device uses this identity: this one is at start {message.start} of its "
                f"client, and the known one at {device.facts.start}"
            )
            self.refuse(reading, "second-device", detail, message.instance)
        texts = {
            name: _one_line(getattr(message, name))
            for name in ("client", "runtime", "hardware", "protocol", "app")
        }
        reading.events.append(
            CheckedIn(
                at_s=self._clock(),
                device_id=reading.device_id,
                facts=replace(message, **texts),
                tags=self._first_tags(reading.device_id),
            )
        )

    def _first_tags(self, device_id: str) -> tuple[str, ...]:
        """Return the enrolment tags of a device that has never checked in, else nothing."""
        device = self._fleet.devices.get(device_id)
        if device is not None and device.facts is not None:
            return ()
        try:
            tags = self._enrolment_tags(device_id)
            number = len({*tags, *(device.tags if device is not None else ())})
            if number > MOST_TAGS:
                raise ConfigError(
                    f"it would have {number} tags; at most {MOST_TAGS} are allowed. Remove some of "
                    "its tags, then add these"
                )
        except ShoalError as error:
            log.error("Device did not get its enrolment's tags: device=%s: %s", device_id, error)
            return ()
        return tags

    def _update(self, payload: bytes, reading: Reading) -> None:
        message, tensors = decode_update(payload, self._limits)
        self._is_for(message.run_id, reading)
        fleet, device_id, num_bytes = self._fleet, reading.device_id, len(payload)
        verdict = admit(
            fleet, device_id, message, tensors, reading.digest, num_bytes, self._statistics
        )
        match verdict:
            case Refusal(reason, detail):
                self.refuse(reading, reason, detail)
                if reason in ("wrong-layout", "not-finite", "norm-too-large"):
                    self._refuse_update(reading, reason, detail)
            case Duplicate():
                reading.replies.append(Acknowledge(device_id, reading.digest))
            case received:
                device = fleet.devices[device_id]
                work = device.assignment
                assert work is not None
                reading.update = payload
                reading.events.append(
                    Updated(
                        at_s=self._clock(),
                        device_id=device_id,
                        serial=work.serial,
                        update=received,
                        model=message.model if work.kind == "personalise" else "",
                        node=message.node,
                        train_s=message.train_s,
                    )
                )
                self._telemetry.on_update(message, device, work, num_bytes)

    def _offer(self, payload: bytes, reading: Reading) -> None:
        message: Offer = decode(payload, Offer)
        if not self._is_own(message, reading):
            return
        reading.about, reading.digest = "update", message.pieces.digest
        self._is_for(message.run_id, reading)
        check_pieces(message.pieces, self._limits.total_bytes)
        self._assemble(message, reading)

    def _piece(self, payload: bytes, reading: Reading) -> None:
        message, piece = decode_piece(payload)
        offer = self._assembly.offer_of(reading.device_id) if self._assembly is not None else None
        if (
            not self._is_own(message, reading)
            or offer is None
            or offer.pieces.digest != message.update
        ):
            return  # a piece of an update that is already complete or dropped
        reading.about, reading.digest = "update", message.update
        self._is_for(offer.run_id, reading)
        self._assemble(offer, reading, message, piece)

    def _assemble(
        self, offer: Offer, reading: Reading, piece: Piece | None = None, payload: bytes = b""
    ) -> None:
        """Continue with an update in pieces. A complete update is read like any other."""
        device_id, assembly = reading.device_id, self._assembly
        if assembly is None:
            detail = f"run {offer.run_id[:12]} accepts no updates in pieces"
            self.refuse(reading, "unknown-run", detail)
            return
        identity = device_id, offer.run_id, offer.round, None, reading.digest
        problem, whole = expect(self._fleet, *identity), None
        try:
            if problem is None:
                assembly.begin(offer)
                if piece is not None and not assembly.put(
                    device_id, piece.update, piece.index, payload
                ):
                    problem = Refusal(
                        "malformed",
                        f"piece {piece.index} of update {piece.update[:12]} does not have the "
                        "offered hash",
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
            problem = problem or Refusal(
                "malformed",
                f"the pieces of update {reading.digest[:12]} together do not have its hash",
            )
            self.refuse(reading, problem.reason, problem.detail)
            if problem.reason == "malformed":
                self._refuse_update(reading, problem.reason, problem.detail)
        else:
            try:
                self._update(whole, reading)
            except WireError:
                assembly.drop(device_id)
                raise
        if reading.update is None:  # else it stays until the update is stored
            assembly.drop(device_id)

    def _statistics(self, model: str) -> Tensors | None:
        try:
            return self._read(model)
        except KeyError:
            return None

    def _read_statistics(self, model: str) -> Tensors:
        tensors, _ = decode_tensors(self._offered(model), OWN_FILES)
        return {
            name: array.copy() for name, array in names.of_role(tensors, names.STATISTIC).items()
        }

    def _decline(self, payload: bytes, reading: Reading) -> None:
        message: Decline = decode(payload, Decline)
        if not self._is_own(message, reading):
            return
        self._is_for(message.run_id, reading)
        detail = printable(message.detail)
        # an owner's policy is everyday
        log.log(
            logging.DEBUG if message.reason == "policy" else logging.WARNING,
            "Assignment declined: device=%s round=%d reason=%s: %s",
            reading.device_id,
            message.round,
            message.reason,
            detail,
        )
        if self._knows(reading.device_id):
            self._telemetry.on_decline(message, reading.campaign, detail)
        campaign = self._fleet.campaigns.get(reading.campaign)
        device = self._fleet.devices.get(reading.device_id)
        work = assignment_in(campaign, device) if campaign is not None else None
        if work is None or (message.round, message.attempt) != (work.round, work.serial):
            return
        if message.reason == "stale":
            reading.proof = message.proof
            return
        forbidden = message.reason == "policy" and work.kind in ("survey", "train")
        self._decline_for(reading, forbidden=forbidden)

    def _fetch(self, payload: bytes, reading: Reading) -> None:
        message: Fetch = decode(payload, Fetch)
        if self._is_own(message, reading):
            reading.fetch = message

    def _in_use(self, payload: bytes, reading: Reading) -> None:
        message: InUse = decode(payload, InUse)
        sums = (message.evaluated, message.before)
        if not all(
            abs(m.loss_sum) <= LARGEST_SUM and m.num_correct <= m.num_examples for m in sums
        ):
            raise Malformed(f"in-use: impossible metrics: {sums}")
        if not 0 <= message.latency_ms <= LARGEST_SUM:
            raise Malformed(
                f"in-use: latency_ms must be between 0 and {LARGEST_SUM:g}, got "
                f"{message.latency_ms}"
            )
        if self._is_own(message, reading) and self._knows(reading.device_id):
            texts = {"problem": _one_line(message.problem), "alone": _one_line(message.alone)}
            reading.events.append(
                UsesRelease(
                    at_s=self._clock(),
                    device_id=reading.device_id,
                    in_use=replace(message, **texts),
                )
            )

    def _error(self, payload: bytes, reading: Reading) -> None:
        if len(payload) > ERROR_BYTES:
            raise LimitExceeded(
                f"error of {len(payload)} bytes: at most {ERROR_BYTES} are accepted"
            )
        message: ErrorReport = decode(payload, ErrorReport)
        if self._is_own(message, reading) and self._knows(reading.device_id):
            texts = {
                name: _one_line(getattr(message, name))
                for name in ("what", "error", "message", "client", "app")
            }
            frames = tuple(map(_one_line, message.frames))
            self._telemetry.on_error(replace(message, frames=frames, **texts))

    def _advice(self, payload: bytes, reading: Reading) -> str:
        """Return the advice to update if an older client sent an unreadable message, else empty."""
        device, sender = self._fleet.devices.get(reading.device_id), ClientName()
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            sender = msgspec.json.decode(payload, type=ClientName)
        if not sender.client and device is not None and device.facts is not None:
            facts = device.facts
            sender = ClientName(facts.client, facts.app, facts.protocol)
        texts = (printable(text)[:80] for text in (sender.client, sender.app, sender.protocol))
        advice = outdated(*texts)
        return f"; {advice}" if advice else ""

    def _status(self, payload: bytes, reading: Reading) -> None:
        message: DeviceStatus = decode(payload, DeviceStatus)
        reading.is_leaving = not message.online or bool(message.withdrawn)
        device = self._fleet.devices.get(reading.device_id)
        if not self._is_own(message, reading):
            return
        if message.online and isfinite(message.at_s) and self._knows(reading.device_id):
            self._telemetry.on_clock(reading.device_id, message.at_s)
        if message.withdrawn:
            number = int(message.withdrawn[:13], 16) or 1
            reading.replies.append(Acknowledge(reading.device_id, digest(payload)))
            if device is not None and number in device.once:
                return
            gone = Seen(
                at_s=self._clock(), device_id=reading.device_id, online=False, withdrawal=number
            )
            reading.events.append(gone)
            log.info("Device withdrawn by its owner: device=%s", reading.device_id)
        elif reading.is_leaving and device is not None and device.online:
            reading.events.append(
                Seen(at_s=self._clock(), device_id=reading.device_id, online=False)
            )

    def _refuse_update(self, reading: Reading, reason: Reason, detail: str) -> None:
        """Record that the update of a device's assignment was refused for its contents."""
        device = self._fleet.devices.get(reading.device_id)
        if device is not None and device.assignment is not None:
            text = _one_line(detail)
            self._telemetry.on_refusal(reading.device_id, device.assignment, reason, text)
        self._decline_for(reading, too_large=reason != "wrong-layout")

    def _decline_for(
        self, reading: Reading, forbidden: bool = False, too_large: bool = False
    ) -> None:
        """Record that the assignment of a device is declined."""
        device = self._fleet.devices.get(reading.device_id)
        if device is not None and device.assignment is not None:
            reading.events.append(
                AssignmentDeclined(
                    at_s=self._clock(),
                    device_id=reading.device_id,
                    serial=device.assignment.serial,
                    forbidden=forbidden,
                    too_large=too_large,
                )
            )

    def _is_for(self, run_id: str, reading: Reading) -> None:
        """Record the campaign of a run, if it is known."""
        campaign = campaign_of_run(self._fleet, run_id)
        reading.campaign = campaign.name if campaign is not None else ""

    def _is_own(
        self,
        message: CheckIn | Decline | ErrorReport | Offer | Piece | Fetch | DeviceStatus | InUse,
        reading: Reading,
    ) -> bool:
        """Return True if a message came on the topic of its own device, else refuse it."""
        if message.device_id == reading.device_id:
            return True
        self.refuse(
            reading,
            "wrong-device",
            f"{reading.about} of {message.device_id} on the topic of {reading.device_id}",
        )
        return False

    def _knows(self, device_id: str) -> bool:
        """Return True if a device has checked in."""
        device = self._fleet.devices.get(device_id)
        return device is not None and device.facts is not None

    def _hear(self, reading: Reading) -> None:
        """Record that the sender of a message is online, unless the message says that it leaves.

        A device that has not checked in is told to do so, because the broker may have dropped its
        check-in.
        """
        device_id = reading.device_id
        checks_in = any(isinstance(event, CheckedIn) for event in reading.events)
        is_known = self._knows(device_id) or checks_in
        if not is_known or reading.is_leaving:
            if reading.about == "status" and not reading.is_leaving and not reading.replies:
                detail = "the device has not checked in; it has to do so first"
                reading.replies.append(Refuse(device_id, "unknown-device", detail, reading.about))
            return
        self._telemetry.on_heard(device_id)
        if self._heard is not None:
            self._heard.pop(device_id, None)
            self._heard[device_id] = self._clock()
        if not checks_in and not self._fleet.devices[device_id].online:
            back = Seen(at_s=self._clock(), device_id=device_id, online=True)
            reading.events.insert(0, back)

    def _before(self, at_s: float) -> Iterator[str]:
        """Yield the devices whose last message came before this time."""
        for device_id, heard_s in (self._heard or {}).items():
            if heard_s >= at_s:
                return
            yield device_id

    def refuse(self, reading: Reading, reason: Reason, detail: str, instance: int = 0) -> None:
        """Refuse a message with a reply, and count and log the refusal."""
        self.count(reason, f"device={reading.device_id}: {detail}")
        about, text = (reading.about, reading.digest), _one_line(detail)
        reading.replies.append(Refuse(reading.device_id, reason, text, *about, instance))

    def _affords(self, key: tuple[str, str], most: float, a_second: float) -> bool:
        """Return True if one more is within the limit: `most` at once, `a_second` on average."""
        if len(self._budgets) > MOST_BUDGETS:
            self._budgets.clear()
        now_s = self._clock()
        allowance, at_s = self._budgets.get(key, (most, now_s))
        allowance = min(most, allowance + a_second * (now_s - at_s))
        if allowance < 1:
            return False
        self._budgets[key] = allowance - 1, now_s
        return True


def _one_line(text: str) -> str:
    """Return a device's text as one printable line, cut to the length that can be stored."""
    return printable(text)[:LONGEST_TEXT]
