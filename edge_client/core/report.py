"""Error reports: what of an error leaves the device (SPEC.md, 'Errors'). Pure."""

import sysconfig
import traceback
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wire.codec import encode
from wire.errors import printable
from wire.messages import (
    CLIENT,
    ERROR_BYTES,
    MOST_FRAMES,
    Count,
    DeclineReason,
    ErrorReport,
    Plan,
)

MESSAGE_BYTES = 500
"""Maximum number of bytes of an error's message."""
LONGEST_NAME, LONGEST_FRAME = 100, 200
"""Maximum number of characters of an error's type, and of a line of its traceback."""
OF_ERRORS: tuple[DeclineReason, ...] = ("bundle", "data", "failed")
"""Reasons of declines whose detail is the text of an error."""
WITHHELD = "the owner does not permit the text of errors"
_FOLDERS = (
    sysconfig.get_path("purelib"),
    sysconfig.get_path("stdlib"),
    str(Path(__file__).parents[2]),
)
"""Folders that a traceback leaves out: those of packages, of Python, and of Shoal's sources."""


class Machine(msgspec.Struct, frozen=True):
    """Machine of a client, with the client's memory, at one moment."""

    boot_id: str = ""
    """Identity of the machine's start; empty if unknown."""
    kills: int | None = 0
    """Number of processes that the kernel has killed for lack of memory since that start.

    None if the kernel does not count them.
    """
    peak_bytes: Count | None = None
    """Largest memory that the client has taken since its start; None if unknown."""
    memory_bytes: Count | None = None
    """Memory that the client can take at most; None if unknown."""


def report_of(
    device_id: str, what: str, error: BaseException, at_s: float, machine: Machine
) -> ErrorReport:
    """Return the report of an error.

    Args:
        device_id: id of the device.
        what: part of the client that failed.
        error: the error, with its traceback.
        at_s: Unix time, as well as the device knows it.
        machine: the machine now.
    """
    frames = tuple(
        f"{_file(frame.filename)}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    )
    return bounded(
        ErrorReport(
            device_id,
            at_s,
            what,
            type(error).__name__,
            text_of(error),
            frames,
            CLIENT,
            peak_bytes=machine.peak_bytes,
            memory_bytes=machine.memory_bytes,
        ),
        str(Path.home()),
    )


def killed_report(
    device_id: str, plan: Plan, before: Machine, now: Machine, at_s: float
) -> ErrorReport:
    """Return the report of a client that ended in the midst of a plan, without an error.

    Args:
        device_id: id of the device.
        plan: the plan.
        before: the machine when the client was last known to work.
        now: the machine at the next start of the client.
        at_s: Unix time of that start.
    """
    error, why = "Killed", "it was killed, or it crashed; the kernel killed nothing for memory"
    if before.boot_id != now.boot_id:
        error, why = "Restarted", "the machine restarted"
    elif before.kills is None or now.kills is None:
        why = (
            "it was killed (exit -9), often for lack of memory, or it crashed; see the kernel's log"
        )
    elif (kills := now.kills - before.kills) > 0:
        why = (
            f"the kernel killed {kills} process{'' if kills == 1 else 'es'} for lack of memory "
            "(exit -9); use smaller batches or a smaller model, or give the machine more memory"
        )
    message = f"the client ended while it worked on round {plan.round}: {why}"
    return ErrorReport(
        device_id,
        at_s,
        "Client ended",
        error,
        message,
        client=CLIENT,
        peak_bytes=before.peak_bytes,
        memory_bytes=now.memory_bytes,
    )


def bounded(report: ErrorReport, home: str) -> ErrorReport:
    """Return a report on printable lines, without the home folder, and within `ERROR_BYTES`.

    The outermost lines of the traceback are left out first.
    """
    message = report.message.replace(home, "~") if len(home) > 1 else report.message
    frames = [printable(frame)[:LONGEST_FRAME] for frame in report.frames[-MOST_FRAMES:]]
    report = replace(
        report,
        error=printable(report.error)[:LONGEST_NAME],
        message=printable(message).encode()[:MESSAGE_BYTES].decode(errors="ignore"),
        frames=tuple(frames),
    )
    while report.frames and len(encode(report)) > ERROR_BYTES:
        report = replace(report, frames=report.frames[1:])
    return report


def text_of(error: BaseException) -> str:
    """Return the message of an error; empty if it cannot be made."""
    try:
        return str(error)
    except Exception:  # an error without a text is still an error
        return ""


def permitted_detail(reports_errors: bool, reason: DeclineReason, detail: str) -> str:
    """Return the detail of a decline; empty if it is an error's text that must not be reported."""
    return detail if reports_errors or reason not in OF_ERRORS else ""


def _file(path: str) -> str:
    """Return the path of a source file within its packages, or else its name."""
    for folder in _FOLDERS:
        if path.startswith(f"{folder}/"):
            return path[len(folder) + 1 :]
    return Path(path).name
