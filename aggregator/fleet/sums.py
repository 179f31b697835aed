"""Secret sums of a campaign's rounds: cohorts, questions and closed sets.

In secret mode the same devices are in every round (`aggregator.core.sums.cohorts_of`). A round asks
all of them and waits for all. At its deadline, it is closed over those that have answered, if
helpers would open that sum. The devices of each group have a question of their own.

Groups are found by rounds of preparation, each with a question to each node of the tree
(`algorithms.groupings.sums`). Between them, devices tell their sides of splits, outside of
rounds. So do newcomers later.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import chain
from typing import Any

from msgspec.structs import replace

from aggregator.core.pool import DevicePool
from aggregator.core.sums import (
    SecretSum,
    Stage,
    cohorts_of,
    first_names,
    obstacle,
    on_answer,
    question_of,
    whole_cells,
)
from aggregator.fleet.desired import NOBODY, asked_key, hours_of, leaf_of, sum_key, sum_verbs
from aggregator.fleet.events import AskHelpers, SumAnswered, SumFailed
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import Campaign
from algorithms.core.cells import LEAST_CELLS, start_of
from algorithms.core.keys import NEWCOMER
from wire.secret.messages import about_of, set_of
from wire.secret.parts import cut
from wire.secret.survey import SURVEY_BITS, SURVEY_MOST

LONGEST_HOURS_S = 1e5
"""Seconds that hours of a campaign do not last, a little more than a day."""
ASK_S = 10.0
"""Seconds after which helpers that have not answered are asked again."""


def next_cohorts(turn: Turn, campaign: Campaign) -> tuple[dict[str, frozenset[str]], str]:
    """Return the devices of each of a campaign's next questions, and what they wait for."""
    if _waits_for_sides(campaign):
        devices = [*_devices_to_tell(turn, campaign)]
        return {}, f"devices to tell their groups: {first_names(devices)}" if devices else ""
    ready = frozenset(device_id for pool in _pools(turn, campaign) for device_id in pool)
    gone, key_of = partial(_is_gone, turn, campaign), partial(sum_key, campaign)
    cells, least_sum = _cells(turn), _least(turn, campaign)
    if campaign.version.has_cells:
        cohorts, lack = whole_cells(cells, ready, least_sum, key_of), ""
    else:
        cohorts, lack = cohorts_of(cells, ready, gone, least_sum, key_of)
    count, least = sum(map(len, cohorts.values())), _min_devices(campaign)
    if not lack and count < least:
        lack = f"{least - count} more: {count} of {least} devices are there"
    if not lack and len(cohorts) < (least := _least_sums(campaign)):
        lack = (
            f"more whole cells of devices: there are {len(cohorts)}, and the mean compares {least} "
            "or more"
        )
    if not lack and campaign.preparing and count > SURVEY_MOST:
        lack = f"fewer devices: {count} are there, at most {SURVEY_MOST} can be grouped by sums"
    return cohorts, lack


def ask(turn: Turn, campaign: Campaign) -> None:
    """Open a round with a question to each cohort, if all of its devices are there.

    If no device has a side of a split to tell, the next exchanges follow at once.
    """
    settings, (begins_s, ends_s) = campaign.settings, hours_of(campaign, turn.now_s)
    if begins_s > turn.now_s:
        return
    if _waits_for_sides(campaign):
        if next(_devices_to_tell(turn, campaign), None) is None:
            opened_s = campaign.phase_s
            turn.change(campaign, phase="aggregating", command_epoch=0, opened_s=opened_s)
        return
    if _misses(turn, campaign):
        return
    cohorts, lack = next_cohorts(turn, campaign)
    if lack:
        return
    # two attempts before one end of the hours have questions of their own
    deadline_s = min(turn.now_s + settings.deadline_s, ends_s - turn.now_s % LONGEST_HOURS_S * 1e-6)
    questions = {}
    for key, devices in cohorts.items():
        start = start_of(key)
        model = campaign.models[NEWCOMER if campaign.preparing else start]
        questions[key] = question_of(
            about_of(settings.bundle, model, sum_verbs(campaign, start)),
            campaign.version.parts[start],
            SURVEY_MOST if campaign.preparing else len(devices),
            settings.min_sum,
            [helper.digest for helper in settings.helpers],
            deadline_s,
            SURVEY_BITS if campaign.preparing else None,
            group=key,
            noise=campaign.version.noise,
        )
    count = sum(map(len, cohorts.values()))
    turn.change(
        campaign,
        phase="preparing" if campaign.preparing else "training",
        cohorts={key: tuple(sorted(devices)) for key, devices in cohorts.items()},
        questions=questions,
        sums={},
        width=count,
        to_ask=count,
        deadline_s=deadline_s,
        opened_s=campaign.opened_s if campaign.attempt else turn.now_s,
    )


