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
    """Run a step graph over the training windows: `epochs` passes, or exactly `steps` batches when given."""

    batch_size: Annotated[int, msgspec.Meta(ge=2, le=4096)]
    epochs: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    steps: Positive | None = None
    hyper: dict[str, float] = {}
    graph: Name = "step"


class Evaluate(msgspec.Struct, frozen=True, tag="evaluate"):
    """Run a graph over a split and sum its metrics; on the received tensors, or on the bundle's initial ones.

    ``loss_sum`` and ``num_correct`` become the update's `evaluated`; other metrics, of any shape, go back divided by the number
    of examples as ``response/GRAPH.NAME``.
    """

    split: Literal["train", "test"] = "test"
    graph: Name = "evaluate"
    model: Literal["received", "initial"] = "received"


class Annotate(msgspec.Struct, frozen=True, tag="annotate"):
    """Store a graph's per-example output as a local column of the training windows."""

    graph: Name
    column: Name


class Respond(msgspec.Struct, frozen=True, tag="respond"):
    """Run a graph on inputs the aggregator sent (blob `inputs`, tensor ``x``) and return its outputs."""

    inputs: Digest
    graph: Name = "predict"


Verb = Train | Evaluate | Annotate | Respond


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

    Tensors: ``delta/NAME`` = local minus received, for the role shared; ``statistic/NAME`` as they are; ``response/NAME``
    for the verbs respond and evaluate. A plan without `train` returns none of the first two. `evaluated` holds the metrics of the
    received model, `trained` those of the training passes.
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
