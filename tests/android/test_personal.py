"""Personal models at the end of a run: the Kotlin client on a desktop JVM, the board's client and
eager torch choose alike."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from algorithms.algorithm import SURVEY_INPUTS
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.contract import Work, exchanged
from algorithms.core.keys import NEWCOMER
from algorithms.core.probe import make_probe
from algorithms.objectives.supervised import Supervised
from edge_client.core.ports import Graphs, Windows
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.work.executor import Executor
from export.bundle import capture_graphs
from simulation.datasets.windows import FleetData, for_task
from simulation.engine.graphs.eager import EagerGraphs
from simulation.objective import objective_for_fleet
from tests.android.bridge import host_command
from tests.support.bundles import pack_graphs
from tests.support.fleets import synthetic_fleet
from tests.support.labels import quantities, several_labels, steps
from wire.arrays.tensors import Array, Tensors, decode_tensors, encode_tensors
from wire.bundle import Bundle, unpack
from wire.codec import digest, encode
from wire.messages import Plan, Train

pytestmark = pytest.mark.slow

ALGORITHM = "personal"
KEPT, WINDOWS = "response/choose.choice", "response/choose.windows"
TOLERANCE = 1e-4
TASKS: dict[str, Callable[[FleetData], FleetData]] = {
    "multi-label": several_labels,
    "regression": quantities,
    "sequence": steps,
    "reconstruction": lambda data: for_task(data, "reconstruction"),
}


def unlabelled(windows: Windows, labelled: int) -> Windows:
    """The device with labels for its first so many windows alone."""
    x, y = windows.train_x, windows.train_y
    return replace(windows, train_x=x[:labelled], train_y=y[:labelled], unlabelled_x=x[labelled:])


def deceived(windows: Windows) -> Windows:
    """The device whose labels are those of other classes."""
    return replace(windows, train_y=(windows.train_y + 1) % 3, test_y=(windows.test_y + 1) % 3)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a plan in one client: the tensors of the update, the stored tensors, and its
    answers to its test windows."""

    update: Tensors
    kept: Tensors
    answers: Array


