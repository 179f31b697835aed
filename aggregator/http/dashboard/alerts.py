"""What an operator should know now: what does not go on, what was refused, and who has declined.
Pure."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aggregator.core.budget import why_ended
from aggregator.core.release.state import FleetState
from aggregator.core.state import RunState
from aggregator.http.dashboard.fleet import Tone
from aggregator.http.dashboard.history import Past
from aggregator.http.views import Shown
from aggregator.service.conditions import Conditions

RECENT = 5
"""Closed rounds of a campaign of which notes are alerts."""


class Alert(NamedTuple):
    """Something that an operator should know."""

    tone: Tone
    title: str
    text: str
    page: str = ""
    """Where there is more, as a path below the dashboard's."""


def standing_alerts(
    now: Conditions, campaigns: Mapping[str, Shown], releases: FleetState | None
) -> list[Alert]:
    """Return what does not go on now, the worst first: of the service itself, of each campaign, and
    of rollouts that have stopped or gone back. No closed round is read for it."""
    alerts = list[Alert]()
    if not now.connected:
        text = "Nothing reaches devices, and nothing of them comes."
        alerts.append(Alert("bad", "No connection to the broker", text))
    if now.unvouched:
        alerts.append(Alert("bad", "Devices do not believe this service", now.unvouched))
    if now.paused:
        alerts.append(Alert("bad", "Something does not go on", now.paused, "campaigns"))
    for name, shown in campaigns.items():
        alerts += campaign_alerts(name, shown.state, shown.paused)
    ends: dict[str, tuple[Tone, str]] = {
        "paused": ("warn", "is paused"),
        "rolled-back": ("bad", "went back"),
    }
    for campaign, rollout in releases.rollouts.items() if releases is not None else ():
        if rollout.phase in ends:
            tone, what = ends[rollout.phase]
            title = f"The rollout of {campaign} {what}"
            alerts.append(Alert(tone, title, rollout.reason, "releases"))
    return sorted(alerts, key=lambda alert: alert.tone != "bad")


def campaign_alerts(name: str, run: RunState, paused: str) -> Iterator[Alert]:
    """Of one campaign: why it does not go on."""
    page = f"campaigns/{name}"
    if paused:
        yield Alert("bad", f"Campaign {name} is paused", paused, page)
    if run.phase == "waiting":
        need = run.settings.min_devices
        yield Alert(
            "warn",
            f"Campaign {name} waits for devices",
            f"{run.num_online} online; it begins with {need} that can train.",
            page,
        )
    elif run.devices and not run.num_online and not run.ended:
        known = (
            "The one device"
            if len(run.devices) == 1
            else f"None of the {len(run.devices):,} devices"
        )
        is_here = "is not here" if len(run.devices) == 1 else "is here"
        yield Alert(
            "warn",
            f"{known} of {name} {is_here}",
            "Phones are away between their jobs; boards stay connected.",
            page,
        )
    if run.attempt:
        yield Alert(
            "warn",
            f"Round {run.round} of {name} was opened again",
            f"Attempt {run.attempt + 1}: too few updates came before.",
            page,
        )
    if not run.ended and (why := why_ended(run)):
        yield Alert("warn", f"Campaign {name}", why, page)


def round_alerts(name: str, past: Past) -> Iterator[Alert]:
    """Of a campaign's last rounds: what has been left out of its models, and why."""
    page = f"campaigns/{name}"
    for line in reversed(past.rounds[-RECENT:]):
        where = f"Round {line.round} of {name}"
        if "rolled_back" in line.notes:
            said = line.notes["rolled_back"]
            yield Alert(
                "warn",
                f"{where} returned to the models of round {said['to']}",
                said["reason"],
                page,
            )
        if "set_aside" in line.notes:
            yield Alert("warn", f"{where} changed nothing", str(line.notes["set_aside"]), page)
        if left_out := line.notes.get("left_out"):
            yield Alert(
                "warn", f"{where} left updates out", f"Not within bounds: {len(left_out)}.", page
            )
        for note, text in (
            ("too_small", "had too few devices"),
            ("too_far", "had models too far from the last"),
        ):
            if groups := line.notes.get(note):
                yield Alert(
                    "warn",
                    f"{where} kept models as they were",
                    f"{len(groups)} of its groups {text}.",
                    f"{page}/groups",
                )
