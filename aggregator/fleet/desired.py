"""Desired assignments and releases of devices, from facts alone.

=============================== ==================================================================
a device that                    should
=============================== ==================================================================
is banned, withdrawn, away       do nothing
is excluded from a campaign      do nothing for that campaign
rests after a failure            do nothing until its rest is over
works for no campaign            hold the release of the latest rollout that reached it
of a campaign that trains:
cannot train, has no survey      describe its inputs (survey), where the algorithm reads them
is in no leaf of a secret survey tell its side of each split (survey)
can train, has no update in it   train from its group's model; as a newcomer if its data moved
of a campaign whose training is over:
has no group, has no survey      describe its inputs, where the algorithm reads them
has no update in the evaluation  test its group's model, or make a personal model of it
holds no personal model          make one of its group's model, where the campaign has them
=============================== ==================================================================

The rules of what devices should do are here alone.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from aggregator.core.hours import read_hours
from aggregator.core.pool import draw
from aggregator.fleet.eligibility import read_rule
from aggregator.fleet.plan import program_for
from aggregator.fleet.records import (
    Campaign,
    Device,
    Kind,
    Member,
    ModelRelease,
    Placed,
    Rollout,
)
from algorithms.core.cells import start_of
from algorithms.core.keys import NEWCOMER, UNLABELLED
from wire.arrays import names
from wire.held import num_held_out
from wire.messages import Apply, Choose, Evaluate, Mask, Train, Verb
from wire.tasks import split_unlabelled

NEW = f"start:{NEWCOMER}"
"""Key of the verbs of newcomers, if newcomers have verbs of their own."""
LEAST_HELD = 8
"""Minimum number of held-out windows by which a device chooses its personal model.

A choice by fewer windows seems certain if a model fails on all of them. So few windows are worth
more as training data.
"""
GROWTH = 0.25
"""Share by which a device's labels must have grown for it to choose its personal model anew."""
NOBODY = Member()


class Records(Protocol):
    """Records of a fleet, also of one that is being changed."""

    @property
    def campaigns(self) -> dict[str, Campaign]:
        """Campaigns by name."""

    @property
    def releases(self) -> dict[int, ModelRelease]:
        """Releases by number."""

    @property
    def rollouts(self) -> tuple[Rollout, ...]:
        """Rollouts, in the order of their starts."""


class Desired(NamedTuple):
    """Assignment that a device should have."""

    campaign: str
    kind: Kind
    start: str
    """Key of the model that the device starts from."""


def wanted(fleet: Records, device_id: str, device: Device, now_s: float) -> Desired | None:
    """Return the assignment that a device should have, or None if it should have none."""
    if device.barred or not device.online or device.facts is None:
        return None
    if now_s < rests_until(fleet, device):
        return None
    campaign = works_for(fleet, device_id, device)
    if campaign is not None:
        return _in_campaign(campaign, device_id, device, now_s)
    campaign = giver(fleet, device_id, device)
    return None if campaign is None else _after(campaign, device_id, device)


def _in_campaign(
    campaign: Campaign, device_id: str, device: Device, now_s: float
) -> Desired | None:
    """Return the assignment of a device in a campaign that is not finished."""
    if is_to_survey(campaign, device_id, device):
        return Desired(campaign.name, "survey", NEWCOMER)
    if device_id in campaign.updates:
        return None
    if campaign.phase == "evaluating":
        kind: Kind = "personalise" if campaign.settings.candidates else "evaluate"
        return Desired(campaign.name, kind, group_of(campaign, device_id, device))
    if now_s < paced_until(campaign, device) or not can_train(campaign, device):
        return None
    is_new = device.moved and not campaign.preparing and NEW in campaign.version.programs
    start = NEWCOMER if is_new else trained_group(campaign, device_id)
    return Desired(campaign.name, "train", start)


def rests_until(fleet: Records, device: Device) -> float:
    """Return the time until which a device rests after a failure; 0 if it does not rest.

    A rest is over once its campaign has other settings than at the failed assignment, or has given
    the models up: the device is then asked for something else.
    """
    work = device.assignment
    campaign = fleet.campaigns.get(work.campaign) if work is not None else None
    if work is None or campaign is None:
        return device.rests_until_s
    is_other = work.serial <= campaign.set_serial or work.round < campaign.oldest
    return 0.0 if is_other else device.rests_until_s


