"""Devices without labels among others: a simulation's rounds place them as the service does, and
they weigh nothing."""

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from aggregator.fleet.records import Placed
from algorithms.composition import read_algorithm
from edge_client.core.ports import Windows
from simulation.datasets.catalog import load_data
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.local.fleet import write_device_folder
from simulation.newcomers import hold_out
from simulation.objective import objective_for_fleet
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import SimulationResult, simulate
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.errors import ConfigError

UNLABELLED = ("d0", "d5")
"""One of either group."""


def fleet() -> FleetData:
    """Two groups of twelve devices, by an offset of their sensors; one device of each has no
    labels."""
    data = synthetic_fleet(24, shift=2.0)
    return dataclasses.replace(
        data,
        devices={d: without_labels(w) if d in UNLABELLED else w for d, w in data.devices.items()},
    )


def without_labels(windows: Windows) -> Windows:
    return Windows(
        windows.train_x[:0], windows.train_y[:0], windows.test_x, windows.test_y, windows.train_x
    )


def run(
    data: FleetData, algorithm: str = "distfl", engine: EngineOptions | None = None, rounds: int = 3
) -> SimulationResult:
    spec = read_algorithm(algorithm)
    objective = objective_for_fleet(
        fleet(), spec, 0
    )  # the same for all fleets: inputs are scaled by what its devices hold
    return simulate(
        data,
        SimulationSettings(spec, rounds, batch_size=16),
        objective=objective,
        engine=engine or EngineOptions("native"),
    )


def test_each_is_placed_among_those_with_inputs_like_its_own_and_weighs_nothing() -> None:
    data = fleet()
    done = run(data)
    groups = {d: device.group for d, device in done.summary.devices.items()}
    for device_id in UNLABELLED:
        alike = {groups[d] for d in data.devices if data.truth[d] == data.truth[device_id]}
        assert len(alike) == 1
        placed = known(done.summary.devices[device_id].placed)
        assert (placed.group, placed.sure, placed.neighbours) == (str(groups[device_id]), 1.0, 5)
    assert groups["d0"] != groups["d5"]
    assert done.summary.groups.count == 2
    for record in done.records[:-1]:
        assert record.evaluated.keys().isdisjoint(UNLABELLED), (
            "it has no part in a round of training"
        )
        assert sorted(record.placed) == sorted(UNLABELLED)
    assert set(UNLABELLED) < done.records[-1].evaluated.keys()
    others = run(data.only(d for d in data.devices if d not in UNLABELLED))
    assert (done.campaign.models, done.campaign.version.memory) == (
        others.campaign.models,
        others.campaign.version.memory,
    ), "to the bit"
    told = sum(known(done.campaign.members[d].survey).bytes_up for d in UNLABELLED)
    assert (
        done.records[0].bytes_up == others.records[0].bytes_up + told > others.records[0].bytes_up
    )


@pytest.mark.parametrize("algorithm", ["distfl", "personal:memory=16"])
@pytest.mark.parametrize("shift", [0.0, 9.0], ids=["like its group", "like no group"])
def test_a_newcomer_is_placed_alike_with_and_without_labels(algorithm: str, shift: float) -> None:
    data = synthetic_fleet(24, shift=2.0)
    spec, seed = read_algorithm(algorithm), 0
    newcomer = min(hold_out(data, 1, seed)[1])
    moved = data.devices[newcomer]
    moved = dataclasses.replace(
        moved, train_x=moved.train_x + np.float32(shift), test_x=moved.test_x + np.float32(shift)
    )
    data = dataclasses.replace(data, devices={**data.devices, newcomer: moved})
    objective = objective_for_fleet(data, spec, seed)
    places = {}
    for labels in ("none", "1", "all"):
        settings = SimulationSettings(spec, 2, seed=seed, newcomers=1, labels=labels, batch_size=16)
        result = simulate(data, settings, objective=objective, engine=EngineOptions("native"))
        placed = known(result.summary.newcomers).placed[newcomer]
        alike = {
            device.group
            for d, device in result.summary.devices.items()
            if data.truth[d] == data.truth[newcomer]
        }
        assert placed.neighbours > 0
        assert shift or alike == {int(placed.group)}
        places[labels] = placed
    assert places["none"] == places["all"]
    assert (places["all"].nearer == 1) == bool(shift)
    assert "initial" not in {placed.group for placed in places.values()}


