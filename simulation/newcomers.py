"""Newcomers: devices that are held out of training and join when it is over.

J. Zhang et al., DBE, NeurIPS 2023, appendix D.4: a new device starts from the model that it would
be sent, trains locally for ten epochs in the algorithm's own way, and is tested. If the algorithm
has a personalisation, the newcomer makes its personal model instead, as any device that joins a
fleet: with the epochs of a round, or with the number that the personalisation needs.

Newcomers are placed as a service places devices that no training has met: by a survey of their
inputs, or in the largest group. Without labels, they make their personal model as devices do after
the last round, and are tested. Nothing flows back into the fleet's models.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from aggregator.aggregation.placing import placed_as
from aggregator.aggregation.stored import load_state, work_of
from aggregator.fleet.desired import by_labels
from aggregator.fleet.plan import make_plan, program_for
from aggregator.fleet.records import Campaign, Placed
from aggregator.ports import Blobs
from algorithms.algorithm import Algorithm
from algorithms.core.contract import Programs
from algorithms.core.keys import NEWCOMER, UNLABELLED
from algorithms.personalisation.kept import PersonalChoice, kept_of
from edge_client.core.kept import own_tensors
from edge_client.core.ports import Graphs, Windows
from edge_client.work.executor import Executor, Secret
from simulation.datasets.windows import FleetData
from wire.arrays.tensors import Array, Tensors, decode_tensors
from wire.bundle import Bundle
from wire.messages import Evaluate, Metrics, Plan, Train, Verb

EPOCHS = 10
"""Number of local epochs of a newcomer (appendix D.4)."""


def hold_out(data: FleetData, count: int, seed: int) -> tuple[FleetData, dict[str, Windows]]:
    """Take `count` random devices out of a fleet, and return the remaining fleet and these devices.

    The same seed takes the same devices.
    """
    if not count:
        return data, {}
    chosen = set(
        map(
            str,
            np.random.default_rng([seed, 0x1EF7]).choice(
                sorted(data.devices), count, replace=False
            ),
        )
    )
    return data.only(d for d in data.devices if d not in chosen), {
        d: data.devices[d] for d in sorted(chosen)
    }


@dataclass(frozen=True)
class NewcomerResult:
    """A newcomer's placement and results on its test windows.

    `answers` (n, answers) float32 are its predictions. `tensors` are all tensors of its model in
    use. `personal_model` is its choice of a personal model, or None if it does not choose.
    """

    placed: Placed
    evaluated: Metrics
    answers: Array
    tensors: Tensors
    personal_model: PersonalChoice | None = None


@dataclass
class Reception:
    """Receives newcomers into a finished run."""

    algorithm: Algorithm
    run: Campaign
    blobs: Blobs
    bundle: Bundle
    graphs: Graphs
    secret: Secret

    def __post_init__(self) -> None:
        self.state = load_state(self.run.version, self.blobs)
        self.programs: Programs = self.algorithm.programs(
            self.state, work_of(self.run.settings), self.run.models
        )

    def receive(self, newcomers: Mapping[str, Windows]) -> dict[str, NewcomerResult]:
        """Place the newcomers, train those with labels, and test each on its own test windows."""
        executors = {
            d: Executor(self.bundle, self.graphs, windows, self.secret)
            for d, windows in newcomers.items()
        }
        least = self.run.settings.min_batch
        return {
            d: self._serve(d, executor, newcomers[d], newcomers[d].num_train >= least)
            for d, executor in executors.items()
        }

    def _serve(
        self, device_id: str, executor: Executor, windows: Windows, labelled: bool
    ) -> NewcomerResult:
        """Place a newcomer, have it train or personalise and test, and return its results."""
        placed = self._place(device_id, executor)
        key = placed.group
        verbs: tuple[Verb, ...]
        if not labelled or self.algorithm.coordinator.keeps:
            verbs = by_labels(self.programs["closing"], windows.num_train, trains=labelled)
        else:
            usual = (
                self.programs[""] if key == NEWCOMER else program_for(self.programs, device_id, key)
            )
            longer = (
                msgspec.structs.replace(verb, epochs=EPOCHS) if isinstance(verb, Train) else verb
                for verb in usual
            )
            verbs = (*longer, Evaluate())
        model = self._model(key)
        plan = self._plan(device_id, key, verbs)
        result = executor.execute(plan, model, {}, self._fetch)
        none = np.zeros((0, len(self.bundle.manifest.classes)), np.float32)
        answers = (
            executor.predict(model, result.private, windows.test_x) if windows.num_test else none
        )
        tensors = own_tensors(self.bundle, model, result.private)
        return NewcomerResult(
            placed,
            result.evaluated,
            answers,
            tensors,
            kept_of(self.run.settings.candidates, result.tensors),
        )

    def _place(self, device_id: str, executor: Executor) -> Placed:
        """Return the place of a newcomer, by its survey if the algorithm reads one."""
        survey: Tensors = {}
        if verbs := self.programs.get(UNLABELLED):
            plan = self._plan(device_id, NEWCOMER, verbs)
            survey = executor.execute(plan, self._model(NEWCOMER), {}, self._fetch).tensors
        return placed_as(self.algorithm.place(self.state, device_id, survey))

    def _plan(self, device_id: str, key: str, verbs: tuple[Verb, ...]) -> Plan:
        return make_plan(
            self.run.settings, self.run.round + 1, device_id, self.run.models[key], verbs
        )

    def _model(self, key: str) -> Tensors:
        return self._fetch(self.run.models[key])

    def _fetch(self, digest: str) -> Tensors:
        return decode_tensors(self.blobs.get(digest))[0]
