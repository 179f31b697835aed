"""Real processes and a real broker; each of them stopped in the middle. What comes out is what
would have come out anyway.

Training is deterministic, so 'the right result' is exact: the models are those of a run that
nothing disturbed.
"""

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.fleet.records import Campaign
from algorithms.composition import read_algorithm
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from simulation.local.fleet import stop_processes
from tests.end_to_end.field import ROUNDS, Field, final_tests, groups, same_models
from tests.support.bundles import Exported
from tests.support.waiting import wait_until


@pytest.fixture
def running(
    data: FleetData, exported: Exported, tmp_path: Path, embedded_broker: EmbeddedBroker
) -> Iterator[Field]:
    field = Field(data, exported, tmp_path, embedded_broker.url)
    yield field
    field.stop()


@pytest.mark.full
def test_aggregator_killed_in_mid_round(running: Field, undisturbed: Campaign) -> None:
    with running.edges():
        process = running.serve()
        for number in (2, 4):
            running.wait_for_round(number)
            process.kill()
            process.wait()
            process = running.serve()
        same_models(running.finish(), undisturbed)


@pytest.mark.full
def test_broker_restarted_in_mid_round(
    running: Field, undisturbed: Campaign, embedded_broker: EmbeddedBroker
) -> None:
    with running.edges() as edges:
        running.serve()
        running.wait_for_round(2)
        embedded_broker.stop()
        wait_until(
            lambda: all("Connection lost" in edges.log(d).read_text() for d in edges.processes)
        )
        embedded_broker.start()
        same_models(running.finish(), undisturbed)


@pytest.mark.full
def test_edge_process_killed_and_restarted(running: Field, undisturbed: Campaign) -> None:
    with running.edges() as edges:
        running.serve()
        for number, device_id in ((2, "d1"), (3, "d0")):
            running.wait_for_round(number)
            edges.processes[device_id].kill()
            edges.processes[device_id].wait()
            edges.start(device_id)
        same_models(running.finish(), undisturbed)


@pytest.mark.full
def test_the_simulation_gives_the_same_groups_and_nearly_the_same_accuracy(
    data: FleetData, undisturbed: Campaign
) -> None:
    from simulation.settings import SimulationSettings
    from simulation.simulate import simulate

    summary = simulate(
        data, SimulationSettings(read_algorithm("distfl"), ROUNDS, local_epochs=30)
    ).summary
    found = final_tests(undisturbed).values()
    device = sum(m.num_correct for m in found) / sum(m.num_examples for m in found)
    assert summary.accuracy.mean == pytest.approx(device, abs=0.06)
    assert {d: str(v.group) for d, v in summary.devices.items()} == groups(undisturbed)


@pytest.mark.full
def test_an_edge_process_loads_no_torch_and_the_api_answers(running: Field) -> None:
    running.epochs = 1
    with running.edges() as edges:
        running.serve()
        running.finish()
        assert not edges.torch_loaded()
        assert running.get("/health")["status"] == "ok"
        assert [r["round"] for r in running.get("/rounds")] == list(range(1, ROUNDS + 2))
        devices = running.get("/devices")["devices"]
        assert [d["id"] for d in devices] == ["d0", "d1", "d2"]
        assert all(d["runtime"] == "onnxruntime" for d in devices)
        assert running.get("/summary")["groups"]["count"] == 1
        from wire.arrays.tensors import decode_tensors

        with urllib.request.urlopen(
            f"http://127.0.0.1:{running.port}/models/0", timeout=10
        ) as response:
            tensors, _ = decode_tensors(response.read())
        assert "shared/head.weight" in tensors
        with pytest.raises(urllib.error.HTTPError, match="404"):
            running.get("/models/99")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            running.get("/views/99")


@pytest.mark.full
def test_another_seed_for_a_run_that_exists_is_refused(running: Field) -> None:
    first = running.serve()
    running.wait(lambda run: run["phase"] == "waiting")
    stop_processes([first])
    second = running.serve("--seed", "7")
    assert second.wait(60) == 2
    assert (
        "was started with other settings (seed 0, not 7)"
        in (running.folder / "aggregator.log").read_text()
    )


@pytest.mark.full
def test_a_finished_run_trains_further_from_what_it_has_when_it_is_given_more_rounds(
    running: Field,
) -> None:
    running.epochs = 2
    with running.edges():
        first = running.serve()
        running.wait(lambda run: run["phase"] == "finished")
        stop_processes([first])
        second = running.serve("--rounds", str(ROUNDS + 2), "--lr", "0.02")
        running.wait(
            lambda run: run["phase"] == "finished" and run["settings"]["rounds"] == ROUNDS + 2
        )
        rounds = running.get("/rounds")
        stop_processes([second])
    phases = [closed["phase"] for closed in rounds]
    assert phases == [*["training"] * ROUNDS, "evaluating", "training", "training", "evaluating"]
    assert [closed["devices"] for closed in rounds] == [len(running.data.devices)] * len(rounds)
    before, after = rounds[ROUNDS]["accuracy"]["mean"], rounds[ROUNDS + 1]["accuracy"]["mean"]
    assert after == pytest.approx(before), (
        "the first round of the extension met the models that the run had ended with"
    )


@pytest.mark.full
def test_sigterm_ends_the_aggregator_cleanly(running: Field) -> None:
    process = running.serve()
    running.wait(lambda run: run["phase"] == "waiting")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 0
