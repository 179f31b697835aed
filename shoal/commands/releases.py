"""`shoal models list`, `show`, `release`, `rollout` and `rollback`: the releases of a fleet, and how they reach devices."""

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from aggregator.adapters.release_store import ReleaseStore
from aggregator.adapters.salvage import read_database
from aggregator.core.progress import Counts, Progress, in_use, progress_of
from aggregator.core.releases import Release
from aggregator.core.rollout_state import GOING, FleetState, RolloutStep
from aggregator.desk import submit
from aggregator.release_orders import EndRollout, MakeReleases, PauseRollout, PromoteRollout, ResumeRollout, ReturnToRelease
from shoal.arguments import Database, Folder
from wire.errors import ConfigError

Fleet = Annotated[str, typer.Option(help="Name of the fleet.")]
Campaign = Annotated[str, typer.Option(help="Whose rollout: the name of the run that trained; that of the only one when empty.")]


def list_releases(folder: Folder, fleet: Fleet = "default", database: Database = "") -> None:
    """List the releases of a fleet: state, accuracy where it is known, and how many devices use each."""
    state = _state(folder, fleet, database)
    used = in_use(state)
    print(f"{'release':>7}  {'group':<20}  {'state':<9}  {'round':>5}  {'accuracy':>8}  {'in use':>6}  {'before':>6}")
    for number, release in sorted(state.catalogue.releases.items()):
        back = f"  has the model of release {release.returns_to}" if release.returns_to else ""
        print(
            f"{number:>7}  {release.group:<20}  {release.state:<9}  {release.round:>5}  {_accuracy(release):>8}  {used.get(number, 0):>6}"
            f"  {release.parent or '-':>6}{back}"
        )


def show_release(
    folder: Folder,
    number: Annotated[int, typer.Argument(help="The release's number.")],
    fleet: Fleet = "default",
    database: Database = "",
) -> None:
    """Show all that is known of a release."""
    state = _state(folder, fleet, database)
    release = state.catalogue.releases.get(number)
    if release is None:
        raise ConfigError(f"release {number}: fleet {fleet} has none of this number; `shoal models list` says which there are")
    for name, value in msgspec.to_builtins(release).items():
        if name == "made_at_s":
            name, value = "made", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
        if name == "metrics":
            name, value = "accuracy", f"{_accuracy(release)} on {release.metrics.num_examples} windows"
        print(f"{name:<10}  {value}")
    print(f"{'in use':<10}  on {in_use(state).get(number, 0)} devices")


def make_releases(
    folder: Folder,
    campaign: Annotated[str, typer.Option(help="The name of the run whose models are released.")] = "run-1",
    roll_out: Annotated[bool, typer.Option(help="Begin to give them to devices.")] = True,
) -> None:
    """Make releases of what a campaign has trained so far, one for each group, and roll them out."""
    print(submit(folder, MakeReleases(campaign, roll_out)))


def rollout(
    folder: Folder,
    campaign: Campaign = "",
    pause: Annotated[bool, typer.Option("--pause", help="Give the releases to no further device.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after a pause.")] = False,
    promote: Annotated[bool, typer.Option("--promote", help="Take the next step, whatever devices say.")] = False,
    fleet: Fleet = "default",
    database: Database = "",
) -> None:
    """Show how far rollouts are; or pause one, resume it, or take it to its next step."""
    state = _state(folder, fleet, database)
    if pause + resume + promote > 1:
        raise ConfigError("--pause, --resume and --promote: one at a time")
    if not (pause or resume or promote):
        for name, each in state.rollouts.items():
            if campaign in ("", name):
                _print(progress_of(state, name, each))
        if not any(campaign in ("", name) for name in state.rollouts):
            print(f"nothing was rolled out yet in fleet {fleet}" + (f" by campaign {campaign}" if campaign else ""))
        return
    name = _under_way(state, campaign)
    if promote:
        print(submit(folder, PromoteRollout(name, state.rollouts[name].step)))
    else:
        print(submit(folder, PauseRollout(name) if pause else ResumeRollout(name)))


def roll_back(
    folder: Folder,
    to: Annotated[int, typer.Option(min=0, help="The release whose group returns to its model; 0: end the rollout that goes on.")] = 0,
    group: Annotated[str, typer.Option(help="The group that returns to it, if it is not the release's own.")] = "",
    campaign: Campaign = "",
    fleet: Fleet = "default",
    database: Database = "",
) -> None:
    """Return to an earlier release, on all devices of its group at once; or end a rollout, so that devices get back what they had."""
    state = _state(folder, fleet, database)
    if not to:
        print(submit(folder, EndRollout(_under_way(state, campaign))))
        return
    if to not in state.catalogue.releases:
        raise ConfigError(f"--to {to}: fleet {fleet} has no release of this number; `shoal models list` says which there are")
    print(submit(folder, ReturnToRelease(to, group)))


def _under_way(state: FleetState, campaign: str) -> str:
    """The campaign whose rollout is meant.

    Raises:
        ConfigError: it cannot be told, or has none that goes on.
    """
    going = [name for name, each in state.rollouts.items() if each.phase in GOING and campaign in ("", name)]
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
        raise ConfigError(f"database {path}: damaged, {contents.damage[0]}; `shoal doctor` says more")
    if fleet not in contents.fleets:
        known = f"; it has those of {', '.join(contents.fleets)}" if contents.fleets else ""
        raise ConfigError(
            f"folder {folder}: there are no releases of fleet {fleet!r} (--fleet){known}; `shoal serve --release auto` makes some"
        )
    return contents.fleets[fleet]


def _print(progress: Progress) -> None:
    numbers = ", ".join(map(str, sorted(progress.releases.values())))
    print(f"{progress.campaign}: releases {numbers}: {progress.phase}" + (f": {progress.reason}" if progress.reason else ""))
    print(f"  {'step':<16}  {'offered':>7}  {'confirmed':>9}  {'failed':>6}  {'waiting':>7}  {'away':>5}")
    for number, counts in enumerate(progress.steps):
        _print_counts(_words(counts.step) + (" <" if number == progress.step and progress.phase in GOING else ""), counts)
    if progress.returned.offered:
        _print_counts("returned", progress.returned)


def _print_counts(name: str, counts: Counts) -> None:
    print(f"  {name:<16}  {counts.offered:>7}  {counts.confirmed:>9}  {counts.failed:>6}  {counts.waiting:>7}  {counts.away:>5}")
    if counts.alone:
        print(f"      {counts.alone} confirmed without what they have kept, which is of another model")
    for reason, devices in sorted(counts.reasons.items()):
        print(f"      {devices} failed: {reason}")


def _words(step: RolloutStep) -> str:
    return ", ".join([*([f"{step.share:.0%}"] if step.share else []), *step.tags])


def _accuracy(release: Release) -> str:
    return f"{release.metrics.accuracy:.4f}" if release.metrics.num_examples else "-"
