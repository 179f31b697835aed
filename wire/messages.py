"""The messages, as frozen and validated structures (SPEC.md, 'Messages').

Each is one JSON object with its ``type``. Unknown fields are ignored, so that a newer peer may say
more; an unknown ``type`` or a missing or wrong field is refused. `wire.codec` turns them into bytes
and back. What fields may hold is in `wire.fields`, the verbs of plans are in `wire.verbs`; all of
them can be had from here.
"""

from typing import Annotated

import msgspec

from wire.fields import HEARTBEAT_S as HEARTBEAT_S
from wire.fields import LARGEST_COUNT as LARGEST_COUNT
from wire.fields import LARGEST_NUMBER as LARGEST_NUMBER
from wire.fields import LEASE_S as LEASE_S
from wire.fields import LONGEST_TEXT as LONGEST_TEXT
from wire.fields import MOST_CHOICES as MOST_CHOICES
from wire.fields import MOST_CLASSES as MOST_CLASSES
from wire.fields import MOST_ENCODINGS as MOST_ENCODINGS
from wire.fields import MOST_EPOCHS as MOST_EPOCHS
from wire.fields import MOST_HELD as MOST_HELD
from wire.fields import MOST_PIECES as MOST_PIECES
from wire.fields import PLAN_BYTES as PLAN_BYTES
from wire.fields import Count as Count
from wire.fields import DeclineReason as DeclineReason
from wire.fields import Digest as Digest
from wire.fields import Encoding as Encoding
from wire.fields import Epoch as Epoch
from wire.fields import MaybeDigest as MaybeDigest
from wire.fields import Metrics as Metrics
from wire.fields import Name as Name
from wire.fields import Policy as Policy
from wire.fields import Positive as Positive
from wire.fields import Reason as Reason
from wire.fields import Share as Share
from wire.fields import Text as Text
from wire.verbs import Annotate as Annotate
from wire.verbs import Apply as Apply
from wire.verbs import Choose as Choose
from wire.verbs import Evaluate as Evaluate
from wire.verbs import Protect as Protect
from wire.verbs import Respond as Respond
from wire.verbs import Train as Train
from wire.verbs import Verb as Verb


class CheckIn(msgspec.Struct, frozen=True, tag="check-in"):
    """Device to aggregator: here I am, this is what I have. `bundle` is the digest of the bundle it
    has loaded, or empty; `policy` is what its owner permits, so that the aggregator need not ask in
    vain. `moved`: its data are no longer those of its last survey. What is None is not known to the
    device, or not told."""

    device_id: Name
    num_train: Count
    num_test: Count
    bundle: MaybeDigest = ""
    client: Text = ""
    runtime: Text = ""
    battery_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    unmetered: bool | None = None
    policy: Policy | None = None
    hardware: Text = ""
    free_bytes: Count | None = None
    """Storage that the client may still take."""
    temperature_c: Annotated[float, msgspec.Meta(ge=-100, le=300)] | None = None
    charging: bool | None = None
    """Whether the device runs on outside power."""
    idle: bool | None = None
    """Whether nothing else wants much of its processor."""
    classes: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_CLASSES)] | None = None
    """By class number, how many training windows there are; only where the policy permits it
    (`Policy.tell_classes`)."""
    moved: bool = False
    encodings: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_ENCODINGS)] = ()
    """The encodings of updates that it can make beside float32; some of them may be unknown
    here."""
    num_unlabelled: Count = 0
    """Windows that nobody has labelled."""
    kept: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=MOST_HELD)] | None = None
    """The models, by their digests, of which it holds what it has kept: what is damaged does not
    count."""


