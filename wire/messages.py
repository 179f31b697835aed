"""The messages, as frozen and validated structures (SPEC.md, 'Messages').

Each is one JSON object with its ``type``. Unknown fields are ignored, so that a newer peer may say more; an unknown
``type`` or a missing or wrong field is refused. `wire.codec` turns them into bytes and back.
"""

from typing import Annotated, Literal

import msgspec

# In Python `$` also matches before a line feed at the end, in JSON Schema it does not: with (?!\n) both refuse it.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}(?!\n)$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]
MaybeDigest = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?(?!\n)$")]
LARGEST_COUNT = 2**53
"""A sum of counts that is stored is cut to this, or it could not be read again."""
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]

PLAN_BYTES = 16 * 2**10
"""A signed plan may have at most this many bytes: a device has to be able to send it back as a proof."""
HEARTBEAT_S = 60.0
"""A connected device says at least so often that it is there."""
LEASE_S = 15.0
"""An aggregator that was silent for so long no longer holds its fleet."""

Epoch = Count
"""Which start of a service speaks: every start takes a greater one than any before it."""
MOST_EPOCHS = 10_000
"""Passes that one verb can ask for."""
MOST_CLASSES = 1000
"""Classes of which a device tells how many windows it has, at most."""
MOST_CHOICES = 64
"""Models that a device can be asked to choose from."""
MOST_PIECES = 512
"""Something large is cut into so many pieces at most: their hashes have to fit into a message."""

Reason = Literal[
    "unknown-topic",
    "unknown-device",
    "malformed",
    "too-large",
    "wrong-device",
    "unknown-run",
    "wrong-round",
    "not-in-cohort",
    "duplicate",
    "wrong-layout",
    "not-finite",
    "norm-too-large",
    "unknown-blob",
]
"""Why an aggregator refuses what came (SPEC.md, 'Updates')."""

DeclineReason = Literal["stale", "expired", "policy", "bundle", "data", "failed", "quarantined"]
"""Why a device does not carry out a plan (SPEC.md, 'Declines')."""


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Sums over the examples a graph saw; a mean is made only where it is shown."""

    num_examples: Count = 0
    loss_sum: float = 0.0
    num_correct: Count = 0

    @property
    def accuracy(self) -> float:
        """Share of examples classified correctly; NaN when there were none."""
        return self.num_correct / self.num_examples if self.num_examples else float("nan")

    @property
    def mean_loss(self) -> float:
        """Loss per example; NaN when there were none."""
        return self.loss_sum / self.num_examples if self.num_examples else float("nan")


class Policy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """What the owner of a device permits plans to ask of it (SPEC.md, 'Policy'). What is None is not restricted."""

    verbs: tuple[Name, ...] | None = None
    """The verbs that a plan may have."""
    graphs: tuple[Name, ...] | None = None
    """The graphs that verbs may run."""
    bundles: tuple[Name, ...] | None = None
    """The names of bundles that may be loaded."""
    max_epochs: Annotated[float, msgspec.Meta(gt=0)] = 1000.0
    """Passes over the training windows in a plan, all its verbs together."""
    max_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds for which a plan may work; it is ended after them."""
    max_bytes_a_day: Positive | None = None
    """Bytes that may come and go in 24 hours."""
    max_clip_norm: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """The longest change that training may report: every plan that reports one has to end with ``protect`` that clips to no more."""
    min_noise_multiplier: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """The least noise of that ``protect``, its standard deviation divided by its `clip_norm`."""
    min_windows: Positive = 1
    """Windows that have to be behind each reported measurement, and behind each training."""
    tell_classes: bool = False
    """Whether a check-in may say how many training windows there are of each class."""


class CheckIn(msgspec.Struct, frozen=True, tag="check-in"):
    """Device to aggregator: here I am, this is what I have. `bundle` is the digest of the bundle it has loaded, or empty; `policy` is
    what its owner permits, so that the aggregator need not ask in vain. `moved`: its data are no longer those of its last survey. What is
    None is not known to the device, or not told."""

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
    """By class number, how many training windows there are; only where the policy permits it (`Policy.tell_classes`)."""
    moved: bool = False


