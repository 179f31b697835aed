"""State machine of a fleet: ``step(fleet, event) -> (fleet, commands)``.

Pure: the same events give the same fleet. An event changes facts. The consequences do not depend on
the event: the affected devices are reconciled, campaigns advance as far as they can, rollouts are
judged. So devices are assigned in one place, rounds open in one place, and rounds close in one
place.
"""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from sys import intern
from typing import Any

from immutables import Map
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet import rollouts, rounds, sums
from aggregator.fleet.desired import leaf_of, needs_placement
from aggregator.fleet.divergence import NOBODY, refused_divergence, suspects_of
from aggregator.fleet.reconcile import Turn, awake, failed, forget, reconcile, rested
from aggregator.fleet.records import NOT_STARTED, SHARED, Campaign, Device, Fleet, Member, Survey
from wire.messages import ROOM, CheckIn, Mask, Metrics

SWEPT = 500
"""Maximum number of devices that are reconciled in one event of a sweep."""
TOLD = ("num_train", "num_test", "num_unlabelled", "bundle", "client", "runtime", "policy", "app")
"""Facts that decide if a device can carry out an assignment. Its rest ends when they change."""


def step(fleet: Fleet, event: e.Event) -> tuple[Fleet, list[e.Command]]:
    """Return the fleet after an event, and the commands that follow."""
    return steps(fleet, [event])


def steps(fleet: Fleet, batch: Iterable[e.Event]) -> tuple[Fleet, list[e.Command]]:
    """Return the fleet after several events, and the commands that follow.

    The result is that of `step` on one event after the other, in less time.
    """
    turn = Turn(fleet)
    for event in batch:
        take_in(turn, event)
    return turn.fleet(), turn.commands  # `turn.changed` has the devices to store


def take_in(turn: Turn, event: e.Event) -> None:
    """Process one event."""
    turn.last_s, turn.now_s = turn.now_s, max(turn.now_s, event.at_s)
    _FACTS[type(event)](turn, event)
    while turn.touched:
        in_order = (name for name in turn.campaigns if name in turn.touched)
        # the order of campaigns, so that the result is the same after a restart
        name = next(in_order, next(iter(turn.touched)))
        del turn.touched[name]
        rounds.advance(turn, name) if name else rollouts.notice(turn)
    _set_timer(turn)


def _set_timer(turn: Turn) -> None:
    """Set the timer of campaigns and rollouts.

    The timer rings at once if work is left, else when time alone may advance one of them.
    """
    times = [rounds.look_s(turn, campaign) for campaign in turn.campaigns.values()]
    times += [rollouts.look_s(turn, rollout) for rollout in turn.rollouts]
    look_s = turn.now_s if turn.sweep else min(times, default=math.inf)
    is_set = look_s == turn.wake_s > 0  # a virtual clock begins at 0
    if look_s != math.inf and not is_set:
        turn.wake_s = look_s
        turn.commands.append(e.SetTimer("", look_s))


def _checked_in(turn: Turn, event: e.CheckedIn) -> None:
    before = turn.devices.get(event.device_id) or Device()
    if before.is_second(event.facts):
        reconcile(turn, event.device_id, replace(before, second_s=turn.now_s))
        return
    # the operator may have tagged the device before it first came
    if before.facts is None and event.tags:
        before = replace(before, tags=tuple(sorted({*before.tags, *event.tags})))
    # A fleet has few different texts, so each is stored once.
    texts = {name: intern(getattr(event.facts, name)) for name in SHARED}
    encodings = _encodings(event.facts.encodings)
    facts = replace(event.facts, device_id=event.device_id, encodings=encodings, **texts)
    last = before.facts
    if last is not None and facts.instance != last.instance and 1 in (facts.start, last.start):
        before = before.with_once(last.instance)
    device = replace(
        before,
        facts=facts,
        moved=before.moved or facts.moved,
        online=True,
        first_seen_s=before.first_seen_s or turn.now_s,
        seen_s=turn.now_s,
        sent_epoch=0,
        withdrawn_s=0.0,
        holds=before.holds if facts.personal_models is None else facts.personal_models,
    )
    holds_all = bool(facts.personal_models) and before.holds == facts.personal_models
    if before.facts is None or holds_all:
        device = replace(rested(device), forbids=False)
    # the changed facts may end its failures, so it is assigned again, beside the cohort
    elif may_do_more(before.facts, facts):
        device = replace(awake(device), forbids=False)
    for campaign in list(turn.campaigns.values()):
        member = campaign.members.get(event.device_id)
        if member is None or not (member.survey or member.placed):
            continue
        if not needs_placement(campaign, event.device_id, device):
            turn.put_member(campaign, event.device_id, survey=None, placed=None)
        elif facts.moved:
            turn.put_member(campaign, event.device_id, survey=None)
    _take_back(turn, event.device_id, before, device)
    has_lost = bool(before.holds) and before.holds[-1] not in device.holds
    after = failed(device, turn.now_s, "lost") if has_lost else device
    reconcile(turn, event.device_id, after)