def next_device(turn: Turn, campaign: Campaign, kind: str) -> str | None:
    """Return a device of a pool that has to get a campaign's question; None without one."""
    waiting = turn.waiting(f"{kind}/{campaign.name}")
    return next((d for d in waiting if asked_key(campaign, d) is not None), None)


def close_if_due(turn: Turn, campaign: Campaign) -> bool:
    """Close the sets of a round if all devices have answered, or at the deadline.

    Return False if the round must be opened again, because helpers would not open the sets. A
    question without answers has no set. Neither has a cell that is not whole.
    """
    is_over = turn.now_s >= campaign.deadline_s
    if campaign.received < sum(map(len, campaign.cohorts.values())) and not is_over:
        return True
    answered = {
        key: tuple(device_id for device_id in devices if device_id in campaign.updates)
        for key, devices in campaign.cohorts.items()
    }
    sets = {
        key: devices
        for key, devices in answered.items()
        if devices and (devices == campaign.cohorts[key] or not campaign.version.has_cells)
    }
    if _is_blocked(turn, campaign, [*sets.values()]):
        return False
    closed = {
        key: SecretSum(
            campaign.questions[key], set_of(campaign.updates[d].share for d in devices), devices
        )
        for key, devices in sets.items()
    }
    turn.change(campaign, phase="aggregating", command_epoch=0, sums=closed)
    return True


def cells_after(campaign: Campaign) -> tuple[tuple[str, ...], ...]:
    """Return the parts into which the sets of a campaign, present ones too, cut the devices.

    A set to which no helper can have agreed is in no ledger, and does not count.
    """
    sets = [secret.devices for secret in campaign.sums.values() if not secret.has_no_agreement]
    if not sets:
        return campaign.cells
    parts = reduce(cut, sets, frozenset(map(frozenset, campaign.cells)))
    return tuple(sorted(tuple(sorted(part)) for part in parts))


def without_sums(campaign: Campaign) -> dict[str, Any]:
    """Return the changes of a campaign whose open round ends: its sets become earlier ones."""
    return {"cells": cells_after(campaign), "questions": {}, "sums": {}}


def stage_of(campaign: Campaign) -> Stage | None:
    """Return the stage of a round's sums; None if there are none."""
    stages = {secret.stage for secret in campaign.sums.values()}
    order: tuple[Stage, ...] = ("failed", "opening", "opened")
    return next((stage for stage in order if stage in stages), None)


def waited_for(campaign: Campaign) -> str:
    """Return the names of the helpers whose answers are missing, for people."""
    missing = {helper for secret in campaign.sums.values() for helper in secret.waiting}
    return ", ".join(each.name for each in campaign.settings.helpers if each.digest in missing)


def failure_of(campaign: Campaign) -> str:
    """Return the reasons that sums have failed, for people; empty if none has."""
    reasons = (secret.failure for secret in campaign.sums.values())
    text = "; ".join(dict.fromkeys(filter(None, reasons)))
    for helper in campaign.settings.helpers:
        text = text.replace(f"helper {helper.digest[:12]}", f"helper {helper.name}")
    return text


def ask_helpers(turn: Turn, campaign: Campaign) -> None:
    """Ask the helpers whose answers are missing, at once and every `ASK_S` seconds."""
    due = {
        key: replace(secret, asked_s=turn.now_s)
        for key, secret in campaign.sums.items()
        if secret.stage == "opening"
        and (turn.now_s >= secret.asked_s + ASK_S or not secret.asked_s)
    }
    turn.commands.extend(AskHelpers(campaign.name, campaign.round, key) for key in due)
    if due:
        turn.change(campaign, sums={**campaign.sums, **due})


def next_request_s(campaign: Campaign) -> float:
    """Return the time at which helpers are to be asked again; infinite if they are not."""
    opening = (secret for secret in campaign.sums.values() if secret.stage == "opening")
    return min((secret.asked_s + ASK_S for secret in opening), default=math.inf)


def answered(turn: Turn, event: SumAnswered) -> None:
    """Take in a helper's answer."""
    campaign = turn.campaigns.get(event.campaign)
    if campaign is not None:
        answer = (event.answer, event.signature, event.blob)
        sums = {k: on_answer(each, *answer) for k, each in campaign.sums.items()}
        _put(turn, campaign, _of_usable_shares(turn, campaign, sums))


