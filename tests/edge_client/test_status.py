"""`shoal-edge status`: the model in use, what it is worth, and an offer that was not taken."""

from pathlib import Path

import msgspec
import pytest

from edge_client.core.session import ModelOffer
from edge_client.main import _carry_out
from edge_client.models.description import gain
from edge_client.options import parser
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, take_up
from tests.support.bundles import Exported
from tests.support.known import known
from wire.messages import Metrics


def lines(folder: Path, capsys: pytest.CaptureFixture[str], status: int = 0) -> list[str]:
    capsys.readouterr()
    assert _carry_out(parser().parse_args(["status", "--state", str(folder)])) == status
    return capsys.readouterr().out.splitlines()


def test_of_a_model_in_use_and_of_an_offer_that_was_not_taken(
    fleet: FleetData, exported: Exported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    device = Device(fleet, exported, folder)
    take_up(device)
    count = device.windows.num_test
    model, personal, held_out, stream = lines(folder, capsys)
    assert model.startswith("model: ")
    assert personal == "personal model: none"
    assert held_out.startswith("held-out windows: ")
    assert held_out.endswith(f" of {count} right")
    assert stream.startswith("stream: ")
    state = DeviceState(folder, read_only=True)
    offer = msgspec.structs.replace(known(state.load().offer), model="9" * 64, problem="it fails")
    DeviceState(folder).save(msgspec.structs.replace(state.load(), offer=offer))
    after = lines(folder, capsys)
    assert "not taken: model 999999999999, it fails" in after
    assert not any(line.startswith("held-out") for line in after), "they are of the failed offer"


def test_a_gain_is_said_with_its_error() -> None:
    offer = ModelOffer(1, "r", "b", "m", evaluated=Metrics(100, 1.0, 90))
    assert gain(offer) == "90.0% of 100 right"
    better = msgspec.structs.replace(offer, before=Metrics(100, 1.0, 80))
    assert (
        gain(better) == "90.0% of 100 right, +10.0 points to the model before (standard error 5.0)"
    )
    assert gain(msgspec.structs.replace(offer, evaluated=Metrics())) == "none with a label"
