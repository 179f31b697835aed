"""Releases and rollouts as readers see them: states of releases, answers of devices by step."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from aggregator.fleet.desired import place_of
from aggregator.fleet.gate import CONFIRMED, Answer, answer_of
from aggregator.fleet.records import Device, Fleet, Rollout

ReleaseState = Literal["candidate", "canary", "released", "retired", "superseded", "withdrawn"]
"""State of a release.

*candidate*: offered to no device yet. *canary*: its rollout goes on. *released*: the current
release of its group. *retired*: a later release is current. *superseded*: a later rollout began
before its own was done. *withdrawn*: its rollout failed or was ended, or the operator returned its
devices to an earlier release.
"""
ANSWERS: tuple[Answer, ...] = ("confirmed", "failed", "waiting", "silent", "away")
GOING = ("running", "paused")
"""Phases of a rollout that goes on."""
KEPT = 10
"""Number of latest releases of a group whose models are stored even if no device needs them."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of devices that were offered a release.

    `offered` is the sum of `confirmed`, `failed`, `waiting`, `silent` and `away`.
    """

    offered: int = 0
    confirmed: int = 0
    failed: int = 0
    waiting: int = 0
    silent: int = 0
    """Number of online devices that have never reported a model in use."""
    away: int = 0
    alone: int = 0
    """Number of devices that confirmed, and use the release without their personal model."""
    reasons: dict[str, int] = {}
    """Number of devices by reason of failure."""


class StepProgress(Counts, frozen=True, kw_only=True):
    """Answers of the devices that this step reached first."""

    share: float
    tags: tuple[str, ...]


class RolloutProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a rollout, or its result."""

    campaign: str
    releases: dict[str, int]
    phase: str
    direct: bool
    step: int
    """Number of the current step, from 0."""
    reason: str
    """Reason of the phase, with the devices that report anything against the releases."""
    statements: dict[str, str]
    """Statements of the first devices about its releases, by device."""
    began_s: float
    step_s: float
    """Time when the step began, or was resumed."""
    patience_s: float
    steps: list[StepProgress]
    """Progress by step, without devices that have been offered another release since."""


