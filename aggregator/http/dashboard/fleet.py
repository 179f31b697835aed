"""List of a fleet's devices on the dashboard, with the condition of each. Pure."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from aggregator.core.telemetry import GroupChange
from aggregator.fleet.eligibility import read_rule
from aggregator.fleet.records import Device, Fleet
from aggregator.http.devices import DeviceLine, device_line
from aggregator.view.device import DeviceView
from aggregator.view.fleet import FleetView
from wire.errors import ConfigError

LOW_BATTERY = 20.0
"""Battery charge in percent below which a device that is not charging is low."""
Tone = Literal["bad", "warn", "ok", "off"]
Show = Literal["all", "attention", "online", "offline", "banned"]
Sort = Literal["worst", "id", "seen", "battery", "group"]
SHOWS: dict[Show, str] = {
    "all": "All",
    "attention": "Needs attention",
    "online": "Online",
    "offline": "Offline",
    "banned": "Banned",
}
SORTS: dict[Sort, str] = {
    "worst": "most urgent first",
    "id": "by id",
    "seen": "longest offline first",
    "battery": "lowest battery first",
    "group": "by group",
}


PER_PAGE = 50


class PagePart(NamedTuple):
    """Part of a long list that a page shows."""

    total: int
    number: int
    """Number of the page, from 1."""
    last: int
    """Number of the last page."""
    begin: int
    """Index of the first entry on the page."""
    end: int
    """Index after the last entry on the page."""


def slice_of(total: int, number: int) -> PagePart:
    """Return the page of this number, or the nearest existing one."""
    last = max(1, -(-total // PER_PAGE))
    number = min(max(1, number), last)
    return PagePart(total, number, last, (number - 1) * PER_PAGE, min(total, number * PER_PAGE))


class Condition(NamedTuple):
    """Condition of a device. Devices that need attention have the lowest ranks."""

    rank: int
    word: str
    tone: Tone
    why: str


class FleetPage(NamedTuple):
    """Page of devices."""

    counts: dict[Show, int]
    """Number of devices for each filter, over the whole fleet."""
    rows: list[tuple[DeviceLine, Condition]]
    slice: PagePart
    problem: str
    """Error of a rule; empty if it is correct, or if the words are not a rule."""


class Move(NamedTuple):
    """Move of a device into another group."""

    device_id: str
    before: str
    change: GroupChange


def moves(view: FleetView, campaign: str) -> list[Move]:
    """Return the changes of group in a campaign, except the first of each device, latest first."""
    moved = []
    for device_id, telemetry in view.telemetry.items():
        changes = [change for change in telemetry.groups if change.campaign == campaign]
        moved += [Move(device_id, before.group, change) for before, change in pairwise(changes)]
    return sorted(moved, key=lambda move: (-move.change.at_s, move.device_id))


ATTENTION = 3
"""Greatest rank of a device that needs attention."""


def condition_of(device: DeviceView) -> Condition:
    """Return the condition of a device: the worst that applies to it."""
    record = device.record
    facts, failures = record.facts, record.failures
    if record.ban is not None:
        return Condition(6, "banned", "off", record.ban.reason)
    if record.withdrawn_s:
        return Condition(6, "withdrawn", "off", "its owner has withdrawn it")
    if record.second_s:
        why = "a second device with this id was refused"
        return Condition(0, "second device", "bad", why)
    if problem := device.answer[1]:
        return Condition(0, "release failed", "bad", problem)
    if (pull := device.standing_out) is not None:
        return Condition(1, "stands out", "bad", pull.text)
    declined = device.declined
    if failures > 1 or (failures and declined is None):
        last = "its last assignment" if failures == 1 else f"its last {failures} assignments"
        return Condition(1, "failing", "bad", f"it did not carry out {last}")
    if declined is not None:
        word = "refused" if declined.refused else "declined"
        return Condition(2, word, "warn", declined.reason)
    if not record.online:
        return Condition(4, "offline", "off", "")
    if (
        facts is not None
        and facts.battery_percent is not None
        and facts.battery_percent < LOW_BATTERY
        and facts.charging is not True
    ):
        return Condition(3, "low battery", "warn", f"{facts.battery_percent:.0f} %")
    return Condition(5, "online", "ok", "")


def fleet_page(view: FleetView, words: str, show: Show, sort: Sort, number: int) -> FleetPage:
    """Return one page of the devices that match `words` and `show`.

    `words`: a rule (`aggregator.fleet.eligibility`), or else text in a device's id, tags, hardware,
    client, last decline or last error. Groups are those of the latest campaign.
    """
    means, problem = _reader(words, view.fleet)
    counts: Counter[Show] = Counter()
    matches = list[Found]()

    def visit(device: DeviceView) -> None:
        condition = condition_of(device)
        kinds: list[Show] = ["all"]
        if device.record.ban is not None:
            kinds.append("banned")
        else:
            kinds.append("online" if device.record.online else "offline")
            if condition.rank <= ATTENTION:
                kinds.append("attention")
        counts.update(kinds)
        if show in kinds and means(device):
            matches.append((device, condition))

    view.walk(visit)
    matches.sort(key=_KEYS[sort])
    part = slice_of(len(matches), number)
    return FleetPage(
        {name: counts[name] for name in SHOWS},
        [
            (device_line(view, each), condition)
            for each, condition in matches[part.begin : part.end]
        ],
        part,
        problem,
    )


def _reader(words: str, fleet: Fleet) -> tuple[Callable[[DeviceView], bool], str]:
    """Return the test of a device by these words, and an error if they look like a faulty rule."""
    try:
        rule = read_rule(words)
    except ConfigError as error:
        terms = words.casefold().split()
        problem = str(error) if any(sign in words for sign in "<>=()") else ""
        return lambda device: all(word in _text(device) for word in terms), problem
    return lambda device: rule.means(device.id, device.record, fleet.campaigns), ""


def _text(device: DeviceView) -> str:
    facts, decline = device.record.facts, device.telemetry.decline
    about = (facts.hardware, facts.client, facts.runtime) if facts else ()
    reason = decline.reason if decline else ""
    error = device.telemetry.error
    text = f"{error.report.error} {error.report.message}" if error is not None else ""
    return " ".join((device.id, *device.record.tags, *about, reason, text)).casefold()


Found = tuple[DeviceView, Condition]
_KEYS: dict[Sort, Callable[[Found], Any]] = {
    "worst": lambda found: (found[1].rank, *_away(found[0].record), found[0].id),
    "id": lambda found: found[0].id,
    "seen": lambda found: (*_away(found[0].record), found[0].id),
    "battery": lambda found: (_charge(found[0].record), found[0].id),
    "group": lambda found: (*_group(found[0]), found[0].id),
}


def _charge(device: Device) -> float:
    """Return the charge of a device's battery in percent; 101 if it does not report it."""
    charge = device.facts.battery_percent if device.facts is not None else None
    return 101.0 if charge is None else charge


def _group(device: DeviceView) -> tuple[bool, int, str]:
    """Return a sort key: groups by number, then devices without a group."""
    group = device.group
    return not group.isdigit(), int(group) if group.isdigit() else 0, group


def _away(device: Device) -> tuple[bool, float]:
    """Return a sort key: offline devices by the time when they left, then all online devices.

    Online devices have equal keys, so that the list stays while they send messages.
    """
    return device.online, 0.0 if device.online else device.seen_s
