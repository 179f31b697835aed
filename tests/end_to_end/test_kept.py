"""A run with `personal` ends: every device keeps a model of its own, and the summary says which,
unless it may not be told."""

import errno
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.training import TrainingSettings
from aggregator.fleet import reconcile
from algorithms.composition import read_algorithm
from algorithms.core.probe import make_probe
from algorithms.objectives.supervised import Supervised
from edge_client.core.ports import Current
from edge_client.models.kept import KeptModels
from edge_client.storage.state import DeviceState
from edge_client.work.executor import PlanResult
from export.bundle import capture_graphs
from simulation.datasets.windows import FleetData
from simulation.engine.options import EngineOptions
from simulation.local.broker import EmbeddedBroker
from simulation.objective import objective_for_fleet
from simulation.settings import BackendName, SimulationSettings
from simulation.simulate import simulate
from tests.end_to_end.agents import devices
from tests.end_to_end.boards import Board, aggregator
from tests.support.bundles import pack_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.arrays import names
from wire.arrays.tensors import OWN_FILES, Tensors, decode_tensors
from wire.bundle import Bundle, unpack
from wire.links.mqtt import BrokerAddress
from wire.messages import Metrics, Plan, Policy
from wire.topics import Topics

pytestmark = pytest.mark.full

ALGORITHM = "fedavg+personal:memory=16"
CANDIDATES = read_algorithm(ALGORITHM).candidates


@pytest.mark.parametrize("backend", ["native", "messages"])
def test_a_simulation_says_what_every_device_keeps_and_why(backend: BackendName) -> None:
    data = synthetic_fleet(3)
    done = simulate(
        data,
        SimulationSettings(read_algorithm(ALGORITHM), 1, batch_size=8),
        engine=EngineOptions(backend),
    )
    summary = done.summary
    chosen = {d: device.personal_model for d, device in summary.devices.items()}
    reported = {d: choice for d, choice in chosen.items() if choice is not None}
    assert sorted(reported) == sorted(data.devices)
    for choice in reported.values():
        assert choice.loss is not None
        assert {choice.candidate, *choice.others} == set(CANDIDATES)
        assert 3 <= choice.windows <= 16, (
            "a quarter of 40 windows is held out, and some of them are remembered"
        )
        assert all(0 <= loss < 7 for loss in (choice.loss, *choice.others.values()))
    assert summary.personal_models is not None
    assert summary.personal_models.not_told == 0
    assert list(summary.personal_models.candidates) == list(CANDIDATES)
    assert sum(summary.personal_models.candidates.values()) == 3
    for device in summary.devices.values():
        assert device.accuracy is not None, "the model that is kept is tested"


def test_with_a_privacy_mechanism_nothing_is_told() -> None:
    algorithm = read_algorithm(f"{ALGORITHM}+local-gaussian:noise_multiplier=0.01+none")
    summary = simulate(synthetic_fleet(3), SimulationSettings(algorithm, 1, batch_size=8)).summary
    assert [device.personal_model for device in summary.devices.values()] == [None] * 3
    assert summary.personal_models is not None
    assert summary.personal_models.not_told == 3
    assert msgspec.to_builtins(summary)["devices"]["d0"]["personal_model"] is None


def test_a_device_whose_policy_forbids_it_does_not_tell_and_keeps_a_model_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "REST_S", 1.0)
    policies = {
        "d0": Policy(tell_classes=True),
        "d1": Policy(min_windows=2),
        "d2": Policy(max_clip_norm=1.0),
    }
    board = run_on_devices(synthetic_fleet(3, num_windows=24), policies, tmp_path)
    summary, final = board.summary, board.records[-1]
    assert (final.phase, sorted(final.evaluated)) == ("evaluating", ["d0", "d1", "d2"]), (
        "all have carried out the last plan"
    )
    assert {d: device.personal_model is not None for d, device in summary.devices.items()} == {
        "d0": True,
        "d1": False,
        "d2": False,
    }
    assert summary.personal_models is not None
    assert summary.personal_models.not_told == 2
    models = {d: board.device(d).personal_model for d in policies}
    assert models["d1"] is models["d2"] is None
    assert models["d0"] == (board.campaign.name, summary.devices["d0"].personal_model)
    shares = [float(c.partition("weight ")[2].rstrip(")") or 0) for c in CANDIDATES]
    for device_id in policies:
        private = own(tmp_path / device_id, board)
        assert any(np.isclose(private["personal/memory/share"], share) for share in shares), (
            "it has chosen"
        )
        assert np.abs(private["personal/memory/keys"]).max() > 0, "and remembers its windows"
        assert names.part(private, names.PERSONAL), "and has a model of its own"


