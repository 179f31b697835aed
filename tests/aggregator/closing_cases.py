"""Closing plans in the tests of the service."""

from typing import Any

import msgspec

from aggregator.core import state as s
from aggregator.core.record import RoundRecord, record_of
from aggregator.core.state import (
    KeptChanged,
    Says,
)
from algorithms.core.contract import Programs
from algorithms.personalisation.kept import Kept
from tests.aggregator.kept_cases import CHOICE, CLOSING, KEPT
from tests.aggregator.round_cases import RECEIVED, Run
from tests.support.known import known
from wire import messages as m
from wire.codec import digest

PROGRAMS: Programs = {"": (m.Train(32),), "closing": CLOSING}


def over(*missing: str, hold: bool = False, **changes: Any) -> Run:
    """A run that is over, of a, b and devices that missed its evaluation, which began at 3 and
    ended at 13. `hold`: it is still open."""
    given = {
        **CHOICE,
        "rounds": 1,
        "deadline_s": 10.0,
        "grace_s": 1.0,
        "min_batch": 5,
        "keep_models": 2,
        "min_devices": 2,
        **changes,
    }
    run = Run(programs=PROGRAMS, **given)
    for device in "ab":
        run.check_in(device)
    for device in "ab":
        run.update(device)
    for device in missing:
        run.check_in(device, 2.5)
    run.aggregated(3.0)
    for device in missing:
        run.feed(s.DeviceLost(3.5, device))
    for device in "ab":
        told(run, device, KEPT, 4.0)
    if run.state.phase == "evaluating" and not hold:
        run.feed(s.DeadlinePassed(13.0, run.state.round))
    assert hold or run.state.phase == "finished"
    return run


def told(
    run: Run, device: str, kept: Kept | None = KEPT, at_s: float = 20.0, **others: Any
) -> list[s.Command]:
    """A device sends what it keeps."""
    update = msgspec.structs.replace(
        RECEIVED, blob=digest(f"{device} {at_s}".encode()), start="0", kept=kept, **others
    )
    return run.feed(s.UpdateAdmitted(at_s, device, run.state.round, update))


def lost(
    run: Run, device: str, held: tuple[str, ...] | None, at_s: float = 20.0
) -> list[s.Command]:
    """A device checks in that holds what it has kept of these models alone."""
    return run.check_in(device, at_s, held=held)


def keeps(run: Run, device: str, at_s: float = 20.0, **said: Any) -> list[s.Command]:
    """A device has said this when it checked in with another run."""
    return run.feed(
        KeptChanged(
            at_s, {device: Says(**{"held": None, "withholds": False, "min_windows": 1, **said})}
        )
    )


def written(before: s.RunState, run: Run) -> RoundRecord:
    """The record that the last event brought."""
    return known(record_of(before, run.log[-1], run.state))


def plans(commands: list[s.Command]) -> list[m.Plan]:
    return [c.plan for c in commands if isinstance(c, s.SendPlan)]


def finished(commands: list[s.Command]) -> list[str]:
    return [c.device_id for c in commands if isinstance(c, s.FinishRun)]


def declined(
    run: Run, device: str, at_s: float = 21.0, failed: bool = True, again: bool = False
) -> list[s.Command]:
    return run.feed(s.DeviceDeclined(at_s, device, run.state.round, failed, again=again))