class ReleaseAnswers:
    """Counter of devices' answers, fed device by device."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._rollouts = {
            number: place
            for place, rollout in enumerate(fleet.rollouts)
            if rollout.phase != "candidate"
            for number in rollout.releases.values()
        }
        """Position of the last rollout of each release, by number of the release."""
        self._answers = Counter[tuple[int, int, str]]()
        self._reasons = Counter[tuple[int, int, str]]()
        self.in_use = Counter[int]()
        """Number of devices that report a release as the model in use, by number of the release."""
        self.offered = set[int]()
        """Releases that were offered to devices last, or to which devices would return."""

    def add(self, device_id: str, device: Device) -> None:
        """Count a device."""
        number = device.last_offer.release
        if not number:
            return
        self.offered |= {number, device.settled.release}
        if used := device.release_in_use:
            self.in_use[used] += 1
        if (place := self._rollouts.get(number)) is None:
            return
        step = _step_of(self._fleet.rollouts[place], device_id, device)
        answer, reason = answer_of(device)
        self._answers[place, step, answer] += 1
        if reason:
            self._reasons[place, step, reason] += 1
        if answer == "confirmed" and device.in_use is not None and device.in_use.alone:
            self._answers[place, step, "alone"] += 1

    def progress(self) -> list[RolloutProgress]:
        """Return the progress of one rollout of each campaign.

        It is the rollout that goes on, or else the last one that has begun.
        """
        rollouts = [(p, r) for p, r in enumerate(self._fleet.rollouts) if r.phase != "candidate"]
        last = {rollout.campaign: place for place, rollout in rollouts}
        last |= {rollout.campaign: place for place, rollout in rollouts if rollout.phase in GOING}
        return [self._progress(place, self._fleet.rollouts[place]) for place in last.values()]

    def _progress(self, place: int, rollout: Rollout) -> RolloutProgress:
        reasons: dict[int, dict[str, int]] = {}
        for (at, number, reason), count in sorted(self._reasons.items()):
            if at == place:
                reasons.setdefault(number, {})[reason] = count
        steps = []
        for number, step in enumerate(rollout.steps):
            counts = {name: self._answers[place, number, name] for name in ANSWERS}
            steps.append(
                StepProgress(
                    share=step.share,
                    tags=step.tags,
                    offered=sum(counts.values()),
                    alone=self._answers[place, number, "alone"],
                    reasons=reasons.get(number, {}),
                    **counts,
                )
            )
        return RolloutProgress(
            campaign=rollout.campaign,
            releases=rollout.releases,
            phase=rollout.phase,
            direct=rollout.direct,
            step=rollout.step,
            reason=reason_of(rollout),
            statements=rollout.statements,
            began_s=rollout.began_s,
            step_s=rollout.step_s,
            patience_s=rollout.gate.patience_s,
            steps=steps,
        )


def reason_of(rollout: Rollout) -> str:
    """Return the reason of a rollout's phase, with the devices behind it, for people.

    The only device that contradicts two or more others is *set aside*.
    """
    supporters = [d for d, words in rollout.statements.items() if words == CONFIRMED]
    objectors = [d for d in rollout.statements if d not in supporters]
    parts = [rollout.reason] if rollout.reason else []
    for devices, others in ((objectors, supporters), (supporters, objectors)):
        if devices is supporters and (len(devices) != 1 or not others):
            continue  # the devices that confirm are many, or nobody contradicts them
        words = ", ".join(f"{d} ({rollout.statements[d]})" for d in devices)
        is_alone = len(devices) == 1 and len(others) > 1
        parts += [f"{'set aside' if is_alone else 'reports'}: {words}"] if words else []
    return "; ".join(parts)


def release_states(fleet: Fleet) -> dict[int, ReleaseState]:
    """Return the state of each release, which follows from the last rollout that has it.

    A return withdraws the later release that was current in its group. If it reaches every device
    of its campaign, it also withdraws later ones of campaigns whose devices are among these.
    """
    current: dict[tuple[str, str], int] = {}
    states: dict[int, ReleaseState] = dict.fromkeys(fleet.releases, "candidate")
    for rollout in fleet.rollouts:
        for group, number in rollout.releases.items():
            match rollout.phase:
                case "candidate":
                    continue
                case "running" | "paused":
                    states[number] = "canary"
                case "superseded":
                    states[number] = "superseded"
                case "failed":
                    states[number] = "withdrawn"
                case _:
                    before = current.get((rollout.campaign, group), number)
                    if before != number and states[before] == "released":
                        states[before] = "withdrawn" if before > number else "retired"
                    current[rollout.campaign, group] = number
                    states[number] = "released"
        if rollout.returns and rollout.newcomers:
            last = max(rollout.releases.values())
            for (name, _), number in current.items():
                is_taken = name != rollout.campaign and _takes_all(fleet, rollout.campaign, name)
                if is_taken and number > last and states[number] == "released":
                    states[number] = "withdrawn"
    return states


def _takes_all(fleet: Fleet, campaign: str, other: str) -> bool:
    """Return True if the rule of a campaign takes the devices of another one, too."""
    records = (fleet.campaigns.get(name) for name in (campaign, other))
    rules = [record.settings.where for record in records if record is not None]
    return len(rules) == 2 and rules[0] in ("", rules[1])


def needed_releases(fleet: Fleet, offered: Iterable[int]) -> set[int]:
    """Return the releases whose models are needed.

    They are those in `offered` (offered to devices last, or those to which devices would return),
    those of rollouts that go on, current ones, candidates, and the last `KEPT` of each group.
    """
    states = release_states(fleet)
    numbers = {n for n, state in states.items() if state in ("candidate", "canary", "released")}
    counts = Counter[tuple[str, str]]()
    for number in sorted(fleet.releases, reverse=True):
        release = fleet.releases[number]
        counts[release.campaign, release.group] += 1
        if counts[release.campaign, release.group] <= KEPT:
            numbers.add(number)
    return (numbers | set(offered)) & set(fleet.releases)


def offered_releases(fleet: Fleet) -> set[int]:
    """Return the releases that were offered to devices last, or to which devices would return."""
    devices = fleet.devices.values()
    return {offer.release for device in devices for offer in (device.last_offer, device.settled)}


def _step_of(rollout: Rollout, device_id: str, device: Device) -> int:
    """Return the first step that reaches a device.

    A device that no step reaches counts in the current step, whose share was widened as it reached
    nobody.
    """
    last = min(rollout.step, len(rollout.steps) - 1)
    if not last:
        return 0
    place = place_of(rollout, device_id)
    for number, step in enumerate(rollout.steps[: last + 1]):
        if place < step.share or not set(step.tags).isdisjoint(device.tags):
            return number
    return last