def _of_usable_shares(
    turn: Turn, campaign: Campaign, sums: dict[str, SecretSum]
) -> dict[str, SecretSum]:
    """Return the sums without the devices whose shares a helper cannot use.

    No helper has agreed to a set with such a device yet. If helpers would not open a sum over the
    others, the sum gets a problem.
    """
    after = dict(sums)
    for key, secret in sums.items():
        if not secret.unusable or len(secret.checks) < len(secret.question.helpers):
            continue
        devices = tuple(d for d in secret.devices if d not in secret.unusable)
        checks: dict[str, tuple[str, ...]] = dict.fromkeys(secret.checks, ())
        others = {k: each for k, each in after.items() if k != key}
        if not campaign.version.has_cells:
            members = set_of(campaign.updates[d].share for d in devices)
            others[key] = SecretSum(secret.question, members, devices, checks=checks)
        if _is_blocked(turn, campaign, [each.devices for each in others.values()]):
            names = first_names(secret.unusable)
            after[key] = replace(
                secret, problem=f"untrusted: helpers cannot use the shares of {names}"
            )
        else:
            after = others
    return after


def _is_blocked(turn: Turn, campaign: Campaign, sets: Sequence[tuple[str, ...]]) -> bool:
    """Return True if a round cannot be over these sets, or helpers would not open them."""
    few = sum(map(len, sets)) < max(1, _min_devices(campaign))
    parts, least = _cells(turn, campaign), _least(turn, campaign)
    return few or len(sets) < _least_sums(campaign) or bool(obstacle(sets, parts, least))


def failed(turn: Turn, event: SumFailed) -> None:
    """Record the problem of an opened sum that cannot be used."""
    campaign = turn.campaigns[event.campaign]
    if event.key in campaign.sums and campaign.round == event.round:
        secret = replace(campaign.sums[event.key], problem=event.problem)
        _put(turn, campaign, {**campaign.sums, event.key: secret})


def _put(turn: Turn, campaign: Campaign, after: dict[str, SecretSum]) -> None:
    """Put sums into their campaign, which is paused if one has failed.

    Only a person can mend the cause of a failure. The round is opened again when they resume.
    """
    if after != campaign.sums:
        has_failed = any(secret.stage == "failed" for secret in after.values())
        turn.change(campaign, sums=after, paused=campaign.paused or has_failed)


def _pools(turn: Turn, campaign: Campaign) -> list[DevicePool]:
    """Return the devices that are ready for a round."""
    return [turn.waiting(f"{kind}/{campaign.name}") for kind in ("train", "beside")]


def _is_gone(turn: Turn, campaign: Campaign, device_id: str) -> bool:
    """Return True if a device will not answer any more."""
    device = turn.devices.get(device_id)
    is_excluded = campaign.members.get(device_id, NOBODY).excluded
    return device is None or device.barred or is_excluded


def _misses(turn: Turn, campaign: Campaign) -> bool:
    """Return True if a few devices show that the next cohort is not complete.

    To examine the whole cohort at every event would cost too much.
    """
    pools = _pools(turn, campaign)
    if sum(map(len, pools)) < max(_min_devices(campaign), campaign.settings.min_sum):
        return True
    if campaign.version.has_cells:
        return False
    summed = (device_id for cell in campaign.cells for device_id in cell)
    return any(
        not any(device_id in pool for pool in pools)
        and sum_key(campaign, device_id) is not None
        and not _is_gone(turn, campaign, device_id)
        for device_id in summed
    )


def _min_devices(campaign: Campaign) -> int:
    """Return the smallest number of devices of a round; 0 for a round over some nodes only."""
    of_nodes = campaign.preparing and campaign.version.leaves
    return 0 if of_nodes else campaign.settings.min_devices


def _least_sums(campaign: Campaign) -> int:
    """Return the smallest number of sums of a round."""
    return LEAST_CELLS if campaign.version.has_cells else 1


def _waits_for_sides(campaign: Campaign) -> bool:
    """Return True if no question can follow before devices tell their sides of splits."""
    return campaign.preparing and not campaign.version.parts


def _devices_to_tell(turn: Turn, campaign: Campaign) -> Iterator[str]:
    """Yield the devices that have to tell their sides of splits."""
    leaves = campaign.version.leaves
    for device_id, member in campaign.members.items():
        is_in_leaf = member.node is None or leaf_of(leaves, member.node) is not None
        if not is_in_leaf and not _is_gone(turn, campaign, device_id):
            yield device_id


def _cells(turn: Turn, open_in: Campaign | None = None) -> frozenset[frozenset[str]]:
    """Return the parts into which the sums of all campaigns cut the devices.

    Of the campaign `open_in`, only sums of closed rounds count.
    """
    name = None if open_in is None else open_in.name
    cells = (c.cells if c.name == name else cells_after(c) for c in turn.campaigns.values())
    return reduce(cut, chain.from_iterable(cells), frozenset[frozenset[str]]())


def _least(turn: Turn, campaign: Campaign) -> int:
    """Return the smallest number of devices of a part: the largest `min_sum` of all campaigns."""
    earlier = (c.settings.min_sum for c in turn.campaigns.values() if cells_after(c))
    return max([campaign.settings.min_sum, *earlier])
