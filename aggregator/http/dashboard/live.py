"""Progress of a campaign: the open round's devices with their standing, deadline, costs. Pure."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

from aggregator.fleet.budget import DAY_S
from aggregator.fleet.desired import is_at_work
from aggregator.fleet.records import OPEN, Campaign
from aggregator.http.dashboard.fleet import PagePart, Tone, slice_of
from aggregator.http.dashboard.history import Past
from aggregator.view.device import DeviceView
from aggregator.view.fleet import FleetView, is_of_round
from aggregator.view.summary import Spread, group_number

LATE_TIMES = 2.0
"""Multiple of its last answer's duration after which a device is late.

For a device that has not trained yet, the median duration of the others is used.
"""
RECENT = 5
"""Number of rounds from which the rest of a campaign is estimated."""
Standing = Literal["late", "away", "declined", "working", "in"]
STANDINGS: dict[Standing, tuple[str, Tone]] = {
    "late": ("late", "bad"),
    "away": ("offline", "warn"),
    "declined": ("declined", "warn"),
    "working": ("working", "off"),
    "in": ("update arrived", "ok"),
}
"""Word and tone of each standing, in the order in which the page lists devices."""


class RoundDevice(NamedTuple):
    """Device of the latest round."""

    id: str
    group: int | None
    standing: Standing
    asked_s: float
    train_s: float
    """Seconds of its training for this round; 0 if unknown."""
    bytes_up: int
    why: str


class LiveCampaign(NamedTuple):
    """Progress of a campaign."""

    counts: dict[Standing, int]
    num_members: int
    """Number of devices of the latest round; `members` has one page of them."""
    goal: int
    """Number of updates that complete the round."""
    members: list[RoundDevice]
    slice: PagePart
    bytes_up: int
    bytes_down: int
    """Bytes of the open round and all closed ones."""
    round_up: int
    round_down: int
    """Bytes of the updates of the open round."""
    train_s: float
    """Seconds of training for the updates of the open round."""
    accuracy: Spread | None
    """Accuracy of the models that devices received in the last round with reports."""
    loss: float | None
    """Mean over devices of the mean loss of the same models."""
    days_left: float | None
    rounds_left: int
    """Number of rounds of training that the campaign still has."""
    ends_in_s: float | None
    """Estimated seconds until its end, from the duration of the last rounds; None if unknown."""


def live_campaign(view: FleetView, name: str, past: Past, number: int) -> LiveCampaign:
    """Return the progress of a campaign, with one page of the devices of its round.

    Devices for which the round waits come first.
    """
    campaign, devices = view.fleet.campaigns[name], list[DeviceView]()
    if campaign.phase in (*OPEN, "aggregating"):

        def visit(device: DeviceView) -> None:
            update = campaign.updates.get(device.id)
            has_update = update is not None and update.round == campaign.round
            if has_update or is_of_round(campaign, device.record):
                devices.append(device)

        view.walk(visit, name)
    trainings = (device.telemetry.training for device in devices)
    usual_s = median([each.answer_s for each in trainings if each and each.answer_s] or [0.0])
    members = [_round_device(campaign, device, usual_s, view.now_s) for device in devices]
    order = list(STANDINGS)
    members.sort(key=lambda member: (order.index(member.standing), member.id))
    part = slice_of(len(members), number)
    counts = Counter(member.standing for member in members)
    received = campaign.updates.values() if devices else ()
    evaluated = [line for line in past.rounds if line.accuracy.mean is not None]
    settings = campaign.next_settings
    rounds_left = 0 if campaign.phase == "finished" else max(0, settings.rounds - campaign.trained)
    up = sum(update.bytes_up for update in received)
    down = sum(update.bytes_down for update in received)
    goal = len(members)
    if campaign.phase in ("preparing", "training"):
        cohort = campaign.settings.cohort or campaign.width
        goal = campaign.settings.buffer or min(cohort, campaign.width)
    closed = [line.closed_at_s for line in past.rounds[-RECENT - 1 :]]
    spans = [after - before for before, after in pairwise(closed)]
    days, now_s = settings.days, view.now_s
    began_s = now_s if campaign.awaits_drift else campaign.started_s
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
        max(0.0, days - (now_s - began_s) / DAY_S) if days else None,
        rounds_left,
        rounds_left * median(spans) if rounds_left and spans else None,
    )


def _round_device(
    campaign: Campaign, device: DeviceView, usual_s: float, now_s: float
) -> RoundDevice:
    record, training = device.record, device.telemetry.training
    update = campaign.updates.get(device.id)
    work = record.assignment
    asked_s = record.asked_s or campaign.opened_s
    standing: Standing = "working"
    why = ""
    if update is not None and update.round == campaign.round:
        standing = "in"
    elif not is_at_work(record) and (decline := device.declined) is not None:
        standing, why = "declined", decline.reason
    elif not record.online:
        standing = "away"
    elif not is_at_work(record):
        standing, why = "late", "its deadline has passed"
    else:
        expected_s = training.answer_s if training and training.answer_s else usual_s
        if expected_s and now_s - asked_s > LATE_TIMES * expected_s:
            standing = "late"
            if training and training.answer_s:
                why = f"its last answer took {expected_s:.0f} s"
            else:
                why = f"other devices take {expected_s:.0f} s"
        elif work is not None and work.beside:
            why = "the round does not wait for it, because it failed its last assignment"
    start = update.start if update is not None else work.start if work is not None else ""
    return RoundDevice(
        device.id,
        group_number(start),
        standing,
        asked_s,
        record.train_s if standing == "in" else 0.0,
        update.bytes_up if update else 0,
        why,
    )


def versions_of(campaign: Campaign) -> Mapping[int, float | None]:
    """Return the rounds to whose models a campaign can return, with their mean accuracy.

    The latest round is first.
    """
    versions = {}
    for version in reversed(campaign.history):
        accuracies = [
            metrics.accuracy for metrics in version.evaluated.values() if metrics.num_examples
        ]
        versions[version.round] = sum(accuracies) / len(accuracies) if accuracies else None
    return versions
