"""Rounds of campaigns: opening them, filling them with devices, and closing them.

A round opens when enough devices are free. A number of devices should be at work for it, and where
there are fewer, another one is drawn from the waiting devices. The policy sets the number.
*Synchronous*: a cohort, or every free device; later only as many as the round lacks. *Over-select*:
more than the cohort; the first updates that fill the cohort end the round (K. Bonawitz et al.,
Towards federated learning at scale, MLSys 2019, section 9). *Buffered*: a fixed number at any time,
and updates of earlier rounds count too (J. Nguyen et al., Federated learning with buffered
asynchronous aggregation, AISTATS 2022, algorithm 1).

A device that is late for its round works on, and is free once it has answered or its deadline has
passed. A device that failed its last assignment is assigned *beside* the cohort: no round waits for
it, unless the round lacks updates.
"""

import math
import re
from functools import lru_cache
from statistics import median_low
from typing import Any, NamedTuple

from immutables import Map
from msgspec.structs import replace

from aggregator.core.pool import draw
from aggregator.fleet import sums
from aggregator.fleet.budget import measured, spent
from aggregator.fleet.desired import NEW, hours_of, leaf_of, trained_group, wanted
from aggregator.fleet.divergence import (
    NOBODY,
    TRENDS,
    divergence,
    is_mended,
    scored,
    standstills_of,
    suspects_of,
    unnamed_models,
    watched_anew,
)
from aggregator.fleet.events import Aggregate, Aggregated
from aggregator.fleet.plan import round_seed
from aggregator.fleet.reconcile import Turn, assign, reconcile
from aggregator.fleet.records import AdmittedUpdate, Campaign, Member, Trend, Version
from aggregator.fleet.standing import DRIFT, PLACES, pool_name, pool_of
from algorithms.core.keys import NEWCOMER
from wire.arrays import names
from wire.errors import ConfigError
from wire.messages import Metrics

CHUNK = 500
"""Maximum number of devices that are assigned in one event."""
ABREAST = 10_000
"""Maximum number of devices that work on a survey, an evaluation or a personal model at a time."""
DRIFT_SHARE = 0.2
"""Share of devices whose data have moved that begins a campaign, if the operator gives none."""
DISTANCES = 5
"""Number of past rounds whose models' moves are compared with the move of a new model."""


def advance(turn: Turn, name: str) -> None:
    """Advance a campaign as far as possible. It waits during a sweep over all devices."""
    if (campaign := turn.campaigns.get(name)) is None or campaign.paused or turn.sweep:
        return
    match campaign.phase:
        case "waiting" if campaign.awaits_drift:
            _begin_if_drifted(turn, campaign)
        case "waiting":
            _open(turn, campaign)
        case "preparing" | "training":
            _close_if_due(turn, campaign)
        case "evaluating":
            _end_if_due(turn, campaign)
        case "aggregating" if sums.stage_of(campaign) == "failed":
            reopen(turn, campaign)
        case "aggregating" if sums.stage_of(campaign) == "opening":
            sums.ask_helpers(turn, campaign)
        case "aggregating" if campaign.command_epoch != turn.epoch:
            turn.commands.append(Aggregate(name, campaign.round))
            turn.campaigns[name] = replace(campaign, command_epoch=turn.epoch)
        case _:
            pass
    _fill(turn, turn.campaigns[name])
    if turn.campaigns[name].phase == campaign.phase:  # assigning devices does not advance it
        turn.touched.pop(name, None)


def look_s(turn: Turn, campaign: Campaign) -> float:
    """Return the time at which a campaign is to be advanced again without a further event."""
    pools = (pool_name(kind, campaign.name) for kind in ("survey", "personalise"))
    waits = campaign.phase != "finished" or not turn.pools.keys().isdisjoint(pools)
    if campaign.paused or not waits or campaign.awaits_drift:
        return math.inf
    if _kind_with_room(turn, campaign):
        return turn.now_s
    begins_s = hours_of(campaign, turn.now_s)[0]
    times = [begins_s] if begins_s > turn.now_s else []
    if campaign.phase in ("preparing", "training", "evaluating"):
        times.append(campaign.deadline_s)
    if campaign.phase == "aggregating":
        times.append(sums.next_request_s(campaign))
    if campaign.phase == "waiting" and (days := campaign.next_settings.days):
        times.append(campaign.started_s + days * 86_400.0)
    return min((at_s for at_s in times if at_s > turn.now_s), default=math.inf)


