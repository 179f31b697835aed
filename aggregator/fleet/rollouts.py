"""Rollouts: they give releases to devices step by step and take worse ones back.

A rollout says by a few numbers which devices it has reached. The release that a device should hold
follows from them (`aggregator.fleet.desired.releases_for`), so marking a rollout as failed returns
devices to their earlier releases. A campaign that ends without steps is a rollout of one step that
reaches all devices.
"""

import math
from typing import Any

from msgspec.structs import replace

from aggregator.core.steps import Gate, Step
from aggregator.fleet.events import Released, Returned, Steered
from aggregator.fleet.gate import CONFIRMED, FINE, RATIOS, StepAnswers, judge, statement_of
from aggregator.fleet.reconcile import Turn
from aggregator.fleet.records import NAMED, Device, Rollout

JUDGE_S = 1.0
"""Delay in seconds between a change and the judgement of a step."""


def released(turn: Turn, event: Released) -> None:
    """Add releases of a campaign as a rollout, unless its latest rollout has the same models.

    When the rollout begins, it supersedes an unfinished rollout with one of the same groups.
    """
    models = {release.group: release.model for release in event.releases}
    same = _latest(turn, event.campaign, ("running", "paused", "done", "candidate"))
    if same is not None and models == {g: turn.releases[n].model for g, n in same.releases.items()}:
        if same.phase == "candidate" and event.roll_out:
            _begin(turn, same)
        return
    turn.releases = turn.releases | {release.number: release for release in event.releases}
    rollout = Rollout(
        campaign=event.campaign,
        releases={release.group: release.number for release in event.releases},
        newcomers=event.newcomers,
        steps=event.steps,
        gate=event.gate,
        direct=event.direct,
        phase="candidate",
        salt=event.salt,
        began_s=turn.now_s,
    )
    turn.rollouts = (*turn.rollouts, rollout)
    if event.roll_out:
        _begin(turn, rollout)


def steer(turn: Turn, event: Steered) -> None:
    """Carry out an operator's order to a rollout. An order that does not apply changes nothing."""
    going = _latest(turn, event.campaign, ("running", "paused"))
    if event.order == "start":
        candidate = _latest(turn, event.campaign, ("candidate",))
        if candidate is not None:
            _begin(turn, candidate)
    elif going is None:
        return
    elif event.order == "pause" and going.phase == "running":
        _put(turn, going, phase="paused", reason="the operator has paused it")
    elif event.order == "resume" and going.phase == "paused":
        _put(turn, going, phase="running", reason="", step_s=turn.now_s)
    elif event.order == "promote" and event.step in (None, going.step):
        _next_step(turn, going, "promoted by the operator")
    elif event.order == "end":
        _put(turn, going, phase="failed", reason="ended by the operator")


def returned(turn: Turn, event: Returned) -> None:
    """Return a group to an earlier release.

    The return is a rollout of one step that is done. It repeats the releases of the rollout before
    for the other groups, so that newcomers get the same release as before.
    """
    earlier = turn.releases.get(event.release)
    if earlier is None:
        return
    going = _latest(turn, event.campaign, ("running", "paused"))
    if going is not None and event.group in going.releases:
        reason = f"the operator returned to release {event.release}"
        _put(turn, going, phase="failed", reason=reason)
        going = None
    before = _latest(turn, event.campaign, ("done",))
    releases, newcomers = (before.releases, before.newcomers) if before is not None else ({}, "")
    if going is not None:  # it has no release of this group, so it continues
        releases = {g: n for g, n in releases.items() if g not in going.releases}
    releases = releases | {event.group: earlier.number}
    rollout = Rollout(
        campaign=event.campaign,
        releases=releases,
        newcomers=newcomers if newcomers in releases else "",
        steps=(Step(1.0),),
        gate=Gate(),
        phase="done",
        reason=f"the operator returned to release {event.release}",
        step=1,
        share=1.0,
        returns=True,
        salt=event.salt,
        began_s=turn.now_s,
        step_s=turn.now_s,
    )
    turn.rollouts = (*turn.rollouts, rollout)
    turn.look_at_all()


def note_report(turn: Turn, device_id: str) -> None:
    """Note in rollouts what a device reports about their releases."""
    device = turn.devices.get(device_id)
    after = tuple(_noted(rollout, device_id, device) for rollout in turn.rollouts)
    if any(new is not old for new, old in zip(after, turn.rollouts, strict=True)):
        turn.rollouts = after


def _noted(rollout: Rollout, device_id: str, device: Device | None) -> Rollout:
    """Return a rollout with a device's statement; without one if the device is gone or barred."""
    before = rollout.statements
    after = {other: words for other, words in before.items() if other != device_id}
    if device is not None and not device.barred:
        is_its = device.last_offer.release in rollout.releases.values()
        if rollout.direct or not is_its or rollout.phase not in ("running", "paused"):
            return rollout
        words = statement_of(device, rollout.gate)
        alike = sum((words == CONFIRMED) == (each == CONFIRMED) for each in after.values())
        if words and alike < NAMED:
            after = before | {device_id: words}
    return rollout if after == before else replace(rollout, statements=after)


