"""A fleet as readers see it at one moment: the `FleetView` of pages, metrics, alerts and commands.

All counts of devices come from one walk over them, made at most once per view.
"""

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from statistics import median_low
from typing import NamedTuple

from aggregator.core.telemetry import NO_TELEMETRY, DeviceTelemetry, LastError, common_text
from aggregator.fleet.budget import why_ended
from aggregator.fleet.desired import (
    can_train,
    is_at_work,
    paced_until,
    rests_until,
    takes,
    works_for,
)
from aggregator.fleet.divergence import NOBODY as NO_MEMBER
from aggregator.fleet.eligibility import read_rule
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import OPEN, Campaign, Device, Divergence, Fleet
from aggregator.fleet.rounds import NO_LACK, Lack, lacking
from aggregator.view.device import DeviceView, advice_of, failure_text, group_key
from aggregator.view.progress import ReleaseAnswers, ReleaseState, RolloutProgress, release_states
from aggregator.view.pulls import StandingOut, all_standing_out
from wire.messages import HEARTBEAT_S

PAUSED = "the operator has paused it"
CLOCK_S = 300.0
"""Seconds by which a device's clock may be off without an alert."""
LEFT_OUT = 3
"""Number of consecutive rounds without its update after which an alert names a device."""
WEAK, WINDOWS = 0.25, 20
"""Fraction of the middle device's accuracy below which a device is named; its fewest windows."""
RECENT_S = 86_400.0
"""Age in seconds up to which a device's last error is counted with those of others."""
OFFLINE, FREE, RESTS = "offline", "free", "resting after a failure"
PACED = "had an assignment a short time ago"
"""Reasons why devices that could serve a campaign do not now."""
VALUES = 3
"""Maximum number of devices whose values are named with the condition that excludes them."""
SHOWN = 20
"""Maximum number of devices that an alert names, or that are named as able to serve a campaign."""


class Server(NamedTuple):
    """Device that could serve a campaign, and the reason why it does not now."""

    device_id: str
    why: str
    at_s: float
    """Time when it can serve; 0 if unknown."""


class CampaignWait(NamedTuple):
    """Wait of a campaign, and the devices that could end it."""

    lacks: str
    since_s: float
    could: Mapping[str, int]
    """Number of devices that could serve, by the reason why they do not now."""
    cannot: Mapping[str, int]
    """Number of devices that cannot serve, by what they lack."""
    reasons: str
    """Both, with times, for people."""
    servers: tuple[Server, ...]
    """First `SHOWN` of these devices, soonest first."""
    is_paced: bool = False
    """True if the devices that wait for their pace suffice: the wait ends without anybody."""


class Unanswered(NamedTuple):
    """Device that did not carry out its last assignments."""

    device_id: str
    failures: int
    since_s: float
    next_s: float
    """Time of its next assignment; 0 if it has an assignment now."""
    online: bool
    answer: str
    """Answer to its last assignment, for people; empty if it did not answer."""
    advice: str
    """Advice to update its client, if that is older than the service; else empty."""
    has_error: bool
    """True if a reported error that still stands may be the cause."""


class SilentDevice(NamedTuple):
    """Silent device for which a round waits."""

    device_id: str
    heard_s: float
    """Time of its last message."""
    online: bool


class PoorDevice(NamedTuple):
    """Device whose updates or accuracy are far from those of the others."""

    device_id: str
    left_out: int
    """Number of consecutive rounds that left its update out."""
    accuracy: float | None
    """Accuracy of its group's model on its windows, if that is far below `usual`; else None."""
    usual: float
    """Accuracy on the middle device."""


class CommonError(NamedTuple):
    """Error that devices had in the last `RECENT_S`, and after which none was seen to work."""

    key: str
    """Type and message, without paths and numbers."""
    text: str
    """Type and message, without paths, and with ``...`` where the devices' numbers differ."""
    first_s: float
    """Time of the first of these errors."""
    devices: tuple[str, ...]
    """Ids of the devices whose last error it is."""


