"""Alerts: stopped parts, devices that do not answer, refused or left out updates. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from aggregator.fleet.divergence import STILL
from aggregator.fleet.gate import CONFIRMED
from aggregator.http.dashboard.fleet import Tone
from aggregator.http.dashboard.history import Past
from aggregator.http.pages.words import percent, seconds
from aggregator.service.conditions import Conditions
from aggregator.view.fleet import (
    FREE,
    OFFLINE,
    PAUSED,
    RESTS,
    SHOWN,
    CampaignView,
    CommonError,
    FleetView,
    PoorDevice,
    Unanswered,
)
from aggregator.view.pulls import CAUSES, STANDSTILLS

MOST_ERRORS = 5
"""Maximum number of errors of devices that become alerts; those of most devices do."""
RECENT = 5
"""Number of last closed rounds of a campaign whose notes become alerts."""
AHEAD_S = 60.0
"""Seconds by which the service's time may differ from its machine's clock without an alert."""
HELP = "docs/alerts.md#"
"""Page with a row for each alert; the anchor is the alert's id."""
IDS = (
    "broker",
    "voucher",
    "stopped",
    "paused",
    "waiting",
    "offline",
    "reopened",
    "may-not-end",
    "rollout-paused",
    "rollout-waits",
    "rollout-failed",
    "unanswered",
    "failing",
    "quiet",
    "poor",
    "clock",
    "device-clocks",
    "second-device",
    "errors",
    "stands-out",
    "diverges",
    "unchanged",
)
"""Ids of standing alerts. A new one needs a row in docs/alerts.md."""


class AlertDevice(NamedTuple):
    """Device that an alert names."""

    id: str
    text: str
    since_s: float = 0.0
    """Time when it began; 0 if unknown."""
    next_s: float = 0.0
    """Time of its next assignment; 0 if unknown."""
    cause: str = ""
    """Cause of its trouble, without numbers; empty if the alert has a single cause."""

    @property
    def trouble(self) -> str:
        """Its id and its cause."""
        return f"{self.id}: {self.cause}"


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
    id: str = ""
    """One of `IDS`; empty for a note on a closed round."""
    campaign: str = ""
    """Campaign that it is about; empty if it is about the fleet."""
    error: str = ""
    """Error of devices that it is about."""
    troubles: tuple[str, ...] = ()
    """Devices and causes, without numbers. With a further one, an operator has more to do."""

    @property
    def key(self) -> str:
        """Text that tells it from other standing alerts."""
        return f"{self.id}/{self.campaign}/{self.error}"

    @property
    def sentence(self) -> str:
        """Its text, with a capital letter and a full stop; empty if it has no text."""
        end = "" if not self.text or self.text.endswith((".", "?", "!")) else "."
        return f"{self.text[:1].upper()}{self.text[1:]}{end}"

    @property
    def help(self) -> str:
        """Place in the documentation that says what to do; empty for a note."""
        return HELP + self.id if self.id else ""


