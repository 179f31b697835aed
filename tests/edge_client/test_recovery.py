"""The agent after a restart, and after files of its state were damaged or lost."""

from pathlib import Path

import msgspec
import pytest

from edge_client.core.session import Session
from edge_client.storage.state import UPDATE, DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device, finished
from tests.support.bundles import Exported
from tests.support.plans import plan
from wire import messages as m
from wire.codec import decode_update, digest

NOISE = m.Protect(1.0, noise_std=0.1)


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    return Device(fleet, exported, tmp_path / "state")


def test_plan_that_a_restart_interrupted_is_taken_up(device: Device) -> None:
    device.send_plan()
    device.turn()
    device.start()
    device.offer()
    device.turn()
    assert len(device.updates()) >= 1


def test_update_that_was_finished_before_a_crash_is_not_made_again(device: Device) -> None:
    first = finished(device)
    before = device.agent.session
    DeviceState(device.folder).save(
        msgspec.structs.replace(before, stage="working", update="", tries=1)
    )
    device.start()
    device.turn()
    assert device.agent.session == before
    assert set(device.sent("update")) == {first}


def test_update_that_was_lost_is_made_again(device: Device) -> None:
    first = finished(device)
    DeviceState(device.folder).files.delete(UPDATE)
    device.start()
    device.turn()
    assert decode_update(device.sent("update")[0])[0].num_steps == decode_update(first)[0].num_steps


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00" * 100])
def test_a_damaged_session_leaves_a_finished_update_that_is_sent(
    device: Device, damage: bytes
) -> None:
    first = finished(device)
    (device.folder / "session.json").write_bytes(damage)
    device.start()
    device.turn()
    assert set(device.sent("update")) == {first}
    assert (device.folder / "session.json.damaged").exists()
    device.reply(m.Acknowledge("d0", digest(first)))
    device.turn()
    assert DeviceState(device.folder).files.read(UPDATE) is None
    finished(device, 2)


def test_a_damaged_update_is_dropped_and_made_again(device: Device) -> None:
    finished(device)
    (device.folder / "update.safetensors").write_bytes(b"half")
    device.start()
    device.turn()
    assert [update.round for update, _ in device.updates()] == [1]


@pytest.mark.parametrize("which", ["bundle", "model"])
def test_a_damaged_blob_is_fetched_again(device: Device, which: str) -> None:
    device.send_plan()
    device.turn()
    state = DeviceState(device.folder)
    for payload in (device.bundle.payload, device.model):
        state.put_blob(digest(payload), payload)
    name = device.bundle.digest if which == "bundle" else digest(device.model)
    (device.folder / "blobs" / name).write_bytes(b"damaged")
    device.start()
    device.turn()
    assert (device.updates(), device.agent.session.tries) == ([], 0)
    device.offer()
    device.turn()
    assert len(device.updates()) == 1


def test_older_bundle_is_not_loaded(device: Device) -> None:
    DeviceState(device.folder).save(Session(versions={device.bundle.manifest.name: 2}))
    device.start()
    device.offer()
    device.send_plan()
    device.turn()
    assert [d.reason for d in device.declines()] == ["bundle"]


def test_an_update_of_a_newer_epoch_of_the_same_round_is_sent_as_it_is(device: Device) -> None:
    first = finished(device)
    device.send_plan(epoch=2)
    device.turn()
    assert device.sent("update") == [first]
    assert device.agent.session.plan == plan(
        epoch=2, bundle=device.bundle.digest, model=digest(device.model)
    )


def test_two_plans_of_two_campaigns_in_turn_are_trained_once_each_over_kills(
    device: Device,
) -> None:
    updates = list[bytes]()
    device.offer()
    for _ in range(3):
        for run_id, attempt in (("r", 8), ("s", 9)):
            device.send_plan(1, run_id=run_id, attempt=attempt, verbs=(m.Train(8), NOISE))
            device.turn()
            device.start()  # it was killed
            device.turn()
            updates += device.sent("update")
    assert {decode_update(payload)[0].run_id for payload in updates} == {"r", "s"}
    assert len(set(updates)) == 2, "each was trained once: noise is drawn anew every time"