class InUse(msgspec.Struct, frozen=True, tag="in-use"):
    """Device to aggregator: which release answers predictions here; after each release that came, and after each check-in.

    `offered` is the last release that came. If it is not in use, `problem` says why; if it is, the device has verified, loaded and tried
    it. `evaluated` and `before` are sums over the windows that the device holds back, with the release offered and with the one that was
    in use; `failures` counts predictions that failed since the one in use was taken up.
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


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Device to aggregator: publish this blob, or this piece of one (again), I lack it. `pieces`: the device can put pieces together; for
    one that cannot, a large blob is published whole."""

    device_id: Name
    digest: Digest
    pieces: bool = False


class Pieces(msgspec.Struct, frozen=True, tag="pieces"):
    """Aggregator to device, signed: what is retained in place of a large blob; and part of an `Offer`. The bytes with the SHA-256 `digest`
    are these pieces, by their own SHA-256, in order. Each has `piece_bytes` but for the last, which has the rest."""

    digest: Digest
    num_bytes: Positive
    piece_bytes: Annotated[int, msgspec.Meta(ge=2**16, le=2**22)]
    pieces: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=MOST_PIECES)]


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """Device to aggregator: an update that is too large to be sent whole, of this round. The aggregator says which pieces it wants."""

    device_id: Name
    run_id: Name
    round: Positive
    pieces: Pieces


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """Device to aggregator: a piece of the update with this digest. Its bytes follow after a line feed."""

    device_id: Name
    update: Digest
    index: Annotated[int, msgspec.Meta(ge=0, lt=MOST_PIECES)]


class Want(msgspec.Struct, frozen=True, tag="want"):
    """Aggregator to device, signed: these pieces of the update that was offered, by index, are to be sent next."""

    device_id: Name
    update: Digest
    pieces: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=MOST_PIECES)], ...], msgspec.Meta(max_length=MOST_PIECES)]


class DeviceStatus(msgspec.Struct, frozen=True, tag="status"):
    """On the device's status topic, retained, at least every `HEARTBEAT_S`; the broker publishes online=false as the device's last will."""

    device_id: Name
    online: bool


class AggregatorStatus(msgspec.Struct, frozen=True, tag="aggregator"):
    """On the fleet's aggregator topic, retained and signed, at least every `LEASE_S / 3`. A new `boot_id` asks every device to check
    in again.

    `at_s` is the aggregator's clock (Unix time, seconds) when it was written: devices need no clock of their own.
    """

    online: bool
    boot_id: Text
    epoch: Epoch
    at_s: float
    run_id: Text = ""
    paused: Text = ""
    """Why the aggregator takes no updates now; empty while it does."""
    pieces: bool = False
    """Whether it takes updates in pieces."""


class Train(msgspec.Struct, frozen=True, tag="train"):
    """Run a step graph over the training windows: `epochs` passes, or exactly `steps` batches when given.

    What it changed of the roles shared and statistic goes into the update, unless `report` is false. The share `holdout` of the
    windows, the same ones each time, is left out.
    """

    batch_size: Annotated[int, msgspec.Meta(ge=2, le=4096)]
    epochs: Annotated[int, msgspec.Meta(ge=1, le=MOST_EPOCHS)] = 1
    steps: Positive | None = None
    hyper: dict[str, float] = {}
    graph: Name = "step"
    report: bool = True
    holdout: Share = 0.0


class Evaluate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Run a graph over a split and sum its metrics; on the tensors as they are now, or on the bundle's initial ones.

    ``loss_sum`` and ``num_correct`` become the update's `evaluated`; other metrics, of any shape, divided by the number of examples, are
    called ``response/GRAPH.NAME``: later graphs of the plan may read them, and they go back unless `report` is false. The split
    ``holdout`` is the share of the training windows that `Train` leaves out.
    """

    split: Literal["train", "test", "holdout"] = "test"
    graph: Name = "evaluate"
    model: Literal["received", "initial"] = "received"
    holdout: Share = 0.0
    report: bool = True


class Choose(msgspec.Struct, frozen=True, tag="choose"):
    """Evaluate each of these models on the training windows, and go on from the one with the least mean loss (the first such)."""

    models: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1, max_length=MOST_CHOICES)]
    graph: Name = "evaluate"


class Annotate(msgspec.Struct, frozen=True, tag="annotate"):
    """Store a graph's per-example output as a column of the training windows; it stays on the device from round to round."""

    graph: Name
    column: Name


