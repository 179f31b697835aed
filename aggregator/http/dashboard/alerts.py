"""Alerts: stopped parts, devices that do not answer, refused or left out updates. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from aggregator.http.dashboard.fleet import Tone
from aggregator.http.dashboard.history import Past
from aggregator.service.conditions import Conditions
from aggregator.view.fleet import SHOWN, CampaignView, FleetView, Unanswered

RECENT = 5
"""Number of last closed rounds of a campaign whose notes become alerts."""


class AlertDevice(NamedTuple):
    """Device that an alert names."""

    id: str
    text: str
    since_s: float = 0.0
    """Time when it began; 0 if unknown."""
    next_s: float = 0.0
    """Time of its next assignment; 0 if unknown."""


class Alert(NamedTuple):
    """Fact that an operator should know."""

    tone: Tone
    title: str
    text: str
    page: str = ""
    """Page with details, as a path below the dashboard's."""
    since_s: float = 0.0
    """Time when it began; 0 if unknown."""
    devices: tuple[AlertDevice, ...] = ()


def standing_alerts(now: Conditions, view: FleetView) -> list[Alert]:
    """Return the alerts of the service, campaigns, rollouts and silent devices, worst first.

    No closed round is read for it. The failed rollout of a finished campaign is not an alert once a
    later rollout is done.
    """
    alerts = list[Alert]()
    if not now.connected:
        text = "Nothing reaches devices, and nothing from devices arrives."
        alerts.append(Alert("bad", "No connection to the broker", text))
    if now.unvouched:
        alerts.append(Alert("bad", "Devices do not trust this service", now.unvouched))
    if now.paused:
        alerts.append(Alert("bad", "Campaigns have stopped", now.paused, "campaigns"))
    for name, campaign in view.campaigns.items():
        alerts_of = campaign_alerts(name, campaign)
        alerts += [each for each in alerts_of if not now.paused or each.text != now.paused]
    ends: dict[str, tuple[Tone, str]] = {
        "paused": ("warn", "is paused"),
        "failed": ("bad", "has failed"),
    }
    done_s = max((each.began_s for each in view.rollouts if each.phase == "done"), default=0.0)
    for rollout in view.rollouts:
        record = view.fleet.campaigns.get(rollout.campaign)
        is_over = record is not None and record.phase == "finished" and rollout.began_s < done_s
        if rollout.phase == "failed" and is_over:
            continue
        if rollout.phase in ends:
            tone, what = ends[rollout.phase]
            title = f"The rollout of {rollout.campaign} {what}"
            alerts.append(Alert(tone, title, rollout.reason, "releases", rollout.step_s))
    if view.totals.unanswered:
        alerts.append(device_alert(view.totals.unanswered))
    return sorted(alerts, key=lambda alert: alert.tone != "bad")


def device_alert(devices: tuple[Unanswered, ...]) -> Alert:
    """Return the alert that names devices that do not answer."""
    number = len(devices)
    title = "A device does not answer" if number == 1 else f"{number:,} devices do not answer"
    more = f" The first {SHOWN} are named here." if number > SHOWN else ""
    named = tuple(
        AlertDevice(
            each.device_id,
            f"{each.failures} failure{'' if each.failures == 1 else 's'} in a row"
            + ("" if each.online else ", offline"),
            each.since_s,
            each.next_s,
        )
        for each in devices[:SHOWN]
    )
    text = f"{'It' if number == 1 else 'They'} did not carry out the last assignment.{more}"
    return Alert("warn", title, text, "fleet?show=attention", devices=named)


def campaign_alerts(name: str, view: CampaignView) -> Iterator[Alert]:
    """Yield the alerts of one campaign: reasons why it does not go on."""
    page, campaign = f"campaigns/{name}", view.record
    if view.paused:
        yield Alert("bad", f"Campaign {name} is paused", view.paused, page)
    if (waiting := view.waiting) is not None:
        number = sum(waiting.could.values())
        reasons = ", ".join(f"{count:,} {why}" for why, count in waiting.could.items())
        text = f"Devices that could take part: {reasons}."
        text = text if number else "No device could take part."
        servers = tuple(
            AlertDevice(d, why, next_s=0.0 if why == "free" else at_s)
            for d, why, at_s in waiting.servers
        )
        title = f"Campaign {name} waits for {waiting.lacks}"
        yield Alert("warn", title, text, page, waiting.since_s, servers)
    elif view.devices and not view.online and not campaign.ended:
        many = "The only device" if view.devices == 1 else f"All {view.devices:,} devices"
        verb = "is" if view.devices == 1 else "are"
        text = "Phones are offline between their jobs; boards stay connected."
        yield Alert("warn", f"{many} of {name} {verb} offline", text, page)
    if campaign.attempt:
        text = f"This is attempt {campaign.attempt + 1}: too few updates arrived before."
        yield Alert("warn", f"Round {campaign.round} of {name} was opened again", text, page)
    if not campaign.ended and view.ended:
        yield Alert("warn", f"Campaign {name} may not end as set", view.ended, page)


def round_alerts(name: str, past: Past) -> Iterator[Alert]:
    """Yield the alerts of a campaign's last rounds: updates and models that were left out."""
    page = f"campaigns/{name}"
    for line in reversed(past.rounds[-RECENT:]):
        where = f"Round {line.round} of {name}"
        if "rolled_back" in line.notes:
            note = line.notes["rolled_back"]
            yield Alert(
                "warn",
                f"{where} returned to the models of round {note['to']}",
                note["reason"],
                page,
            )
        if "set_aside" in line.notes:
            yield Alert("warn", f"{where} changed nothing", str(line.notes["set_aside"]), page)
        if left_out := line.notes.get("left_out"):
            text = f"Updates that were not within bounds: {len(left_out)}."
            yield Alert("warn", f"{where} left updates out", text, page)
        for key, text in (
            ("too_small", "had too few updates"),
            ("too_far", "had new models too far from the last"),
        ):
            if groups := line.notes.get(key):
                yield Alert(
                    "warn",
                    f"{where} did not change some groups' models",
                    f"Groups that {text}: {len(groups)}.",
                    f"{page}/groups",
                )