def least(campaign: Campaign) -> int:
    """Return the minimum number of updates with which a round is aggregated."""
    settings = campaign.settings
    if not settings.quorum:
        return settings.min_updates
    share = settings.quorum * (settings.buffer or settings.cohort or campaign.width)
    return max(settings.min_updates, math.ceil(round(share, 9)))


def at_work(turn: Turn, campaign: Campaign) -> int:
    """Return the number of devices that a campaign waits for."""
    if campaign.phase == "evaluating":
        kinds = ("evaluate", "personalise")
        return sum(turn.count(f"{kind}/{campaign.name}/{campaign.round}") for kind in kinds)
    number = "" if campaign.settings.buffer else f"/{campaign.round}"
    return turn.count(f"train/{campaign.name}{number}")


class Lack(NamedTuple):
    """Requirement that a campaign waits for."""

    text: str
    """The requirement, for people; empty if the campaign waits for nothing."""
    devices: int = 0
    """Number of devices that would end the wait; 0 if none would."""


NO_LACK = Lack("")


def lacking(turn: Turn, campaign: Campaign) -> Lack:
    """Return the condition that a campaign waits for."""
    name, settings = campaign.name, campaign.settings
    if failure := sums.failure_of(campaign):
        return Lack(f"you to mend its secret sum and resume it: {failure}")
    if campaign.paused or campaign.phase == "finished":
        return NO_LACK
    if campaign.phase == "aggregating":
        text = "helpers to open its secret sum"
        is_opening = sums.stage_of(campaign) == "opening"
        return Lack(f"{text}: {sums.waited_for(campaign)}") if is_opening else NO_LACK
    if campaign.awaits_drift:
        moved, count = drift_of(turn, campaign)
        return Lack(
            f"drift: the recordings of {moved} of {count} devices no longer fit, "
            f"{drift_share(settings.when):.0%} must"
        )
    if hours_of(campaign, turn.now_s)[0] > turn.now_s:
        return Lack(f"its hours, {settings.hours}")
    beside = turn.count(f"beside/{name}/{campaign.round}")
    free = len(turn.waiting(f"train/{name}")) + len(turn.waiting(f"beside/{name}"))
    if campaign.phase == "waiting" and settings.secret:
        return Lack(sums.next_cohorts(turn, campaign)[1])
    if campaign.phase == "waiting":
        ready = free + campaign.received + (at_work(turn, campaign) if settings.buffer else 0)
        if (short := settings.min_devices - ready) > 0:
            devices = "1 more device" if short == 1 else f"{short} more devices"
            return Lack(f"{devices}: {ready} of {settings.min_devices} ready", short)
    missing = least(campaign) - campaign.received
    there = at_work(turn, campaign) + beside + free
    if campaign.phase in ("preparing", "training") and missing > there:
        updates = "1 more update" if missing == 1 else f"{missing} more updates"
        text = f"{updates}: {there} device{'' if there == 1 else 's'} can still send one"
        return Lack(text, missing - there)
    return NO_LACK


def seats(turn: Turn, campaign: Campaign, place: str) -> int:
    """Return the number of devices that should be assigned now from this pool of a campaign.

    For a question, it is 1 if there is any.
    """
    name = campaign.name
    if place in ("survey", "evaluate", "personalise"):
        most = campaign.settings.cohort or campaign.settings.concurrency or ABREAST
        return (most if place == "survey" else ABREAST) - turn.count(f"{place}/{name}")
    if campaign.phase not in ("preparing", "training"):
        return 0
    if campaign.questions:
        return int(sums.next_device(turn, campaign, place) is not None)
    short = least(campaign) - campaign.received - at_work(turn, campaign)
    if place == "beside":
        # many silent devices must not cost one deadline each
        many = short << min(campaign.attempt, 13)
        return max(1, campaign.width, many) - turn.count(f"beside/{name}")
    if campaign.settings.buffer:
        return campaign.width - at_work(turn, campaign)
    return max(campaign.to_ask, short)