def standing_alerts(now: Conditions, view: FleetView) -> list[Alert]:
    """Return the alerts of the service, campaigns, rollouts and silent devices, worst first.

    No closed round is read for it. The failed rollout of a finished campaign is not an alert once a
    later rollout is done.
    """
    alerts = list[Alert]()
    if not now.connected:
        text = "Nothing reaches devices, and nothing from devices arrives."
        alerts.append(Alert("bad", "No connection to the broker", text, id="broker"))
    if now.unvouched:
        title = "Devices do not trust this service"
        troubles = (_without_numbers(now.unvouched),)
        alerts.append(Alert("bad", title, now.unvouched, id="voucher", troubles=troubles))
    if now.paused:
        title = "Campaigns have stopped"
        troubles = (_without_numbers(now.paused),)
        alerts.append(Alert("bad", title, now.paused, "campaigns", id="stopped", troubles=troubles))
    if abs(now.ahead_s) > AHEAD_S:
        where = "ahead of" if now.ahead_s > 0 else "behind"
        title = f"The service's time is {seconds(abs(now.ahead_s))} {where} its machine's clock"
        text = "A clock was set. Deadlines hold, and times on these pages are the service's."
        alerts.append(Alert("warn", title, text, id="clock"))
    for name, campaign in view.campaigns.items():
        alerts_of = campaign_alerts(name, campaign)
        alerts += [each for each in alerts_of if not now.paused or each.text != now.paused]
    ends: dict[str, tuple[Tone, str]] = {
        "paused": ("warn", "is paused"),
        "failed": ("bad", "has failed"),
        "waits": ("warn", "waits longer than its patience"),
    }
    rollouts = view.rollouts
    done_s = max((each.began_s for each in rollouts if each.phase == "done"), default=0.0)
    for rollout in rollouts:
        record = view.fleet.campaigns.get(rollout.campaign)
        is_over = record is not None and record.phase == "finished" and rollout.began_s < done_s
        if rollout.phase == "failed" and is_over:
            continue
        is_late = view.now_s - rollout.step_s > rollout.patience_s and not rollout.direct
        phase = "waits" if rollout.phase == "running" and is_late else rollout.phase
        if phase in ends:
            tone, what = ends[phase]
            title = f"The rollout of {rollout.campaign} {what}"
            objections = (
                f"{device_id}: {_without_numbers(words)}"
                for device_id, words in rollout.statements.items()
                if words != CONFIRMED
            )
            alerts.append(
                Alert(
                    tone,
                    title,
                    rollout.reason or "The page Releases counts the answers of its devices",
                    "releases",
                    rollout.step_s,
                    id=f"rollout-{phase}",
                    campaign=rollout.campaign,
                    troubles=(f"since {rollout.began_s}", *objections),
                )
            )
    alerts += device_alerts(view)
    return sorted(alerts, key=lambda alert: alert.tone != "bad")


def device_alerts(view: FleetView) -> Iterator[Alert]:
    """Yield the alerts that name devices. Each cause of a device is in the most specific one.

    An error of a device explains that it fails or does not answer. A device that stands out, or
    that the divergence of a campaign names, explains its poor updates.
    """
    totals, page = view.totals, "fleet?show=attention"
    errors = totals.errors[:MOST_ERRORS]
    with_error = {device_id for error in errors for device_id in error.devices}
    failing = {each.device_id: each for each in totals.unanswered if each.has_error}
    for error in errors:
        yield error_alert(error, totals.devices["known"], failing)
    silent, answering = [
        [
            each
            for each in totals.unanswered
            if bool(each.answer) == answers
            and not (each.has_error and each.device_id in with_error)
        ]
        for answers in (False, True)
    ]
    text = "No answer to the last assignment came. Power, network or the client may be at fault."
    named = map(_failing, silent[:SHOWN])
    yield from _of_devices("unanswered", len(silent), named, "does", "do", "not answer", text, page)
    text = "The last answer of each says why it did not carry out its assignment."
    named, what = map(_failing, answering[:SHOWN]), "out assignments"
    yield from _of_devices(
        "failing", len(answering), named, "cannot carry", "cannot carry", what, text, page
    )
    quiet = [
        AlertDevice(
            each.device_id,
            f"{'online' if each.online else 'offline'}, {_heard(view.now_s, each.heard_s)}",
        )
        for each in totals.quiet[:SHOWN]
    ]
    text = "A round waits for them until its deadline. Power or network may be lost."
    yield from _of_devices("quiet", len(totals.quiet), quiet, "is", "are", "silent at work", text)
    explained = set[str]()
    for campaign in view.campaigns.values():
        explained |= {pull.device_id for pull in campaign.pulls}
        if campaign.divergence is not None:
            explained |= {*campaign.divergence.devices}
    poor_devices = [each for each in totals.poor if each.device_id not in explained]
    poor = [
        AlertDevice(
            each.device_id,
            _why_poor(each),
            cause="accuracy" if each.accuracy is not None else "left out",
        )
        for each in poor_devices[:SHOWN]
    ]
    text = "Sensor, labels or software may be at fault."
    yield from _of_devices("poor", len(poor_devices), poor, "sends", "send", "poor updates", text)
    clocks = [
        AlertDevice(device_id, f"{seconds(abs(off_s))} {'ahead' if off_s > 0 else 'behind'}")
        for device_id, off_s in islice(totals.clocks.items(), SHOWN)
    ]
    copies = [
        AlertDevice(device_id, f"the last refused check-in was {_moment(at_s)}")
        for device_id, at_s in islice(totals.seconds.items(), SHOWN)
    ]
    text = (
        "A second device uses the id of another, and nothing of it was taken. If it has a copy of "
        "the state folder, delete the copy and enrol that device under another id. Then "
        "`shoal devices unban` takes the next device that checks in for the right one."
    )
    number = len(totals.seconds)
    yield from _of_devices("second-device", number, copies, "has", "have", "a double", text)
    text = "Certificates may not be valid by it. If most differ alike, the service's is wrong."
    number = len(totals.clocks)
    yield from _of_devices("device-clocks", number, clocks, "has", "have", "a wrong clock", text)


