"""Secret sums of a campaign's rounds: the cohort and the question of each, and its closed set.

In secret mode the same devices are in every round (`aggregator.core.sums.cohort_of`). A round asks
all of them and waits for all. At its deadline, it is closed over those that have answered, if
helpers would open that.
"""

from bisect import bisect_left
from functools import partial
from typing import Any

from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.core.sums import SecretSum, cohort_of, obstacle, on_answer, question_of
from aggregator.fleet.desired import NOBODY, hours_of, trained_group
from aggregator.fleet.events import AskHelpers, SumAnswered, SumFailed
from aggregator.fleet.plan import program_for
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Campaign
from wire.secret.messages import about_of, set_of
from wire.secret.parts import cut

ASK_S = 10.0
"""Seconds after which helpers that have not answered are asked again."""


def next_cohort(turn: Turn, campaign: Campaign) -> tuple[frozenset[str], str]:
    """Return the devices of a campaign's next question, and what it waits for, for people."""
    ready = frozenset(device_id for pool in _pools(turn, campaign) for device_id in pool)
    gone = partial(_is_gone, turn, campaign)
    devices, lack = cohort_of(_cells(turn), ready, gone, _least(turn, campaign))
    if not lack and (short := campaign.settings.min_devices - len(devices)) > 0:
        lack = f"{short} more: {len(devices)} of {campaign.settings.min_devices} devices are there"
    return devices, lack


def ask(turn: Turn, campaign: Campaign) -> None:
    """Open a round with a question to its cohort, if all of its devices are there."""
    settings, (begins_s, ends_s) = campaign.settings, hours_of(campaign, turn.now_s)
    if begins_s > turn.now_s or _misses(turn, campaign):
        return
    cohort, lack = next_cohort(turn, campaign)
    if lack:
        return
    deadline_s = min(turn.now_s + settings.deadline_s, ends_s)
    version = campaign.version
    start = trained_group(campaign, min(cohort))  # in one group, all start from the same model
    about = about_of(
        settings.bundle, version.models[start], program_for(version.programs, "", start)
    )
    question = question_of(
        about,
        version.parts[start],
        len(cohort),
        settings.min_sum,
        [helper.digest for helper in settings.helpers],
        deadline_s,
    )
    turn.change(
        campaign,
        phase="training",
        cohort=tuple(sorted(cohort)),
        question=question,
        sum=None,
        width=len(cohort),
        to_ask=len(cohort),
        deadline_s=deadline_s,
        opened_s=campaign.opened_s if campaign.attempt else turn.now_s,
    )


def next_device(turn: Turn, campaign: Campaign, kind: str) -> str | None:
    """Return a device of a pool to which a campaign's question is to be sent; None without one."""
    cohort = campaign.cohort
    for device_id in turn.waiting(f"{kind}/{campaign.name}"):
        at = bisect_left(cohort, device_id)
        if cohort[at : at + 1] == (device_id,):
            return device_id
    return None


def close_if_due(turn: Turn, campaign: Campaign) -> bool:
    """Close the set of a round if all devices have answered, or at the deadline.

    Return False if the round must be opened again, because helpers would not open the set.
    """
    assert campaign.question is not None
    is_over = turn.now_s >= campaign.deadline_s
    if campaign.received < len(campaign.cohort) and not is_over:
        return True
    devices = tuple(sorted(campaign.updates))
    few = len(devices) < campaign.settings.min_devices
    if few or obstacle(devices, _cells(turn), _least(turn, campaign)):
        return False
    members = set_of(update.share for update in campaign.updates.values())
    closed = SecretSum(campaign.question, members, devices)
    turn.change(campaign, phase="aggregating", command_epoch=0, sum=closed)
    return True


def cells_after(campaign: Campaign) -> tuple[tuple[str, ...], ...]:
    """Return the parts into which the sets of a campaign cut the devices, with its present set.

    A set that every helper has refused is in none of their ledgers.
    """
    if campaign.sum is None or campaign.sum.refused:
        return campaign.cells
    parts = cut(frozenset(map(frozenset, campaign.cells)), campaign.sum.devices)
    return tuple(sorted(tuple(sorted(part)) for part in parts))


