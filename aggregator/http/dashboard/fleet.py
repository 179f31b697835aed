"""The devices of a fleet as the dashboard lists them: what is wrong with each, the worst first.
Pure."""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from aggregator.core.eligibility import read_rule
from aggregator.core.registry import Entry, GroupChange
from aggregator.core.state import RunState
from aggregator.http.devices import DeviceLine, device_line
from wire.errors import ConfigError

LOW_BATTERY = 20.0
"""Percent below which a device that is not charging is said to be low."""
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
    "worst": "worst first",
    "id": "by id",
    "seen": "longest away first",
    "battery": "lowest battery first",
    "group": "by group",
}


PER_PAGE = 50


class PagePart(NamedTuple):
    """The part of a long list that is shown."""

    total: int
    number: int
    """Of the page, from 1."""
    last: int
    """The number of the last page."""
    begin: int
    """The index of the first entry that is shown."""
    end: int
    """The index behind the last entry that is shown."""


def slice_of(total: int, number: int) -> PagePart:
    """Return the page of this number, or the nearest that there is."""
    last = max(1, -(-total // PER_PAGE))
    number = min(max(1, number), last)
    return PagePart(total, number, last, (number - 1) * PER_PAGE, min(total, number * PER_PAGE))


class Condition(NamedTuple):
    """How a device is. In the order of their ranks, devices that need somebody come first."""

    rank: int
    word: str
    tone: Tone
    why: str


class FleetPage(NamedTuple):
    """What of the fleet is shown."""

    counts: dict[Show, int]
    """Of all devices."""
    rows: list[tuple[DeviceLine, Condition]]
    slice: PagePart
    problem: str
    """What is wrong with a rule; empty: nothing, or the words are no rule."""


class Move(NamedTuple):
    """A device that was put into another group."""

    device_id: str
    before: str
    """Empty: it was in no group that is remembered."""
    change: GroupChange


def moves(entries: Mapping[str, Entry], campaign: str) -> list[Move]:
    """Return the changes of group that the registry remembers of this campaign, but for the first
    of each device; the latest first."""
    moved = []
    for device_id, entry in entries.items():
        changes = [change for change in entry.groups if change.campaign == campaign]
        moved += [Move(device_id, before.group, change) for before, change in pairwise(changes)]
    return sorted(moved, key=lambda move: (-move.change.at_s, move.device_id))


ATTENTION = 3
"""The greatest rank of a device that needs attention."""


def condition_of(entry: Entry, failures: int) -> Condition:
    """How a device is, that has missed or declined so many rounds one after the other."""
    facts = entry.said
    if entry.ban is not None:
        return Condition(6, "banned", "off", entry.ban.reason)
    if entry.withdrawn_s:
        return Condition(6, "withdrawn", "off", "its owner agrees no longer")
    if entry.release_problem:
        return Condition(0, "release failed", "bad", entry.release_problem)
    if failures:
        return Condition(
            1,
            "failing",
            "bad",
            f"no update in its last {'round' if failures == 1 else f'{failures} rounds'}",
        )
    if entry.decline is not None and entry.decline.at_s >= entry.asked_s:
        return Condition(2, "declined", "warn", entry.decline.reason)
    if not entry.online:
        return Condition(4, "offline", "off", "")
    if (
        facts is not None
        and facts.battery_percent is not None
        and facts.battery_percent < LOW_BATTERY
        and facts.charging is not True
    ):
        return Condition(3, "low battery", "warn", f"{facts.battery_percent:.0f} %")
    return Condition(5, "online", "ok", "")


def fleet_page(
    entries: Mapping[str, Entry],
    run: RunState | None,
    words: str,
    show: Show,
    sort: Sort,
    number: int,
) -> FleetPage:
    """One page of the devices that `words` and `show` mean. `words`: a rule
    (`aggregator.core.eligibility`), or else text that stands in a device's id, tags, hardware,
    client or last decline. `run`: whose groups and failures are shown."""
    in_run = run.devices if run is not None else {}
    means, problem = _reader(words)
    counts: Counter[Show] = Counter()
    matches = []
    for device_id, entry in entries.items():
        device = in_run.get(device_id)
        condition = condition_of(entry, device.failures if device else 0)
        kinds: list[Show] = ["all"]
        if entry.ban is not None:
            kinds.append("banned")
        else:
            kinds.append("online" if entry.online else "offline")
            if condition.rank <= ATTENTION:
                kinds.append("attention")
        counts.update(kinds)
        if show in kinds and means(device_id, entry):
            matches.append((device_id, entry, condition))
    matches.sort(key=_KEYS[sort])
    part = slice_of(len(matches), number)
    shown = matches[part.begin : part.end]
    return FleetPage(
        {name: counts[name] for name in SHOWS},
        [(device_line(run, device_id, entry), condition) for device_id, entry, condition in shown],
        part,
        problem,
    )


def _reader(words: str) -> tuple[Callable[[str, Entry], bool], str]:
    """Whether a device is meant by these words; and what is wrong with them, where they look like a
    rule and are none."""
    try:
        return read_rule(words).means, ""
    except ConfigError as error:
        wanted = words.casefold().split()
        problem = str(error) if any(sign in words for sign in "<>=()") else ""
        return lambda device_id, entry: all(
            word in _text(device_id, entry) for word in wanted
        ), problem


def _text(device_id: str, entry: Entry) -> str:
    facts = (entry.said.hardware, entry.said.client, entry.said.runtime) if entry.said else ()
    return " ".join(
        (device_id, *entry.tags, *facts, entry.decline.reason if entry.decline else "")
    ).casefold()


Found = tuple[str, Entry, Condition]
_KEYS: dict[Sort, Callable[[Found], Any]] = {
    "worst": lambda found: (found[2].rank, *_away(found[1]), found[0]),
    "id": lambda found: found[0],
    "seen": lambda found: (*_away(found[1]), found[0]),
    "battery": lambda found: (
        101.0 if (charge := getattr(found[1].said, "battery_percent", None)) is None else charge,
        found[0],
    ),
    "group": lambda found: (
        not found[1].group.isdigit(),
        int(found[1].group) if found[1].group.isdigit() else 0,
        found[1].group,
        found[0],
    ),
}


def _away(entry: Entry) -> tuple[bool, float]:
    """Sorts those that are away the longest first; the others alike, so that a list stays as it is
    while they are heard."""
    return entry.online, 0.0 if entry.online else entry.last_seen_s
