"""A device without labels in a fleet of real processes: it is placed by its inputs, over kills of
the service, and weighs nothing."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from aggregator.core.settings import ADMIT_ALL, RunSettings
from aggregator.core.training import TrainingSettings
from aggregator.fleet.records import Campaign, Placed
from algorithms.composition import read_algorithm
from algorithms.core.probe import make_probe
from edge_client.core.ports import Windows
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from simulation.local.broker import EmbeddedBroker
from simulation.objective import objective_for_fleet
from tests.end_to_end.agents import devices
from tests.end_to_end.boards import aggregator
from tests.end_to_end.field import ROUNDS, Field, groups
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet
from tests.support.known import known
from wire.links.mqtt import BrokerAddress
from wire.messages import Policy
from wire.topics import Topics

pytestmark = pytest.mark.full

NO_Y = np.zeros(0, np.int64)


def place_of(campaign: Campaign) -> Placed:
    """Return the place of d4, which is among all the others."""
    placed = known(campaign.members["d4"].placed)
    assert placed == Placed("0", 1.0, 4, placed.nearer)
    return placed


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
) -> tuple[Field, Campaign]:
    """Run a campaign over real processes, whose service is killed in these rounds; return it at its
    end."""
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
            campaign = field.finish()
            (folder / "summary.json").write_text(json.dumps(field.get("/summary")))
            (folder / "devices.json").write_text(json.dumps(field.get("/devices")))
            (folder / "rounds.json").write_text(json.dumps(field.get("/rounds")))
    finally:
        field.stop()
    return field, campaign


@pytest.mark.slow
def test_it_is_placed_once_over_kills_of_the_service_and_weighs_nothing(
    exported: Exported, tmp_path: Path
) -> None:
    data = fleet()
    with EmbeddedBroker() as broker:
        field, campaign = finished(data, exported, tmp_path / "with", broker, kills=(2, 4))
    with EmbeddedBroker() as broker:
        _, alone = finished(
            data.only(["d0", "d1", "d2", "d3"]), exported, tmp_path / "alone", broker
        )
    assert campaign.models == alone.models, "the models of a fleet without it, to the bit"
    assert campaign.version.memory == alone.version.memory
    assert groups(campaign) == groups(alone)
    placed = place_of(campaign)

    records = field.records()
    assert [sorted(r.evaluated) for r in records] == [["d0", "d1", "d2", "d3"]] * ROUNDS + [
        ["d0", "d1", "d2", "d3", "d4"]
    ]
    assert all(r.placed.get("d4", placed).group == "0" for r in records)
    assert (records[-1].groups["d4"], records[-1].placed["d4"]) == ("0", placed)
    assert records[-1].evaluated["d4"].accuracy > 0.6, (
        "by its group's model; guessing gives a third"
    )

    text = str(placed)
    assert text.startswith("placed by its inputs, 4 of 4 neighbours, farther out than ")
    summary, line = (
        json.loads((field.folder / f"{name}.json").read_text()) for name in ("summary", "devices")
    )
    assert summary["devices"]["d4"]["placed"] == msgspec.to_builtins(placed)
    assert summary["groups"]["count"] == 1
    assert {d["id"]: (d["group"], d["placed"], d["declines"]) for d in line["devices"]} == {
        **{f"d{i}": (0, None, 0) for i in range(4)},
        "d4": (0, text, 0),
    }
    assert json.loads((field.folder / "rounds.json").read_text())[-1]["placed"] == {"d4": text}
    shown = {" ".join(line.split()) for line in field.devices("show", "d4").splitlines()}
    assert {f"placed {text}", "group 0"} <= shown
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
    """A device without labels declines once, and is tested with the others; one with labels rests,
    and is asked again."""
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
    with EmbeddedBroker() as broker, caplog.at_level(logging.DEBUG, "shoal.aggregator"):
        address = BrokerAddress.parse(broker.url, None, None, None)
        own = {"d0": {"policy": policy}}
        with (
            aggregator(address, topics) as board,
            devices(address, topics, data, tmp_path, lambda d: own.get(d, {})),
        ):
            board.run(lambda: len(board.fleet.devices) == 5)  # nobody comes when a round has begun
            board.start(settings, exported.bundle, probe)
            board.finish()
            board.run(lambda: uses_model(tmp_path / "d0", board.campaign))
    declines = {
        record.getMessage()
        for record in caplog.records
        if record.getMessage().startswith("Assignment declined: device=d0")
    }
    assert (
        len(declines) == 1 or not unlabelled
    )  # a plan that comes again is declined again, in the same words
    assert f" reason=policy: {rule}" in min(declines)
    device = board.device("d0")
    assert (device.placed, device.record.forbids) == (Placed("0", 1.0), True)
    assert "d0" not in surveyed(board.campaign)
    told = board.summary.devices["d0"]
    assert (told.group, str(told.placed)) == (0, "the only group")
    if unlabelled:
        assert board.records[-1].evaluated["d0"].accuracy > 0.6, (
            "by its group's model; guessing gives a third"
        )


@pytest.mark.parametrize("unlabelled", ["d4", ""], ids=["without labels", "with labels"])
def test_one_that_comes_when_the_run_is_over_is_placed_by_its_inputs_too(
    exported: Exported, tmp_path: Path, unlabelled: str
) -> None:
    data, algorithm = fleet(unlabelled), read_algorithm("distfl")
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
            aggregator(address, topics) as board,
            devices(address, topics, data.only(["d0", "d1", "d2", "d3"]), tmp_path, lambda _: {}),
        ):
            board.start(settings, exported.bundle, probe)
            board.finish()
            assert surveyed(board.campaign) == []
            with devices(address, topics, data.only(["d4"]), tmp_path, lambda _: {}):
                give_up_s = time.monotonic() + 60
                board.run(lambda: is_placed(board.campaign) or time.monotonic() > give_up_s)
    placed = place_of(board.campaign)
    assert (board.device("d4").placed, board.device("d4").group) == (placed, "0")


def surveyed(campaign: Campaign) -> list[str]:
    """Return the devices that have described their inputs."""
    return [d for d, member in campaign.members.items() if member.survey is not None]


def is_placed(campaign: Campaign) -> bool:
    """Return True if d4 is placed by its inputs."""
    return "d4" in campaign.members and campaign.members["d4"].placed is not None


def uses_model(folder: Path, campaign: Campaign) -> bool:
    """Return True if a device answers with a model of the campaign."""
    current = DeviceState(folder).current()
    return current is not None and current.model in campaign.models.values()