def _take_back(turn: Turn, device_id: str, known: Device, device: Device) -> None:
    """Delete reports that the owner no longer permits, and those of lost personal models."""
    policy, lost = device.policy, set(known.holds) - set(device.holds)
    for campaign in list(turn.campaigns.values()):
        if (update := campaign.updates.get(device_id)) is None:
            continue
        models = set(campaign.models.values())
        if campaign.phase == "finished" and models & lost and models.isdisjoint(device.holds):
            turn.changed.add(device_id)
            turn.put(replace(campaign, updates=campaign.updates.delete(device_id)))
            continue
        is_few = update.evaluated.num_examples < policy.min_windows
        permitted = replace(
            update,
            personal_model=None if policy.withholds else update.personal_model,
            evaluated=Metrics() if is_few else update.evaluated,
        )
        if permitted != update:
            turn.put_update(campaign, device_id, permitted)


@lru_cache(1000)
def _encodings(encodings: tuple[str, ...]) -> tuple[str, ...]:
    return encodings


def may_do_more(before: CheckIn, facts: CheckIn) -> bool:
    """Return True if a device may carry out what it failed to do with its facts before."""
    free, free_before = facts.free_bytes, before.free_bytes
    has_room = free is not None and free_before is not None and free >= 2 * free_before + ROOM
    return has_room or _terms(before) != _terms(facts)


def _terms(facts: CheckIn) -> tuple[Any, ...]:
    return tuple(getattr(facts, name) for name in TOLD)


def _seen(turn: Turn, event: e.Seen) -> None:
    before = turn.devices.get(event.device_id)
    if before is None:
        return
    if event.withdrawal:
        if event.withdrawal in before.once:
            return
        before = before.with_once(event.withdrawal)
        _without_update(turn, event.device_id)
        away = replace(before, online=False, withdrawn_s=before.withdrawn_s or turn.now_s)
        reconcile(turn, event.device_id, replace(away, assignment=None))
        rollouts.note_report(turn, event.device_id)
    elif before.online != event.online:
        device = replace(before, online=event.online, seen_s=turn.now_s, sent_epoch=0)
        reconcile(turn, event.device_id, device)


def _answering(turn: Turn, device_id: str, serial: int) -> Device | None:
    """Return the device if it has the assignment with this serial number, else None."""
    device = turn.devices.get(device_id)
    work = device.assignment if device is not None else None
    return device if work is not None and work.serial == serial else None


def _declined(turn: Turn, event: e.AssignmentDeclined) -> None:
    device = _answering(turn, event.device_id, event.serial)
    if device is None or device.assignment is None or device.assignment.lapsed:
        return
    work = replace(device.assignment, lapsed=True)
    if event.too_large and work.kind == "train":
        _note_refused(turn, turn.campaigns[work.campaign], event.device_id, work.round)
    forbids = device.forbids or event.forbidden
    device = replace(device, assignment=work, forbids=forbids, declines=device.declines + 1)
    # other kinds of assignments are still permitted
    if event.forbidden and work.kind == "survey":
        reconcile(turn, event.device_id, device)
    else:
        reconcile(turn, event.device_id, failed(device, turn.now_s, "declined"))


def _note_refused(turn: Turn, campaign: Campaign, device_id: str, number: int) -> None:
    """Count the refused update of a device once in a round, until another one of it counts."""
    member = campaign.members.get(device_id, NOBODY)
    if campaign.preparing or member.refused == campaign.round:
        return
    if _counts(campaign, "train", number):
        campaign = turn.put_member(campaign, device_id, refused=campaign.round)
        campaign = replace(campaign, refused=campaign.refused + 1)
        turn.change(campaign, divergence=refused_divergence(campaign) or campaign.divergence)


