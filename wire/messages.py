"""Messages as frozen and validated structures (SPEC.md, 'Messages').

Each message is one JSON object with its ``type``. Unknown fields are ignored, so that a newer peer
may add some; an unknown ``type`` or a missing or wrong field is refused. `wire.codec` converts
messages to bytes and back. The types of fields are in `wire.fields` and the verbs of plans in
`wire.verbs`; all of them are exported here.
"""

from importlib.metadata import version
from typing import Annotated

import msgspec

from wire.fields import ERROR_BYTES as ERROR_BYTES
from wire.fields import HEARTBEAT_S as HEARTBEAT_S
from wire.fields import LARGEST_COUNT as LARGEST_COUNT
from wire.fields import LARGEST_NUMBER as LARGEST_NUMBER
from wire.fields import LEASE_S as LEASE_S
from wire.fields import LONGEST_TEXT as LONGEST_TEXT
from wire.fields import MOST_CHOICES as MOST_CHOICES
from wire.fields import MOST_CLASSES as MOST_CLASSES
from wire.fields import MOST_ENCODINGS as MOST_ENCODINGS
from wire.fields import MOST_EPOCHS as MOST_EPOCHS
from wire.fields import MOST_FRAMES as MOST_FRAMES
from wire.fields import MOST_HELD as MOST_HELD
from wire.fields import MOST_PIECES as MOST_PIECES
from wire.fields import PLAN_BYTES as PLAN_BYTES
from wire.fields import ROOM as ROOM
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
from wire.secret.question import SignedShare
from wire.secret.survey import Node
from wire.verbs import Annotate as Annotate
from wire.verbs import Apply as Apply
from wire.verbs import Choose as Choose
from wire.verbs import Evaluate as Evaluate
from wire.verbs import Mask as Mask
from wire.verbs import Protect as Protect
from wire.verbs import Respond as Respond
from wire.verbs import SurveySum as SurveySum
from wire.verbs import TellGroup as TellGroup
from wire.verbs import Train as Train
from wire.verbs import Verb as Verb


class CheckIn(msgspec.Struct, frozen=True, tag="check-in"):
    """Device to aggregator: first message of a connection, with the device's facts.

    `bundle` is the digest of the loaded bundle, or empty. `policy` is the owner's, so that the
    aggregator does not assign what it forbids. `moved`: the data have changed since the last
    survey. None: the device does not know or does not report the fact.
    """

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
    """Storage in bytes that the client may still use."""
    temperature_c: Annotated[float, msgspec.Meta(ge=-100, le=300)] | None = None
    charging: bool | None = None
    """True if the device runs on outside power."""
    idle: bool | None = None
    """True if no other work needs much of the processor."""
    classes: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_CLASSES)] | None = None
    """Number of training windows of each class, by class number.

    It is reported only if the policy permits it (`Policy.tell_classes`).
    """
    moved: bool = False
    encodings: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_ENCODINGS)] = ()
    """Encodings of updates that the device supports besides float32. Unknown names are allowed."""
    num_unlabelled: Count = 0
    """Number of unlabelled windows."""
    personal_models: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=MOST_HELD)] | None = None
    """Digests of the models of which the device holds an intact personal model."""
    protocol: Text = ""
    """Version of the protocol that the client speaks (`PROTOCOL_VERSION`)."""
    app: Text = ""
    """Version of the app that the client is a part of; empty if it is a program of its own."""
    start: Count = 0
    """Number of this start of the client, counted in its state folder; 0 if it is not counted."""
    instance: Count = 0
    """Random number of this start; 0 if it has none."""


class ErrorReport(msgspec.Struct, frozen=True, tag="error"):
    """Device to aggregator: the last error that the device survived, or that ended its client.

    It is sent at once, at most once a minute, and after each check-in, if the policy permits it
    (`Policy.tells_errors`). It has at most `ERROR_BYTES`.
    """

    device_id: Name
    at_s: float
    """Time of the error (Unix time, seconds), as well as the device knows it."""
    what: Text
    """Part of the client that failed, such as ``Plan failed``."""
    error: Text
    """Type of the error."""
    message: Text = ""
    frames: Annotated[tuple[Text, ...], msgspec.Meta(max_length=MOST_FRAMES)] = ()
    """Lines of the traceback, outermost first: ``FILE:LINE FUNCTION``, without folders."""
    client: Text = ""
    """Client that had the error, with its version."""
    app: Text = ""
    peak_bytes: Count | None = None
    """Largest memory that the client has taken since its start; None if unknown."""
    memory_bytes: Count | None = None
    """Memory that the client could take at most; None if unknown."""