def notice(turn: Turn) -> None:
    """Schedule a judgement of every running rollout, because something has changed."""
    if any(rollout.phase == "running" and not rollout.judge_s for rollout in turn.rollouts):
        due_s = turn.now_s + JUDGE_S
        turn.rollouts = tuple(
            replace(r, judge_s=due_s) if r.phase == "running" and not r.judge_s else r
            for r in turn.rollouts
        )


def judge_due(turn: Turn) -> None:
    """Judge the step of every rollout that is due."""
    for rollout in turn.rollouts if not turn.sweep else ():
        if rollout.phase == "running" and _due_s(turn, rollout) <= turn.now_s:
            _judge(turn, rollout)


def look_s(turn: Turn, rollout: Rollout) -> float:
    """Return the time at which a rollout is to be judged without a further event."""
    due_s = _due_s(turn, rollout) if rollout.phase == "running" else math.inf
    return due_s if due_s > turn.now_s or rollout.judge_s else math.inf


def _due_s(turn: Turn, rollout: Rollout) -> float:
    return min(rollout.judge_s or math.inf, rollout.step_s + rollout.gate.patience_s)


def tally_of(turn: Turn, rollout: Rollout) -> StepAnswers:
    """Return the answers of the devices that a rollout has reached."""
    numbers = set(rollout.releases.values())
    names = ("waiting", "confirmed", "failed", "away", "silent", "tested")
    counts = {name: sum(turn.count(f"{name}/{n}") for n in numbers) for name in names}
    values: dict[str, dict[float, int]] = {"drop": {}, "variance": {}, "ratio": {}}
    for mark, count in turn.marks().items():
        kind, _, rest = mark.partition("/")
        if kind in values:
            number, _, value = rest.partition("/")
            if int(number) in numbers:
                values[kind][float(value)] = values[kind].get(float(value), 0) + count
    return StepAnswers(
        **counts,
        drops={value / FINE: count for value, count in values["drop"].items()},
        variances={2.0 ** (value / RATIOS): n for value, n in values["variance"].items()},
        ratios={value / RATIOS: count for value, count in values["ratio"].items()},
    )


def _latest(turn: Turn, campaign: str, phases: tuple[str, ...]) -> Rollout | None:
    """Return the latest rollout of a campaign that is in one of these phases."""
    rollouts = (r for r in reversed(turn.rollouts) if r.campaign == campaign)
    return next((rollout for rollout in rollouts if rollout.phase in phases), None)


def _begin(turn: Turn, rollout: Rollout) -> None:
    """Begin a rollout. It supersedes the campaign's unfinished ones."""
    first = min(rollout.releases.values())
    for other in turn.rollouts:
        is_same = other.campaign == rollout.campaign
        if other.phase in ("running", "paused") and is_same:
            _put(turn, other, phase="superseded", reason=f"release {first} took its place")
    turn.rollouts = (*(r for r in turn.rollouts if r is not rollout), rollout)
    changes = {"phase": "running", "began_s": turn.now_s}
    _next_step(turn, _put(turn, rollout, step=-1, **changes), "")


def _next_step(turn: Turn, rollout: Rollout, reason: str) -> None:
    number = rollout.step + 1
    if number >= len(rollout.steps):
        _put(turn, rollout, phase="done", reason=reason)
        return
    share = max(rollout.share, rollout.steps[number].share)
    changes = {"step": number, "share": share, "step_s": turn.now_s}
    rollout = _put(turn, rollout, phase="running", reason=reason, **changes)
    if rollout.direct:
        _put(turn, rollout, phase="done", reason="devices take up models when a campaign ends")


def _judge(turn: Turn, rollout: Rollout) -> None:
    tally = tally_of(turn, rollout)
    reached = tally.waiting + tally.confirmed + tally.failed + tally.away + tally.silent
    missed = sum(turn.count(f"missed/{number}") for number in rollout.releases.values())
    if missed and not reached and rollout.steps[rollout.step].share:
        # a share that reaches no device is widened, and so is the step that readers see
        share, number = min(1.0, 2 * rollout.share), rollout.step
        steps = list(rollout.steps)
        steps[number] = replace(steps[number], share=share)
        _put(turn, rollout, share=share, steps=tuple(steps))
        return
    waited_s = turn.now_s - rollout.step_s
    outcome, reason = judge(rollout.gate, tally, waited_s)
    if outcome == "pass":
        _next_step(turn, rollout, reason)
    elif outcome == "fail":
        _put(turn, rollout, phase="failed", reason=reason)
    elif rollout.judge_s or rollout.reason != reason:
        judged = replace(rollout, judge_s=0.0, reason=reason)
        turn.rollouts = tuple(judged if r is rollout else r for r in turn.rollouts)


def _put(turn: Turn, rollout: Rollout, **changes: Any) -> Rollout:
    """Change a rollout, and reconcile all devices.

    If a rollout fails, the unfinished rollouts that it had superseded fail too.
    """
    after = replace(rollout, **changes)
    is_failed = after.phase == "failed" != rollout.phase
    turn.rollouts = tuple(
        after
        if other is rollout
        else replace(other, phase="failed", reason=after.reason)
        if is_failed and other.phase == "superseded" and other.campaign == rollout.campaign
        else other
        for other in turn.rollouts
    )
    turn.touched[""] = None
    turn.look_at_all()
    return after