def _updated(turn: Turn, event: e.Updated) -> None:
    """Count an update at most once, and acknowledge it in any case."""
    device_id, update = event.device_id, event.update
    turn.commands.append(e.AcknowledgeUpdate(device_id, update.blob))
    if (device := _answering(turn, device_id, event.serial)) is None:
        return
    work = device.assignment
    assert work is not None
    campaign = turn.campaigns[work.campaign]
    changes = {"assignment": None, "accepted": update.blob, "updates": device.updates + 1}
    device = replace(device, **changes, train_s=event.train_s or device.train_s)
    # the device had no windows to describe
    if work.kind == "survey" and not update.norms and not event.node:
        reconcile(turn, device_id, failed(device, turn.now_s, "empty"))
        return
    is_excluded = campaign.members.get(device_id, NOBODY).excluded
    counts = not is_excluded and _counts(campaign, work.kind, work.round)
    masks = [Mask(question) for question in campaign.questions.values()]
    if campaign.settings.secret and work.verbs[-1] not in masks:
        counts = False  # it answers the question of an earlier attempt
    if work.kind == "train" and work.lapsed and not counts:
        device = awake(device)
    # failures to personalise end once the device reports that it holds a personal model
    elif work.kind != "personalise":
        device = rested(device)
    if event.node:
        leaf = leaf_of(campaign.version.leaves, event.node)
        group = campaign.version.leaves[leaf] if leaf is not None else ""
        changed = {"node": event.node} | ({} if campaign.preparing else {"group": group})
        turn.put_member(campaign, device_id, **changed)
    elif work.kind == "survey":
        sizes = {"bytes_up": update.bytes_up, "bytes_down": update.bytes_down}
        survey = Survey(blob=update.blob, round=campaign.round, **sizes)
        turn.put_member(campaign, device_id, survey=survey)
        device = replace(device, moved=False)
        if campaign.phase in ("evaluating", "finished"):
            turn.commands.append(e.PlaceDevice(campaign.name, device_id))
    elif counts:
        number = campaign.round + (campaign.phase == "aggregating")
        counted = replace(update, round=number, staleness=number - work.round)
        campaign = turn.put_update(campaign, device_id, counted)
        if campaign.members.get(device_id, NOBODY).refused == campaign.round:
            campaign = turn.put_member(campaign, device_id, refused=0)
            turn.change(campaign, refused=campaign.refused - 1)
    if work.kind == "personalise":
        model = event.model or work.model
        others = (digest for digest in device.holds if digest != model)
        device = replace(device, holds=(*others, model)[-3:])
    reconcile(turn, device_id, device)


def _counts(campaign: Campaign, kind: str, number: int) -> bool:
    """Return True if an update counts that was assigned in the round of this number."""
    if kind == "train":
        if campaign.phase in ("evaluating", "finished") or number < campaign.oldest:
            return False
        return bool(campaign.settings.buffer) or (
            number == campaign.round and campaign.phase != "aggregating"
        )
    if campaign.ended == "order" or number < campaign.oldest:
        return False
    return campaign.phase == "evaluating" or (
        kind == "personalise" and campaign.phase == "finished"
    )


def _uses_release(turn: Turn, event: e.UsesRelease) -> None:
    device = turn.devices.get(event.device_id)
    if device is None:
        return
    report = event.in_use
    if not report.number and report.model:  # a model that a finished campaign offered
        offers = (device.last_offer, device.settled)
        models = {turn.releases[o.release].model: o.serial for o in offers if o.release}
        report = replace(report, number=models.get(report.model, 0))
    # the number says it, and a digest for each of a million devices takes memory
    reconcile(turn, event.device_id, replace(device, in_use=replace(report, model="")))
    rollouts.note_report(turn, event.device_id)


def _tagged(turn: Turn, event: e.Tagged) -> None:
    device = turn.devices.get(event.device_id) or Device()
    reconcile(turn, event.device_id, replace(device, tags=event.tags))


def _banned(turn: Turn, event: e.Banned) -> None:
    device = turn.devices.get(event.device_id) or Device()
    if event.ban is not None:
        _without_update(turn, event.device_id)
        device = replace(device, assignment=None)
    # the next device that checks in is the right one
    elif device.second_s and device.facts is not None:
        facts = replace(device.facts, start=0, instance=0)
        device = replace(device, facts=facts, second_s=0.0)
    reconcile(turn, event.device_id, replace(device, ban=event.ban))
    rollouts.note_report(turn, event.device_id)