def paced_until(campaign: Campaign, device: Device) -> float:
    """Return the time before which a campaign may not assign a device to train again.

    It is 0 if the device has had no training assignment. It is 0 as well for a device of the open
    round, because a further attempt of that round may assign it again.
    """
    work = device.assignment
    is_of_round = work is not None and (work.campaign, work.round) == (
        campaign.name,
        campaign.round,
    )
    return device.asked_s + campaign.settings.pace_s if device.asked_s and not is_of_round else 0.0


def _after(campaign: Campaign, device_id: str, device: Device) -> Desired | None:
    """Return the assignment of a device in the finished campaign whose models it has."""
    if campaign.ended == "order":
        return None
    if is_to_survey(campaign, device_id, device):
        return Desired(campaign.name, "survey", NEWCOMER)
    if not campaign.settings.candidates or has_chosen(campaign, device_id, device):
        return None
    return Desired(campaign.name, "personalise", group_of(campaign, device_id, device))


def has_chosen(campaign: Campaign, device_id: str, device: Device) -> bool:
    """Return True if a device holds a personal model of its group's model.

    A device with enough labels must have chosen it by its labels, and by as many as it has now,
    but for a share `GROWTH` of them.
    """
    chooses = any(isinstance(verb, Choose) for verb in campaign.version.programs["closing"])
    keys = set(campaign.models) if chooses else {group_of(campaign, device_id, device)}
    if {campaign.models[key] for key in keys}.isdisjoint(device.holds):
        return False
    update = campaign.updates.get(device_id)
    if update is None or not can_train(campaign, device):
        return True
    num_train, chose_by = windows_of(campaign, device)[0], update.num_train
    return chose_by >= campaign.settings.min_batch and num_train <= (1 + GROWTH) * chose_by


def is_wanted(fleet: Records, device_id: str, device: Device) -> bool:
    """Return True if the work of a device's assignment is still needed."""
    work = device.assignment
    if work is None or work.campaign not in fleet.campaigns or device.barred:
        return False
    campaign = fleet.campaigns[work.campaign]
    if campaign.ended == "order" or work.round < campaign.oldest:
        return False
    if campaign.members.get(device_id, NOBODY).excluded:
        return False
    is_over = campaign.phase in ("evaluating", "finished")
    match work.kind:
        case "train":
            return not is_over
        case "survey":
            return needs_placement(campaign, device_id, device)
        case "evaluate" if campaign.phase == "finished":
            return False
    # a survey may have placed the device in another group since
    return is_over and work.start == group_of(campaign, device_id, device)


def works_for(fleet: Records, device_id: str, device: Device) -> Campaign | None:
    """Return the campaign that a device works for, or None.

    It is the most recently started unfinished campaign that may give the device assignments. A
    campaign that awaits drift gives none.
    """
    return next(
        (
            campaign
            for campaign in reversed(fleet.campaigns.values())
            if campaign.phase != "finished"
            and not campaign.paused
            and not campaign.awaits_drift
            and takes(fleet, campaign, device_id, device)
        ),
        None,
    )


def giver(fleet: Records, device_id: str, device: Device) -> Campaign | None:
    """Return the campaign whose models a device has, or None.

    It is the most recently finished campaign that may give the device assignments.
    """
    over = (c for c in fleet.campaigns.values() if c.phase == "finished" and c.ended_s)
    recent = sorted(over, key=lambda campaign: -campaign.ended_s)
    return next((c for c in recent if takes(fleet, c, device_id, device)), None)


def takes(fleet: Records, campaign: Campaign, device_id: str, device: Device) -> bool:
    """Return True if a campaign may give a device assignments."""
    if campaign.members.get(device_id, NOBODY).excluded:
        return False
    where = campaign.settings.where
    return not where or read_rule(where).means(device_id, device, fleet.campaigns)


def windows_of(campaign: Campaign, device: Device) -> tuple[int, int]:
    """Return the numbers of training and test windows of a device in a campaign."""
    facts = device.facts
    if facts is None:
        return 0, 0
    if campaign.settings.needs_labels:
        return facts.num_train, facts.num_test
    return split_unlabelled(facts.num_train, facts.num_test, facts.num_unlabelled)


def can_train(campaign: Campaign, device: Device) -> bool:
    """Return True if a device has enough labelled windows to train."""
    return windows_of(campaign, device)[0] >= campaign.settings.min_batch


