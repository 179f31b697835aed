"""The rounds of a fast simulation: the same phases as `aggregator.core.round`, for a fleet that is always reachable, without messages.

What a round needs is proportional to its cohort, not to the fleet. All that changes from round to round is in `Progress`, so that a
run can be kept and gone on with.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from aggregator.aggregation import encode_views, publish, work_of
from aggregator.core.round import program_for
from aggregator.core.state import Device, RunSettings, RunState
from aggregator.ports import Blobs, RoundRecord
from algorithms.algorithm import Algorithm, Contribution, State
from algorithms.contract import NEWCOMER, Grouped, Probe, Programs
from edge_client.ports import Windows
from simulation.engine.site import Done, Models
from simulation.engine.traffic import Traffic
from wire.errors import Stalled
from wire.messages import Choose, Metrics, Plan
from wire.tensors import Tensors

log = logging.getLogger("shoal.simulation")

EVALUATED = 10_000
"""Of a larger fleet so many devices, drawn by the seed, test the model that they are given in the end."""


class Workers(Protocol):
    """Carry out plans, in any order; each result is handed out as soon as it is there."""

    def run(self, plans: Sequence[Plan], models: Models) -> Iterator[Done]:
        """The results of these plans. Their tensors hold until the next call."""


@dataclass(frozen=True)
class Progress:
    """A run between two rounds."""

    state: State
    round: int = 0
    trained: int = 0
    """Rounds of training that are over."""
    records: tuple[RoundRecord, ...] = ()
    finished: bool = False


@dataclass
class Rounds:
    """Makes one round after the other. `cohort` devices are drawn for each; 0: all take part."""

    settings: RunSettings
    algorithm: Algorithm
    probe: Probe
    devices: Mapping[str, Windows]
    blobs: Blobs
    traffic: Traffic
    cohort: int = 0
    device_ids: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.device_ids = sorted(self.devices)

    def advance(self, progress: Progress, workers: Workers) -> Progress:
        """The progress after one more round, the last of which only tests the models that devices are given."""
        settings, state = self.settings, progress.state
        number, closing = progress.round + 1, progress.trained >= settings.rounds
        preparing = not closing and self.algorithm.preparing(state)
        starts = {d: self._start(state, d) for d in self._invited(number, closing)}
        plans = self._plans(state, starts, number, closing)
        received = self._received(plans, state, workers)
        down = {plan.device_id: self.traffic.down(plan) for plan in plans}
        evaluated = {d.device_id: d.evaluated for d in received}
        trained = Metrics(*(sum(getattr(d.trained, name) for d in received) for name in ("num_examples", "loss_sum", "num_correct")))
        grouped = Grouped(state.memory)
        if not closing:
            contributions = [
                Contribution(d.device_id, d.num_train, d.num_steps, d.model, dict(sorted(d.tensors.items())), d.trained.mean_loss)
                for d in received
            ]
            if preparing:
                state = self.algorithm.prepare(state, contributions)
            else:
                seed = settings.seed * 1_000_003 + number
                state, grouped = self.algorithm.apply(state, contributions, self.probe, seed, work_of(settings))
        record = RoundRecord(
            round=number,
            phase="evaluating" if closing else "preparing" if preparing else "training",
            opened_at_s=0.0,
            closed_at_s=0.0,
            evaluated=evaluated,
            trained=trained,
            groups={} if preparing else {d: self._start(state, d) for d in starts},
            bytes_up=sum(self.traffic.up(d) for d in received),
            bytes_down=sum(size for d, size in down.items() if d in evaluated),
            notes=grouped.notes | ({"epsilon": state.epsilon} if state.epsilon is not None and not closing else {}),
            views=self.blobs.put(encode_views(grouped)) if grouped.views else "",
        )
        trained_rounds = progress.trained + (not preparing and not closing)
        return Progress(state, number, trained_rounds, (*progress.records, record), closing)

    def conclude(self, progress: Progress) -> RunState:
        """The run's last state as the aggregator would have it, with its models among the blobs."""
        published = publish(self.settings, self.algorithm, progress.state, self.blobs)
        membership = progress.state.memory.membership
        devices = {d: Device(w.num_train, w.num_test, True, 0.0, "simulation") for d, w in self.devices.items()}
        return RunState(
            self.settings,
            "finished",
            progress.round,
            devices,
            published.models,
            {d: self._start(progress.state, d) for d in membership} | {"": self._start(progress.state, "")},
            published.programs,
            published.preparing,
            progress.trained,
            published.memory,
        )

    def model_of(self, progress: Progress, device_id: str) -> Tensors:
        """The model that a device is given (roles shared, statistic, received)."""
        state = progress.state
        key = self._start(state, device_id)
        return {**state.models[key], **self.algorithm.received(state)[key]}

    def programs(self, state: State) -> Programs:
        """What devices do in the next round; models are named by their keys."""
        return self.algorithm.programs(state, work_of(self.settings), {key: key for key in state.models})

    def _start(self, state: State, device_id: str) -> str:
        key = self.algorithm.start(state.memory, device_id)
        return key if key in state.models else NEWCOMER

    def _invited(self, number: int, closing: bool) -> list[str]:
        count = EVALUATED if closing else self.cohort
        if not count or count >= len(self.device_ids):
            return self.device_ids
        rng = np.random.default_rng([self.settings.seed, number, 0xC0])
        return [self.device_ids[i] for i in sorted(rng.choice(len(self.device_ids), count, replace=False, shuffle=False))]

    def _plans(self, state: State, starts: Mapping[str, str], number: int, closing: bool) -> list[Plan]:
        settings = self.settings
        programs = self.programs(state)
        return [
            Plan(
                run_id=settings.run_id,
                round=number,
                device_id=device_id,
                bundle=settings.bundle,
                model=start,
                verbs=programs["closing"] if closing else program_for(programs, device_id, start),
                seed=settings.seed * 1_000_003 + number,
                deadline_at_s=0.0,
            )
            for device_id, start in starts.items()
        ]

    def _received(self, plans: Sequence[Plan], state: State, workers: Workers) -> list[Done]:
        """The updates that would have been admitted, by device id.

        Raises:
            Stalled: there is none.
        """
        chosen = {key for plan in plans for verb in plan.verbs if isinstance(verb, Choose) for key in verb.models}
        context = self.algorithm.received(state)
        models = {key: {**state.models[key], **context[key]} for key in sorted({plan.model for plan in plans} | chosen)}
        self.traffic.weigh(models)
        received: list[Done] = []
        problem = ""
        for done in workers.run(plans, models):
            if done.problem:
                problem = problem or f"{done.device_id}: {done.problem}"
                log.warning("%s device=%s: %s", "refused" if done.refused else "declined", done.device_id, done.problem)
            else:
                received.append(done)
        if not received:
            raise Stalled(f"round {plans[0].round}: no device of {len(plans)} gave an update that could be used; the first: {problem}")
        return sorted(received, key=lambda done: done.device_id)
