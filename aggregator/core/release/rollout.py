"""Rollouts as a state machine: ``step(state, event) -> (state, commands)``. Pure: the same events
give the same rollouts.

A rollout gives the releases of a campaign, one for each group, to devices in steps. Each step
reaches more devices than the one before. Whom it reaches follows from the device's id and the
rollout's salt (`aggregator.core.release.reach.place_of`), or from its tags; so a device that is new
is reached by the same rule. A step of shares that would reach nobody takes the device with the
least place.

A rollout is *running*, *paused* by the operator, or over: *done*, *rolled-back*, or *superseded* by
a later one of its campaign. While it is running, `Ticked` judges the step
(`aggregator.core.release.gate`): it waits, or takes the next step, or, after the last, the rollout
is done and its releases are what the groups have; or the rollout fails. Then every device that was
given one of its releases gets its
*former* model: that of the last release it was given whose rollout was done, or else that of its
group, under a greater number. A device that never had another one keeps what it has. A device of a
rollout that was superseded keeps its release until the later rollout reaches it, or fails.

Outside rollouts a device gets a release only if it has none, that of its group, or of the group for
newcomers; or if it was away while the releases of a later campaign, which has put it into a group,
were rolled out. A device that checks in is given its last release again until it has answered.
"""

from collections.abc import Iterable
from statistics import median_low

from msgspec.structs import replace

from aggregator.core.release import releases as made
from aggregator.core.release.gate import answer_of, judge
from aggregator.core.release.reach import (
    going,
    group_of,
    members,
    place_of,
    reached_by,
)
from aggregator.core.release.state import (
    GOING,
    Begun,
    CheckedIn,
    FleetEvent,
    FleetState,
    Give,
    Holder,
    Made,
    Presence,
    Promoted,
    Removed,
    Rollout,
    RolloutOrder,
    RolloutPhase,
    Said,
    Ticked,
    WentBack,
)

Moved = tuple[FleetState, list[Give]]

AGAIN_S = 60.0
"""A device that says it has not been given its release gets it again, at most so often."""


def step(state: FleetState, event: FleetEvent) -> Moved:
    """The state after an event, and whom to give which release. What an order names and is not
    there changes nothing."""
    after, gives = _step(state, event)
    return (
        after if after is state or event.at_s <= after.at_s else replace(after, at_s=event.at_s)
    ), gives


def _step(state: FleetState, event: FleetEvent) -> Moved:
    match event:
        case Made(at_s, drafts):
            # after a return to an old backup devices may have been given a number greater than any
            # here: half of them say so, since no few devices can push it ahead
            said = (holder.said for holder in state.devices.values())
            offered = [message.offered for message in said if message is not None]
            least = median_low(offered or [0]) + 1
            catalogue, _ = made.add(state.catalogue, drafts, at_s, least)
            return replace(state, catalogue=catalogue), []
        case Begun():
            return _begin(state, event)
        case CheckedIn():
            return _check_in(state, event)
        case Presence(_, came, left):
            for device_id, online in (*((d, True) for d in came), *((d, False) for d in left)):
                holder = state.devices.get(device_id)
                if holder is not None and holder.online != online:
                    state = _with_holder(state, device_id, replace(holder, online=online))
            return state, []
        case Said():
            return _take_word(state, event)
        case Ticked(at_s):
            return _tick(state, at_s)
        case RolloutOrder():
            return _obey(state, event)
        case Promoted(at_s, campaign, number):
            if (
                (now := state.rollouts.get(campaign)) is None
                or now.phase not in GOING
                or now.step != number
            ):
                return state, []
            return _next_step(
                _with_rollout(state, campaign, phase="running"),
                campaign,
                at_s,
                "promoted by the operator",
            )
        case WentBack():
            return _go_back(state, event)
        case Removed(_, device_id):
            return (
                replace(state, devices=state.devices.delete(device_id))
                if device_id in state.devices
                else state
            ), []


# Transitions: a rollout begins, goes on, ends.