def without_sum(campaign: Campaign) -> dict[str, Any]:
    """Return the changes of a campaign whose open round ends: its set becomes an earlier one."""
    return {"cells": cells_after(campaign), "question": None, "sum": None}


def waited_for(campaign: Campaign) -> str:
    """Return the names of the helpers whose answers are missing, for people."""
    secret = campaign.sum
    assert secret is not None
    answered = secret.masks if secret.agreed else secret.agreements
    missing = (helper.name for helper in campaign.settings.helpers if helper.digest not in answered)
    return ", ".join(missing)


def failure_of(campaign: Campaign) -> str:
    """Return the reason that the sum has failed, for people; empty if it has not."""
    text = campaign.sum.failure if campaign.sum is not None else ""
    for helper in campaign.settings.helpers:
        text = text.replace(f"helper {helper.digest[:12]}", f"helper {helper.name}")
    return text


def ask_helpers(turn: Turn, campaign: Campaign) -> None:
    """Ask the helpers whose answers are missing, at once and every `ASK_S` seconds."""
    assert campaign.sum is not None
    if turn.now_s >= campaign.sum.asked_s + ASK_S or not campaign.sum.asked_s:
        turn.commands.append(AskHelpers(campaign.name, campaign.round))
        turn.change(campaign, sum=replace(campaign.sum, asked_s=turn.now_s))


def answered(turn: Turn, event: SumAnswered) -> None:
    """Take in a helper's answer."""
    campaign = turn.campaigns.get(event.campaign)
    if campaign is not None and campaign.sum is not None:
        after = on_answer(campaign.sum, event.answer, event.signature, event.blob)
        _put(turn, campaign, after)


def failed(turn: Turn, event: SumFailed) -> None:
    """Take in that an opened sum cannot be used."""
    campaign = turn.campaigns[event.campaign]
    if campaign.sum is not None and campaign.round == event.round:
        _put(turn, campaign, replace(campaign.sum, problem=event.problem))


def _put(turn: Turn, campaign: Campaign, after: SecretSum) -> None:
    """Put a sum into its campaign, which is paused if the sum has failed.

    Only a person can mend the cause of a failure. The round is opened again when they resume.
    """
    if after != campaign.sum:
        turn.change(campaign, sum=after, paused=campaign.paused or after.stage == "failed")


def _pools(turn: Turn, campaign: Campaign) -> list[DevicePool]:
    """Return the devices that are ready for a round."""
    return [turn.waiting(f"{kind}/{campaign.name}") for kind in ("train", "beside")]


def _is_gone(turn: Turn, campaign: Campaign, device_id: str) -> bool:
    """Return True if a device will not answer any more."""
    device = turn.devices.get(device_id)
    is_excluded = campaign.members.get(device_id, NOBODY).excluded
    return device is None or device.barred or is_excluded


def _misses(turn: Turn, campaign: Campaign) -> bool:
    """Return True if a look at few devices shows that the next cohort is not complete.

    At every event of a campaign that waits, the whole cohort would cost too much.
    """
    pools, settings = _pools(turn, campaign), campaign.settings
    if sum(map(len, pools)) < max(settings.min_devices, settings.min_sum):
        return True
    summed = (device_id for cell in campaign.cells for device_id in cell)
    return any(
        not any(device_id in pool for pool in pools) and not _is_gone(turn, campaign, device_id)
        for device_id in summed
    )


def _cells(turn: Turn) -> frozenset[frozenset[str]]:
    """Return the parts into which the sums of all campaigns cut the devices, as helpers know."""
    parts = frozenset[frozenset[str]]()
    for campaign in turn.campaigns.values():
        for cell in cells_after(campaign):
            parts = cut(parts, cell)
    return parts


def _least(turn: Turn, campaign: Campaign) -> int:
    """Return the smallest number of devices of a part; helpers know those of all campaigns."""
    earlier = (c.settings.min_sum for c in turn.campaigns.values() if cells_after(c))
    return max([campaign.settings.min_sum, *earlier])
