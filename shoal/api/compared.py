"""What the runs of a comparison in Python are about that has no name: data, models and classes that
are objects.

A run whose result is to be found again needs a name that says what it was a run of. Data have one
by their content. A class has one where its file or module has: that is part of the algorithm. A
network's weights do not say what its code does, so a model that is an object has none; neither has
a class that is at the top of no file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from algorithms.composition import AlgorithmSpec
from algorithms.core.contract import Objective
from algorithms.spec import PYTHON
from shoal.api.data import fleet_of
from simulation.comparison.runs import Job, data_of, run_job
from simulation.datasets.windows import FleetData, digest_of
from simulation.objective import ModelMaker, objective_on
from simulation.scenario import check_scenario
from simulation.simulate import SimulationSettings
from wire.errors import ConfigError


@dataclass(frozen=True)
class Compared:
    """Data and a model of a comparison."""

    names: tuple[str, ...]
    """Of the data, in order: what a user wrote, or of a `FleetData` its name and the beginning of
    its digest."""
    fleets: Mapping[str, FleetData] = field(default_factory=dict, repr=False)
    """By name, the data that are objects."""
    model: nn.Module | ModelMaker | None = None
    """None where it has a name."""

    @classmethod
    def of(
        cls, data: Sequence[FleetData | str | Path], model: nn.Module | ModelMaker | None
    ) -> "Compared":
        """
        Raises:
            ConfigError: there are no data.
        """
        if not data:
            raise ConfigError("data: expected a name, a path or a FleetData, or a list of these")
        names = [
            f"{one.name}@{digest_of(one)[:16]}" if isinstance(one, FleetData) else str(one)
            for one in data
        ]
        return cls(
            tuple(names),
            {
                name: one
                for name, one in zip(names, data, strict=True)
                if isinstance(one, FleetData)
            },
            model,
        )

    def check(
        self, algorithms: Sequence[AlgorithmSpec], settings: SimulationSettings, workers: int
    ) -> None:
        """
        Raises:
            ConfigError: other processes are to run what they cannot find, or a model of one's own
            is to be trained before.
        """
        if self.model is not None and settings.pretrain:
            raise ConfigError(
                f"pretrain {settings.pretrain!r}: a model of your own brings its weights; "
                "expected a model's name"
            )
        if workers != 1 and (
            self.fleets or self.model is not None or any(map(_in_memory, algorithms))
        ):
            raise ConfigError(
                f"workers = {workers}: a FleetData, a model of your own and a class that is in no "
                "file are compared in this process"
            )

    def data_of(self, job: Job) -> FleetData:
        """The data of a job, before its scenario.

        Raises:
            ShoalError: they cannot be read or assigned, or the scenario does not go with the
            partition.
        """
        if job.data not in self.fleets:
            return data_of(job)
        check_scenario(job.settings.scenario, job.partition)
        return fleet_of(self.fleets[job.data], str(job.partition), job.devices, job.settings.seed)

    def lasts(self, job: Job) -> bool:
        """Whether the key of a job says what it is a run of, also tomorrow."""
        return self.model is None and not _in_memory(job.settings.algorithm)

    def run(self, job: Job, on_round: Callable[[int], None]) -> dict[str, Any]:
        """Run a job in this process."""
        if self.model is None and job.data not in self.fleets:
            return run_job(job, on_round)
        objective = None if self.model is None else partial(_objective, self.model, job.settings)
        return run_job(job, on_round, fleet=self.data_of(job), objective=objective)


def _in_memory(algorithm: AlgorithmSpec) -> bool:
    """Whether it has a class that is at the top of no file."""
    return any(name.startswith(f"{PYTHON}:") for name in algorithm.sources)


def _objective(
    model: nn.Module | ModelMaker, settings: SimulationSettings, data: FleetData
) -> Objective:
    return objective_on(model, data, settings.algorithm, settings.seed)
