"""An operator's word on devices, with a real broker and real processes: a rule, tags, a ban, a
device that is forgotten, and a kill."""

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulation.datasets.windows import FleetData
from tests.aggregator.device_cases import found
from tests.contracts.link import deliveries
from tests.end_to_end.field import Field
from tests.support.bundles import Exported
from tests.support.fleets import synthetic_fleet
from tests.support.waiting import wait_until
from wire.links.mqtt import BrokerAddress, MqttLink

pytestmark = pytest.mark.full

ONE, TWO, THREE = "board-one-q7", "board-two-q7", "board-three-q7"


@pytest.fixture(scope="module")
def data() -> FleetData:
    made = synthetic_fleet(num_devices=3, num_windows=60)
    return replace(
        made, devices=dict(zip((ONE, TWO, THREE), made.devices.values(), strict=True)), truth={}
    )


@pytest.fixture
def field(data: FleetData, exported: Exported, tmp_path: Path, mosquitto: str) -> Iterator[Field]:
    field = Field(data, exported, tmp_path / "field", mosquitto, epochs=1)
    yield field
    field.stop()


def line(field: Field, device_id: str) -> dict[str, Any]:
    return next(d for d in field.get("/devices")["devices"] if d["id"] == device_id)


def retained(field: Field, device_id: str) -> list[str]:
    link = MqttLink(BrokerAddress.parse(field.broker_url), "looker")
    try:
        link.subscribe(f"shoal/1/t/device/{device_id}/#")
        return [d.topic for d in deliveries(link, 1, patience_s=1.5) if d.payload]
    finally:
        link.close()


def test_tags_a_ban_and_a_forgotten_device_in_a_service_that_runs_is_killed_and_runs_again(
    field: Field,
) -> None:
    options = (
        "--min-devices",
        "2",
        "--where",
        "tags has lab and version >= 0.1",
        "--rounds",
        "100000",
    )
    with field.edges() as edges:
        serving = field.serve(*options)
        wait_until(lambda: field.get("/devices")["total"] == 3)
        assert field.get("/run")["phase"] == "waiting"
        assert (
            field.devices("tag", ONE, TWO, THREE, "--tags", "lab,berlin")
            == "3 devices tagged lab, berlin\n"
        )
        field.wait(lambda run: run["round"] >= 2)
        known = line(field, THREE)
        assert (known["client"], known["tags"], known["eligible"], known["num_train"]) == (
            "shoal 0.1.0",
            ["berlin", "lab"],
            True,
            60,
        )
        assert known["free_bytes"] > 0
        assert field.get("/devices?where=tags%20has%20lab&limit=2")["after"] == THREE
        assert [
            d["id"] for d in field.get(f"/devices?where=tags%20has%20lab&after={THREE}")["devices"]
        ] == [TWO]
        assert field.get(f"/devices/{ONE}")["record"]["facts"]["runtime"] == "onnxruntime"

        assert "is banned: nothing of it is taken" in field.devices(
            "ban", THREE, "--reason", "stolen"
        )
        number = field.get("/run")["round"]
        field.wait(lambda run: run["round"] >= number + 3)
        assert field.get("/run")["cohort"] == 2
        wait_until(lambda: field.get("/run")["refused"].get("banned"))
        serving.send_signal(signal.SIGKILL)
        serving.wait(10)

        listed = json.loads(field.devices("list", "--json"))
        assert {d["id"]: (d["tags"], "ban" in d) for d in listed}[THREE] == (
            ["berlin", "lab"],
            True,
        )
        field.serve(*options, "--take-over")
        field.wait(lambda run: run["round"] >= number + 5)
        assert field.get("/run")["cohort"] == 2
        assert line(field, THREE)["banned"]

        field.devices("unban", THREE)
        field.wait(lambda run: run["cohort"] == 3)
        edges.processes[TWO].send_signal(signal.SIGTERM)
        edges.processes[TWO].wait(20)
        wait_until(lambda: not line(field, TWO)["online"])
        assert retained(field, TWO) == [f"shoal/1/t/device/{TWO}/status"]
        wait_until(
            lambda: (
                "shoal.db"
                in {Path(name).parts[0] for name in found(field.folder / "run", TWO.encode())}
            )
        )
        answer = field.devices("forget", TWO, "--yes")
        assert "is forgotten; it stays in models that it helped to train" in answer
        left = found(field.folder / "run", TWO.encode())
        assert set(left) <= {"audit.log"}, "the log of the order alone names it"
        assert retained(field, TWO) == []
        number = field.get("/run")["round"]
        field.wait(lambda run: run["round"] >= number + 2)
        assert field.get("/devices")["total"] == 2
        assert set(found(field.folder / "run", TWO.encode())) <= {"audit.log"}
