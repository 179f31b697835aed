"""How far a rollout is: what the devices of each step say. Pure."""

from typing import Any

import msgspec

from aggregator.core.release.gate import Answer, answer_of
from aggregator.core.release.reach import members
from aggregator.core.release.state import FleetState, Holder, Rollout, RolloutPhase, RolloutStep


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What devices say that were given a release: ``offered`` is the sum of the four after it."""

    offered: int = 0
    confirmed: int = 0
    failed: int = 0
    waiting: int = 0
    away: int = 0
    alone: int = 0
    """Of those that confirmed, how many use it without what they have kept."""
    reasons: dict[str, int] = {}
    """Why it failed, and on how many devices."""


class StepProgress(Counts, frozen=True, kw_only=True):
    """Of the devices that a step reached and none before it."""

    step: RolloutStep


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout, as it is now or as it ended."""

    campaign: str
    releases: dict[str, int]
    phase: RolloutPhase
    step: int
    """Which step it is at, from 0."""
    reason: str
    began_at_s: float
    steps: list[StepProgress]
    """Of a rollout that ended before its time, only devices that still have its releases are
    counted."""
    returned: Counts
    """The devices that were given back what they had."""


def progress_of(state: FleetState, campaign: str, rollout: Rollout) -> Progress:
    """The progress of a rollout."""
    steps: list[list[Holder]] = [[] for _ in rollout.steps]
    for _, holder, number in members(state, rollout):
        if holder.given == rollout.releases[holder.group]:
            steps[number].append(holder)
    return Progress(
        campaign=campaign,
        releases=rollout.releases,
        phase=rollout.phase,
        step=rollout.step,
        reason=rollout.reason,
        began_at_s=rollout.began_at_s,
        steps=[
            StepProgress(step=chosen, **_counts(reached))
            for chosen, reached in zip(rollout.steps, steps, strict=True)
        ],
        returned=Counts(
            **_counts(
                [holder for holder in state.devices.values() if holder.given in rollout.returns]
            )
        ),
    )


def _counts(holders: list[Holder]) -> dict[str, Any]:
    answers = [answer_of(holder, holder.given) for holder in holders]
    reasons: dict[str, int] = {}
    for _, reason in answers:
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
    confirmed = [
        holder
        for holder, (answer, _) in zip(holders, answers, strict=True)
        if answer == "confirmed"
    ]
    alone = sum(holder.said is not None and bool(holder.said.alone) for holder in confirmed)
    kinds: tuple[Answer, ...] = ("confirmed", "failed", "waiting", "away")
    counts = {kind: sum(answer == kind for answer, _ in answers) for kind in kinds}
    return {"offered": len(holders), "alone": alone, "reasons": reasons} | counts


def in_use(state: FleetState) -> dict[int, int]:
    """By release, how many devices say that it is in use, of those that were given it or a later
    one."""
    counts: dict[int, int] = {}
    for holder in state.devices.values():
        said = holder.said
        if said is not None and 0 < said.number <= holder.given:
            counts[said.number] = counts.get(said.number, 0) + 1
    return counts