def _failing(device: Unanswered) -> AlertDevice:
    """Return a device that did not carry out its last assignments, as its alert names it."""
    number = "1 failure" if device.failures == 1 else f"{device.failures} failures in a row"
    texts = (device.answer, number, device.advice, "" if device.online else "offline")
    text = ", ".join(filter(None, texts))
    cause = device.answer.partition(" (")[0]  # a device's detail may be another each time
    return AlertDevice(device.device_id, text, device.since_s, device.next_s, cause)


def _heard(now_s: float, at_s: float) -> str:
    return f"last heard {seconds(now_s - at_s)} ago" if at_s else "never heard"


def _moment(at_s: float) -> str:
    return f"at {datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def _without_numbers(text: str) -> str:
    return re.sub("[0-9]+", "#", text)


def _troubles(number: int, named: Iterable[AlertDevice]) -> tuple[str, ...]:
    """Return the troubles of an alert about a number of devices.

    It is each device up to `SHOWN`. More devices are an incident of the fleet: of these, it is each
    power of two that their number has reached.
    """
    if number <= SHOWN:
        return tuple(device.trouble for device in named)
    return tuple(f"{2**power} devices" for power in range(5, number.bit_length()))


def _why_poor(device: PoorDevice) -> str:
    texts = []
    if device.left_out:
        rounds = "round" if device.left_out == 1 else f"{device.left_out} rounds"
        texts.append(f"left out of its last {rounds}")
    if device.accuracy is not None:
        usual = percent(device.usual)
        texts.append(f"accuracy {percent(device.accuracy)}, on the middle device {usual}")
    return "; ".join(texts)


def _of_devices(
    name: str,
    number: int,
    named: Iterable[AlertDevice],
    one: str,
    many: str,
    what: str,
    text: str,
    page: str = "fleet",
) -> Iterator[Alert]:
    """Yield the alert about this number of devices, unless there are none.

    `one`, `many`: the verb of its title, for one device and for several.
    """
    if number:
        title = f"A device {one} {what}" if number == 1 else f"{number:,} devices {many} {what}"
        more = f" The first {SHOWN} are named here." if number > SHOWN else ""
        devices = tuple(named)
        troubles = _troubles(number, devices)
        yield Alert("warn", title, text + more, page, devices=devices, id=name, troubles=troubles)


def error_alert(error: CommonError, devices: int, failing: Mapping[str, Unanswered]) -> Alert:
    """Return the alert about an error, with the share of the fleet's `devices` that had it.

    `failing`: devices that did not carry out their last assignments, by id.
    """
    number = len(error.devices)
    title = f"{number:,} of {devices:,} device{'' if devices == 1 else 's'}: {error.text}"
    more = f" The first {SHOWN} are named here." if number > SHOWN else ""
    text = (
        "No assignment was carried out since. The page of a device has the traceback, the memory "
        f"and the version of its client.{more}"
    )
    named = tuple(
        _failing(failing[device_id])._replace(cause="")
        if device_id in failing
        else AlertDevice(device_id, "")
        for device_id in error.devices[:SHOWN]
    )
    return Alert(
        "warn",
        title,
        text,
        since_s=error.first_s,
        devices=named,
        id="errors",
        error=error.key,
        troubles=_troubles(number, named),
    )