def test_an_owner_with_too_few_windows_or_without_scores_has_a_model_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "REST_S", 1.0)
    data = synthetic_fleet(4, num_windows=24)
    tested = replace(
        data.devices["d1"], test_x=data.devices["d1"].train_x, test_y=data.devices["d1"].train_y
    )
    data = replace(data, devices={**data.devices, "d1": tested})
    policies = {
        "d0": Policy(),
        "d1": Policy(min_windows=20),
        "d2": Policy(unreported=("choose",)),
        "d3": Policy(min_windows=50),
    }
    board = run_on_devices(data, policies, tmp_path)
    summary, (training, final) = board.summary, board.records[-2:]
    assert (training.phase, sorted(training.evaluated)) == ("training", ["d0", "d1", "d2"]), (
        "d3 has too few windows to report training"
    )
    assert (final.phase, sorted(final.evaluated)) == ("evaluating", sorted(policies)), (
        "all have carried out the last plan"
    )
    assert {d: met.num_examples for d, met in final.evaluated.items()} == {
        "d0": 12,
        "d1": 24,
        "d2": 12,
        "d3": 0,
    }
    assert final.trained == Metrics(), (
        "the loss of training of which nothing is reported stays on the device"
    )
    assert [d for d, device in summary.devices.items() if device.personal_model] == ["d0"]
    for device_id in policies:
        assert names.part(own(tmp_path / device_id, board), names.PERSONAL), device_id


def test_a_device_that_comes_after_the_end_chooses_too_and_all_choose_anew_after_a_rollback(
    tmp_path: Path,
) -> None:
    data = synthetic_fleet(3, num_windows=24)
    early, late = (
        replace(data, devices={d: data.devices[d] for d in ids}) for ids in (("d0", "d1"), ("d2",))
    )
    objective, bundle, settings = prepared(data, min_devices=2, keep_models=2)
    topics, probe = Topics("f"), make_probe(objective.model, data.window.shape)
    with EmbeddedBroker() as broker:
        address = BrokerAddress.parse(broker.url, None, None, None)
        with aggregator(address, topics) as board:
            board.start(settings, bundle, probe)
            with devices(address, topics, early, tmp_path, lambda _: {}):
                board.finish()
                assert sorted(board.campaign.updates) == ["d0", "d1"]
                with devices(address, topics, late, tmp_path, lambda _: {}):
                    board.run(lambda: in_use(tmp_path / "d2", board))
                    assert sorted(board.records[-1].personal_models) == ["d0", "d1", "d2"]
                    trained = board.campaign.models
                    board.roll_back(0)
                    assert board.campaign.models != trained
                    assert board.records[-1].personal_models == {}
                    board.run(
                        lambda: (
                            all(in_use(tmp_path / d, board) for d in data.devices)
                            and len(board.records[-1].personal_models) == 3
                        )
                    )
    assert sorted(board.records[-1].personal_models) == ["d0", "d1", "d2"]
    assert known(board.device("d2").personal_model).model == board.records[-1].personal_models["d2"]


@pytest.mark.parametrize(
    "is_damaged", [False, True], ids=["the folder is gone", "a bit is flipped"]
)
def test_a_device_that_has_lost_what_it_kept_chooses_again_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    monkeypatch.setattr(reconcile, "REST_S", 1.0)
    data = synthetic_fleet(3, num_windows=24)
    objective, bundle, settings = prepared(data, min_devices=3)
    topics, probe = Topics("f"), make_probe(objective.model, data.window.shape)
    with EmbeddedBroker() as broker:
        address = BrokerAddress.parse(broker.url, None, None, None)
        with aggregator(address, topics) as board:
            board.start(settings, bundle, probe)
            with devices(address, topics, data, tmp_path, lambda _: {}):
                board.run(lambda: all(in_use(tmp_path / d, board) for d in data.devices))
            if is_damaged:
                (kept,) = DeviceState(tmp_path / "d0").load().personal_models
                path = tmp_path / "d0" / "blobs" / kept.tensors
                path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
            else:
                shutil.rmtree(tmp_path / "d0")
            others = {d: board.campaign.updates[d] for d in ("d1", "d2")}
            with devices(address, topics, data, tmp_path, lambda _: {}):
                lost = tmp_path / "d0"
                board.run(lambda: in_use(lost, board) and has_own(lost, board))
    assert {d: board.campaign.updates[d] for d in others} == others, (
        "the others are asked for nothing"
    )
    assert sorted(board.records[-1].personal_models) == ["d0", "d1", "d2"]
    assert known(board.device("d0").personal_model).model == board.records[-1].personal_models["d0"]