class CampaignView(NamedTuple):
    """Campaign as readers see it."""

    record: Campaign
    paused: str
    """Reason of its pause; empty if it is not paused."""
    ended: str
    """Reason why it trains no further, or may not end as set; empty if there is no such reason."""
    waiting: CampaignWait | None
    devices: int
    """Number of devices that are in it or eligible for it."""
    online: int
    eligible: int
    """Number of eligible devices."""
    failing: int
    groups: int
    working: int
    """Number of devices at work for its current round, in a buffered campaign for any round."""
    pulls: tuple[StandingOut, ...] = ()
    """Devices that stand out over rounds, the highest scores first."""

    @property
    def divergence(self) -> Divergence | None:
        """Divergence of the campaign; None if it does not diverge, or is finished."""
        return self.record.divergence if self.record.phase != "finished" else None

    @property
    def other_pulls(self) -> tuple[StandingOut, ...]:
        """Devices that stand out, without those that the divergence names."""
        named = self.divergence.devices if self.divergence is not None else ()
        return tuple(pull for pull in self.pulls if pull.device_id not in named)


@dataclass
class _Count:
    """Counters of a campaign's devices during a walk."""

    campaign: Campaign
    lack: Lack
    devices: int = 0
    online: int = 0
    eligible: int = 0
    failing: int = 0
    groups: set[str] = field(default_factory=set)
    working: int = 0
    servers: list[Server] = field(default_factory=list)
    cannot: Counter[str] = field(default_factory=Counter)
    values: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Devices that a condition excludes, with their values, by what they lack."""
    left_s: float = 0.0
    """Last time at which a device that could serve went offline."""


class Totals(NamedTuple):
    """Counts of one walk over all devices."""

    devices: Mapping[str, int]
    """Number of devices by property."""
    campaigns: Mapping[str, CampaignView]
    answers: ReleaseAnswers
    unanswered: tuple[Unanswered, ...]
    """Devices that did not answer, most failures first."""
    quiet: tuple[SilentDevice, ...]
    """Silent devices for which a round waits, longest silence first."""
    heard_s: float
    """Time of the last message of the quietest device at work; 0 if none is at work."""
    poor: tuple[PoorDevice, ...]
    clocks: Mapping[str, float]
    """Seconds by which a clock is ahead, or behind if negative, by device with a wrong clock."""
    seconds: Mapping[str, float]
    """Time of the last check-in of a second device, by the device whose id it uses."""
    errors: tuple[CommonError, ...]
    """Errors that devices reported, most devices first."""


@dataclass(frozen=True)
class FleetView:
    """Fleet at one moment."""

    fleet: Fleet
    telemetry: Mapping[str, DeviceTelemetry] = field(default_factory=dict)
    """Telemetry by device."""
    paused: Mapping[str, str] = field(default_factory=dict)
    """Reason why the service has stopped a campaign, by campaign."""
    now_s: float = 0.0

    @property
    def latest(self) -> str:
        """Name of the latest campaign; empty if there is none."""
        return next(reversed(self.fleet.campaigns), "")

    @property
    def campaigns(self) -> Mapping[str, CampaignView]:
        """Campaigns by name, in the order of their starts."""
        return self.totals.campaigns

    @property
    def rollouts(self) -> list[RolloutProgress]:
        """Progress of the last rollout of each campaign."""
        return self.totals.answers.progress()

    @cached_property
    def release_states(self) -> Mapping[int, ReleaseState]:
        """State of each release, by number."""
        return release_states(self.fleet)

    @cached_property
    def totals(self) -> Totals:
        """Counts of devices."""
        return self._walk(None, None)

    def device(self, device_id: str, campaign: str = "") -> DeviceView | None:
        """Return a device, or None if no such device is known.

        `campaign` names the campaign in which its group is read; empty: the latest.
        """
        record = self.fleet.devices.get(device_id)
        return None if record is None else self._view(device_id, record, self._named(campaign))

    def walk(self, visit: Callable[[DeviceView], None], campaign: str = "") -> None:
        """Visit every device, as `device` returns it, and make all counts on the way."""
        of = self._named(campaign)
        if "totals" in self.__dict__:
            for device_id, record in self.fleet.devices.items():
                visit(self._view(device_id, record, of))
        else:
            self.__dict__["totals"] = self._walk(visit, of)

    def _named(self, campaign: str) -> Campaign | None:
        return self.fleet.campaigns.get(campaign or self.latest)

    def _view(self, device_id: str, record: Device, of: Campaign | None) -> DeviceView:
        telemetry = self.telemetry.get(device_id, NO_TELEMETRY)
        return DeviceView(device_id, record, telemetry, self.fleet, of)

    def _walk(self, visit: Callable[[DeviceView], None] | None, of: Campaign | None) -> Totals:
        fleet, unanswered = self.fleet, list[Unanswered]()
        quiet, clocks, poor = list[SilentDevice](), dict[str, float](), list[PoorDevice]()
        seconds = dict[str, float]()
        heard_s, weak = math.inf, weak_devices(fleet)
        numbers = dict.fromkeys(("known", "online", "banned", "metered", "charging", "idle"), 0)
        errors: dict[str, list[tuple[str, LastError]]] = {}
        turn, answers = Turn(fleet), ReleaseAnswers(fleet)
        turn.now_s = max(fleet.at_s, self.now_s)
        counts = [
            _Count(campaign, NO_LACK if name in self.paused else lacking(turn, campaign))
            for name, campaign in fleet.campaigns.items()
        ]
        for device_id, record in fleet.devices.items():
            if visit is not None:
                visit(self._view(device_id, record, of))
            numbers["known"] += 1
            numbers["online"] += record.online
            numbers["banned"] += record.ban is not None
            if (facts := record.facts) is not None:
                numbers["metered"] += facts.unmetered is False
                numbers["charging"] += facts.charging is True
                numbers["idle"] += facts.idle is True
            answers.add(device_id, record)
            about = self.telemetry.get(device_id, NO_TELEMETRY)
            error = about.standing_error
            if error is not None and (turn.now_s - error.at_s >= RECENT_S or record.barred):
                error = None
            if error is not None:
                errors.setdefault(error.key, []).append((device_id, error))
            if record.failures and not record.barred:
                next_s = 0.0 if is_at_work(record) else rests_until(fleet, record)
                seen = (record.failures, record.failing_s, next_s, record.online)
                answer, advice = failure_text(record, about), advice_of(record)
                decline = about.decline if record.failure == "declined" else None
                may_be = decline.is_error if decline is not None else not answer
                has_error = error is not None and may_be
                unanswered.append(Unanswered(device_id, *seen, answer, advice, has_error))
            if record.second_s and record.ban is None:
                seconds[device_id] = record.second_s
            if not record.barred:
                if is_awaited(fleet, record):
                    last_s = max(record.seen_s, about.heard_s)
                    heard_s = min(heard_s, last_s)
                    silent_s = turn.now_s - last_s
                    if not record.online or (about.heard_s and silent_s > HEARTBEAT_S):
                        quiet.append(SilentDevice(device_id, last_s, record.online))
                if record.online and abs(about.clock_off_s) > CLOCK_S:
                    clocks[device_id] = about.clock_off_s
                accuracy, usual = weak.get(device_id, (None, 0.0))
                if record.left_out >= LEFT_OUT or accuracy is not None:
                    poor.append(PoorDevice(device_id, record.left_out, accuracy, usual))
            for count in counts:
                _add(fleet, count, device_id, record, turn.now_s)
        return Totals(
            numbers,
            {count.campaign.name: self._campaign(count, turn.now_s) for count in counts},
            answers,
            tuple(sorted(unanswered, key=lambda each: (-each.failures, each.device_id))),
            tuple(sorted(quiet, key=lambda each: each.heard_s)),
            heard_s if heard_s < math.inf else 0.0,
            tuple(sorted(poor, key=lambda each: each.device_id)),
            dict(sorted(clocks.items(), key=lambda pair: -abs(pair[1]))),
            dict(sorted(seconds.items())),
            tuple(_common(key, had) for key, had in sorted(errors.items(), key=_order_of)),
        )

    def _campaign(self, count: _Count, now_s: float) -> CampaignView:
        campaign, waiting = count.campaign, None
        paused = self.paused.get(campaign.name) or (PAUSED if campaign.paused else "")
        if count.lack.text:
            order = sorted(count.servers, key=lambda each: (each.at_s or 1e18, each.device_id))
            could = dict(Counter(each.why for each in order).most_common())
            cannot = dict(sorted(count.cannot.items(), key=lambda each: (-each[1], each[0])))
            times = {each.why: each.at_s for each in reversed(order)} | {OFFLINE: count.left_s}
            reasons = ", ".join(
                f"{number:,} {why}{_when(why, number, times.get(why, 0.0), now_s)}"
                f"{_values(count.values.get(why, []))}"
                for why, number in [*could.items(), *cannot.items()]
            )
            servers = tuple(islice(order, SHOWN))
            is_paced = 0 < count.lack.devices <= could.get(PACED, 0)
            about = (campaign.phase_s, could, cannot, reasons, servers, is_paced)
            waiting = CampaignWait(count.lack.text, *about)
        return CampaignView(
            campaign,
            paused,
            why_ended(campaign),
            waiting,
            count.devices,
            count.online,
            count.eligible,
            count.failing,
            sum(key.isdigit() for key in count.groups),
            count.working,
            all_standing_out(self.fleet, campaign),
        )


def is_awaited(fleet: Fleet, device: Device) -> bool:
    """Return True if an open round waits for the answer of a device."""
    work = device.assignment
    if work is None or work.beside or not is_at_work(device):
        return False
    campaign = fleet.campaigns.get(work.campaign)
    return campaign is not None and campaign.phase in OPEN and is_of_round(campaign, device)


def weak_devices(fleet: Fleet) -> dict[str, tuple[float, float]]:
    """Return the accuracy of a group's model on devices where it is far worse, and the usual one.

    Devices are compared in the last evaluated version of each unfinished campaign.
    """
    weak = dict[str, tuple[float, float]]()
    for campaign in fleet.campaigns.values():
        if campaign.phase == "finished" or not campaign.history:
            continue
        measured = campaign.history[-1].evaluated
        usual = median_low([m.accuracy for m in measured.values()] or [0.0])
        for device_id, metrics in measured.items():
            if metrics.num_examples >= WINDOWS and metrics.accuracy < WEAK * usual:
                weak[device_id] = metrics.accuracy, usual
    return weak


def _common(key: str, had: list[tuple[str, LastError]]) -> CommonError:
    """Return an error, from the devices that had it."""
    text = common_text([error.text for _, error in had])
    first_s = min(error.first_s for _, error in had)
    return CommonError(key, text, first_s, tuple(sorted(device_id for device_id, _ in had)))


def _order_of(error: tuple[str, list[tuple[str, LastError]]]) -> tuple[int, str]:
    return -len(error[1]), error[0]


def is_in(fleet: Fleet, campaign: Campaign, device_id: str, device: Device) -> bool:
    """Return True if a device is in a campaign, or has reported facts and is eligible."""
    if device_id in campaign.members or device_id in campaign.updates:
        return True
    return device.facts is not None and takes(fleet, campaign, device_id, device)


def is_of_round(campaign: Campaign, device: Device) -> bool:
    """Return True if a device's last assignment is of a campaign's current round.

    In a buffered campaign, any round counts.
    """
    work = device.assignment
    if work is None or work.campaign != campaign.name or work.kind == "survey":
        return False
    return work.round == campaign.round or campaign.settings.buffer > 0


def devices_of(view: FleetView, name: str) -> Iterator[DeviceView]:
    """Yield the devices of a campaign, by id."""
    devices, campaign = list[DeviceView](), view.fleet.campaigns[name]

    def visit(device: DeviceView) -> None:
        if is_in(view.fleet, campaign, device.id, device.record):
            devices.append(device)

    view.walk(visit, name)
    yield from sorted(devices, key=lambda device: device.id)


def _add(fleet: Fleet, count: _Count, device_id: str, device: Device, now_s: float) -> None:
    """Count a device in a campaign."""
    campaign = count.campaign
    if count.lack.text and device_id not in campaign.updates:
        if exclusion := _exclusion(fleet, campaign, device_id, device, count.values):
            count.cannot[exclusion] += 1
        elif (server := _server(fleet, campaign, device_id, device, now_s)) is not None:
            count.servers.append(server)
            count.left_s = max(count.left_s, 0.0 if device.online else device.seen_s)
    if not is_in(fleet, campaign, device_id, device):
        return
    count.devices += 1
    if group := group_key(campaign, device_id, device):
        count.groups.add(group)
    count.working += is_at_work(device) and is_of_round(campaign, device)
    if device.barred or not takes(fleet, campaign, device_id, device):
        return
    count.eligible += 1
    count.online += device.online
    count.failing += device.failures > 0


def _exclusion(
    fleet: Fleet,
    campaign: Campaign,
    device_id: str,
    device: Device,
    values: dict[str, list[tuple[str, str]]],
) -> str:
    """Return the reason why a device cannot serve a campaign; empty if it could.

    If the reason is a condition, the device is added to `values` unless others come first by id.
    """
    if device.barred:
        return "banned" if device.ban is not None else "withdrawn"
    if device.facts is None:
        return "never checked in"
    rule = read_rule(campaign.settings.where)
    if campaign.members.get(device_id, NO_MEMBER).excluded:
        return "excluded by the operator"
    if condition := rule.unmet(device_id, device, fleet.campaigns):
        reason = f'excluded by "{condition}"'
        named = values.setdefault(reason, [])
        if value := read_rule(condition).value(device_id, device, fleet.campaigns):
            insort(named, (device_id, value))
            del named[VALUES + 1 :]
        return reason
    if not can_train(campaign, device):
        least = campaign.settings.min_batch
        return (
            f"with fewer than {least} training windows" if least > 1 else "without training windows"
        )
    return ""


def _values(named: list[tuple[str, str]]) -> str:
    """Return the values of excluded devices, for people; empty if there are none."""
    texts = [f"{device_id}: {value}" for device_id, value in named[:VALUES]]
    more = ["..."] if len(named) > VALUES else []
    return f" ({', '.join([*texts, *more])})" if named else ""


def _when(why: str, number: int, at_s: float, now_s: float) -> str:
    """Return since or until when a number of devices do not serve; empty if nobody knows."""
    if not at_s or why == FREE:
        return ""
    word, which = ("since", "last") if why == OFFLINE else ("until", "first")
    at = datetime.fromtimestamp(at_s, UTC)
    is_today = at.date() == datetime.fromtimestamp(now_s, UTC).date()
    the = "" if number == 1 else f", the {which}"
    return f"{the} {word} {at:{'%H:%M' if is_today else '%Y-%m-%d %H:%M'}} UTC"


def _server(
    fleet: Fleet, campaign: Campaign, device_id: str, device: Device, now_s: float
) -> Server | None:
    """Return a device that could serve a campaign, with the reason why it does not.

    None if it is at work for the campaign.
    """
    work = device.assignment if is_at_work(device) else None
    if not device.online:
        return Server(device_id, OFFLINE, 0.0)
    if work is not None:
        if work.campaign == campaign.name:
            return None
        return Server(device_id, f"at work for {work.campaign}", work.deadline_s)
    if now_s < (rests_s := rests_until(fleet, device)):
        return Server(device_id, RESTS, rests_s)
    other = works_for(fleet, device_id, device)
    if other is not None and other.name != campaign.name:
        return Server(device_id, f"reserved for {other.name}", 0.0)
    if now_s < (paced_s := paced_until(campaign, device)):
        return Server(device_id, PACED, paced_s)
    return Server(device_id, FREE, now_s)
