"""Telemetry of a device: data for people, on which no decision depends.

Data for decisions are in `aggregator.fleet.records.Device`. Telemetry is saved with delay, and a
part of it may be lost. Pure: a change is another record.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from wire.messages import DeclineReason, ErrorReport, Reason

HISTORY = 8
"""Maximum number of remembered changes of group of a device."""
LONGEST_DETAIL = 100
"""Maximum number of characters of a detail that is shown beside others."""
OF_ERRORS = ("bundle", "data", "failed", "quarantined")
"""Reasons of declines that an error of the device causes."""
LONGEST_KEY = 200
"""Maximum number of characters of an `error_key`."""
_PATH = re.compile(r"['\"]?(?:~|\b[A-Za-z]:)?[/\\][^\s'\":,;)]+['\"]?")
_ENDS = " :,;.'\""
_NUMBER = re.compile(r"\b[0-9a-f]{12,}\b|[0-9]+")


class GroupChange(msgspec.Struct, frozen=True, gc=False):
    """Change of a device's group in a campaign."""

    at_s: float
    campaign: str
    round: int
    group: str


class LastDecline(msgspec.Struct, frozen=True, gc=False):
    """Last assignment that a device declined, or whose update was refused."""

    at_s: float
    campaign: str
    round: int
    reason: DeclineReason | Reason
    detail: str
    refused: bool = False
    """True if the service refused the update."""

    @property
    def is_error(self) -> bool:
        """True if an error of the device is its cause, which the device reports as well."""
        return self.reason in OF_ERRORS

    @property
    def text(self) -> str:
        """The answer, for people."""
        what = (
            f"its update was refused: {self.reason}" if self.refused else f"declined: {self.reason}"
        )
        return f"{what} ({self.detail[:LONGEST_DETAIL]})" if self.detail else what


class LastError(msgspec.Struct, frozen=True, gc=False):
    """Last error that a device reported."""

    heard_s: float
    """Time at which the service first had this report."""
    report: ErrorReport
    first_s: float = 0.0
    """Time of the first error with this key since the device last carried out an assignment."""

    @property
    def at_s(self) -> float:
        """Time of the error: the device's, unless that is unknown or in the future."""
        return min(self.report.at_s, self.heard_s) if self.report.at_s > 0 else self.heard_s

    @property
    def key(self) -> str:
        """Text under which the errors of several devices count as the same."""
        return error_key(self.report.error, self.report.message)

    @property
    def text(self) -> str:
        """Type and message, without paths."""
        return error_text(self.report.error, self.report.message)


class LastTraining(msgspec.Struct, frozen=True, gc=False):
    """Last training assignment of a device."""

    examples: int
    """Number of processed examples, with repetitions."""
    train_s: float
    """Seconds of work on the assignment."""
    answer_s: float
    """Seconds from the assignment to its update; 0 if unknown."""
    bytes_up: int
    bytes_down: int


class DeviceTelemetry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Telemetry of a device. Times are Unix seconds; 0 means never."""

    heard_s: float = 0.0
    """Time of the last message."""
    training: LastTraining | None = None
    decline: LastDecline | None = None
    error: LastError | None = None
    mended_s: float = 0.0
    """Time since which earlier errors no longer count.

    It is that of the last update, or of the last check-in with facts that may end a failure.
    """
    bytes_up: int = 0
    bytes_down: int = 0
    """Size of the last update, and of the blobs fetched for it."""
    clock_off_s: float = 0.0
    """Seconds by which its clock is ahead of the service's; negative if behind, 0 if unknown."""
    retained: int = 0
    """Number of messages that the device had the broker retain, and that the service cleared."""
    groups: tuple[GroupChange, ...] = ()
    """Last changes of group, at most `HISTORY`."""

    @property
    def standing_error(self) -> LastError | None:
        """Last error, unless the device has carried out an assignment or has changed since."""
        error = self.error
        return error if error is not None and error.heard_s > self.mended_s else None


NO_TELEMETRY = DeviceTelemetry()


def error_text(error: str, message: str) -> str:
    """Return the type and the message of an error, without paths."""
    text = _PATH.sub("", message).strip(_ENDS)
    return f"{error}: {text}".strip(_ENDS)[:LONGEST_KEY]


@lru_cache(4096)
def error_key(error: str, message: str) -> str:
    """Return the type and the message of an error, without paths, and with ``#`` for numbers."""
    return _NUMBER.sub("#", error_text(error, message))


def common_text(texts: Sequence[str]) -> str:
    """Return the text of errors with one key: the first one, with ``...`` for other numbers."""
    columns = iter([{*each} for each in zip(*map(_NUMBER.findall, texts), strict=False)])

    def shared(number: re.Match[str]) -> str:
        return number[0] if next(columns, {""}) == {number[0]} else "..."

    return _NUMBER.sub(shared, texts[0])


def regrouped(record: DeviceTelemetry, change: GroupChange) -> DeviceTelemetry:
    """Return the telemetry of a device after a change of its group."""
    return replace(record, groups=(*record.groups, change)[-HISTORY:])
