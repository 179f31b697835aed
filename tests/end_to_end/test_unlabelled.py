"""A device without labels in a fleet of real processes: it is placed by its inputs, over kills of
the service, and weighs nothing."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.state import Placed, RunState
from aggregator.core.summary import summarize
from aggregator.core.training import TrainingSettings
from aggregator.storage.engine import sqlite_url
from aggregator.storage.memory import MemoryBlobs, MemoryStore
from aggregator.storage.sql_store import SqlStore
from algorithms.composition import make_algorithm, read_algorithm
from algorithms.core.probe import make_probe
from edge_client.core.ports import Windows
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from simulation.objective import objective_for_fleet
from tests.end_to_end.agents import devices
from tests.end_to_end.boards import aggregator
from tests.end_to_end.field import ROUNDS, Field
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet
from wire.links.mqtt import BrokerAddress
from wire.messages import Policy
from wire.topics import Topics

pytestmark = pytest.mark.full

NO_Y = np.zeros(0, np.int64)
EVERYBODY = Placed("0", 1.0, 4)


def without_labels(windows: Windows) -> Windows:
    return Windows(windows.train_x[:0], NO_Y, windows.test_x, windows.test_y, windows.train_x)


def fleet(unlabelled: str = "d4") -> FleetData:
    """Four devices with labels and one without."""
    data = synthetic_fleet(num_devices=5, num_windows=120)
    return replace(
        data,
        devices={d: without_labels(w) if d == unlabelled else w for d, w in data.devices.items()},
    )


def finished(
    data: FleetData,
    exported: Exported,
    folder: Path,
    broker: EmbeddedBroker,
    kills: tuple[int, ...] = (),
) -> tuple[Field, RunState]:
    """A run over real processes, whose service is killed in these rounds, and its last state."""
    field = Field(data, exported, folder, broker.url)
    try:
        with field.edges():
            time.sleep(6)  # no round begins before everybody is there
            process = field.serve("--min-devices", "4")
            for number in kills:
                field.wait_for_round(number)
                process.kill()
                process.wait()
                process = field.serve("--min-devices", "4")
            state = field.finish()
            (folder / "summary.json").write_text(json.dumps(field.get("/summary")))
            (folder / "devices.json").write_text(json.dumps(field.get("/devices")))
            (folder / "rounds.json").write_text(json.dumps(field.get("/rounds")))
    finally:
        field.stop()
    return field, state


@pytest.mark.slow
def test_it_is_placed_once_over_kills_of_the_service_and_weighs_nothing(
    exported: Exported, tmp_path: Path
) -> None:
    data = fleet()
    with EmbeddedBroker() as broker:
        field, state = finished(data, exported, tmp_path / "with", broker, kills=(2, 4))
    with EmbeddedBroker() as broker:
        _, alone = finished(
            data.only(["d0", "d1", "d2", "d3"]), exported, tmp_path / "alone", broker
        )
    assert state.models == alone.models, "the models of a fleet without it, to the bit"
    assert (state.memory, state.starts) == (alone.memory, alone.starts)
    assert state.placed["d4"] == EVERYBODY

    records = SqlStore(sqlite_url(field.folder / "run" / "shoal.db"), "run-1").rounds()
    assert [sorted(r.evaluated) for r in records] == [["d0", "d1", "d2", "d3"]] * ROUNDS + [
        ["d0", "d1", "d2", "d3", "d4"]
    ]
    assert all(r.placed.get("d4", EVERYBODY).group == "0" for r in records)
    assert (records[-1].groups["d4"], records[-1].placed["d4"]) == ("0", EVERYBODY)
    assert records[-1].evaluated["d4"].accuracy > 0.6, (
        "by its group's model; guessing gives a third"
    )

    said = "placed by its inputs, 4 of 4 neighbours"
    summary, line = (
        json.loads((field.folder / f"{name}.json").read_text()) for name in ("summary", "devices")
    )
    assert summary["devices"]["d4"]["placed"] == {"group": "0", "sure": 1.0, "neighbours": 4}
    assert summary["groups"]["count"] == 1
    assert {d["id"]: (d["group"], d["placed"], d["declines"]) for d in line["devices"]} == {
        **{f"d{i}": (0, None, 0) for i in range(4)},
        "d4": (0, said, 0),
    }
    assert json.loads((field.folder / "rounds.json").read_text())[-1]["placed"] == {"d4": said}
    assert f"placed            {said} (group 0)" in field.devices("show", "d4")
    log = (field.folder / "devices" / "d4" / "edge.log").read_text()
    assert log.count("declined") == 0


@pytest.mark.parametrize(
    ("policy", "unlabelled", "rule"),
    [
        (Policy(min_windows=12), "d0", "min_windows: evaluate is over 0, 12 are the least"),
        (Policy(max_clip_norm=1.0), "d0", "max_clip_norm: evaluate reports"),
        (Policy(graphs=("step", "evaluate")), "", "graphs: "),
    ],
    ids=["min_windows", "max_clip_norm", "with labels"],
)
def test_an_owner_who_does_not_permit_it_has_the_fleets_model(
    exported: Exported,
    tmp_path: Path,
    policy: Policy,
    unlabelled: str,
    rule: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A device without labels declines once; one with labels is asked again, less and less
    often."""
    data, algorithm = fleet(unlabelled), read_algorithm("distfl")
    training, times = (
        TrainingSettings(algorithm=algorithm, rounds=4, batch_size=16),
        {"deadline_s": 60.0, "grace_s": 10.0, **ADMIT_ALL},
    )
    settings = RunSettings.for_bundle(
        exported.bundle, training, run_id="told", data=data.name, min_devices=4, **times
    )
    topics, probe = (
        Topics("f"),
        make_probe(objective_for_fleet(data, algorithm, 0).model, data.window.shape),
    )
    with EmbeddedBroker() as broker, caplog.at_level(logging.WARNING, "shoal.aggregator"):
        address = BrokerAddress.parse(broker.url, None, None, None)
        own = {"d0": {"policy": policy}}
        with (
            aggregator(address, topics) as runner,
            devices(address, topics, data, tmp_path, lambda d: own.get(d, {})),
        ):
            runner.run(
                lambda: len(runner.devices.entries) == 5
            )  # no round begins before everybody is there
            campaign = runner.add(
                settings,
                make_algorithm(algorithm),
                exported.bundle,
                probe,
                MemoryStore(),
                MemoryBlobs(),
            )
            runner.run(lambda: runner.finished)
    state, entry = campaign.state, runner.devices.entry("d0")
    declines = {
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("declined device=d0")
    }
    assert (
        len(declines) == 1 or not unlabelled
    )  # a plan that comes again is declined again, in the same words
    assert f" reason=policy: {rule}" in min(declines)
    assert (entry.placed, state.devices["d0"].untold) == (Placed("0", 1.0), True)
    assert "d0" not in state.inputs
    summary = summarize(state, campaign.store.rounds(), 1.0)
    assert (summary.devices["d0"].group, str(summary.devices["d0"].placed)) == (0, "the only group")
    assert campaign.store.rounds()[-1].evaluated["d0"].accuracy > 0.6, (
        "by its group's model; guessing gives a third"
    )