def _obey(state: FleetState, event: RolloutOrder) -> Moved:
    rollout = state.rollouts.get(event.campaign)
    if rollout is None or rollout.phase not in GOING:
        return state, []
    match event.order, rollout.phase:
        case "pause", "running":
            reason = "the operator has paused it"
            return _with_rollout(state, event.campaign, phase="paused", reason=reason), []
        case "resume", "paused":
            now = {"phase": "running", "reason": "", "step_at_s": event.at_s}
            return _with_rollout(state, event.campaign, **now), []
        case "end", _:
            return _fail(state, event.campaign, event.at_s, "ended by the operator")
    return state, []


def _begin(state: FleetState, event: Begun) -> Moved:
    releases = [
        state.catalogue.releases[number]
        for number in event.numbers
        if number in state.catalogue.releases
    ]
    ready = {
        r.group: r.number
        for r in releases
        if r.state == "candidate" and r.campaign == event.campaign
    }
    if not ready or not event.steps:
        return state, []
    for campaign, rollout in state.rollouts.items():
        if rollout.phase in GOING and (
            campaign == event.campaign or rollout.releases.keys() & ready.keys()
        ):
            state = _end(state, campaign, "superseded", f"release {min(ready.values())} came")
    devices = state.devices
    for device_id, group in event.groups.items():
        holder = devices.get(device_id) or Holder()
        if group in ready and holder.group != group:
            devices = devices.set(device_id, replace(holder, group=group))
    for device_id, holder in state.devices.items():
        if event.newcomers in ready and device_id not in event.groups and not holder.given:
            devices = devices.set(device_id, replace(holder, group=event.newcomers))
    catalogue, latest = (
        state.catalogue,
        max((holder.given for holder in devices.values()), default=0),
    )
    for group, number in ready.items():
        if number <= latest:  # devices have a greater one: it is made again, with a greater yet
            catalogue, again = made.bring_back(
                catalogue, catalogue.releases[number], event.at_s, "canary"
            )
            catalogue = made.put(catalogue, (number,), "retired")
            ready = {**ready, group: again.number}
    rollout = Rollout(
        releases=ready,
        newcomers=event.newcomers,
        steps=event.steps,
        gate=event.gate,
        salt=event.salt,
        began_at_s=event.at_s,
        step_at_s=event.at_s,
    )
    catalogue = made.put(catalogue, ready.values(), "canary")
    state = replace(
        state,
        catalogue=catalogue,
        devices=devices,
        rollouts={**state.rollouts, event.campaign: rollout},
    )
    return _give_all(state, event.campaign, event.at_s)


def _tick(state: FleetState, at_s: float) -> Moved:
    gives: list[Give] = []
    for campaign in [
        name for name, rollout in state.rollouts.items() if rollout.phase == "running"
    ]:
        state, more = _give_all(state, campaign, at_s)
        gives += more
        rollout = state.rollouts[campaign]
        devices = [
            (holder, rollout.releases[holder.group]) for _, holder, _ in members(state, rollout)
        ]
        outcome, reason = judge(rollout.gate, devices, at_s - rollout.step_at_s)
        match outcome:
            case "wait":
                if rollout.reason != reason:
                    state = _with_rollout(state, campaign, reason=reason)
            case "pass":
                state, more = _next_step(state, campaign, at_s, reason)
                gives += more
            case "fail":
                state, more = _fail(state, campaign, at_s, reason)
                gives += more
    return state, gives


def _next_step(state: FleetState, campaign: str, at_s: float, reason: str) -> Moved:
    rollout = state.rollouts[campaign]
    if rollout.step + 1 < len(rollout.steps):
        return _give_all(
            _with_rollout(state, campaign, step=rollout.step + 1, step_at_s=at_s, reason=""),
            campaign,
            at_s,
        )
    state = replace(
        state, catalogue=made.put(state.catalogue, rollout.releases.values(), "released")
    )
    if rollout.newcomers:
        state = replace(state, newcomers=rollout.newcomers)
    held = {holder.group for holder in state.devices.values()} | {state.newcomers}
    left = [
        number
        for group, number in state.catalogue.released.items()
        if group not in held and group not in rollout.releases
    ]
    for number in left:  # groups that no longer are
        catalogue = made.put(state.catalogue, (number,), "retired")
        state = replace(state, catalogue=catalogue)
    return _with_rollout(state, campaign, phase="done", reason=reason), []