class InUse(msgspec.Struct, frozen=True, tag="in-use"):
    """Device to aggregator: the release that answers predictions on the device.

    It is sent after each attempt to take up an offer and after each check-in. `offered` is the
    number of the last offer that came, by a release or by a finished run. If it is in use, the
    device has verified, loaded and tried it; if not, `problem` has the reason. `evaluated` and
    `before` are sums over the windows that the device holds back, with the offered release and with
    the one that was in use; `failures` counts predictions that failed since the release in use was
    taken up.
    """

    device_id: Name
    number: Count = 0
    """Number of the release in use; 0 if there is none."""
    offered: Count = 0
    problem: Text = ""
    evaluated: Metrics = Metrics()
    before: Metrics = Metrics()
    latency_ms: float = 0.0
    """Time of a prediction for one window."""
    failures: Count = 0
    alone: Text = ""
    """Reason that the model in use, which may not be `offered`, answers without a personal model.

    Empty if it answers with the personal model, or if the device holds none.
    """
    model: MaybeDigest = ""
    """Digest of the model in use; empty if there is none."""


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Device to aggregator: request to publish a blob, or a piece of one, that the device lacks."""

    device_id: Name
    digest: Digest


class Pieces(msgspec.Struct, frozen=True, tag="pieces"):
    """Aggregator to device, signed: list of pieces that is retained in place of a large blob.

    It is also a part of an `Offer`. The bytes with the SHA-256 `digest` are the concatenation of
    these pieces, each given by its own SHA-256. Each piece has `piece_bytes`, except for the last,
    which has the rest.
    """

    digest: Digest
    num_bytes: Positive
    piece_bytes: Annotated[int, msgspec.Meta(ge=2**10, le=2**22)]
    pieces: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=MOST_PIECES)]


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """Device to aggregator: offer of an update of this round that is too large to be sent whole.

    The aggregator answers with the pieces that it wants.
    """

    device_id: Name
    run_id: Name
    round: Positive
    pieces: Pieces


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """Device to aggregator: a piece of the update with this digest.

    Its bytes follow after a line feed.
    """

    device_id: Name
    update: Digest
    index: Annotated[int, msgspec.Meta(ge=0, lt=MOST_PIECES)]


class Want(msgspec.Struct, frozen=True, tag="want"):
    """Aggregator to device, signed: pieces of the offered update to send next, by index."""

    device_id: Name
    update: Digest
    pieces: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, lt=MOST_PIECES)], ...],
        msgspec.Meta(max_length=MOST_PIECES),
    ]


class DeviceStatus(msgspec.Struct, frozen=True, tag="status"):
    """Status of a device on its status topic, retained, at least every `HEARTBEAT_S`.

    The broker publishes online=false as the device's last will. `withdrawn`: 128 random bits in
    lower-case hexadecimal digits if the device's owner has withdrawn, so that an `Acknowledge` of
    these bytes belongs to this withdrawal; else empty. `at_s`: the device's own clock (Unix time,
    seconds) at the time of writing, so that an operator learns of a wrong one; 0 if not reported.
    """

    device_id: Name
    online: bool
    withdrawn: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    at_s: float = 0.0


class AggregatorStatus(msgspec.Struct, frozen=True, tag="aggregator"):
    """Status on the fleet's aggregator topic, retained and signed, at least every `LEASE_S / 3`.

    A new `boot_id` makes every device check in again. `at_s` is the aggregator's clock (Unix time,
    seconds) at the time of writing: devices need no clock of their own.
    """

    online: bool
    boot_id: Text
    epoch: Epoch
    at_s: float
    run_id: Text = ""
    paused: Text = ""
    """Reason that the aggregator takes no updates now; empty while it does."""


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """Aggregator to device, signed: an assignment of this round, as a list of verbs.

    `model` is the blob with the tensors to start from (roles shared and statistic, and received if
    the objective has them). `seed` makes the order of the batches repeatable. Updates after
    `deadline_at_s` (the aggregator's clock) are refused. `attempt` is the serial number of the
    assignment, greater than that of every earlier plan of the device.
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
    """Encoding of the change in the update; the device has reported that it supports it."""


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Device to aggregator: the result of a plan, with its tensors in the same payload.

    Tensors: ``delta/NAME`` = local minus received, for the changes of a reported `train` to the
    role shared, or all of them in int8 (`wire.arrays.quantised`); ``statistic/NAME`` as absolute
    values, likewise; ``response/NAME`` for the verbs respond, apply and evaluate. `model` is the
    model that the device started from: the plan's, or the one it chose. `evaluated` has the metrics
    of the last evaluation with any, `trained` those of the training passes.

    The update of a plan that ends with `mask` has a `share`, the tensors ``masked/PART`` alone, and
    zeros in place of all counts, metrics and times of its data. That of a plan that ends with
    `tell-group` has no tensors, the same zeros, and the `node` of the device.
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
    share: SignedShare | None = None
    node: Node = ""


class Decline(msgspec.Struct, frozen=True, tag="decline"):
    """Device to aggregator: the plan of this round is not carried out, with the reason.

    The round does not wait for the device. `proof` goes with the reason ``stale``: the signed plan
    of a greater epoch that the device holds, as it came.
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
    """Aggregator to device, signed: the update with these bytes is stored or no longer needed.

    The device deletes the update. For the bytes of a withdrawal: the withdrawal is recorded.
    """

    device_id: Name
    update: Digest


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """Aggregator to device, signed: a message was refused, with the reason.

    `about` is the kind of the message's topic. `update` is the digest of an update's bytes; the
    device deletes this update. `instance` is that of the check-in of a second device; a device with
    this instance ends.
    """

    device_id: Name
    reason: Reason
    detail: Text
    about: Text = ""
    update: MaybeDigest = ""
    instance: Count = 0


class Busy(msgspec.Struct, frozen=True, tag="busy"):
    """Aggregator to device, signed: the update with these bytes cannot be taken now.

    The device stores it and sends it again after `retry_s` seconds.
    """

    device_id: Name
    update: Digest
    retry_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """Aggregator to device, signed: the run is over, and `model` is the one to use from now on.

    With `releases`, `model` is not to be used: models come as a `Release`, or the run was aborted
    and gives none.
    """

    device_id: Name
    run_id: Name
    epoch: Epoch
    bundle: Digest
    model: Digest
    releases: bool = False
    number: Count = 0
    """Number of the offer, from the same series as the numbers of releases; 0 with `releases`.

    A device takes no model under a number that is not greater than that of its last offer.
    """


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Aggregator to device, signed, retained on the device's own topic: the model to use.

    `number` only increases: a device takes no smaller one than its last. `run_id` is the run that
    trained the model, whose private tensors the device may hold.
    """

    device_id: Name
    epoch: Epoch
    number: Positive
    group: Text
    """Name of the group whose model it is."""
    run_id: Name
    bundle: Digest
    model: Digest


class Voucher(msgspec.Struct, frozen=True, tag="voucher"):
    """Statement of a trusted key that `key` may speak for a fleet until `not_after_s`.

    `key` is an Ed25519 public key in 64 hexadecimal digits, `not_after_s` is Unix time in seconds.
    """

    fleet: Name
    key: Digest
    not_after_s: float


FromDeviceMessage = (
    CheckIn | InUse | ErrorReport | Fetch | DeviceStatus | Update | Offer | Piece | Decline
)
Reply = Acknowledge | Refuse | Busy | Finish
"""Messages on a device's reply topic."""
ToDeviceMessage = Plan | Reply | Release | Want | Pieces | AggregatorStatus
"""Messages from an aggregator to devices; all of them are signed."""
Message = FromDeviceMessage | ToDeviceMessage | Voucher


VERSION = version("shoal")
"""Version of the installed package."""
CLIENT = f"shoal {VERSION}"
PROTOCOL_VERSION = "1.1"
"""Version of the protocol: the major one of the topics, and the number of additions since."""
