"""Kotlin phones with ExecuTorch and Python clients with onnxruntime in one cohort: one aggregator,
real Mosquitto, real processes.

Both draw the same batches from a plan's seed, so that a cohort with phones must come to the models
that Python clients alone come to, but for rounding.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.fleet.records import Campaign
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from aggregator.view.round_record import RoundRecord
from algorithms.composition import read_algorithm
from simulation.datasets.windows import FleetData
from simulation.local.broker import free_port
from simulation.local.fleet import LocalFleet, start_process, stop_processes
from simulation.settings import SimulationSettings
from simulation.simulate import simulate
from tests.android.bridge import run_build
from tests.end_to_end.field import groups
from tests.support.bundles import write_bundle
from tests.support.fleets import synthetic_fleet
from tests.support.waiting import wait_until
from wire.arrays.tensors import Tensors, decode_tensors

pytestmark = pytest.mark.full

ROUNDS = 3
PHONES = ["d1", "d2"]
PATIENCE_S = 120.0
LONG = 200
"""Epochs of a training that takes long enough to be killed in."""
KILLS, JOB_S = 30, 8.0
WORK_WINDOWS, WORK_EPOCHS = 500, 1000
"""A training of more than five jobs: some fifty thousand steps."""


@dataclass
class Outcome:
    """A finished campaign, the records of its rounds, its models by group."""

    campaign: Campaign
    records: list[RoundRecord]
    models: dict[str, Tensors]


@dataclass
class Run:
    """One run of `shoal serve` with the devices of `data`."""

    data: FleetData
    bundle: Path
    algorithm: str
    folder: Path
    broker: str
    epochs: int = 1
    rounds: int = ROUNDS
    phone_options: tuple[str, ...] = ()
    patience_s: float = PATIENCE_S

    @property
    def fleet(self) -> str:
        return self.folder.name

    def edges(self, phones: list[str]) -> LocalFleet:
        trust = self.bundle / "trust.pem"
        return LocalFleet(
            self.data,
            self.folder / "devices",
            self.broker,
            self.fleet,
            trust,
            phones,
            self.phone_options,
        )

    def serve(self) -> Any:
        options = {
            "--folder": self.folder / "run",
            "--bundle": self.bundle,
            "--broker": self.broker,
            "--fleet": self.fleet,
        }
        options |= {
            "--rounds": self.rounds,
            "--min-devices": len(self.data.devices),
            "--local-epochs": self.epochs,
            "--batch-size": 8,
        }
        options |= {"--algorithm": self.algorithm, "--port": free_port()}
        arguments = [part for name, value in options.items() for part in (name, str(value))]
        return start_process(
            ["-m", "shoal", "serve", "--no-stay", *arguments], self.folder / "aggregator.log"
        )

    def ran(self) -> Outcome:
        with closing(FleetStore(sqlite_url(self.folder / "run" / "shoal.db"))) as store:
            campaign, records = store.load().campaigns["run-1"], store.rounds("run-1")
        blobs = BlobFolder(self.folder / "run" / "blobs" / "run-1")
        models = {
            group: decode_tensors(blobs.get(name))[0] for group, name in campaign.models.items()
        }
        return Outcome(campaign, records, models)

    def through(
        self, phones: list[str], disturb: Callable[[LocalFleet, Any], None] | None = None
    ) -> Outcome:
        """Serve to the end."""
        with self.edges(phones) as edges:
            serving = self.serve()
            try:
                if disturb is not None:
                    disturb(edges, serving)
                assert serving.wait(self.patience_s) == 0, self.logs(edges)
            finally:
                stop_processes([serving])
        return self.ran()

    def logs(self, edges: LocalFleet) -> str:
        return "\n".join(
            path.read_text()[-2000:]
            for path in {self.folder / "aggregator.log", *map(edges.log, edges.processes)}
        )


@pytest.fixture(scope="module", autouse=True)
def phones_are_built() -> None:
    run_build("phone")


@pytest.fixture(scope="module")
def data() -> FleetData:
    return synthetic_fleet(num_devices=4, shift=3.0, num_windows=41)


def exported(data: FleetData, algorithm: str, folder: Path) -> Path:
    folder.mkdir()
    write_bundle(folder, data, read_algorithm(algorithm), runtimes=("onnx", "executorch"))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "algorithm",
    [
        "distfl",
        "dbe",
        "cgau:units=8",
        "feddisk:preparations=2:local_checks=1:local_epochs=1:ratio_epochs=1:density_units=4",
        "fedavg+ifca",
    ],
)
def test_a_cohort_with_phones_comes_to_the_models_of_python_clients_alone(
    algorithm: str,
    data: FleetData,
    tmp_path: Path,
    mosquitto: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = exported(data, algorithm, tmp_path / "bundle")
    options: tuple[str, ...] = ()
    if algorithm.startswith("feddisk"):  # its ratios are measured with labels
        (tmp_path / "policy.toml").write_text("tell_classes = true\n")
        (tmp_path / "policy.json").write_text('{"tell_classes": true}')
        monkeypatch.setenv("SHOAL_EDGE_POLICY", str(tmp_path / "policy.toml"))
        options = ("--policy", str(tmp_path / "policy.json"))
    mixed = Run(
        data, bundle, algorithm, tmp_path / "mixed", mosquitto, phone_options=options
    ).through(PHONES)
    alone = Run(data, bundle, algorithm, tmp_path / "alone", mosquitto).through([])
    assert groups(mixed.campaign) == groups(alone.campaign)
    assert [record.groups for record in mixed.records] == [
        record.groups for record in alone.records
    ]
    assert mixed.models.keys() == alone.models.keys()
    for group, model in alone.models.items():
        for name, expected in model.items():
            scale = max(1e-2, float(np.abs(expected).max()))
            assert float(np.abs(mixed.models[group][name] - expected).max()) < 1e-3 * scale, (
                group,
                name,
            )
    for ours, theirs in zip(mixed.records, alone.records, strict=True):
        assert ours.trained.num_examples == theirs.trained.num_examples
        assert all(
            abs(m.num_correct - theirs.evaluated[d].num_correct) <= 1
            for d, m in ours.evaluated.items()
        )


def session(run: Run, device_id: str) -> dict[str, Any]:
    """Return the stored memory of a phone."""
    try:
        text = (run.folder / "devices" / device_id / "state" / "session.json").read_text()
        kept: dict[str, Any] = json.loads(text.partition("\n")[0])  # the second line is its hash
    except FileNotFoundError:
        return {}
    return kept


def reached(run: Run, device_id: str, round: int, stage: str) -> bool:
    """Return True if a phone is as far as this with this round, or has a later one."""
    kept = session(run, device_id)
    at = (kept.get("plan") or {}).get("round", 0)
    return bool(at > round or (at == round and kept["stage"] == stage))


def wait_for(condition: Callable[[], object], event: str) -> None:
    wait_until(condition, PATIENCE_S, lambda: f"never: {event}")


def killed(edges: LocalFleet, device_id: str) -> None:
    edges.processes[device_id].kill()
    edges.processes[device_id].wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_phone_killed_in_training_and_in_upload_resumes_and_counts_once(
    tmp_path: Path, mosquitto: str
) -> None:
    data = synthetic_fleet(num_devices=2, num_windows=40)
    bundle = exported(data, "fedavg", tmp_path / "bundle")
    run = Run(data, bundle, "fedavg", tmp_path / "disturbed", mosquitto, epochs=LONG)
    happened = []

    def disturb(edges: LocalFleet, serving: Any) -> None:
        # in training of round 1: the plan is there and its blobs, the update is not
        wait_for(lambda: reached(run, "d1", 1, "working"), "a plan for the phone")
        time.sleep(0.3)
        wait_for(
            lambda: (run.folder / "devices" / "d1" / "state" / "blobs").exists(), "the plan's blobs"
        )
        killed(edges, "d1")
        kept = session(run, "d1")
        happened.append(("training", kept["stage"] == "working" and kept["tries"] == 1))
        edges.start("d1")
        # in upload of a later round: the aggregator is held, so that the finished update has no
        # answer
        wait_for(lambda: reached(run, "d1", 1, "answered"), "an answer to the first update")
        wait_for(lambda: reached(run, "d1", 2, "working"), "a plan for the second round")
        os.kill(serving.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: session(run, "d1").get("stage") == "pending", "a finished update")
            killed(edges, "d1")
            happened.append(
                ("upload", (run.folder / "devices" / "d1" / "state" / "update").exists())
            )
            edges.start("d1")
            wait_for(
                lambda: (
                    "Connected: device=d1"
                    in edges.log("d1").read_text().rpartition("Plan carried out")[2]
                ),
                "the phone's return",
            )
            time.sleep(0.5)
        finally:
            os.kill(serving.pid, signal.SIGCONT)

    ran = run.through(["d1"], disturb)
    assert happened == [("training", True), ("upload", True)]
    plain = Run(data, bundle, "fedavg", tmp_path / "undisturbed", mosquitto, epochs=LONG).through(
        ["d1"]
    )
    assert ran.campaign.models == plain.campaign.models
    for ours, theirs in zip(ran.records, plain.records, strict=True):
        assert (ours.trained, ours.evaluated, ours.groups) == (
            theirs.trained,
            theirs.evaluated,
            theirs.groups,
        )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_plan_of_five_jobs_killed_at_random_thirty_times_ends_counts_once_and_has_the_same_bits(
    tmp_path: Path, mosquitto: str
) -> None:
    """Forty minutes of work, sixty times as fast: jobs of 8 s in place of 8 minutes, and a
    checkpoint every 0.5 s in place of 30."""
    data = synthetic_fleet(num_devices=2, num_windows=WORK_WINDOWS)
    bundle = exported(data, "fedavg", tmp_path / "bundle")
    options: dict[str, Any] = {"epochs": WORK_EPOCHS, "rounds": 1, "patience_s": 900.0}
    paced = ("--job-seconds", str(JOB_S), "--checkpoint-seconds", "0.5")
    run = Run(
        data, bundle, "fedavg", tmp_path / "disturbed", mosquitto, phone_options=paced, **options
    )
    drawing, alive = np.random.default_rng(5), []

    def disturb(edges: LocalFleet, _serving: Any) -> None:
        wait_for(lambda: reached(run, "d1", 1, "working"), "a plan for the phone")
        for _ in range(KILLS):
            alive.append(drawing.uniform(0.5, 3.5))
            time.sleep(alive[-1])
            assert session(run, "d1")["stage"] == "working", (
                "the plan was over before its last kill"
            )
            killed(edges, "d1")
            edges.start("d1")

    ran = run.through(["d1"], disturb)
    assert len(alive) == KILLS
    plain = Run(data, bundle, "fedavg", tmp_path / "undisturbed", mosquitto, **options)
    began_s = time.monotonic()
    expected = plain.through(["d1"])
    took_s = time.monotonic() - began_s
    print(f"{KILLS} kills, {sum(alive):.0f} s between them; undisturbed {took_s:.0f} s")
    assert took_s > 5 * JOB_S, "the work is no five jobs"
    assert ran.campaign.models == expected.campaign.models
    assert [(r.trained, r.evaluated, r.groups) for r in ran.records] == [
        (r.trained, r.evaluated, r.groups) for r in expected.records
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_phone_and_a_board_learn_by_a_method_of_a_file_outside_of_the_repository(
    tmp_path: Path, mosquitto: str
) -> None:
    """Nothing of the method is on the devices but the bundle: mixtures of windows, whose shares a
    device draws, and a head of its own."""
    file = tmp_path / "method.py"
    shutil.copyfile(Path(__file__).parents[2] / "examples" / "mixup.py", file)
    data, algorithm = synthetic_fleet(num_devices=2, num_windows=41), f"{file}:MixupHead:lr=0.002"
    bundle = exported(data, algorithm, tmp_path / "bundle")
    mixed = Run(data, bundle, algorithm, tmp_path / "mixed", mosquitto).through(["d1"])
    simulated = simulate(data, SimulationSettings(read_algorithm(algorithm), ROUNDS, batch_size=8))
    assert mixed.campaign.models.keys() == simulated.campaign.models.keys()
    for group, name in simulated.campaign.models.items():
        for key, expected in decode_tensors(simulated.blobs.get(name))[0].items():
            scale = max(1e-2, float(np.abs(expected).max()))
            np.testing.assert_allclose(
                mixed.models[group][key], expected, rtol=0, atol=1e-3 * scale, err_msg=key
            )
    for ours, theirs in zip(mixed.records, simulated.records, strict=True):
        assert ours.evaluated.keys() == theirs.evaluated.keys() == set(data.devices)
        for device_id, metrics in ours.evaluated.items():
            assert metrics.loss_sum == pytest.approx(theirs.evaluated[device_id].loss_sum, rel=1e-3)
