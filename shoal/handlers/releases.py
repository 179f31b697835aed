"""`shoal models list`, `show`, `release`, `rollout` and `rollback`: the releases of a fleet, and
how they reach devices."""

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from aggregator.core.release.progress import Counts, Progress, in_use, progress_of
from aggregator.core.release.releases import Release
from aggregator.core.release.state import GOING, FleetState, RolloutStep
from aggregator.http.local import order
from aggregator.storage.release_store import ReleaseStore
from aggregator.storage.salvage import read_database
from shoal.printing import print_json
from wire.errors import ConfigError


def list_releases(folder: Path, fleet: str, database: str, as_json: bool) -> None:
    """Carry out `shoal models list`."""
    state = _state(folder, fleet, database)
    used = in_use(state)
    if as_json:
        print_json(
            [
                _row(number, release, used)
                for number, release in sorted(state.catalogue.releases.items())
            ]
        )
        return
    print(
        f"{'release':>7}  {'group':<20}  {'state':<9}  {'round':>5}  {'accuracy':>8}  "
        f"{'in use':>6}  {'before':>6}"
    )
    for number, release in sorted(state.catalogue.releases.items()):
        back = f"  has the model of release {release.returns_to}" if release.returns_to else ""
        print(
            f"{number:>7}  {release.group:<20}  {release.state:<9}  {release.round:>5}  "
            f"{_accuracy(release):>8}  {used.get(number, 0):>6}"
            f"  {release.parent or '-':>6}{back}"
        )


def show_release(folder: Path, number: int, fleet: str, database: str, as_json: bool) -> None:
    """Carry out `shoal models show`."""
    state = _state(folder, fleet, database)
    release = state.catalogue.releases.get(number)
    if release is None:
        raise ConfigError(
            f"release {number}: fleet {fleet} has none of this number; `shoal models list` says "
            "which there are"
        )
    if as_json:
        print_json(_row(number, release, in_use(state)))
        return
    for name, value in msgspec.to_builtins(release).items():
        if name == "made_at_s":
            name, value = "made", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
        if name == "metrics":
            name, value = (
                "accuracy",
                f"{_accuracy(release)} on {release.metrics.num_examples} windows",
            )
        print(f"{name:<10}  {value}")
    print(f"{'in use':<10}  on {in_use(state).get(number, 0)} devices")


def make_releases(folder: Path, campaign: str, roll_out: bool) -> None:
    """Carry out `shoal models release`."""
    print(order(folder, "releases", campaign=campaign, roll_out=roll_out))


def rollout(
    folder: Path,
    campaign: str,
    pause: bool,
    resume: bool,
    promote: bool,
    fleet: str,
    database: str,
    as_json: bool,
) -> None:
    """Carry out `shoal models rollout`."""
    state = _state(folder, fleet, database)
    if pause + resume + promote > 1:
        raise ConfigError("--pause, --resume and --promote: one at a time")
    if not (pause or resume or promote):
        shown = [
            progress_of(state, name, each)
            for name, each in state.rollouts.items()
            if campaign in ("", name)
        ]
        if as_json:
            print_json(shown)
            return
        for progress in shown:
            _print(progress)
        if not shown:
            print(
                f"nothing was rolled out yet in fleet {fleet}"
                + (f" by campaign {campaign}" if campaign else "")
            )
        return
    name = _under_way(state, campaign)
    if promote:
        said = order(folder, "rollouts", name, "promote", step=state.rollouts[name].step)
    else:
        said = order(folder, "rollouts", name, "pause" if pause else "resume")
    if as_json:
        print_json({"said": [said]})
    else:
        print(said)


def roll_back(folder: Path, to: int, group: str, campaign: str, fleet: str, database: str) -> None:
    """Carry out `shoal models rollback`."""
    state = _state(folder, fleet, database)
    if not to:
        print(order(folder, "rollouts", _under_way(state, campaign), "rollback"))
        return
    if to not in state.catalogue.releases:
        raise ConfigError(
            f"--to {to}: fleet {fleet} has no release of this number; `shoal models list` says "
            "which there are"
        )
    print(order(folder, "releases", str(to), "rollback", group=group))


def _under_way(state: FleetState, campaign: str) -> str:
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


def _state(folder: Path, fleet: str, database: str) -> FleetState:
    """The releases of a fleet. Of SQLite in the folder, they are read without a trace.

    Raises:
        ConfigError: the database is not there, damaged, or has no releases of this fleet.
        StorageFailed: it cannot be read.
    """
    path = folder / "shoal.db"
    if database:
        with closing(ReleaseStore(database, fleet)) as store:
            return store.load()
    if not path.exists():
        raise ConfigError(f"folder {folder}: there is no shoal.db; `shoal serve --folder` makes it")
    contents = read_database(path)
    if contents.damage:
        raise ConfigError(
            f"database {path}: damaged, {contents.damage[0]}; `shoal doctor` says more"
        )
    if fleet not in contents.fleets:
        known = f"; it has those of {', '.join(contents.fleets)}" if contents.fleets else ""
        raise ConfigError(
            f"folder {folder}: there are no releases of fleet {fleet!r} (--fleet){known}; `shoal "
            "serve --release auto` makes some"
        )
    return contents.fleets[fleet]


def _print(progress: Progress) -> None:
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
        _print_counts(
            _words(counts.step)
            + (" <" if number == progress.step and progress.phase in GOING else ""),
            counts,
        )
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


def _row(number: int, release: Release, used: Mapping[int, int]) -> dict[str, Any]:
    return {"number": number, **msgspec.to_builtins(release), "in_use": used.get(number, 0)}


def _words(step: RolloutStep) -> str:
    return ", ".join([*([f"{step.share:.0%}"] if step.share else []), *step.tags])


def _accuracy(release: Release) -> str:
    return f"{release.metrics.accuracy:.4f}" if release.metrics.num_examples else "-"