def test_a_device_whose_disk_was_full_when_it_chose_is_asked_again_when_there_may_be_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "REST_S", 1.0)
    data = synthetic_fleet(2, num_windows=24)
    objective, bundle, settings = prepared(data, min_devices=2, deadline_s=4.0, grace_s=1.0)
    topics, probe, full, put = (
        Topics("f"),
        make_probe(objective.model, data.window.shape),
        list[str](),
        KeptModels.put,
    )

    def on_a_full_disk(self: KeptModels, plan: Plan, result: PlanResult) -> None:
        if plan.device_id == "d1" and len(full) < 2:
            full.append(plan.device_id)
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, plan, result)

    monkeypatch.setattr(KeptModels, "put", on_a_full_disk)
    with EmbeddedBroker() as broker:
        address = BrokerAddress.parse(broker.url, None, None, None)
        with (
            aggregator(address, topics) as board,
            devices(address, topics, data, tmp_path, lambda _: {}),
        ):
            board.start(settings, bundle, probe)
            board.run(lambda: board.campaign.phase == "finished" and len(full) > 0)
            assert sorted(board.campaign.updates) == ["d0"]
            board.run(lambda: in_use(tmp_path / "d1", board))
    assert (len(full), sorted(board.records[-1].personal_models)) == (2, ["d0", "d1"])


def has_own(folder: Path, board: Board) -> bool:
    """Return True if the device holds a personal model of a model of the campaign."""
    state = DeviceState(folder)
    return any(
        kept.model in board.campaign.models.values() and state.blob(kept.tensors)
        for kept in state.load().personal_models
    )


def in_use(folder: Path, board: Board) -> bool:
    """Return True if the device answers by the campaign's model, with its personal model of it."""
    path = folder / "current" / "model.json"
    if not path.exists():
        return False
    current = msgspec.json.decode(path.read_bytes(), type=Current)
    return current.model in board.campaign.models.values() and bool(current.personal_model)


def own(folder: Path, board: Board) -> Tensors:
    """Return the device's personal model of the campaign's model."""
    state, campaign = DeviceState(folder), board.campaign
    (kept,) = state.load().personal_models
    assert kept.run_id == campaign.settings.run_id
    assert kept.model in campaign.models.values()
    return decode_tensors(known(state.blob(kept.tensors)), OWN_FILES)[0]


def run_on_devices(data: FleetData, policies: Mapping[str, Policy], folder: Path) -> Board:
    """Run a campaign on edge clients with these policies, over a real broker, until each has a
    personal model."""
    objective, bundle, settings = prepared(data, min_devices=3)
    topics, probe = Topics("f"), make_probe(objective.model, data.window.shape)
    with EmbeddedBroker() as broker:
        address = BrokerAddress.parse(broker.url, None, None, None)
        with (
            aggregator(address, topics) as board,
            devices(address, topics, data, folder, lambda d: {"policy": policies[d]}),
        ):
            board.run(lambda: len(board.fleet.devices) == len(policies))
            board.start(settings, bundle, probe)
            board.run(lambda: all(in_use(folder / d, board) for d in policies))
    return board


@cache
def exported() -> tuple[Supervised, Bundle]:
    """Return the objective and the bundle of devices with such data."""
    data = synthetic_fleet(3, num_windows=24)
    objective = objective_for_fleet(data, read_algorithm(ALGORITHM), 0)
    return objective, unpack(
        pack_graphs(capture_graphs(objective, data.window.shape), data, objective)
    )


def prepared(data: FleetData, **others: Any) -> tuple[Supervised, Bundle, RunSettings]:
    """Return the objective, the bundle and the settings of a run of these devices."""
    algorithm, (objective, bundle) = read_algorithm(ALGORITHM), exported()
    training = TrainingSettings(algorithm=algorithm, rounds=1, batch_size=8)
    named = {
        "run_id": "kept",
        "data": data.name,
        "deadline_s": 120.0,
        "grace_s": 60.0,
        **ADMIT_ALL,
        **others,
    }
    return objective, bundle, RunSettings.for_bundle(bundle, training, **named)
