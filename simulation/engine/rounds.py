"""The rounds of a fast simulation, with the phases of `aggregator.fleet.rounds`.

The fleet is always reachable, and there are no messages. The cost of a round is proportional to its
cohort, not to the fleet. `Snapshot` holds everything that changes from round to round, so that a
run can be saved and continued.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from immutables import Map
from msgspec.structs import replace

from aggregator.aggregation.apply import (
    apply_algorithm,
    encode_views,
    rate_noted,
    round_notes,
    weakened,
)
from aggregator.aggregation.placing import place_all
from aggregator.aggregation.stored import make_programs, store_state
from aggregator.core.pool import DevicePool
from aggregator.fleet.budget import improvement_of, mean_accuracy, spent
from aggregator.fleet.desired import Desired, group_of, is_to_survey, placed_of, verbs_of
from aggregator.fleet.plan import make_plan, round_seed
from aggregator.fleet.records import (
    Campaign,
    Device,
    Fleet,
    Kind,
    Member,
    Phase,
    Placed,
    Report,
    Survey,
    Version,
)
from aggregator.ports import Blobs
from aggregator.view.round_record import SURVEYED, RoundRecord, make_record
from algorithms.algorithm import Contribution, State
from algorithms.core.contract import Grouped
from algorithms.core.keys import NEWCOMER, UNLABELLED
from algorithms.means.streaming import Branch
from algorithms.personalisation.kept import kept_of
from algorithms.sums import is_surveying, survey_notes
from simulation.engine.experiment import Experiment
from simulation.engine.schedule import Invitation, Schedule, drawn
from simulation.engine.sums import Sets, apply_results
from simulation.engine.survey import survey_round
from simulation.engine.traffic import MessageScale
from simulation.engine.workers.attacks import COLLUDING
from simulation.engine.workers.device_host import PERMISSIONS, DeviceResult, Models, Workers
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors, encode_tensors
from wire.errors import Stalled
from wire.messages import CheckIn, Choose, Metrics, Plan

log = logging.getLogger("shoal.simulation")

OF = "@"
"""Separator between the key of a model and a number of rounds.

Together they name the model as it was after that many rounds.
"""
RATE_TOO_HIGH = "The learning rate is too high for most devices: lower it"
EVALUATED = 10_000
"""Maximum number of devices that test their final model; the seed draws them."""


@dataclass(frozen=True)
class Snapshot:
    """A run between two rounds."""

    state: State
    round: int = 0
    trained: int = 0
    """Number of finished rounds of training."""
    records: tuple[RoundRecord, ...] = ()
    finished: bool = False
    inputs: Mapping[str, Survey] = field(default_factory=dict)
    """Surveys of devices without labels, by device."""
    placed: Mapping[str, Placed] = field(default_factory=dict)
    older: Mapping[int, Mapping[str, Tensors]] = field(default_factory=dict, repr=False)
    """Models by the number of rounds after which they were current.

    Only models on which devices still work are here.
    """
    stopped: bool = False
    """True if a caller has stopped the run, so that no further round of training opens."""
    resting: frozenset[str] = frozenset()
    """Devices whose last plan failed; they rest, so that no evaluation waits for them."""
    sets: Sets = ()
    """Devices of each secret sum so far."""


class _Members(Mapping[str, Member]):
    """Members of a campaign, each made on access: a fleet is large, a cohort is not."""

    def __init__(self, key: Callable[[State, str], str], snapshot: Snapshot) -> None:
        """Take the members of a snapshot; `key` returns the key of a trained device's model."""
        self._key, self._snapshot = key, snapshot
        trained = snapshot.state.memory.membership
        self._ids = {*trained, *snapshot.inputs, *snapshot.placed} - {""}

    def __getitem__(self, device_id: str) -> Member:
        if device_id not in self._ids:
            raise KeyError(device_id)
        state, surveys, placed = (
            self._snapshot.state,
            self._snapshot.inputs,
            self._snapshot.placed,
        )
        group = self._key(state, device_id) if device_id in state.memory.membership else ""
        return Member(group=group, survey=surveys.get(device_id), placed=placed.get(device_id))

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


