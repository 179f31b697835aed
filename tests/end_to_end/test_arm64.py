"""An emulated board with an ARM processor beside a device of this machine, from enrolment on."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from simulation.local.fleet import start_program, write_device_folder
from tests.end_to_end.fleet import Fleet, find_mosquitto
from tests.support.arm64 import python_of_board
from tests.support.bundles import Exported

ROUNDS = 2


@pytest.fixture
def served(tmp_path: Path, exported: Exported, data: FleetData) -> Iterator[Fleet]:
    served = Fleet(tmp_path, find_mosquitto())
    served.init(exported.folder)
    served.start_broker()
    served.serve(
        *("--algorithm", "fedavg", "--rounds", ROUNDS, "--min-devices", 2, "--local-epochs", 10),
        *("--release", "auto", "--rollout-steps", "1", "--rollout-patience", 60),
    )
    for name in ("d0", "d1"):
        write_device_folder(data, name, tmp_path / name)
    yield served
    served.close()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_it_enrols_trains_loses_its_power_and_predicts_as_others_do(
    served: Fleet, data: FleetData, setup_script: dict[str, Any]
) -> None:
    board = [*python_of_board(setup_script), "-m", "edge_client.main"]

    def on_board(*words: str) -> str:
        process = subprocess.run(
            [*board, *words], cwd=served.folder, capture_output=True, text=True, timeout=120
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    tokens = [served.run("shoal", "enrol", "token", "runs/served").strip() for _ in range(2)]
    served.run(
        "shoal-edge", "enrol", served.url, tokens[0], "--state", "state-d0", "--device", "d0"
    )
    on_board("enrol", served.url, tokens[1], "--state", "state-d1", "--device", "d1")
    served.start(
        "d0",
        "edge_client.main",
        "run",
        "--data",
        served.folder / "d0",
        "--state",
        served.folder / "state-d0",
    )

    def start_board() -> None:
        options = ["--data", str(served.folder / "d1"), "--state", str(served.folder / "state-d1")]
        served.processes["d1"] = start_program([*board, "run", *options], served.folder / "d1.log")

    start_board()
    plan = served.folder / "state-d1" / "session.json"
    served.wait(lambda: '"round":2' in plan.read_text(), 240)
    served.processes["d1"].kill()  # power is cut while it trains
    served.processes["d1"].wait()
    start_board()
    served.wait(lambda: served.get("/run")["phase"] == "finished", 240)
    carried_out = re.findall(r"Plan carried out: device=d1 round=(\d)", served.log("d1"))
    assert carried_out == [str(number) for number in range(1, ROUNDS + 2)]  # one is an evaluation

    def models() -> set[str]:
        states = [DeviceState(served.folder / f"state-{name}") for name in ("d0", "d1")]
        return {current.model if (current := state.current()) else "" for state in states}

    served.wait(lambda: len(models()) == 1 and models() != {""}, 120)
    np.save(served.folder / "x.npy", data.devices["d0"].test_x)
    answers, others = (
        [json.loads(line) for line in text.splitlines()]
        for text in (
            served.run("shoal-edge", "predict", "--state", "state-d0", "x.npy"),
            on_board("predict", "--state", "state-d1", "x.npy"),
        )
    )
    assert [each["class"] for each in answers] == [each["class"] for each in others]
    probabilities, expected = (
        np.array([list(each["probabilities"].values()) for each in lines])
        for lines in (others, answers)
    )
    assert np.allclose(probabilities, expected, atol=1e-4)
