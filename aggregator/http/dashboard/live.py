"""A campaign as it goes: who of the open round's devices is in, who is late, until when it waits,
and what it has cost. Pure."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

from aggregator.core.budget import DAY_S
from aggregator.core.registry import NOBODY, Entry
from aggregator.core.round.cohort import Cohort
from aggregator.core.state import RunState
from aggregator.core.summary import Spread, group_number
from aggregator.http.dashboard.fleet import PagePart, Tone, slice_of
from aggregator.http.dashboard.history import Past

LATE_TIMES = 2.0
"""A device is late when it takes so many times as long as it did last, or, of one that has not
trained yet, as the median of the others."""
RECENT = 5
"""Rounds by which it is told how long a campaign still takes."""
Standing = Literal["late", "away", "declined", "working", "in"]
STANDINGS: dict[Standing, tuple[str, Tone]] = {
    "late": ("late", "bad"),
    "away": ("offline", "warn"),
    "declined": ("declined", "warn"),
    "working": ("working", "off"),
    "in": ("update is in", "ok"),
}
"""By standing, in the order of a list, what it is called and how it looks."""


class RoundDevice(NamedTuple):
    """A device of the latest round."""

    id: str
    group: int | None
    standing: Standing
    asked_s: float
    train_s: float
    """Seconds of its training for this round; 0: it has not told."""
    bytes_up: int
    why: str


class LiveCampaign(NamedTuple):
    """Where a campaign stands."""

    counts: dict[Standing, int]
    asked: int
    goal: int
    """Updates with which the round is over."""
    members: list[RoundDevice]
    slice: PagePart
    bytes_up: int
    bytes_down: int
    """Of the open round and all that are closed."""
    round_up: int
    round_down: int
    """Bytes of the updates of the open round."""
    train_s: float
    """Seconds of training behind the updates of the open round."""
    accuracy: Spread | None
    """Of the models that devices received in the last closed round in which some told one."""
    loss: float | None
    """Of the same models, the mean over devices."""
    days_left: float | None
    rounds_left: int
    """Rounds of training that the campaign still has."""
    ends_in_s: float | None
    """Seconds until it is over, if each round takes as long as the last ones did; None where that
    is not known."""


def live_campaign(
    run: RunState, entries: Mapping[str, Entry], past: Past, now_s: float, number: int
) -> LiveCampaign:
    """The standing of a campaign; of the devices of its latest round one page, those that are
    waited for first."""
    known = (entries.get(device_id, NOBODY).training for device_id in run.cohort)
    usual_s = median([done.answer_s for done in known if done and done.answer_s] or [0.0])
    going = run.phase in ("preparing", "training", "evaluating")
    cohort = run.cohort if going or run.phase == "aggregating" else {}
    members = [
        _round_device(run, device_id, entries.get(device_id, NOBODY), usual_s, now_s)
        for device_id in cohort
    ]
    order = list(STANDINGS)
    members.sort(key=lambda member: (order.index(member.standing), member.id))
    part = slice_of(len(members), number)
    counts = Counter(member.standing for member in members)
    received = run.received.values() if cohort else ()
    evaluated = [line for line in past.rounds if line.accuracy.mean is not None]
    rounds_left = 0 if run.phase == "finished" else max(0, run.next_settings.rounds - run.trained)
    up, down = (
        sum(update.bytes_up for update in received),
        sum(update.bytes_down for update in received),
    )
    days = run.next_settings.days
    goal = len(members)
    if run.phase == "training":
        goal = run.settings.buffer or Cohort(run.settings.cohort).goal(goal)
    closed = [line.closed_at_s for line in past.rounds[-RECENT - 1 :]]
    spans = [after - before for before, after in pairwise(closed)]
    return LiveCampaign(
        {standing: counts[standing] for standing in STANDINGS},
        len(members),
        goal,
        members[part.begin : part.end],
        part,
        sum(line.bytes_up for line in past.rounds) + up,
        sum(line.bytes_down for line in past.rounds) + down,
        up,
        down,
        sum(member.train_s for member in members),
        evaluated[-1].accuracy if evaluated else None,
        evaluated[-1].loss if evaluated else None,
        max(0.0, days - (now_s - run.started_at_s) / DAY_S) if days else None,
        rounds_left,
        rounds_left * median(spans) if rounds_left and spans else None,
    )


def _round_device(
    run: RunState, device_id: str, entry: Entry, usual_s: float, now_s: float
) -> RoundDevice:
    update, device = run.received.get(device_id), run.devices.get(device_id)
    asked_s = max(entry.asked_s, run.opened_at_s)
    standing: Standing = "working"
    why = ""
    if update is not None:
        standing = "in"
    elif device_id in run.declined:
        standing, why = "declined", entry.decline.reason if entry.decline else ""
    elif device is None or not device.online:
        standing = "away"
    else:
        expected_s = (
            entry.training.answer_s if entry.training and entry.training.answer_s else usual_s
        )
        if expected_s and now_s - asked_s > LATE_TIMES * expected_s:
            standing, why = (
                "late",
                f"it took {expected_s:.0f} s last"
                if entry.training
                else f"others take {expected_s:.0f} s",
            )
    group = group_number(run.cohort[device_id])
    return RoundDevice(
        device_id,
        group,
        standing,
        asked_s,
        entry.train_s if update is not None else 0.0,
        update.bytes_up if update else 0,
        why,
    )


def versions_of(run: RunState) -> Mapping[int, float | None]:
    """The rounds whose models can be returned to, and the mean accuracy that devices found, the
    latest first."""
    versions = {}
    for version in reversed(run.history):
        accuracies = [
            metrics.accuracy for metrics in version.evaluated.values() if metrics.num_examples
        ]
        versions[version.round] = sum(accuracies) / len(accuracies) if accuracies else None
    return versions