def campaign_alerts(name: str, view: CampaignView) -> Iterator[Alert]:
    """Yield the alerts of one campaign: reasons why it does not go on."""
    page, campaign = f"campaigns/{name}", view.record
    if view.paused:
        title = f"Campaign {name} is paused"
        what = "paused" if view.paused == PAUSED else "stopped"
        yield Alert(
            "bad",
            title,
            view.paused,
            page,
            id=what,
            campaign=name,
            troubles=(_without_numbers(view.paused),),
        )
    if (waiting := view.waiting) is not None and not waiting.is_paced:
        text = f"Devices: {waiting.reasons}." if waiting.reasons else "No other device is known."
        servers = tuple(
            AlertDevice(d, why, next_s=0.0 if why == FREE else at_s, cause=why)
            for d, why, at_s in waiting.servers
        )
        number = sum(waiting.could.get(why, 0) for why in (OFFLINE, RESTS))
        troubles = (
            *waiting.cannot,
            *_troubles(number, (each for each in servers if each.cause in (OFFLINE, RESTS))),
        )
        yield Alert(
            "warn",
            f"Campaign {name} waits for {waiting.lacks}",
            text,
            page,
            waiting.since_s,
            servers,
            id="waiting",
            campaign=name,
            troubles=troubles,
        )
    elif view.devices and not view.online and not campaign.ended:
        many = "The only device" if view.devices == 1 else f"All {view.devices:,} devices"
        verb = "is" if view.devices == 1 else "are"
        text = "Phones are offline between their jobs; boards stay connected."
        title = f"{many} of {name} {verb} offline"
        yield Alert("warn", title, text, page, id="offline", campaign=name)
    if campaign.attempt:
        text = f"This is attempt {campaign.attempt + 1}: too few updates arrived before."
        title = f"Round {campaign.round} of {name} was opened again"
        yield Alert("warn", title, text, page, id="reopened", campaign=name)
    if (divergence := view.divergence) is not None:
        cause, advice = CAUSES[divergence.cause]
        pulls = {pull.device_id: pull.text for pull in view.pulls}
        named = tuple(AlertDevice(d, pulls.get(d, "")) for d in divergence.devices)
        text = f"{divergence.evidence}. What to do: {advice}."
        where = " on few devices" if divergence.cause == "labels" else ""
        title = f"Campaign {name} diverges{where}: {cause}"
        yield Alert(
            "bad",
            title,
            text,
            page,
            devices=named,
            id="diverges",
            campaign=name,
            troubles=(divergence.cause, *divergence.devices),
        )
    stills = {k: each for k, each in campaign.standstills.items() if each.rounds >= STILL}
    if stills and campaign.phase != "finished":
        key, longest = max(stills.items(), key=lambda item: item[1].rounds)
        title = f"{longest.rounds} rounds of {name} in a row changed nothing"
        number = len(stills) - 1
        others = f" and {number} other{'' if number == 1 else 's'}" if number else ""
        text = f"Model {key}{others}: {longest.reason}. What to do: {STANDSTILLS[longest.cause]}."
        yield Alert("bad", title, text, page, id="unchanged", campaign=name)
    if view.other_pulls:
        number = len(view.other_pulls)
        many = "A device stands" if number == 1 else f"{number} devices stand"
        text = (
            f"What to do: `shoal campaign exclude FOLDER {name} DEVICE --since ROUND` returns to "
            "before its first round and trains on without it; `shoal devices ban` refuses "
            "everything of it; or look at its data."
        )
        named = tuple(AlertDevice(pull.device_id, pull.text) for pull in view.other_pulls)
        title = f"{many} out in {name}"
        yield Alert(
            "bad",
            title,
            text,
            page,
            devices=named,
            id="stands-out",
            campaign=name,
            troubles=_troubles(number, named),
        )
    if not campaign.ended and view.ended:
        title = f"Campaign {name} may not end as set"
        yield Alert(
            "warn",
            title,
            view.ended,
            page,
            id="may-not-end",
            campaign=name,
            troubles=(_without_numbers(view.ended),),
        )


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
        if divergence := line.notes.get("diverges"):
            title = f"{where} diverged: {CAUSES[divergence['cause']][0]}"
            devices = tuple(AlertDevice(device_id, "") for device_id in divergence["devices"])
            yield Alert("bad", title, divergence["evidence"], page, devices=devices)
        if left_out := line.notes.get("left_out"):
            text = f"{len(left_out)}: {next(iter(left_out.values()))}"
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