def needs_placement(campaign: Campaign, device_id: str, device: Device) -> bool:
    """Return True if no training will put a device into a group.

    The device cannot train, or the training is over without it. In secret mode, it has a side of a
    split to tell; newcomers tell theirs once all groups are found.
    """
    member = campaign.members.get(device_id, NOBODY)
    if leaves := campaign.version.leaves:
        is_early = campaign.preparing and member.node is None
        return can_train(campaign, device) and not is_early and leaf_of(leaves, member.node) is None
    is_over = campaign.phase in ("evaluating", "finished")
    return not can_train(campaign, device) or (is_over and not member.group)


def is_to_survey(campaign: Campaign, device_id: str, device: Device) -> bool:
    """Return True if a device should describe its inputs before anything else."""
    return (
        bool(campaign.version.programs.get(UNLABELLED))
        and not device.forbids
        and needs_placement(campaign, device_id, device)
        and campaign.members.get(device_id, NOBODY).survey is None
    )


def trained_group(campaign: Campaign, device_id: str) -> str:
    """Return the key of the model that a device trains from next."""
    keys = campaign.members.get(device_id, NOBODY).group, campaign.version.newcomers
    return next((key for key in keys if key in campaign.models), NEWCOMER)


def leaf_of(leaves: Mapping[str, str], node: str | None) -> str | None:
    """Return the leaf that contains a node of a secret survey; None if the node was split."""
    return next((leaf for leaf in leaves if (node or "").startswith(leaf)), None)


def sum_key(campaign: Campaign, device_id: str) -> str | None:
    """Return the key of the next question to a device in secret mode; None if there is none.

    In a survey, it is the device's node; in training, the key of the model to start from.
    """
    version, node = campaign.version, campaign.members.get(device_id, NOBODY).node
    if version.leaves and leaf_of(version.leaves, node) is None:
        return None
    key: str | None = trained_group(campaign, device_id)
    if campaign.preparing:
        key = node if version.leaves else ""
    return key if key in version.parts else None


def asked_key(campaign: Campaign, device_id: str) -> str | None:
    """Return the key of the open round's question to a device; None if there is none."""
    for key, devices in campaign.cohorts.items():
        at = bisect_left(devices, device_id)
        if devices[at : at + 1] == (device_id,):
            return key
    return None


def sum_verbs(campaign: Campaign, key: str) -> tuple[Verb, ...]:
    """Return the verbs before the question of this key."""
    programs = campaign.version.programs
    return programs.get(f"node:{key}") or program_for(programs, "", key)


def placed_of(campaign: Campaign, device_id: str, device: Device) -> Placed | None:
    """Return the group of a device that has no group from its training.

    The device needs a placement (`needs_placement`), or may not be surveyed. None for any other
    device, and while no group is known.
    """
    member, choices = campaign.members.get(device_id, NOBODY), list[Placed | None]()
    if needs_placement(campaign, device_id, device):
        choices = [member.placed, campaign.default]
    elif device.forbids and not member.group:
        choices = [campaign.default]
    return next((p for p in choices if p is not None and p.group in campaign.models), None)


def group_of(campaign: Campaign, device_id: str, device: Device) -> str:
    """Return the key of the model of a device's group."""
    placed = placed_of(campaign, device_id, device)
    return placed.group if placed is not None else trained_group(campaign, device_id)


def verbs_of(campaign: Campaign, device_id: str, device: Device, task: Desired) -> tuple[Verb, ...]:
    """Return the verbs of a device's assignment."""
    programs = campaign.version.programs
    if task.kind == "survey":
        return programs[UNLABELLED]
    if task.kind != "train":
        return closing_verbs(campaign, device)
    group = campaign.members.get(device_id, NOBODY).group or NEWCOMER
    if campaign.questions:
        key = asked_key(campaign, device_id)
        assert key is not None, "it is in the cohort of a question"
        return (*sum_verbs(campaign, start_of(key)), Mask(campaign.questions[key]))
    anew = programs.get(NEW) if task.start == NEWCOMER != group else None
    verbs = anew or program_for(programs, device_id, task.start)
    return verbs if device.policy.tell_classes else tuple(map(_of_inputs, verbs))