def _fail(state: FleetState, campaign: str, at_s: float, reason: str) -> Moved:
    """Give every device back what it had."""
    releases = state.rollouts[campaign].releases
    state = _end(state, campaign, "rolled-back", reason)
    back: dict[int, list[str]] = {}
    for device_id, holder in state.devices.items():
        had = state.catalogue.releases.get(holder.given)
        if (
            had is not None
            and had.state in made.GIVEN_UP
            and (holder.group in releases or had.number in releases.values())
        ):
            released = state.catalogue.released
            settled = state.catalogue.releases.get(holder.settled)
            own = settled.group if settled is not None else holder.group
            groups = (own, holder.group, state.newcomers)
            former = next((released[group] for group in groups if group in released), 0)
            if settled is not None and settled.state not in made.GIVEN_UP:
                former = settled.number
            if former:  # else it never had another one, and its group has none
                back.setdefault(former, []).append(device_id)
        elif had is not None and holder.group in releases:
            state = _with_holder(state, device_id, replace(holder, group=had.group))
    gives: list[Give] = []
    for former, device_ids in sorted(back.items()):
        earlier = state.catalogue.releases[former]
        becomes: made.ReleaseState = "released" if earlier.state == "released" else "retired"
        state, more = _bring_back(state, earlier, device_ids, becomes, at_s)
        state = _with_rollout(
            state, campaign, returns=(*state.rollouts[campaign].returns, state.catalogue.last)
        )
        gives += more
    return state, gives


def _go_back(state: FleetState, event: WentBack) -> Moved:
    found, at_s = state.catalogue.releases.get(event.to), event.at_s
    if found is None:
        return state, []
    earlier = replace(found, group=event.group)
    gives: list[Give] = []
    if (under_way := going(state, earlier.group)) is not None:
        state, gives = _fail(
            state, under_way[0], at_s, f"the operator returned to release {event.to}"
        )
    now = state.catalogue.released.get(earlier.group, 0)
    had = state.catalogue.releases.get(now)
    if had is not None and (had.run_id, had.bundle, had.model) == (
        earlier.run_id,
        earlier.bundle,
        earlier.model,
    ):
        return state, gives
    if now:
        state = replace(state, catalogue=made.put(state.catalogue, (now,), "withdrawn"))
    device_ids = [
        d for d, holder in state.devices.items() if group_of(state, holder) == earlier.group
    ]
    state, more = _bring_back(state, earlier, device_ids, "released", at_s)
    return state, [*gives, *more]


def _bring_back(
    state: FleetState,
    earlier: made.Release,
    device_ids: Iterable[str],
    becomes: made.ReleaseState,
    at_s: float,
) -> Moved:
    """Make an earlier release again, and give it to these devices."""
    catalogue, again = made.bring_back(state.catalogue, earlier, at_s, becomes)
    state, gives = replace(state, catalogue=catalogue), []
    for device_id in device_ids:
        state, give = _give(state, device_id, again.number, at_s)
        if going(state, state.devices[device_id].group) is None:
            state = _with_holder(
                state, device_id, replace(state.devices[device_id], group=again.group)
            )
        gives.append(give)
    return state, gives


def _end(state: FleetState, campaign: str, phase: RolloutPhase, reason: str) -> FleetState:
    """End a rollout before its time: its releases are given up."""
    numbers = state.rollouts[campaign].releases.values()
    given_up: made.ReleaseState = "superseded" if phase == "superseded" else "withdrawn"
    state = replace(state, catalogue=made.put(state.catalogue, numbers, given_up))
    return _with_rollout(state, campaign, phase=phase, reason=reason)


# Transitions: a device comes, goes, answers.