def _forgotten(turn: Turn, event: e.Forgotten) -> None:
    device_id = event.device_id
    turn.changed.add(device_id)
    _without_update(turn, device_id)
    device = turn.devices.get(device_id)
    if device is not None:
        forget(turn, device_id)
        if device.ban is not None:
            reconcile(turn, device_id, Device(ban=device.ban))
        rollouts.note_report(turn, device_id)
    for campaign in list(turn.campaigns.values()):
        version, *history = (
            replace(
                v,
                models={k: m for k, m in v.models.items() if m not in event.models},
                memory=event.memories.get(v.memory, v.memory),
                programs={k: p for k, p in v.programs.items() if k != f"device:{device_id}"},
                evaluated={d: m for d, m in v.evaluated.items() if d != device_id},
            )
            for v in campaign.versions
        )
        members, refused = campaign.members, campaign.refused
        if device_id in members:
            refused -= members[device_id].refused == campaign.round
            members = members.delete(device_id)
        made_by = tuple(d for d in campaign.made_by if d != device_id)
        cause = campaign.divergence
        if cause is not None and device_id in cause.devices:
            cause = None
        updates = campaign.updates
        if device_id in updates:  # the update of a finished campaign
            updates = updates.delete(device_id)
        changes = {"version": version, "history": tuple(history), "made_by": made_by}
        suspects = tuple(d for d in campaign.suspects if d != device_id)
        changes |= {"suspects": suspects, "divergence": cause, "refused": refused}
        turn.put(replace(campaign, members=members, updates=updates, **changes))


def _without_update(turn: Turn, *device_ids: str, only: str = "") -> None:
    """Remove updates of devices from campaigns, or from the one that is named.

    A round whose aggregation has too few updates left is opened again.
    """
    for campaign in list(turn.campaigns.values()):
        contributors = [d for d in device_ids if d in campaign.updates]
        if not contributors or campaign.phase == "finished" or only not in ("", campaign.name):
            continue
        updates = campaign.updates
        for device_id in contributors:
            updates = updates.delete(device_id)
        campaign = turn.change(campaign, updates=updates)
        counted = sum(update.round == campaign.round for update in updates.values())
        is_set = bool(campaign.sums)  # a secret sum is over a set that never changes
        if campaign.phase == "aggregating" and (is_set or counted < max(1, rounds.least(campaign))):
            rounds.reopen(turn, campaign)


def _started(turn: Turn, event: e.Started) -> None:
    if event.campaign not in turn.campaigns:
        started_s = NOT_STARTED if event.record.settings.when else turn.now_s
        turn.put(replace(event.record, started_s=started_s, phase_s=turn.now_s))
        turn.look_at_all()


def _configured(turn: Turn, event: e.Configured) -> None:
    campaign = turn.campaigns[event.campaign]
    campaign = turn.change(campaign, next_settings=event.settings, command_epoch=0)
    if event.programs and campaign.phase in ("waiting", "evaluating", "finished"):
        programs = event.programs
        if campaign.phase == "evaluating":
            programs = programs | {"closing": campaign.version.programs["closing"]}
        version = replace(campaign.version, programs=programs)
        campaign = turn.change(campaign, version=version)
    elif campaign.phase == "training":
        campaign = turn.change(campaign, next_programs=event.programs)
    if campaign.phase == "finished" and campaign.ended != "order":
        rounds.go_on_or_finish(turn, campaign)
    turn.look_at_all()


def _directed(turn: Turn, event: e.Directed) -> None:
    campaign = turn.campaigns[event.campaign]
    if event.order != "abort":
        turn.change(campaign, paused=event.order == "pause", command_epoch=0)
    elif campaign.phase != "finished":
        turn.change(
            campaign,
            phase="finished",
            ended="order",
            updates=Map(),
            paused=False,
            **sums.without_sums(campaign),
        )
    turn.look_at_all()