class InUse(msgspec.Struct, frozen=True, tag="in-use"):
    """Device to aggregator: which release answers predictions here; after each release that came,
    and after each check-in.

    `offered` is the last release that came. If it is not in use, `problem` says why; if it is, the
    device has verified, loaded and tried it. `evaluated` and `before` are sums over the windows
    that the device holds back, with the release offered and with the one that was in use;
    `failures` counts predictions that failed since the one in use was taken up.
    """

    device_id: Name
    number: Count = 0
    """The release in use; 0 if none is."""
    offered: Count = 0
    problem: Text = ""
    evaluated: Metrics = Metrics()
    before: Metrics = Metrics()
    latency_ms: float = 0.0
    """What a prediction of one window takes."""
    failures: Count = 0
    alone: Text = ""
    """Why the model in use, which may not be `offered`, answers without what the device has kept;
    empty where it has that, or nothing was kept."""


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Device to aggregator: publish this blob, or this piece of one (again), I lack it."""

    device_id: Name
    digest: Digest


class Pieces(msgspec.Struct, frozen=True, tag="pieces"):
    """Aggregator to device, signed: what is retained in place of a large blob; and part of an
    `Offer`. The bytes with the SHA-256 `digest` are these pieces, by their own SHA-256, in order.
    Each has `piece_bytes` but for the last, which has the rest."""

    digest: Digest
    num_bytes: Positive
    piece_bytes: Annotated[int, msgspec.Meta(ge=2**16, le=2**22)]
    pieces: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=MOST_PIECES)]


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """Device to aggregator: an update that is too large to be sent whole, of this round. The
    aggregator says which pieces it wants."""

    device_id: Name
    run_id: Name
    round: Positive
    pieces: Pieces


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """Device to aggregator: a piece of the update with this digest. Its bytes follow after a line
    feed."""

    device_id: Name
    update: Digest
    index: Annotated[int, msgspec.Meta(ge=0, lt=MOST_PIECES)]


class Want(msgspec.Struct, frozen=True, tag="want"):
    """Aggregator to device, signed: these pieces of the update that was offered, by index, are to
    be sent next."""

    device_id: Name
    update: Digest
    pieces: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, lt=MOST_PIECES)], ...],
        msgspec.Meta(max_length=MOST_PIECES),
    ]


class DeviceStatus(msgspec.Struct, frozen=True, tag="status"):
    """On the device's status topic, retained, at least every `HEARTBEAT_S`; the broker publishes
    online=false as the device's last will.

    `withdrawn`: the device's owner agrees no longer; 128 random bits in lower-case hexadecimal
    digits, so that an `Acknowledge` of these very bytes is of this withdrawal.
    """

    device_id: Name
    online: bool
    withdrawn: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""


class AggregatorStatus(msgspec.Struct, frozen=True, tag="aggregator"):
    """On the fleet's aggregator topic, retained and signed, at least every `LEASE_S / 3`. A new
    `boot_id` asks every device to check in again.

    `at_s` is the aggregator's clock (Unix time, seconds) when it was written: devices need no clock
    of their own.
    """

    online: bool
    boot_id: Text
    epoch: Epoch
    at_s: float
    run_id: Text = ""
    paused: Text = ""
    """Why the aggregator takes no updates now; empty while it does."""


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """Aggregator to device, signed: what to do in this round.

    `model` is the blob with the tensors to start from (roles shared and statistic, and received
    where the objective has them); `seed` makes the order of the batches repeatable; after
    `deadline_at_s` (the aggregator's clock) updates are refused. `attempt` is the number of the
    assignment, greater than that of every plan that the device was given before.
    """

    run_id: Name
    epoch: Epoch
    round: Positive
    attempt: Count
    device_id: Name
    bundle: Digest
    model: Digest
    verbs: tuple[Verb, ...]
    seed: Count
    deadline_at_s: float
    encoding: Encoding = "float32"
    """How the update is to hold its change: one that the device has said that it can make."""


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Device to aggregator: the result of a plan; the tensors travel beside it in the same payload.

    Tensors: ``delta/NAME`` = local minus received, for what a reported `train` changed of the role
    shared, or all of it in int8 (`wire.arrays.quantised`); ``statistic/NAME`` as they are,
    likewise; ``response/NAME`` for the verbs respond, apply and evaluate. `model` is the one the
    device started from: the plan's, or the one it chose. `evaluated` holds the metrics of the last
    evaluation that had some, `trained` those of the training passes.
    """

    run_id: Name
    epoch: Epoch
    round: Positive
    attempt: Count
    device_id: Name
    model: Digest
    num_train: Count
    num_steps: Count
    evaluated: Metrics
    trained: Metrics
    bytes_received: Count = 0
    train_s: float = 0.0


class Decline(msgspec.Struct, frozen=True, tag="decline"):
    """Device to aggregator: the plan of this round is not carried out here, and why. The round does
    not wait for the device.

    `proof` goes with the reason ``stale``: the signed plan of a greater epoch that the device
    holds, as it came.
    """

    run_id: Name
    epoch: Epoch
    round: Positive
    attempt: Count
    device_id: Name
    reason: DeclineReason
    detail: Text
    proof: Annotated[str, msgspec.Meta(max_length=PLAN_BYTES)] = ""


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """Aggregator to device, signed: the update with these bytes is safe, or no longer needed;
    delete it. Or the withdrawal with these bytes is noted."""

    device_id: Name
    update: Digest


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """Aggregator to device, signed: not accepted, and why. `about` is the kind of the topic it came
    on; `update`, where that was an update, the digest of its bytes. The device deletes that update.
    """

    device_id: Name
    reason: Reason
    detail: Text
    about: Text = ""
    update: MaybeDigest = ""


class Busy(msgspec.Struct, frozen=True, tag="busy"):
    """Aggregator to device, signed: the update with these bytes cannot be taken now. The device
    keeps it and sends it again after `retry_s` seconds."""

    device_id: Name
    update: Digest
    retry_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """Aggregator to device, signed: the run is over; `model` is the one to use from now on. With
    `releases` it is not: models to use come as a `Release`, or the run was aborted and gives none.
    """

    device_id: Name
    run_id: Name
    epoch: Epoch
    bundle: Digest
    model: Digest
    releases: bool = False


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Aggregator to device, signed, retained on the device's own topic: the model to use. `number`
    only grows: a device takes no smaller one than it was given. `run_id` is the run that trained
    it, of which the device may keep private tensors."""

    device_id: Name
    epoch: Epoch
    number: Positive
    group: Text
    """What the group is called whose model it is."""
    run_id: Name
    bundle: Digest
    model: Digest


class Voucher(msgspec.Struct, frozen=True, tag="voucher"):
    """A trusted key vouches that `key` (an Ed25519 public key, 64 hexadecimal digits) may speak for
    a fleet until `not_after_s` (Unix time, seconds)."""

    fleet: Name
    key: Digest
    not_after_s: float


FromDeviceMessage = CheckIn | InUse | Fetch | DeviceStatus | Update | Offer | Piece | Decline
Reply = Acknowledge | Refuse | Busy | Finish
"""What comes on a device's reply topic."""
ToDeviceMessage = Plan | Reply | Release | Want | Pieces | AggregatorStatus
"""What an aggregator sends; all of it is signed."""
Message = FromDeviceMessage | ToDeviceMessage | Voucher


VERSION = "0.1.0"
CLIENT = f"shoal {VERSION}"
