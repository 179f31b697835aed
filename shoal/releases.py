"""The releases of a fleet, in the form in which `shoal models` prints them."""

from typing import Any

import msgspec

from aggregator.fleet.records import ModelRelease
from aggregator.http.pages.words import percent
from aggregator.view.fleet import FleetView
from aggregator.view.progress import GOING, Counts, RolloutProgress
from wire.errors import ConfigError


def release_of(view: FleetView, number: int, option: str = "") -> ModelRelease:
    """Return the release of this number.

    Raises:
        ConfigError: the fleet has no such release; the text names `option` if one is given.
    """
    if number not in view.fleet.releases:
        origin = f" ({option})" if option else ""
        raise ConfigError(f"No release {number}{origin}. `shoal models list` names all.")
    return view.fleet.releases[number]


def under_way(view: FleetView, campaign: str) -> RolloutProgress:
    """Return the rollout that is in progress, or that of `campaign` if it is named.

    Raises:
        ConfigError: no rollout is in progress, or several are and no campaign is named.
    """
    going = [
        each for each in view.rollouts if each.phase in GOING and campaign in ("", each.campaign)
    ]
    if not going:
        of = f" of campaign {campaign}" if campaign else ""
        raise ConfigError(f"No rollout{of} is in progress. `shoal models rollout` shows the last.")
    if len(going) > 1:
        names = ", ".join(each.campaign for each in going)
        raise ConfigError(f"Rollouts of {names} are in progress. Choose one with --campaign.")
    return going[0]


def print_progress(progress: RolloutProgress) -> None:
    """Print a rollout with its steps."""
    numbers = ", ".join(map(str, sorted(progress.releases.values())))
    print(
        f"{progress.campaign}, release{'' if len(progress.releases) == 1 else 's'} {numbers}: "
        f"{progress.phase}{f' ({progress.reason})' if progress.reason else ''}"
    )
    print(
        f"  {'step':<16}  {'offered':>7}  {'confirmed':>9}  {'failed':>6}  {'waiting':>7}  "
        f"{'silent':>6}  {'away':>5}"
    )
    for number, counts in enumerate(progress.steps):
        share = [f"{counts.share:.0%}"] if counts.share else []
        going = " (now)" if number == progress.step and progress.phase in GOING else ""
        _print_counts(", ".join([*share, *counts.tags]) + going, counts)


def _print_counts(name: str, counts: Counts) -> None:
    print(
        f"  {name:<16}  {counts.offered:>7}  {counts.confirmed:>9}  {counts.failed:>6}  "
        f"{counts.waiting:>7}  {counts.silent:>6}  {counts.away:>5}"
    )
    if counts.alone:
        print(
            f"      {counts.alone} confirmed without their personal model, which is of another "
            "model or damaged"
        )
    for reason, devices in sorted(counts.reasons.items()):
        print(f"      {devices} failed: {reason}")


def release_row(view: FleetView, release: ModelRelease) -> dict[str, Any]:
    """Return a release with its state and the number of devices that use it, for JSON."""
    number = release.number
    used = view.totals.answers.in_use.get(number, 0)
    fields = msgspec.to_builtins(release)
    return {**fields, "state": view.release_states[number], "in_use": used}


def accuracy_text(release: ModelRelease) -> str:
    """Return the accuracy of a release in per cent; a dash if no device has measured it."""
    return percent(release.metrics.accuracy) if release.metrics.num_examples else "-"