def _excluded(turn: Turn, event: e.Excluded) -> None:
    """Exclude a device from a campaign, or include it again with a score of 0."""
    device_id, name = event.device_id, event.campaign
    if event.excluded:
        _without_update(turn, device_id, only=name)
    fresh = {} if event.excluded else {"score": 0.0, "suspect_since": 0}
    campaign = turn.campaigns[name]
    campaign = turn.put_member(campaign, device_id, excluded=event.excluded, **fresh)
    suspects = suspects_of(campaign.members, campaign.suspects)
    turn.change(campaign, suspects=suspects)
    device = turn.devices.get(device_id)
    if device is not None and event.excluded and device.left_out:
        reconcile(turn, device_id, replace(device, left_out=0))  # its updates harm nothing any more
    else:
        reconcile(turn, device_id)


def _rolled_back(turn: Turn, event: e.RolledBack) -> None:
    campaign = turn.campaigns[event.campaign]
    version = next((v for v in campaign.versions if v.round == event.to), None)
    if version is None:
        return
    version = replace(version, programs=event.programs or version.programs)
    campaign = rounds.return_to(turn, campaign, version, event.groups)
    if campaign.phase != "finished":
        turn.change(campaign, phase="waiting", ended="", paused=False, command_epoch=0)
    turn.look_at_all()


def _placed(turn: Turn, event: e.PlacedBySurvey) -> None:
    campaign = turn.campaigns[event.campaign]
    member = campaign.members.get(event.device_id, Member())
    if member.survey is not None:
        turn.put_member(campaign, event.device_id, placed=event.placed)
        reconcile(turn, event.device_id)


def _updates_lost(turn: Turn, event: e.UpdatesLost) -> None:
    """Remove the lost updates, so that their devices are assigned again."""
    campaign = turn.campaigns[event.campaign]
    counted = [d for d in event.device_ids if d in campaign.updates]
    for device_id in event.device_ids:
        member = turn.campaigns[event.campaign].members.get(device_id)
        if member is not None and member.survey is not None:
            turn.put_member(turn.campaigns[event.campaign], device_id, survey=None)
    campaign = turn.campaigns[event.campaign]
    to_ask = campaign.to_ask + (0 if campaign.settings.buffer else len(counted))
    turn.change(campaign, command_epoch=0, to_ask=to_ask)
    _without_update(turn, *counted)
    for device_id in event.device_ids:
        if (device := turn.devices.get(device_id)) is not None:
            reconcile(turn, device_id, replace(device, accepted="", asked_s=0.0))


def _resumed(turn: Turn, event: e.Resumed) -> None:
    turn.epoch, turn.wake_s = max(turn.epoch, event.epoch), 0.0
    # the absence continues if the previous start had not examined every device
    turn.away_s = turn.away_s[0] or turn.last_s, turn.now_s
    for campaign in list(turn.campaigns.values()):
        turn.change(campaign, command_epoch=0)
    turn.touched[""] = None
    turn.look_at_all()


def _tick(turn: Turn, event: e.Tick) -> None:
    for key in event.keys:
        if key:
            reconcile(turn, key)
            continue
        seen, turn.wake_s = turn.sweep, 0.0
        turn.sweep = max(0, seen - SWEPT)
        for device_id in [turn.order[rank] for rank in range(turn.sweep, seen)]:
            reconcile(turn, device_id)
        if not turn.sweep:
            turn.away_s = 0.0, 0.0
        turn.touched |= dict.fromkeys(turn.campaigns)
        rollouts.judge_due(turn)


_FACTS: dict[type[e.Event], Callable[[Turn, Any], None]] = {
    e.CheckedIn: _checked_in,
    e.Seen: _seen,
    e.Updated: _updated,
    e.AssignmentDeclined: _declined,
    e.UsesRelease: _uses_release,
    e.Tagged: _tagged,
    e.Banned: _banned,
    e.Forgotten: _forgotten,
    e.Started: _started,
    e.Configured: _configured,
    e.Directed: _directed,
    e.Excluded: _excluded,
    e.RolledBack: _rolled_back,
    e.Released: rollouts.released,
    e.Steered: rollouts.steer,
    e.Returned: rollouts.returned,
    e.Aggregated: rounds.aggregated,
    e.PlacedBySurvey: _placed,
    e.SumAnswered: sums.answered,
    e.SumFailed: sums.failed,
    e.UpdatesLost: _updates_lost,
    e.Resumed: _resumed,
    e.Tick: _tick,
}
"""Function that changes facts, by event."""
