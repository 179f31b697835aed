"""Cases for every task whose labels are no classes."""

import pytest
import torch

from algorithms.build import build_objective
from algorithms.composition import read_algorithm
from export.describe import example_inputs, named
from simulation.contract.rounds import small
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.known import known
from wire.arrays import names
from wire.bundle import Window
from wire.errors import ConfigError

OWN_LOSS = ("fedrod", "fedpcl", "fedgen")
"""Objectives that train by classes."""
WINDOW = Window(("a", "b"), 32, 32)


def ran(
    algorithm: str, fleet: FleetData, backend: BackendName = "auto", rounds: int = 2
) -> SimulationResult:
    options = (
        EngineOptions(backend, device="cpu") if backend == "batched" else EngineOptions(backend)
    )
    return simulate(fleet, SimulationSettings(read_algorithm(algorithm), rounds), engine=options)


def ran_alike(
    algorithm: str, fleet: FleetData, backend: BackendName
) -> tuple[SimulationResult, SimulationResult]:
    """A round by backend eager and by another one, whose losses have to be the same."""
    eager, other = (ran(algorithm, fleet, name, rounds=1) for name in ("eager", backend))
    for device_id, device in eager.summary.devices.items():
        assert known(other.summary.devices[device_id].loss) == pytest.approx(
            known(device.loss), rel=1e-3
        )
    return eager, other


def check_composed(objective_name: str, task: str, num_names: int, window: Window = WINDOW) -> bool:
    """Check that an objective composes with a task of so many names, and steps then, or is refused
    by name."""
    algorithm = f"{small(objective_name)}+{task}"
    if any(own in objective_name for own in OWN_LOSS):
        with pytest.raises(
            ConfigError, match=f"has a loss of its own, and cannot use the task '{task}'"
        ):
            read_algorithm(algorithm)
        return False
    objective = build_objective(read_algorithm(algorithm), window, num_names, torch.ones(2), seed=0)
    inputs = example_inputs(objective, (2, 32))
    for graph in ("step", "evaluate"):
        if graph in objective.graphs():
            assert torch.isfinite(named(objective.graphs()[graph])(inputs)[names.LOSS_SUM]), graph
    return True