def _of_inputs(verb: Verb) -> Verb:
    """Return a survey as one that no label is part of, and any other verb unchanged."""
    is_survey = isinstance(verb, Evaluate) and verb.report and verb.graph == names.SURVEY
    return replace(verb, split="inputs") if is_survey else verb


def closing_verbs(campaign: Campaign, device: Device) -> tuple[Verb, ...]:
    """Return the verbs of a device after the last round.

    A device does not report what its owner withholds, nor a test on fewer windows than the owner
    permits.
    """
    num_train, num_test = windows_of(campaign, device)
    policy, verbs = device.policy, list[Verb]()
    untested = 0 < num_test < policy.min_windows
    closing = campaign.version.programs["closing"]
    for verb in by_labels(closing, num_train, can_train(campaign, device)):
        if isinstance(verb, Apply | Evaluate) and verb.report:
            measures = policy.withholds and bool(campaign.settings.responses.get(verb.graph))
            tests = untested and isinstance(verb, Evaluate) and verb.split == "test"
            verb = replace(verb, report=not (measures or tests))
        verbs.append(verb)
    return tuple(verbs)


def by_labels(closing: tuple[Verb, ...], num_train: int, trains: bool) -> tuple[Verb, ...]:
    """Return the verbs after the last round, adapted to a device's number of labelled windows.

    No window is held out if fewer than `LEAST_HELD` would be. `trains`: True if the windows are
    enough to train on.
    """
    verbs = tuple(
        replace(verb, holdout=0.0)
        if (isinstance(verb, Train) or (isinstance(verb, Evaluate) and verb.split == "windows"))
        and num_held_out(num_train, verb.holdout) < LEAST_HELD
        else verb
        for verb in closing
    )
    return verbs if trains else without_labels(verbs)


def without_labels(verbs: tuple[Verb, ...]) -> tuple[Verb, ...]:
    """Return the verbs after the last round that a device without labels can carry out.

    Such a device neither chooses by a loss nor trains. A training that is skipped for too few
    windows stays.
    """
    return tuple(
        v for v in verbs if not isinstance(v, Choose) and not (isinstance(v, Train) and not v.least)
    )


def releases_for(
    fleet: Records, device_id: str, device: Device
) -> Iterator[tuple[Rollout, ModelRelease, bool]]:
    """Yield the rollouts that have a release for a device, the latest first.

    Each comes with the release, and True if the rollout has reached the device. A device in the
    first tenth is in the first half as well. It keeps its release when the rollout is paused or
    superseded, and when training moves it into a group for which the rollout has no release.
    """
    if device.barred:
        return
    for rollout in reversed(fleet.rollouts):
        campaign = fleet.campaigns.get(rollout.campaign)
        if rollout.phase in ("candidate", "failed") or campaign is None:
            continue
        is_known = device_id in campaign.members
        if not is_known and not takes(fleet, campaign, device_id, device):
            continue
        numbers = rollout.releases
        number = numbers.get(group_of(campaign, device_id, device))
        if number is None and device.last_offer.release in numbers.values():
            number = device.last_offer.release
        if number is None and rollout.newcomers:
            number = numbers.get(rollout.newcomers)
        if number is None:
            continue
        has_it = device.last_offer.release == number
        if rollout.phase in ("paused", "superseded"):
            is_reached = has_it
        else:
            is_reached = rollout.share >= 1 or place_of(rollout, device_id) < rollout.share
            tags = {tag for step in rollout.steps[: rollout.step + 1] for tag in step.tags}
            is_reached |= not tags.isdisjoint(device.tags)
        yield rollout, fleet.releases[number], is_reached


def place_of(rollout: Rollout, device_id: str) -> float:
    """Return a device's position in a rollout, between 0 and 1.

    A rollout reaches the devices whose position is below its share. Nobody can choose an id that
    comes first, because the position depends on the rollout's salt.
    """
    return draw(f"{rollout.salt} {device_id}", 2**53) / 2**53


def is_at_work(device: Device) -> bool:
    """Return True if a device has an assignment that has not lapsed."""
    return device.assignment is not None and not device.assignment.lapsed


def hours_of(campaign: Campaign, now_s: float) -> tuple[float, float]:
    """Return the beginning and the end of a campaign's current or next hours, in Unix seconds."""
    if not campaign.settings.hours or (hours := read_hours(campaign.settings.hours)) is None:
        return now_s, math.inf
    return hours.opens_s(now_s), hours.closes_s(now_s)
