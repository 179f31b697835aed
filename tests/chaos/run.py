"""Brings faults about one after the other, in random order, and counts what they did."""

import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.deployment import PATIENCE_S, Deployment, ServiceEnded
from tests.chaos.faults import Fault
from tests.chaos.trial import Skipped, Trial


@dataclass
class Row:
    """Outcome of one fault."""

    tried: int = 0
    acknowledged: int = 0
    """Acknowledged updates of closed rounds that were looked for."""
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    stalled: list[str] = field(default_factory=list)
    rounds: int = 0
    """Rounds whose record and model were computed again."""
    seconds: list[float] = field(default_factory=list)
    """Time until a round was aggregated, by trial."""
    spent_s: float = 0.0
    skipped: str = ""

    @property
    def failures(self) -> list[str]:
        """Everything that must not be."""
        return [
            f"{name}: {text}"
            for name in ("lost", "twice", "stalled")
            for text in getattr(self, name)
        ]

    def report(self) -> dict[str, Any]:
        """For JSON."""
        median_s = round(statistics.median(self.seconds), 1) if self.seconds else None
        numbers = {
            "tried": self.tried,
            "acknowledged": self.acknowledged,
            "rounds": self.rounds,
            "median_s": median_s,
        }
        numbers["longest_s"] = round(max(self.seconds), 1) if self.seconds else None
        return {
            **numbers,
            "lost": self.lost,
            "twice": self.twice,
            "stalled": self.stalled,
            "skipped": self.skipped,
        }


def try_once(deployment: Deployment, fault: Fault, rng: random.Random, row: Row) -> None:
    """Bring a fault about, wait for a round, and hold acknowledgements and records against each
    other."""
    if fault.in_folder and deployment.postgres is not None:
        row.skipped = "the database is not in the service's folder"
        return
    started_s, since, run_id = time.monotonic(), *_place(deployment)
    trial = Trial(deployment, rng)
    try:
        fault.bring_about(trial)
        if not trial.seconds:
            trial.await_round()
        deployment.wait_for_rounds(
            1, PATIENCE_S
        )  # so that the round of the fault is closed, and its successor's model was sent
    except Skipped as reason:
        row.skipped = str(reason)
        return
    except (ServiceEnded, TimeoutError) as error:
        row.stalled.append(f"{type(error).__name__}: {error}")
        _begin_again(deployment, f"{fault.name}-{row.tried}")
    row.tried += 1
    if trial.seconds:
        row.seconds.append(trial.seconds)
    place = deployment.place()
    verdict = deployment.audit(
        min(since, place.round) - 1 if place.run_id == run_id else 1, fault.models
    )
    row.acknowledged += verdict.acknowledged
    row.rounds += verdict.rounds
    row.lost += verdict.lost if fault.forgets else verdict.lost + verdict.asked_again
    row.twice += verdict.twice
    row.spent_s += time.monotonic() - started_s


def try_faults(
    deployment: Deployment,
    faults: Sequence[Fault],
    seconds: float,
    rng: random.Random,
    tell: Callable[[str], None],
) -> dict[str, Row]:
    """Try every fault once, and go on for so many seconds with those that had less than their share
    of the time."""
    rows = {fault.name: Row() for fault in faults}
    end_s, first = time.monotonic() + seconds, rng.sample(faults, len(faults))
    deployment.wait_for_rounds(2, 60)
    while first or time.monotonic() < end_s:
        if first:
            fault = first.pop()
        else:
            left = [fault for fault in faults if not rows[fault.name].skipped]
            least = min(rows[fault.name].spent_s / fault.share for fault in left)
            fault = rng.choice(
                [fault for fault in left if rows[fault.name].spent_s / fault.share <= 1.5 * least]
            )
        row, failures = rows[fault.name], len(rows[fault.name].failures)
        try_once(deployment, fault, rng, row)
        tell(f"{fault.name}: {row.skipped or f'{row.seconds[-1] if row.seconds else 0:.1f} s'}")
        for text in row.failures[failures:]:
            tell(f"  FAILED {text}")
    return rows


def _place(deployment: Deployment) -> tuple[int, str]:
    place = deployment.place()
    return place.round, place.run_id


def _begin_again(deployment: Deployment, name: str) -> None:
    """Put the folder of a failure aside, and begin another run with every process alive."""
    deployment.stop()
    deployment.settle()
    deployment.witness.forget_run()
    aside = deployment.folder / "failed" / name.replace("/", "-")
    aside.parent.mkdir(exist_ok=True)
    with suppress(OSError):
        shutil.rmtree(aside, ignore_errors=True)
        deployment.served.rename(aside)
    deployment.new_database()
    deployment.environment = {}
    for device_id, process in deployment.devices.processes.items():
        if process.poll() is not None:
            deployment.devices.start(device_id)
    deployment.start()
    deployment.wait_for_rounds(2, 120)