@dataclass
class Rounds:
    """A run round by round, with the cohorts of `schedule`."""

    experiment: Experiment
    blobs: Blobs
    traffic: MessageScale
    schedule: Schedule

    def __post_init__(self) -> None:
        self.settings, self.algorithm, self.devices = (
            self.experiment.settings,
            self.experiment.algorithm,
            self.experiment.devices,
        )
        self._latest: tuple[Snapshot, Campaign] | None = None
        self.device_ids = sorted(self.devices)

    def advance(self, snapshot: Snapshot, workers: Workers) -> Snapshot:
        """Return the snapshot after one more round.

        The last round only tests the models of devices.

        Raises:
            Stalled: no device gives an update.
        """
        settings, state = self.settings, snapshot.state
        before = self.campaign(snapshot)
        if settings.secret and is_surveying(self.algorithm, state, settings.min_sum):
            return self._surveyed(snapshot, workers)
        number, closing = snapshot.round + 1, before.phase == "evaluating"
        models = self.models(state)
        preparing = not closing and self.algorithm.coordinator.preparing(state.context)
        if closing:  # all devices, or a part of a large fleet; it takes no time
            at_s = snapshot.records[-1].closed_at_s if snapshot.records else 0.0
            free = [d for d in self.device_ids if d not in snapshot.resting]
            tested = drawn(DevicePool(free), EVALUATED, round_seed(settings.seed, number))
            invited = Invitation(tested, at_s, at_s)
            snapshot = self._placed(snapshot, before, models, workers, invited.device_ids)
            before = self.campaign(snapshot)
        else:
            invited = self.schedule.invite(number)
        starts = {d: group_of(before, d, self._device(d)) for d in invited.device_ids}
        inputs, placed = snapshot.inputs, snapshot.placed
        if number == 1 and not closing:
            inputs = self._ask(before, models, workers, self.device_ids)
        older = {**snapshot.older, snapshot.round: models}
        stale = {
            _name(key, v): model
            for v in set(invited.versions.values())
            for key, model in older[v].items()
        }
        plans = self._plans(before, starts, invited, number, stale)
        attack = self.experiment.attack
        colludes = attack is not None and attack.name in COLLUDING
        secret = settings.secret and not closing
        single = closing or preparing or colludes or invited.weights or secret
        summed = self.algorithm.streams and not single
        received = self._received(plans, {**models, **stale}, workers, summed)
        if attack is not None and not closing:
            false = attack.collude({d.device_id: d.tensors for d in received})
            received = [
                dataclasses.replace(d, tensors=false.get(d.device_id, d.tensors)) for d in received
            ]
        sets = snapshot.sets
        resting = snapshot.resting.union(starts).difference(d.device_id for d in received)
        down = {plan.device_id: self.traffic.down(plan) for plan in plans}
        grouped, notes = Grouped(state.memory), {}
        if not closing:
            groups_before, rate = (
                set(state.memory.membership.values()),
                rate_noted(settings, before.version.programs),
            )
            if secret:
                state, grouped, received, sets = apply_results(
                    self.experiment, state, plans, received, sets
                )
            else:
                state, grouped = self._apply(state, received, starts, invited, number, preparing)
            notes = round_notes(state, grouped) | rate
            if self.settings.min_batch:
                surveys = {d: partial(self._survey, survey) for d, survey in inputs.items()}
                placed = place_all(self.algorithm, state, surveys, placed, groups_before)
        belonging = {}
        if placed:
            next_snapshot = dataclasses.replace(snapshot, state=state, inputs=inputs, placed=placed)
            after = self._campaign(next_snapshot)
            placements = ((d, placed_of(after, d, self._device(d))) for d in self.device_ids)
            belonging = {d: placement for d, placement in placements if placement is not None}
        record = make_record(
            number=number,
            phase="evaluating" if closing else "preparing" if preparing else "training",
            opened_at_s=invited.opened_at_s,
            closed_at_s=invited.closed_at_s,
            reports={
                d.device_id: Report(
                    evaluated=d.evaluated,
                    trained=d.trained,
                    bytes_up=self.traffic.up(d),
                    bytes_down=down[d.device_id],
                    personal_model=kept_of(settings.candidates, d.tensors),
                )
                for d in received
            },
            groups={d: self._key(state, d) for d in ({} if preparing else state.memory.membership)}
            | {d: placement.group for d, placement in belonging.items()},
            notes=notes,
            views=self.blobs.put(encode_views(grouped))[0] if grouped.views else "",
            placed=belonging,
            surveys=[survey for survey in inputs.values() if survey.round == number],
        )
        trained_rounds = snapshot.trained + (not preparing and not closing)
        oldest = self.schedule.oldest
        recent_models = (
            {} if closing or oldest is None else {v: m for v, m in older.items() if v >= oldest}
        )
        return Snapshot(
            state,
            number,
            trained_rounds,
            (*snapshot.records, record),
            closing,
            inputs,
            placed,
            recent_models,
            snapshot.stopped,
            resting,
            sets,
        )

    def _surveyed(self, snapshot: Snapshot, workers: Workers) -> Snapshot:
        """Return the snapshot after a round that finds groups from sums."""
        number, models = snapshot.round + 1, self.models(snapshot.state)
        invited = self.schedule.invite(number)
        state, plans, results, sets = survey_round(
            self.experiment,
            snapshot.state,
            invited.device_ids,
            snapshot.sets,
            number,
            lambda plans: self._received(plans, models, workers, summed=False),
        )
        down = {plan.device_id: self.traffic.down(plan) for plan in plans}
        record = make_record(
            number=number,
            phase="preparing",
            opened_at_s=invited.opened_at_s,
            closed_at_s=invited.closed_at_s,
            reports={
                d.device_id: Report(
                    evaluated=Metrics(),
                    trained=Metrics(),
                    bytes_up=self.traffic.up(d),
                    bytes_down=down[d.device_id],
                )
                for d in results
            },
            groups=state.memory.membership,
            notes={SURVEYED: survey_notes(state)},
            views="",
        )
        return dataclasses.replace(
            snapshot, state=state, round=number, records=(*snapshot.records, record), sets=sets
        )

    def _apply(
        self,
        state: State,
        received: Sequence[DeviceResult],
        starts: Mapping[str, str],
        invited: Invitation,
        number: int,
        preparing: bool,
    ) -> tuple[State, Grouped]:
        """Return the state after a round of these updates, and the groups."""
        contributions = [
            self._contribution(d, starts[d.device_id], state, invited) for d in received
        ]
        branches: dict[str, list[Branch]] = {}
        for result in received:
            for start, branch in result.sums.items():
                branches.setdefault(start, []).append(branch)
        return apply_algorithm(
            self.algorithm,
            state,
            contributions,
            self.experiment.probe,
            self.settings,
            number,
            preparing,
            branches or None,
        )

    def _placed(
        self,
        snapshot: Snapshot,
        campaign: Campaign,
        models: Models,
        workers: Workers,
        device_ids: Sequence[str],
    ) -> Snapshot:
        """Return the snapshot with the places of those devices that no training has met."""
        inputs = self._ask(campaign, models, workers, device_ids)
        if not inputs:
            return snapshot
        surveys = {d: partial(self._survey, survey) for d, survey in inputs.items()}
        state = snapshot.state
        places = place_all(self.algorithm, state, surveys, {}, set())
        return dataclasses.replace(
            snapshot, inputs={**snapshot.inputs, **inputs}, placed={**snapshot.placed, **places}
        )

    def _ask(
        self,
        campaign: Campaign,
        models: Models,
        workers: Workers,
        device_ids: Sequence[str],
    ) -> dict[str, Survey]:
        """Return the surveys that these devices should send; devices without windows have none."""
        if not (verbs := campaign.version.programs.get(UNLABELLED)):
            return {}
        number = campaign.round + 1
        plans = [
            make_plan(self.settings, number, d, NEWCOMER, verbs)
            for d in device_ids
            if is_to_survey(campaign, d, self._device(d))
        ]
        if not plans:
            return {}
        results, _ = self._carried_out(plans, models, workers)
        down = {plan.device_id: self.traffic.down(plan) for plan in plans}
        return {
            result.device_id: Survey(
                blob=self.blobs.put(encode_tensors(result.tensors))[0],
                round=number,
                bytes_up=self.traffic.up(result),
                bytes_down=down[result.device_id],
            )
            for result in results
            if result.tensors
        }

    def _survey(self, survey: Survey) -> Tensors:
        return decode_tensors(self.blobs.get(survey.blob), OWN_FILES)[0]

    def campaign(self, snapshot: Snapshot) -> Campaign:
        """Return the campaign as an aggregator would have it before its next round.

        Its models have their keys in place of digests.
        """
        latest = self._latest
        if latest is None or snapshot is not latest[0]:
            self._latest = latest = snapshot, self._campaign(snapshot)
        return latest[1]

    def _campaign(self, snapshot: Snapshot) -> Campaign:
        settings, state = self.settings, snapshot.state
        accuracies = (
            mean_accuracy(r.evaluated.values()) for r in snapshot.records if r.phase == "training"
        )
        best, unimproved = improvement_of(accuracies, settings.min_delta)
        models, members = {key: key for key in state.models}, _Members(self._key, snapshot)
        version = Version(
            round=snapshot.round,
            models=models,
            memory="",
            programs=make_programs(self.algorithm, state, settings, models),
            newcomers=self._key(state, ""),
        )
        campaign = Campaign(
            settings=settings,
            next_settings=settings,
            ended="order" if snapshot.stopped else "",
            ended_s=snapshot.records[-1].closed_at_s if snapshot.records else 0.0,
            round=snapshot.round,
            version=version,
            trained=snapshot.trained,
            best=best,
            unimproved=unimproved,
            default=snapshot.placed.get(""),
            members=cast("Map[str, Member]", members),
        )
        ended = spent(campaign, campaign.ended_s)
        phase: Phase = "finished" if snapshot.finished else "evaluating" if ended else "training"
        return replace(campaign, ended=ended, phase=phase)

    def conclude(self, snapshot: Snapshot) -> Fleet:
        """Return the fleet at the end of the run as an aggregator would have it.

        Its models are among the blobs.
        """
        stored = store_state(self.settings, self.algorithm, snapshot.state, self.blobs)
        campaign = self.campaign(snapshot)
        version = replace(
            campaign.version,
            models=stored.models,
            memory=stored.memory,
            programs=stored.programs,
        )
        campaign = replace(
            campaign,
            phase="finished",
            version=version,
            preparing=stored.preparing,
            members=Map(dict(campaign.members)),
        )
        devices = {d: self._device(d) for d in self.devices}
        return Fleet(
            at_s=campaign.ended_s, devices=Map(devices), campaigns={campaign.name: campaign}
        )

    def model_of(self, snapshot: Snapshot, device_id: str) -> Tensors:
        """Return the model that a device receives (roles shared, statistic, received)."""
        key = group_of(self.campaign(snapshot), device_id, self._device(device_id))
        return self.algorithm.given(snapshot.state, key)

    def _key(self, state: State, device_id: str) -> str:
        """Return the key of the model of a device's group by its training."""
        key = self.algorithm.grouping.start(state.memory, device_id)
        return key if key in state.models else NEWCOMER

    def _device(self, device_id: str) -> Device:
        """Return the record of a device, which is always online."""
        windows = self.devices[device_id]
        facts = CheckIn(
            device_id,
            windows.num_train,
            windows.num_test,
            runtime="simulation",
            policy=PERMISSIONS,
        )
        return Device(facts=facts, online=True)

    def models(self, state: State) -> dict[str, Tensors]:
        """Return the models that the devices of each group receive."""
        return {key: self.algorithm.given(state, key) for key in state.models}

    def _plans(
        self,
        campaign: Campaign,
        starts: Mapping[str, str],
        invited: Invitation,
        number: int,
        stale: Mapping[str, Tensors],
    ) -> list[Plan]:
        kind: Kind = "evaluate" if campaign.phase == "evaluating" else "train"
        plans = []
        for device_id, start in starts.items():
            model = start
            if device_id in invited.versions:
                model = _name(start, invited.versions[device_id])
                model = model if model in stale else _name(NEWCOMER, invited.versions[device_id])
            task = Desired(campaign.name, kind, start)
            plans.append(
                make_plan(
                    self.settings,
                    number,
                    device_id,
                    model,
                    verbs_of(campaign, device_id, self._device(device_id), task),
                    encoding=self.settings.update_encoding,
                )
            )
        return plans

    def _contribution(
        self, result: DeviceResult, start: str, state: State, invited: Invitation
    ) -> Contribution:
        """Return an update in the form of the algorithm.

        The change of a device that started from an older model is applied to the newest model with
        a smaller weight.
        """
        tensors, stale = dict(sorted(result.tensors.items())), result.device_id in invited.versions
        weight = invited.weights.get(result.device_id)
        if weight is not None:
            tensors = weakened(tensors, weight, state.models[start])
        return Contribution(
            result.device_id,
            result.num_train,
            result.num_steps,
            start if stale else result.model,
            tensors,
            result.trained.mean_loss,
        )

    def _received(
        self, plans: Sequence[Plan], models: Models, workers: Workers, summed: bool
    ) -> list[DeviceResult]:
        """Return the updates that pass admission, by device id.

        Raises:
            Stalled: there is none.
        """
        if not plans:
            raise Stalled(
                f"No device can train: each needs at least {self.settings.min_batch} examples "
                "with labels"
            )
        received, problems = self._carried_out(plans, models, workers, summed)
        if not received:
            raise Stalled(problems)
        return received

    def _carried_out(
        self, plans: Sequence[Plan], models: Models, workers: Workers, summed: bool = False
    ) -> tuple[list[DeviceResult], str]:
        """Return the results that pass admission, and the text about the other ones."""
        chosen = {
            key
            for plan in plans
            for verb in plan.verbs
            if isinstance(verb, Choose)
            for key in verb.models
        }
        needed = {key: models[key] for key in sorted({plan.model for plan in plans} | chosen)}
        self.traffic.weigh(needed)
        received: list[DeviceResult] = []
        others: list[DeviceResult] = []
        for result in workers(plans, needed, summed):
            (others if result.problem else received).append(result)
        text = ""
        if others:
            first = min(others, key=lambda result: result.device_id)
            text = (
                f"Round {plans[0].round}: {len(others)} of {len(plans)} devices sent nothing "
                f"usable. The first one, {first.device_id}: {first.problem}"
            )
            if 2 * sum(result.too_large for result in others) > len(plans):
                text += f". {RATE_TOO_HIGH}"
            log.warning(text)
        return sorted(received, key=lambda result: result.device_id), text


def _name(key: str, version: int) -> str:
    """Return the name of the model of this key after `version` rounds."""
    return f"{key}{OF}{version}"