def _check_in(state: FleetState, event: CheckedIn) -> Moved:
    holder = state.devices.get(event.device_id) or Holder()
    group = holder.group
    if not holder.given:
        newcomers = [
            rollout.newcomers for rollout in state.rollouts.values() if rollout.phase in GOING
        ]
        groups = (event.group, group, state.newcomers, *newcomers)
        group = next(
            (g for g in groups if g in state.catalogue.released or going(state, g)),
            event.group or group,
        )
    elif _is_later(state, holder, event.group):
        group = event.group
    held = replace(holder, online=True, tags=event.tags, group=group)
    if held != holder or event.device_id not in state.devices:
        state = _with_holder(state, event.device_id, held)
    if (number := _due(state, event.device_id)) > held.given:
        state, give = _give(state, event.device_id, number, event.at_s)
        return state, [give]
    if held.given and answer_of(held, held.given)[0] in ("waiting", "away"):
        return state, [Give(event.device_id, held.given)]
    return state, []


def _take_word(state: FleetState, event: Said) -> Moved:
    said = event.message
    holder = state.devices.get(said.device_id)
    if holder is None:
        return state, []
    forgotten = said.offered < holder.given and event.at_s > holder.given_at_s + AGAIN_S
    held = replace(holder, said=said, given_at_s=event.at_s if forgotten else holder.given_at_s)
    if held != holder:
        state = _with_holder(state, said.device_id, held)
    return state, [Give(said.device_id, holder.given)] if forgotten else []


def _due(state: FleetState, device_id: str) -> int:
    """The release that a device is to have now; 0 if what it has is right."""
    holder = state.devices[device_id]
    under_way = going(state, holder.group)
    if (
        under_way is not None
        and under_way[1].phase == "running"
        and reached_by(under_way[1], device_id, holder) is not None
    ):
        return under_way[1].releases[holder.group]
    released = state.catalogue.released.get(holder.group, 0)
    return released if not holder.given or _is_later(state, holder, holder.group) else 0


def _is_later(state: FleetState, holder: Holder, group: str) -> bool:
    """Whether a group has a release, or is to get one, of another campaign than the device's last
    release and after that."""
    under_way, had = going(state, group), state.catalogue.releases.get(holder.given)
    number = (
        under_way[1].releases[group]
        if under_way is not None
        else state.catalogue.released.get(group, 0)
    )
    return (
        had is not None
        and number > had.number
        and state.catalogue.releases[number].campaign != had.campaign
    )


def _give_all(state: FleetState, campaign: str, at_s: float) -> Moved:
    """Give every device that a rollout has reached its release, unless it has been given it. Where
    nobody is reached, one device is."""
    rollout = state.rollouts[campaign]
    reached = [(device_id, holder) for device_id, holder, _ in members(state, rollout)]
    others = (
        [d for d, holder in state.devices.items() if holder.group in rollout.releases]
        if not reached
        else []
    )
    if others and rollout.steps[rollout.step].share:
        first = min(others, key=lambda d: (not state.devices[d].online, place_of(d, rollout.salt)))
        state = _with_rollout(state, campaign, first=first)
        reached = [(first, state.devices[first])]
    gives = []
    for device_id, holder in reached:
        if (number := rollout.releases[holder.group]) > holder.given:
            state, give = _give(state, device_id, number, at_s)
            gives.append(give)
    return state, gives


def _give(state: FleetState, device_id: str, number: int, at_s: float) -> tuple[FleetState, Give]:
    holder, releases = state.devices[device_id], state.catalogue.releases
    proven = holder.given in releases and releases[holder.given].state in ("released", "retired")
    usual_ms = (
        holder.said.latency_ms
        if proven and holder.said is not None and holder.said.number == holder.given
        else holder.usual_ms
    )
    settled = holder.given if proven else holder.settled
    held = replace(holder, given=number, given_at_s=at_s, settled=settled, usual_ms=usual_ms)
    return _with_holder(state, device_id, held), Give(device_id, number)


def _with_holder(state: FleetState, device_id: str, holder: Holder) -> FleetState:
    return replace(state, devices=state.devices.set(device_id, holder))


def _with_rollout(state: FleetState, campaign: str, **changes: object) -> FleetState:
    return replace(
        state, rollouts={**state.rollouts, campaign: replace(state.rollouts[campaign], **changes)}
    )
