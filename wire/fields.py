"""What fields of messages may hold: names, digests, counts, reasons, metrics, and an owner's
policy."""

from typing import Annotated, Literal

import msgspec

# In Python `$` also matches before a line feed at the end, in JSON Schema it does not: with (?!\n)
# both refuse it.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}(?!\n)$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]
MaybeDigest = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?(?!\n)$")]
Encoding = Literal["float32", "int8"]
"""How an update holds its change."""
MOST_ENCODINGS = 16
"""Encodings of which a device says that it has them, at most."""
MOST_HELD = 16
"""Models of which a device says that it has kept something, at most."""
LARGEST_COUNT = 2**53
"""A sum of counts that is stored is cut to this, or it could not be read again."""
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
LARGEST_NUMBER = 2**31
Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_NUMBER)]
LONGEST_TEXT = 1000
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]

PLAN_BYTES = 16 * 2**10
"""A signed plan may have at most this many bytes: a device has to be able to send it back as a
proof."""
HEARTBEAT_S = 60.0
"""A connected device says at least so often that it is there."""
LEASE_S = 15.0
"""An aggregator that was silent for so long no longer holds its fleet."""

Epoch = Count
"""Which start of a service speaks: every start takes a greater one than any before it."""
MOST_EPOCHS = 10_000
"""Epochs that one verb can ask for."""
MOST_PASSES = 1_000
"""Passes over the training windows that it can make of one."""
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
    """What the owner of a device permits plans to ask of it (SPEC.md, 'Policy'). What is None is
    not restricted."""

    verbs: tuple[Name, ...] | None = None
    """The verbs that a plan may have."""
    graphs: tuple[Name, ...] | None = None
    """The graphs that verbs may run."""
    bundles: tuple[Name, ...] | None = None
    """The names of bundles that may be loaded."""
    max_epochs: Annotated[float, msgspec.Meta(gt=0)] = 1000.0
    """Epochs in a plan, all its verbs together."""
    max_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds for which a plan may work; it is ended after them."""
    max_bytes_a_day: Positive | None = None
    """Bytes that may come and go in 24 hours."""
    max_clip_norm: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """The longest change that training may report: every plan that reports one has to end with
    ``protect`` that clips to no more."""
    min_noise_multiplier: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """The least noise of that ``protect``, its standard deviation divided by its `clip_norm`."""
    min_windows: Positive = 1
    """Windows that have to be behind all that is reported."""
    tell_classes: bool = False
    """Whether a check-in may say how many training windows there are of each class."""
    unreported: tuple[Name, ...] | None = None
    """Graphs that verbs may run, but of which no verb reports anything."""

    @property
    def needs_cover(self) -> bool:
        """Whether nothing may leave the device that no clipping or noise covers."""
        return self.max_clip_norm is not None or bool(self.min_noise_multiplier)

    @property
    def withholds(self) -> bool:
        """Whether an aggregator is not to ask for measurements that it can do without: the owner
        says so, no mechanism covers them, or it cannot know how many windows are behind one."""
        return self.needs_cover or self.min_windows > 1 or bool(self.unreported)
