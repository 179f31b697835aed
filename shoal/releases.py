"""The releases of a fleet, as `shoal models` reads and prints them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from aggregator.core.release.progress import Counts, Progress
from aggregator.core.release.releases import Release
from aggregator.core.release.state import GOING, FleetState
from aggregator.maintenance.database import read_whole
from aggregator.storage.schema import reading
from aggregator.storage.sql_store import FLEET, replay
from wire.errors import ConfigError


def under_way(state: FleetState, campaign: str) -> str:
    """The campaign whose rollout is meant.

    Raises:
        ConfigError: it cannot be told, or has none that goes on.
    """
    going = [
        name
        for name, each in state.rollouts.items()
        if each.phase in GOING and campaign in ("", name)
    ]
    if not going:
        of = f" of campaign {campaign}" if campaign else ""
        raise ConfigError(f"no rollout{of} goes on; `shoal models rollout` shows the last")
    if len(going) > 1:
        raise ConfigError(f"rollouts of {', '.join(going)} go on: name one with --campaign")
    return going[0]


def fleet_state(folder: Path, fleet: str, database: str) -> FleetState:
    """The releases of a fleet. Of SQLite in the folder, they are read without a trace.

    Raises:
        ConfigError: the database is not there, damaged, or has no releases of this fleet.
        StorageFailed: it cannot be read.
    """
    if database:
        with reading(database) as connection:
            stored = FleetState()
            if connection is not None:
                stored, _ = replay(connection, fleet, FLEET)
            return stored
    contents = read_whole(folder)
    if fleet not in contents.fleets:
        known = f"; it has those of {', '.join(contents.fleets)}" if contents.fleets else ""
        raise ConfigError(
            f"folder {folder}: there are no releases of fleet {fleet!r} (--fleet){known}; `shoal "
            "serve --release auto` makes some"
        )
    return contents.fleets[fleet]


def print_progress(progress: Progress) -> None:
    numbers = ", ".join(map(str, sorted(progress.releases.values())))
    print(
        f"{progress.campaign}: releases {numbers}: {progress.phase}"
        + (f": {progress.reason}" if progress.reason else "")
    )
    print(
        f"  {'step':<16}  {'offered':>7}  {'confirmed':>9}  {'failed':>6}  {'waiting':>7}  "
        f"{'away':>5}"
    )
    for number, counts in enumerate(progress.steps):
        share = [f"{counts.step.share:.0%}"] if counts.step.share else []
        going = " <" if number == progress.step and progress.phase in GOING else ""
        _print_counts(", ".join([*share, *counts.step.tags]) + going, counts)
    if progress.returned.offered:
        _print_counts("returned", progress.returned)


def _print_counts(name: str, counts: Counts) -> None:
    print(
        f"  {name:<16}  {counts.offered:>7}  {counts.confirmed:>9}  {counts.failed:>6}  "
        f"{counts.waiting:>7}  {counts.away:>5}"
    )
    if counts.alone:
        print(
            f"      {counts.alone} confirmed without what they have kept: it is of another model, "
            "or damaged"
        )
    for reason, devices in sorted(counts.reasons.items()):
        print(f"      {devices} failed: {reason}")


def release_row(number: int, release: Release, used: Mapping[int, int]) -> dict[str, Any]:
    return {"number": number, **msgspec.to_builtins(release), "in_use": used.get(number, 0)}


def accuracy_text(release: Release) -> str:
    return f"{release.metrics.accuracy:.4f}" if release.metrics.num_examples else "-"
