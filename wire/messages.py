"""The messages, as frozen and validated structures (SPEC.md, 'Messages').

Each is one JSON object with its ``type``. Unknown fields are ignored, so that a newer peer may say more; an unknown
``type`` or a missing or wrong field is refused. `wire.codec` turns them into bytes and back.
"""

from typing import Annotated, Literal

import msgspec

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
MaybeDigest = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]

MOST_EPOCHS = 10_000
"""Passes that one verb can ask for."""
MOST_CHOICES = 64
"""Models that a device can be asked to choose from."""

Reason = Literal[
    "unknown-topic",
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
    "stale-bundle",
]


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


class CheckIn(msgspec.Struct, frozen=True, tag="check-in"):
    """Device to aggregator: here I am, this is what I have. `bundle` is the digest of the bundle it has loaded, or empty."""

    device_id: Name
    num_train: Count
    num_test: Count
    bundle: MaybeDigest = ""
    client: Text = ""
    runtime: Text = ""
    battery_percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    unmetered: bool | None = None


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Device to aggregator: publish this blob (again), I lack it."""

    device_id: Name
    digest: Digest


class DeviceStatus(msgspec.Struct, frozen=True, tag="status"):
    """On the device's status topic, retained; the broker publishes online=false as the device's last will."""

    device_id: Name
    online: bool


class AggregatorStatus(msgspec.Struct, frozen=True, tag="aggregator"):
    """On the fleet's aggregator topic, retained. A new `boot_id` asks every device to check in again."""

    online: bool
    boot_id: Text
    run_id: Text = ""


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
    """Aggregator to device: what to do in this round.

    `model` is the blob with the tensors to start from (roles shared and statistic, and received where the objective has
    them); `seed` makes the order of the batches repeatable; after `deadline_at_s` (Unix time, seconds) updates are refused.
    """

    run_id: Name
    round: Positive
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
    round: Positive
    device_id: Name
    model: Digest
    num_train: Count
    num_steps: Count
    evaluated: Metrics
    trained: Metrics
    bytes_received: Count = 0
    train_s: float = 0.0


class Decline(msgspec.Struct, frozen=True, tag="decline"):
    """Device to aggregator: the plan of this round cannot be carried out here, and why. The round does not wait for the device."""

    run_id: Name
    round: Positive
    device_id: Name
    detail: Text


class Acknowledge(msgspec.Struct, frozen=True, tag="acknowledge"):
    """Aggregator to device: your update of this round is safe; delete it."""

    run_id: Name
    round: Positive


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """Aggregator to device: not accepted, and why. A refused update is deleted.

    `run_id` and `round` are empty and 0 where what came could not be read so far; `about` is the kind of its topic.
    """

    reason: Reason
    detail: Text
    run_id: Text = ""
    round: Count = 0
    about: Text = ""


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """Aggregator to device: the run is over; `model` is the one to use from now on."""

    run_id: Name
    bundle: Digest
    model: Digest


FromDeviceMessage = CheckIn | Fetch | DeviceStatus | Update | Decline
ToDeviceMessage = Plan | Acknowledge | Refuse | Finish | AggregatorStatus
Message = FromDeviceMessage | ToDeviceMessage