class Apply(msgspec.Struct, frozen=True, tag="apply"):
    """Run a graph once over the tensors alone. Its metrics go back as ``response/GRAPH.NAME``, as they are."""

    graph: Name


class Respond(msgspec.Struct, frozen=True, tag="respond"):
    """Run a graph on inputs the aggregator sent (blob `inputs`, tensor ``x``) and return its outputs."""

    inputs: Digest
    graph: Name = "predict"


class Protect(msgspec.Struct, frozen=True, tag="protect"):
    """Clip the change that training made, all tensors as one vector, to the Euclidean norm `clip_norm`. Then add Gaussian noise from the
    device's own secret. In a plan that has this verb, it is the last one."""

    clip_norm: Annotated[float, msgspec.Meta(gt=0)]
    noise_std: Annotated[float, msgspec.Meta(ge=0)] = 0.0


Verb = Train | Evaluate | Choose | Annotate | Apply | Respond | Protect


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """Aggregator to device, signed: what to do in this round.

    `model` is the blob with the tensors to start from (roles shared and statistic, and received where the objective has
    them); `seed` makes the order of the batches repeatable; after `deadline_at_s` (the aggregator's clock) updates are refused.
    `attempt` counts how often the device has been asked for this round again: a greater one asks for another update.
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


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Device to aggregator: the result of a plan; the tensors travel beside it in the same payload.

    Tensors: ``delta/NAME`` = local minus received, for what a reported `train` changed of the role shared; ``statistic/NAME`` as
    they are, likewise; ``response/NAME`` for the verbs respond, apply and evaluate. `model` is the one the device started from: the plan's,
    or the one it chose. `evaluated` holds the metrics of the last evaluation that had some, `trained` those of the training passes.
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
    """Device to aggregator: the plan of this round is not carried out here, and why. The round does not wait for the device.

    `proof` goes with the reason ``stale``: the signed plan of a greater epoch that the device holds, as it came.
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
    """Aggregator to device, signed: the update with these bytes is safe, or no longer needed; delete it."""

    device_id: Name
    update: Digest


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """Aggregator to device, signed: not accepted, and why. `about` is the kind of the topic it came on; `update`, where that was an
    update, the digest of its bytes. The device deletes that update."""

    device_id: Name
    reason: Reason
    detail: Text
    about: Text = ""
    update: MaybeDigest = ""


class Busy(msgspec.Struct, frozen=True, tag="busy"):
    """Aggregator to device, signed: the update with these bytes cannot be taken now. The device keeps it and sends it again after
    `retry_s` seconds."""

    device_id: Name
    update: Digest
    retry_s: Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """Aggregator to device, signed: the run is over; `model` is the one to use from now on. With `releases` it is not: models to use come
    as a `Release`."""

    device_id: Name
    run_id: Name
    epoch: Epoch
    bundle: Digest
    model: Digest
    releases: bool = False


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Aggregator to device, signed, retained on the device's own topic: the model to use. `number` only grows: a device takes no
    smaller one than it was given. `run_id` is the run that trained it, of which the device may keep private tensors."""

    device_id: Name
    epoch: Epoch
    number: Positive
    group: Text
    """What the group is called whose model it is."""
    run_id: Name
    bundle: Digest
    model: Digest


class Voucher(msgspec.Struct, frozen=True, tag="voucher"):
    """A trusted key vouches that `key` (an Ed25519 public key, 64 hexadecimal digits) may speak for a fleet until `not_after_s` (Unix
    time, seconds)."""

    fleet: Name
    key: Digest
    not_after_s: float


FromDeviceMessage = CheckIn | InUse | Fetch | DeviceStatus | Update | Offer | Piece | Decline
Reply = Acknowledge | Refuse | Busy | Finish
"""What comes on a device's reply topic."""
ToDeviceMessage = Plan | Reply | Release | Want | Pieces | AggregatorStatus
"""What an aggregator sends; all of it is signed."""
Message = FromDeviceMessage | ToDeviceMessage | Voucher