def _kind_with_room(turn: Turn, campaign: Campaign) -> str:
    """Return the kind of a pool from which to assign a device now; empty if there is none."""
    name = campaign.name
    if campaign.settings.hours and hours_of(campaign, turn.now_s)[0] > turn.now_s:
        return ""
    for kind in PLACES:
        pool = turn.pools.get(pool_name(kind, name))
        if pool and seats(turn, campaign, kind) > 0:
            return kind
    return ""


def _fill(turn: Turn, campaign: Campaign) -> None:
    """Assign devices drawn from the waiting ones while there is room.

    At most `CHUNK` devices are assigned; the next event assigns the others.
    """
    for _ in range(CHUNK):
        if not (kind := _kind_with_room(turn, campaign)):
            return
        pool = turn.waiting(f"{kind}/{campaign.name}")
        seed = round_seed(campaign.settings.seed, campaign.round)
        device_id = pool[draw(f"{seed} {campaign.drawn}", len(pool))]
        if kind in ("train", "beside") and campaign.questions:
            device_id = sums.next_device(turn, campaign, kind) or device_id
        to_ask = campaign.to_ask - (kind == "train" and campaign.to_ask > 0)
        campaign = turn.change(campaign, drawn=campaign.drawn + 1, to_ask=to_ask)
        device = turn.devices[device_id]
        task = wanted(turn, device_id, device, turn.now_s)
        if task is not None and pool_of(device, task) == f"{kind}/{campaign.name}":
            assign(turn, device_id, task)
        else:
            reconcile(turn, device_id)
    if _kind_with_room(turn, campaign):
        turn.touched.pop(campaign.name, None)


@lru_cache(64)
def drift_share(when: str) -> float:
    """Return the share of devices that begins a campaign, of a text such as ``drift:share=0.2``.

    It is 0 for an empty text, with which the campaign begins at once.

    Raises:
        ConfigError: the text has another form.
    """
    if not when:
        return 0.0
    match = re.fullmatch(r"drift(?::share=(0?\.[0-9]{1,6}|1))?", when)
    share = float(match[1] or DRIFT_SHARE) if match else 0.0
    if not share:
        raise ConfigError(
            f"when must be drift, or drift:share=NUMBER with a number above 0 and at most 1, got "
            f"{when!r}"
        )
    return share


def drift_of(turn: Turn, campaign: Campaign) -> tuple[int, int]:
    """Return the numbers of a campaign's devices whose data have moved, and of all."""
    moved, unmoved = (turn.count(pool_name(kind, campaign.name)) for kind in DRIFT)
    return moved, moved + unmoved


def _begin_if_drifted(turn: Turn, campaign: Campaign) -> None:
    """Begin a campaign if enough of its devices say that their data have moved."""
    moved, devices = drift_of(turn, campaign)
    if moved and moved >= drift_share(campaign.settings.when) * devices:
        turn.change(campaign, started_s=turn.now_s, phase_s=turn.now_s)
        turn.look_at_all()