def test_one_that_comes_when_the_run_is_over_is_placed_by_its_inputs_too(
    exported: Exported, tmp_path: Path
) -> None:
    data, algorithm = fleet(), read_algorithm("distfl")
    training = TrainingSettings(algorithm=algorithm, rounds=1, batch_size=16)
    times = {"deadline_s": 60.0, "grace_s": 10.0, **ADMIT_ALL}
    settings = RunSettings.for_bundle(
        exported.bundle, training, run_id="late", data=data.name, min_devices=4, **times
    )
    topics, probe = (
        Topics("f"),
        make_probe(objective_for_fleet(data, algorithm, 0).model, data.window.shape),
    )
    with EmbeddedBroker() as broker:
        address = BrokerAddress.parse(broker.url, None, None, None)
        with (
            aggregator(address, topics) as runner,
            devices(address, topics, data.only(["d0", "d1", "d2", "d3"]), tmp_path, lambda _: {}),
        ):
            campaign = runner.add(
                settings,
                make_algorithm(algorithm),
                exported.bundle,
                probe,
                MemoryStore(),
                MemoryBlobs(),
            )
            runner.run(lambda: runner.finished)
            assert campaign.state.inputs == {}
            with devices(address, topics, data.only(["d4"]), tmp_path, lambda _: {}):
                give_up_s = time.monotonic() + 60
                runner.run(lambda: "d4" in campaign.state.placed or time.monotonic() > give_up_s)
    assert campaign.state.placed["d4"] == EVERYBODY
    assert (runner.devices.entry("d4").placed, runner.devices.entry("d4").group) == (EVERYBODY, "0")