@dataclass(frozen=True)
class Prepared:
    """An algorithm's bundle, its objective, the closing plan, the model and the devices."""

    path: Path
    objective: Supervised
    bundle: Bundle
    model: Tensors
    plan: Plan
    devices: dict[str, Windows]

    def on(self, graphs: Graphs) -> dict[str, Outcome]:
        """Carried out by the Python client over these graphs."""
        made = {}
        for device_id, windows in self.devices.items():
            executor = Executor(self.bundle, graphs, windows)
            result = executor.execute(
                structs.replace(self.plan, device_id=device_id),
                self.model,
                {},
                lambda name: pytest.fail(f"no blob {name}"),
            )
            made[device_id] = Outcome(
                result.tensors,
                result.private,
                executor.predict(self.model, result.private, windows.test_x),
            )
        return made

    def on_the_jvm(self) -> dict[str, Outcome]:
        """Carried out by the Kotlin client over ExecuTorch."""
        folder = self.path.with_name(f"cases of round {self.plan.round}")
        for device_id, windows in self.devices.items():
            case = folder / device_id
            case.mkdir(parents=True)
            (case / "plan.json").write_bytes(
                encode(structs.replace(self.plan, device_id=device_id))
            )
            (case / "model.safetensors").write_bytes(encode_tensors(self.model))
            arrays = {
                name: getattr(windows, name) for name in ("train_x", "train_y", "test_x", "test_y")
            }
            arrays["unlabelled_x"] = windows.unlabelled_x.reshape(-1, *windows.train_x.shape[1:])
            (case / "windows.safetensors").write_bytes(encode_tensors(arrays))
        done = subprocess.run(
            [*host_command("PlansKt"), str(self.path), str(folder)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return {device_id: written(folder / device_id) for device_id in self.devices}


def written(case: Path) -> Outcome:
    """Return the outcome that the Kotlin client wrote."""
    update, kept, answers = (
        decode_tensors((case / f"{name}.safetensors").read_bytes())[0]
        for name in ("update", "kept", "answers")
    )
    return Outcome(update, kept, answers["probabilities"])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Devices with all labels, few, too few to hold any out, wrong ones, one, none, no windows and
    many."""
    data = synthetic_fleet(5, num_windows=60)
    devices = {
        "all": data.devices["d1"],
        "few": unlabelled(data.devices["d2"], 20),
        "fewest": unlabelled(data.devices["d2"], 9),
        "wrong": deceived(data.devices["d3"]),
        "one": unlabelled(data.devices["d4"], 1),
        "none": unlabelled(data.devices["d4"], 0),
        "nothing": replace(unlabelled(data.devices["d4"], 0), unlabelled_x=np.zeros(0, np.float32)),
        "many": synthetic_fleet(2, num_windows=120, seed=5).devices[
            "d1"
        ],  # more than a program takes at once
    }
    return prepare(data, ALGORITHM, devices, tmp_path_factory.mktemp("personal"))


@pytest.fixture(scope="module", params=TASKS)
def in_task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Devices that learn another task than classes, with all labels, few, too few to hold any out,
    and one."""
    data = TASKS[request.param](synthetic_fleet(3, num_windows=60))
    devices = {
        "all": data.devices["d1"],
        "few": unlabelled(data.devices["d2"], 20),
        "fewest": unlabelled(data.devices["d2"], 9),
        "one": unlabelled(data.devices["d0"], 1),
    }
    return prepare(
        data,
        f"{ALGORITHM}:memory=32+{request.param}",
        devices,
        tmp_path_factory.mktemp(request.param),
    )


def prepare(data: FleetData, name: str, devices: dict[str, Windows], folder: Path) -> Prepared:
    """The closing plan of an algorithm after a little training, for these devices."""
    spec = read_algorithm(name)
    objective = objective_for_fleet(data, spec, 0)
    payload = pack_graphs(
        capture_graphs(objective, data.window.shape, ("onnx", "executorch")), data, objective
    )
    path = folder / "device.shoal"
    path.write_bytes(payload)
    bundle, algorithm = unpack(payload), make_algorithm(spec)
    received = exchanged(bundle.initial)
    start = Plan("run", 1, 1, 0, "d0", digest(payload), "0" * 64, (Train(16, 3),), 5, 1e9)
    trained = Executor(bundle, EagerGraphs(objective), data.devices["d0"]).execute(
        start, received, {}, lambda name: pytest.fail(name)
    )
    model = {key: trained.tensors.get(key, value) for key, value in received.items()}
    model |= {
        key: received[key] + trained.tensors[f"delta/{key.removeprefix('shared/')}"]
        for key in received
        if key.startswith("shared/")
    }
    state = algorithm.begin(bundle.initial, make_probe(objective.model, data.window.shape), 0)
    verbs = algorithm.programs(state, Work(16, 5), {NEWCOMER: "0" * 64})["closing"]
    plan = Plan("run", 1, 2, 0, "d0", digest(payload), "0" * 64, verbs, 11, 1e9)
    return Prepared(path, objective, bundle, model, plan, devices)


@pytest.mark.timeout(600)
def test_three_clients_tell_the_same_of_the_inputs_of_a_device_without_labels(
    prepared: Prepared,
) -> None:
    few = {name: prepared.devices[name] for name in ("one", "none", "nothing")}
    asked = replace(
        prepared, plan=structs.replace(prepared.plan, round=3, verbs=(SURVEY_INPUTS,)), devices=few
    )
    board, phone = asked.on(OnnxGraphs(prepared.bundle)), asked.on_the_jvm()
    for device_id, expected in asked.on(EagerGraphs(prepared.objective)).items():
        assert all(key.startswith("response/survey.") for key in expected.update)
        assert bool(expected.update) == (device_id != "nothing"), (
            "a device without a window has nothing to tell"
        )
        for client in (board[device_id], phone[device_id]):
            assert client.update.keys() == expected.update.keys()
            assert not any(key.startswith("personal/") for key in client.kept), (
                "nothing was trained"
            )
            for key, value in expected.update.items():
                np.testing.assert_allclose(
                    client.update[key], value, atol=TOLERANCE, err_msg=f"{device_id} {key}"
                )


@pytest.mark.timeout(600)
def test_three_clients_keep_the_same_candidate_and_answer_alike(prepared: Prepared) -> None:
    eager = kept_alike(prepared)
    assert {np.argmax(outcome.update[KEPT]) for outcome in eager.values()} >= {0, 1}, (
        "the devices keep different candidates"
    )
    fewest = eager["fewest"].update
    assert (int(np.argmax(fewest[KEPT])), int(fewest[WINDOWS])) == (0, 0), (
        "it trains, and holds nothing out"
    )


@pytest.mark.timeout(600)
def test_three_clients_keep_the_same_candidate_in_tasks_without_classes(in_task: Prepared) -> None:
    kept_alike(in_task)


def kept_alike(prepared: Prepared) -> dict[str, Outcome]:
    """Return the personal models of devices in the simulation, after a check that boards and phones
    have the same and answer alike."""
    eager = prepared.on(EagerGraphs(prepared.objective))
    board = prepared.on(OnnxGraphs(prepared.bundle))
    phone = prepared.on_the_jvm()
    for device_id, expected in eager.items():
        assert expected.update[KEPT].sum() == 1
        assert any(key.startswith("personal/") for key in expected.kept)
        for client in (board[device_id], phone[device_id]):
            assert np.array_equal(client.update[KEPT], expected.update[KEPT]), device_id
            assert client.update.keys() == expected.update.keys()
            assert client.kept.keys() == expected.kept.keys()
            scale = max(
                1.0, float(np.abs(expected.answers).max())
            )  # quantities are in units of their own
            assert float(np.abs(client.answers - expected.answers).max()) <= TOLERANCE * scale, (
                device_id
            )
    return eager
