"""Types of message fields: names, digests, counts, reasons, metrics, and an owner's policy."""

import re
from typing import Annotated, Literal

import msgspec

# In Python, `$` also matches before a line feed at the end; in JSON Schema it does not. With (?!\n)
# both refuse the line feed.
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}(?!\n)$")]
_LONGEST_NAME, _NOT_IN_NAMES = 64, re.compile(r"[^A-Za-z0-9._-]+")
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]
MaybeName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,64}(?!\n)$")]
MaybeDigest = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?(?!\n)$")]
Encoding = Literal["float32", "int8"]
"""Encoding of the change in an update."""
MOST_ENCODINGS = 16
"""Maximum number of encodings that a device reports."""
MOST_HELD = 16
"""Maximum number of models of which a device reports a personal model."""
LARGEST_COUNT = 2**53
"""Largest stored sum of counts. A larger one could not be read again, so it is cut."""
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
LARGEST_NUMBER = 2**31
Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_NUMBER)]
LONGEST_TEXT = 1000
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]

ERROR_BYTES = 4 * 2**10
"""Maximum number of bytes of an error report."""
MOST_FRAMES = 32
"""Maximum number of lines of a traceback in an error report."""
PLAN_BYTES = 48 * 2**10
"""Maximum number of bytes of a signed plan, so that a device can return it as a proof."""
HEARTBEAT_S = 60.0
"""Maximum time between two status messages of a connected device, in seconds."""
ROOM = 2**20
"""Smallest change of a device's free storage, in bytes, that may begin or end a failure."""
LEASE_S = 15.0
"""Time in seconds after which an aggregator that sends no status loses its fleet to another."""

Epoch = Count
"""Number of a service's start. Every start takes a greater one than all earlier starts."""
MOST_EPOCHS = 10_000
"""Maximum number of epochs of one verb."""
MOST_PASSES = 1_000
"""Maximum number of passes over the training windows in one epoch."""
MOST_CLASSES = 1000
"""Maximum number of classes whose numbers of windows a device reports."""
MOST_CHOICES = 64
"""Maximum number of models from which a device can be made to choose."""
MOST_PIECES = 512
"""Maximum number of pieces of a large payload, so that their hashes fit into a message."""

Reason = Literal[
    "unknown-topic",
    "unknown-device",
    "second-device",
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
"""Reason that an aggregator refuses a message (SPEC.md, 'Updates')."""

DeclineReason = Literal[
    "stale", "expired", "outdated", "policy", "bundle", "data", "failed", "quarantined"
]
"""Reason that a device does not carry out a plan (SPEC.md, 'Declines')."""


def name_of(text: str) -> str:
    """Return a text as a `Name`: what a name may not have becomes a hyphen."""
    return _NOT_IN_NAMES.sub("-", text)[:_LONGEST_NAME]


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Sums over the examples of a graph's run. Means are computed only for display."""

    num_examples: Count = 0
    loss_sum: float = 0.0
    num_correct: Count = 0

    @property
    def accuracy(self) -> float:
        """Fraction of examples classified correctly; NaN without examples."""
        return self.num_correct / self.num_examples if self.num_examples else float("nan")

    @property
    def mean_loss(self) -> float:
        """Loss per example; NaN without examples."""
        return self.loss_sum / self.num_examples if self.num_examples else float("nan")


class Policy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=False):
    """Policy of a device's owner for plans (SPEC.md, 'Policy'). None: no restriction."""

    verbs: tuple[Name, ...] | None = None
    """Verbs that a plan may have."""
    graphs: tuple[Name, ...] | None = None
    """Graphs that verbs may run."""
    bundles: tuple[Name, ...] | None = None
    """Names of bundles that may be loaded."""
    max_epochs: Annotated[float, msgspec.Meta(gt=0)] = 1000.0
    """Maximum number of epochs in all verbs of a plan together."""
    max_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Maximum time of work on a plan, in seconds. Then the plan is ended."""
    max_bytes_a_day: Positive | None = None
    """Maximum number of bytes sent and received in 24 hours."""
    max_clip_norm: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Maximum norm of a change that training may report.

    Every plan that reports a change must end with ``protect`` with at most this `clip_norm`.
    """
    min_noise_multiplier: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Minimum noise of that ``protect``: its standard deviation divided by its `clip_norm`."""
    min_windows: Positive = 1
    """Minimum number of windows behind everything that is reported."""
    tell_classes: bool = False
    """True if a check-in may report the number of training windows of each class."""
    unreported: tuple[Name, ...] | None = None
    """Graphs that verbs may run, but without a report."""
    report_errors: bool = True
    """True if texts of errors may leave the device. Otherwise only the reason of a decline does."""
    min_sum: Positive | None = None
    """Minimum number of devices of a secret sum. With it, data are reported in secret sums alone.

    A check-in then does not count windows, and no text of an error leaves the device.
    """

    @property
    def needs_cover(self) -> bool:
        """True if everything that leaves the device must be covered by clipping or noise."""
        return self.max_clip_norm is not None or bool(self.min_noise_multiplier)

    @property
    def tells_errors(self) -> bool:
        """True if texts of errors may leave the device; they may count windows."""
        return self.report_errors and self.min_sum is None

    @property
    def withholds(self) -> bool:
        """True if an aggregator should not request measurements that it can do without.

        Either the owner forbids them, or no mechanism covers them, or the aggregator cannot know
        the number of windows behind one.
        """
        return self.needs_cover or self.min_windows > 1 or bool(self.unreported)