@pytest.mark.full
def test_one_that_no_round_has_drawn_is_placed_by_its_inputs_in_either_simulation() -> None:
    data = synthetic_fleet(24, shift=2.0).only(f"d{i}" for i in range(4, 20))
    settings = SimulationSettings(read_algorithm("distfl"), 1, cohort=12, batch_size=16)
    fast, real = (
        simulate(data, settings, engine=EngineOptions(backend)).summary
        for backend in ("eager", "messages")
    )
    places = [device.placed for device in fast.devices.values() if device.placed]
    assert len(places) == 4
    assert all(placed.neighbours == 5 for placed in places)
    assert fast.devices == real.devices


@pytest.mark.full
@pytest.mark.parametrize(
    "algorithm",
    [
        "distfl",
        "personal:memory=16",
        "fedavg+none",
        "ifca:k=2",
        "lg-net+distfl",
        "dbe+distfl",
        "individual",
    ],
)
def test_messages_place_it_in_the_same_group_and_give_it_the_same_model(algorithm: str) -> None:
    data = fleet().only(["d0", *(f"d{i}" for i in range(10, 18))])
    fast, real = (
        run(data, algorithm, EngineOptions(backend), 2).summary for backend in ("eager", "messages")
    )
    assert fast.devices["d0"].placed == real.devices["d0"].placed
    for device_id, device in fast.devices.items():
        assert (device.group, device.accuracy, device.personal_model) == (
            real.devices[device_id].group,
            real.devices[device_id].accuracy,
            real.devices[device_id].personal_model,
        )


def test_where_every_device_is_its_own_group_it_is_in_none() -> None:
    device = run(fleet().only(["d0", "d1", "d2"]), "individual", rounds=1).summary.devices["d0"]
    assert (device.group, device.placed) == (None, None)
    assert device.accuracy is not None


def test_a_device_without_a_single_window_is_in_the_largest_group() -> None:
    data = fleet()
    empty = dataclasses.replace(data.devices["d0"], unlabelled_x=data.devices["d0"].train_x)
    placed = (
        run(dataclasses.replace(data, devices={**data.devices, "d0": empty}))
        .summary.devices["d0"]
        .placed
    )
    assert placed is not None
    assert (placed.neighbours, placed.sure) == (0, 0.5)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["native", "batched"])
def test_a_run_that_goes_on_from_a_checkpoint_knows_where_they_belong(
    backend: BackendName, tmp_path: Path
) -> None:
    data = fleet()
    engine = EngineOptions(
        backend, checkpoint=tmp_path, device="cpu" if backend == "batched" else ""
    )
    whole = run(data, engine=msgspec.structs.replace(engine, checkpoint=None))

    class Interrupted(Exception):
        pass

    def interrupt(progress: object) -> None:
        if getattr(progress, "trained", 0) == 2:
            raise Interrupted

    settings = SimulationSettings(read_algorithm("distfl"), 3, batch_size=16)
    with pytest.raises(Interrupted):
        simulate(data, settings, interrupt, engine=engine)
    done = simulate(data, settings, engine=engine)
    assert done.fleet == whole.fleet
    assert done.records == whole.records


def test_a_cohort_is_drawn_of_those_that_can_train() -> None:
    data = fleet().only(["d0", "d1", "d2"])
    settings = SimulationSettings(read_algorithm("distfl"), 1, cohort=3)
    with pytest.raises(
        ConfigError, match="cohort must be at most 2, the devices that can train, got 3"
    ):
        simulate(data, settings)


def test_folders_hold_what_has_no_labels(tmp_path: Path) -> None:
    data = fleet().only(["d0", "d1", "d2"])
    for device_id in data.devices:
        write_device_folder(data, device_id, tmp_path / device_id)
    (tmp_path / "d0" / "train.npz").unlink()
    read = load_data(str(tmp_path))
    assert (read.devices["d0"].num_train, read.devices["d0"].num_test) == (0, 12)
    np.testing.assert_array_equal(read.devices["d0"].unlabelled_x, data.devices["d0"].unlabelled_x)
    assert len(read.sample()[1]) == 40, "a graph is tried with windows of a device that has labels"
    placed = [run(fleet, rounds=1).summary.devices["d0"].placed for fleet in (read, data)]
    assert placed[0] == placed[1] == Placed("0", 1.0, 2, 0.5)
