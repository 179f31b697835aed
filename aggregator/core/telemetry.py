"""Telemetry of a device: what people want to see of it, and nothing depends on.

What the fleet goes by is in `aggregator.fleet.records.Device`. Telemetry may be saved later, and a
part of it may be lost. Pure: a change is another record.
"""

import msgspec
from msgspec.structs import replace

from wire.messages import DeclineReason

HISTORY = 8
"""Number of changes of group that are remembered of a device."""


class GroupChange(msgspec.Struct, frozen=True, gc=False):
    """A campaign put a device into another group."""

    at_s: float
    campaign: str
    round: int
    group: str


class LastDecline(msgspec.Struct, frozen=True, gc=False):
    """An assignment that a device did not carry out."""

    at_s: float
    campaign: str
    round: int
    reason: DeclineReason
    detail: str


class LastTraining(msgspec.Struct, frozen=True, gc=False):
    """A device's last assignment to train."""

    examples: int
    """Number of examples that went through its steps, as often as they did."""
    train_s: float
    """Seconds of work on the assignment."""
    answer_s: float
    """Seconds from the assignment to its update; 0: not known."""
    bytes_up: int
    bytes_down: int


class DeviceTelemetry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Telemetry of a device. Times are Unix seconds; 0: never."""

    heard_s: float = 0.0
    """When its last message came."""
    training: LastTraining | None = None
    decline: LastDecline | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    """Sizes of its last update, and of what it fetched for that."""
    groups: tuple[GroupChange, ...] = ()
    """Its last changes of group, up to `HISTORY`."""


NO_TELEMETRY = DeviceTelemetry()


def regrouped(record: DeviceTelemetry, change: GroupChange) -> DeviceTelemetry:
    """Return the telemetry of a device that was put into another group."""
    return replace(record, groups=(*record.groups, change)[-HISTORY:])