def _open(turn: Turn, campaign: Campaign) -> None:
    """Open a round, or the evaluation once a budget is spent."""
    if campaign.settings != campaign.next_settings:
        _reset(turn, campaign)
        turn.look_at_all()
        return
    if ended := spent(campaign, turn.now_s):
        if campaign.settings.secret:  # no device reports how good the models are
            turn.change(campaign, phase="finished", ended=ended, ended_s=turn.now_s, updates=Map())
        else:
            times = {
                "deadline_s": turn.now_s + campaign.settings.deadline_s,
                "opened_s": turn.now_s,
            }
            turn.change(campaign, phase="evaluating", ended=ended, updates=Map(), **times)
        turn.look_at_all()
        return
    if campaign.settings.secret:
        sums.ask(turn, campaign)
        return
    settings, name = campaign.settings, campaign.name
    healthy, beside = (len(turn.waiting(f"{kind}/{name}")) for kind in ("train", "beside"))
    working = at_work(turn, campaign) if settings.buffer else 0
    begins_s, ends_s = hours_of(campaign, turn.now_s)
    free = healthy + working + campaign.received
    if begins_s > turn.now_s or free + beside < settings.min_devices:
        return
    cohort = math.ceil(round(settings.cohort * settings.over_select, 9)) or free
    width = min(free, settings.concurrency or -(-free // 2)) if settings.buffer else cohort
    width = min(free, width)
    phase: Any = "preparing" if campaign.preparing else "training"
    turn.change(
        campaign,
        phase=phase,
        width=width,
        to_ask=0 if settings.buffer else max(0, width - campaign.received),
        deadline_s=min(turn.now_s + settings.deadline_s, ends_s),
        opened_s=campaign.opened_s if campaign.attempt else turn.now_s,
    )


def _close_if_due(turn: Turn, campaign: Campaign) -> None:
    """Close a round that has enough updates, or whose deadline has passed with the minimum.

    At the deadline with fewer updates, the round is opened again.
    """
    if campaign.questions:
        if not sums.close_if_due(turn, campaign):
            reopen(turn, campaign)
        return
    received, is_over = campaign.received, turn.now_s >= campaign.deadline_s
    settings = campaign.settings
    goal = settings.buffer or min(settings.cohort or campaign.width, campaign.width)
    is_full = received >= max(1, goal)
    nobody_else = (
        seats(turn, campaign, "train") <= 0 or not turn.waiting(f"train/{campaign.name}")
    ) and not at_work(turn, campaign)
    if received and received >= least(campaign) and (is_full or is_over or nobody_else):
        turn.change(campaign, phase="aggregating", command_epoch=0)
    elif is_over:
        reopen(turn, campaign)


def reopen(turn: Turn, campaign: Campaign) -> None:
    """Open a round again, because too few of its updates are there.

    Updates that came for the next round count in this one. Settings that have changed meanwhile
    apply to it, so that a round that no update can end does not stand.
    """
    updates = Map({d: replace(u, round=campaign.round) for d, u in campaign.updates.items()})
    if campaign.settings.secret:
        updates = Map()  # each of them answers the question of this attempt
        turn.look_at_all()
    programs = campaign.next_programs or campaign.version.programs
    turn.change(
        campaign,
        phase="waiting",
        attempt=campaign.attempt + 1,
        updates=updates,
        version=replace(campaign.version, programs=programs),
        next_programs={},
        **sums.without_sums(campaign),
    )


def aggregated(turn: Turn, event: Aggregated) -> None:
    """Take over the models of a round, and let the next round open."""
    campaign = turn.campaigns.get(event.campaign)
    if campaign is None or (campaign.phase, campaign.round) != ("aggregating", event.round):
        return
    number, before = campaign.round + 1, campaign.version
    is_void = event.reverted and event.version.round != before.round
    history, made_by = campaign.history, campaign.made_by
    counted, version = counted_updates(campaign), event.version
    is_training, changed = not campaign.preparing, _regrouped(campaign, event)
    members = campaign.members.update(changed)
    suspects = suspects_of(members, {*campaign.suspects, *event.pulls})
    if not campaign.preparing and (keep := campaign.settings.keep_models):
        others = (version for version in history if version.round != before.round)
        latest = replace(before, evaluated={**before.evaluated, **measures(counted)})
        history = _stored((*others, latest), keep, [members[d].suspect_since for d in suspects])
        if version.round == latest.round:  # the models are unchanged
            version = replace(version, evaluated=latest.evaluated)
    if is_void:
        history, made_by = _up_to(campaign, version.round), ()
    elif not event.reverted:
        made_by = tuple(sorted(counted.keys() - set(event.left_out)))
    turn.changed |= changed.keys()
    distances = (*campaign.distances, event.distances)[-DISTANCES:]
    is_moved = before.newcomers != event.version.newcomers or before.models.keys() != (
        event.version.models.keys()
    )
    asks_others = (before.leaves, campaign.preparing) != (event.version.leaves, event.preparing)
    trained = campaign.trained + (not campaign.preparing or event.reverted)
    campaign = turn.change(
        campaign if campaign.preparing else measured(campaign, counted.values(), event.accuracy),
        phase="waiting",
        round=number,
        attempt=0,
        drawn=0,
        oldest=number if is_void else campaign.oldest,
        history=history,
        version=version,
        next_programs={},
        made_by=made_by,
        members=members,
        suspects=suspects,
        updates=Map({d: u for d, u in campaign.updates.items() if d not in counted}),
        trained=trained,
        preparing=event.preparing,
        norms=event.norms or campaign.norms,
        distances=distances if event.distances else campaign.distances,
        default=event.placed.get(""),
        **sums.without_sums(campaign),
    )
    if is_training:
        trend = Trend(
            event.round,
            median_low(update.norms.get(names.DELTA, 0.0) for update in counted.values()),
            len(counted),
            campaign.refused,
        )
        still = standstills_of(campaign.standstills, event.unchanged, before.models, version.models)
        still = {} if is_void else still
        campaign = turn.change(campaign, refused=0, standstills=still)
        campaign = _watched(turn, campaign, trend, counted, is_void)
    for device_id in sorted(counted.keys() | changed.keys()):
        if (device := turn.devices.get(device_id)) is None:
            continue
        if (update := counted.get(device_id)) is not None:
            left_out = device.left_out + 1 if device_id in event.left_out else 0
            device = replace(device, left_out=left_out) if left_out != device.left_out else device
        is_surveyed = (
            device.moved
            and not event.reverted
            and device_id not in event.left_out
            and update is not None
            and update.start == NEWCOMER
        )
        reconcile(turn, device_id, replace(device, moved=False) if is_surveyed else device)
    if (
        is_void
        or asks_others
        or (is_moved and any(r.campaign == campaign.name for r in turn.rollouts))
    ):
        turn.look_at_all()


def counted_updates(campaign: Campaign) -> dict[str, AdmittedUpdate]:
    """Return the updates that count in the open round, by device, in the order of their ids.

    An update of an earlier round changes the current model of its device's group. The update of a
    newcomer that was surveyed only places the newcomer.
    """
    is_surveyed = NEW in campaign.version.programs
    counted = dict[str, AdmittedUpdate]()
    for device_id, update in sorted(campaign.updates.items()):
        if update.round > campaign.round:
            continue
        if update.staleness and not (is_surveyed and update.start == NEWCOMER):
            update = replace(update, start=trained_group(campaign, device_id))
        counted[device_id] = update
    return counted


def measures(updates: dict[str, AdmittedUpdate]) -> dict[str, Metrics]:
    """Return the metrics of the current models, by device.

    Only devices count that evaluated the models before training and report a finite accuracy.
    """
    fresh = {d: update.evaluated for d, update in updates.items() if not update.staleness}
    return {d: m for d, m in fresh.items() if m.num_examples > 0 and math.isfinite(m.accuracy)}


def _regrouped(campaign: Campaign, event: Aggregated) -> dict[str, Member]:
    """Return the members whose group, by training or survey, or score has changed."""
    changed = dict[str, Member]()
    for device_id, group in event.groups.items():
        changed[device_id] = replace(campaign.members.get(device_id, Member()), group=group)
    for device_id, placed in event.placed.items():
        member = changed.get(device_id, campaign.members.get(device_id, Member()))
        if device_id and member.placed != placed:
            changed[device_id] = replace(member, placed=placed)
    # without a default group, the round has left no groups to place devices in
    if campaign.default is not None and "" not in event.placed:
        for device_id, member in campaign.members.items():
            if member.placed is not None and device_id not in event.placed:
                member = changed.get(device_id, member)
                changed[device_id] = replace(member, placed=None)
    for device_id, node in event.nodes.items():
        member = changed.get(device_id, campaign.members.get(device_id, Member()))
        changed[device_id] = replace(member, node=node)
    for device_id, evidence in event.pulls.items():
        member = changed.get(device_id, campaign.members.get(device_id, NOBODY))
        if (after := scored(member, evidence, event.round)) != member:
            changed[device_id] = after
    return changed


def _watched(
    turn: Turn,
    campaign: Campaign,
    trend: Trend,
    counted: dict[str, AdmittedUpdate],
    is_void: bool,
) -> Campaign:
    """Return a campaign with the trend of its last round, and the cause if it diverges.

    The trends of given up rounds are left out.
    """
    moved = {d for d in counted if (device := turn.devices.get(d)) is not None and device.moved}
    watched = replace(campaign, trends=(*campaign.trends, trend)[-TRENDS:])
    watched = replace(watched, unnamed=unnamed_models(watched, counted))
    cause = divergence(watched, counted, moved, is_void)
    last = campaign.version.round + 1 if is_void else trend.round
    trends = tuple(t for t in watched.trends if t.round <= last)
    return turn.change(watched, trends=trends, divergence=cause)


def _stored(
    versions: tuple[Version, ...], keep: int, suspect_since: list[int]
) -> tuple[Version, ...]:
    """Return the versions to store: the last ones, and the last one before a suspect's rounds."""
    clean = [v for v in versions[:-keep] if v.round < min(suspect_since, default=0)]
    return (*clean[-1:], *versions[-keep:])


def _end_if_due(turn: Turn, campaign: Campaign) -> None:
    """End a campaign when every device has tested its model, or at the deadline.

    A campaign whose budget was raised meanwhile continues with another round.
    """
    pools = (f"{kind}/{campaign.name}" for kind in ("evaluate", "personalise"))
    waits = at_work(turn, campaign) or any(map(turn.waiting, pools))
    if turn.now_s >= campaign.deadline_s or (campaign.received and not waits):
        go_on_or_finish(turn, campaign)


def go_on_or_finish(turn: Turn, campaign: Campaign) -> None:
    """Open another round of training if no budget is spent, else end the campaign."""
    if campaign.settings != campaign.next_settings:
        campaign = _reset(turn, campaign)
    ended = spent(campaign, turn.now_s)
    if not ended:
        fresh = {"round": campaign.round + 1, "attempt": 0, "drawn": 0, "updates": Map()}
        turn.change(campaign, phase="waiting", ended="", **fresh)
    elif campaign.phase != "finished":
        turn.change(campaign, phase="finished", ended=ended, ended_s=turn.now_s)
    else:
        turn.change(campaign, ended="order" if campaign.ended == "order" else ended)
    turn.look_at_all()


def _reset(turn: Turn, campaign: Campaign) -> Campaign:
    """Return a campaign with its next settings, which may mend a divergence."""
    if is_mended(campaign.settings, campaign.next_settings):
        turn.changed |= {*campaign.members}
        campaign = watched_anew(campaign)
    settings = campaign.next_settings
    return turn.change(campaign, settings=settings, set_serial=turn.serial)


def return_to(turn: Turn, campaign: Campaign, version: Version, groups: dict[str, str]) -> Campaign:
    """Return a campaign to the models of a version. Later versions are discarded."""
    turn.changed |= {*campaign.members}
    trends = (trend for trend in campaign.trends if trend.round <= version.round)
    campaign = watched_anew(campaign, tuple(trends))
    members = campaign.members.mutate()
    for device_id, member in campaign.members.items():
        by_node = version.leaves.get(leaf_of(version.leaves, member.node) or "", "")
        members[device_id] = replace(member, group=groups.get(device_id) or by_node)
    number = campaign.round + 1
    return turn.change(
        campaign,
        version=version,
        next_programs={},
        history=_up_to(campaign, version.round),
        made_by=(),
        standstills={},
        members=members.finish(),
        **sums.without_sums(campaign),
        updates=Map(),
        round=number,
        oldest=number,
        attempt=0,
        drawn=0,
    )


def _up_to(campaign: Campaign, number: int) -> tuple[Version, ...]:
    return tuple(version for version in campaign.history if version.round <= number)
