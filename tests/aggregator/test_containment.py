"""Nothing ends a service: what it cannot save, read or work out pauses it, is left out, or is asked
for again; and nothing counts twice."""

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from aggregator.aggregation.apply import aggregate
from aggregator.ports import BlobLost, StorageFailed
from aggregator.service.trainer import RETRY_S
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.fleet_store import FleetStore
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.full_disk import Disk, FullBlobs, FullStore
from wire import messages as m
from wire.codec import digest, encode, encode_update
from wire.links.port import Delivery, LinkDown, LinkUp


def reasons(answers: list[Any]) -> list[str]:
    return [type(answer).__name__ for answer in answers]


@pytest.mark.parametrize("which", ["store", "blobs"])
def test_a_full_disk_pauses_the_run_and_it_goes_on_when_there_is_space(
    fleet: FleetData, which: str
) -> None:
    disk = Disk()
    bench = Bench(
        fleet,
        FullStore(disk) if which == "store" else None,
        FullBlobs(disk) if which == "blobs" else None,
    )
    disk.full = True
    assert bench.verdict(bench.payload("a")) == m.Busy("a", digest(bench.payload("a")), 30.0)
    assert (bench.runner.condition, bench.received) == ("no space left on device", {})
    assert isinstance(bench.verdict(bench.payload("b"), "b"), m.Busy)
    bench.send("a", "fetch", encode(m.Fetch("a", bench.settings.bundle)))
    assert bench.answers() == [], "what is on offer stays on offer"
    bench.clock.now_s += 6
    bench.tick()
    assert bench.runner.condition
    disk.full = False
    bench.clock.now_s += 6
    bench.tick()
    assert (bench.runner.condition, bench.link.boot_id) == ("", "boot.1"), "devices check in again"
    assert isinstance(bench.verdict(bench.payload("a")), m.Acknowledge)
    bench.verdict(bench.payload("b"), "b")
    assert bench.campaign.round == 2


def test_a_database_that_was_removed_pauses_the_run_until_the_service_is_started_again(
    fleet: FleetData, tmp_path: Path
) -> None:
    path = tmp_path / "shoal.db"
    bench = Bench(fleet, FleetStore(sqlite_url(path)))
    path.unlink()
    assert isinstance(bench.verdict(bench.payload("a")), m.Busy)
    told = "the file was removed or replaced while the service ran: restart the service"
    for _ in range(2):
        bench.clock.now_s += 6
        bench.tick()
        with pytest.raises(StorageFailed, match=told):
            bench.resume()
        assert told in bench.runner.condition
    assert bench.received == {}


def test_a_topic_that_is_none_of_the_fleets_does_not_end_a_paused_run(fleet: FleetData) -> None:
    disk = Disk()
    bench = Bench(fleet, FullStore(disk))
    disk.full = True
    bench.verdict(bench.payload("a"))
    bench.runner.handle(Delivery("shoal/1/f/device/no such/update", b"x"))
    assert (bool(bench.runner.condition), bench.runner.refused) == (True, {"unknown-topic": 1})


def test_an_update_whose_blob_was_damaged_is_asked_for_again(
    fleet: FleetData, tmp_path: Path
) -> None:
    bench = Bench(fleet, blobs=BlobFolder(tmp_path))
    bench.verdict(bench.payload("a"))
    path = tmp_path / bench.received["a"].blob
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    bench.answers()
    bench.send("b", "update", bench.payload("b"))
    acknowledged, plan = bench.answers()
    assert (acknowledged.device_id, plan.device_id, plan.round) == ("b", "a", 1)
    assert plan.attempt > bench.update.attempt
    assert (bench.campaign.phase, sorted(bench.received), bench.runner.condition) == (
        "training",
        ["b"],
        "",
    )
    assert path.with_name(f"{path.name}.damaged").exists()
    bench.send(
        "a", "update", bench.payload("a")
    )  # the same bytes: they are stored again before they are acknowledged
    assert bench.campaign.round == 2


def test_a_damaged_model_pauses_the_run_and_says_which(fleet: FleetData, tmp_path: Path) -> None:
    bench = Bench(fleet, blobs=BlobFolder(tmp_path))
    bench.verdict(bench.payload("a"))
    whole = (tmp_path / bench.campaign.version.memory).read_bytes()
    (tmp_path / bench.campaign.version.memory).write_bytes(b"damaged")
    bench.verdict(bench.payload("b"), "b")
    name = bench.campaign.version.memory
    told = (
        f"blob {name[:12]}: damaged in {tmp_path}, and set aside as {name}.damaged; restore it "
        "from a backup"
    )
    assert bench.runner.condition == told
    bench.clock.now_s += 6
    bench.tick()
    assert bench.runner.condition, "a restart, or time, does not heal it"
    (tmp_path / bench.campaign.version.memory).write_bytes(whole)
    bench.clock.now_s += 6
    bench.tick()
    assert (bench.runner.condition, bench.campaign.round) == ("", 2)


def test_what_an_algorithm_fails_at_pauses_the_run_until_the_operator_says_so(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(fleet)
    bench.verdict(bench.payload("a"))
    with monkeypatch.context() as patch:
        patch.setattr("aggregator.service.trainer.aggregate", lambda *_: 1 // 0)
        bench.verdict(bench.payload("b"), "b")
    assert (
        bench.runner.condition
        == "round 1 cannot be aggregated: ZeroDivisionError: integer division or modulo by zero"
    )
    bench.clock.now_s += 1000
    bench.tick()
    assert bench.runner.condition
    bench.resume()
    assert (bench.runner.condition, bench.campaign.round) == ("", 2)


@pytest.mark.parametrize("what", ["a full disk", "a damaged memory"])
def test_a_rollback_ends_a_pause_once_it_can_be_saved(
    fleet: FleetData, tmp_path: Path, what: str
) -> None:
    disk, folder = Disk(), tmp_path / "blobs"
    bench = Bench(fleet, FullStore(disk), BlobFolder(folder), settings={"keep_models": 3})
    bench.close(a=(1.0, 2), b=(1.0, 2))
    bench.verdict(bench.payload("a"))
    if what == "a full disk":
        disk.full = True
    else:
        (folder / bench.campaign.version.memory).write_bytes(b"damaged")
    bench.verdict(bench.payload("b"), "b")
    assert bench.runner.condition
    if disk.full:
        with pytest.raises(StorageFailed):
            bench.roll_back(0)
        assert (bench.campaign.version.round, bool(bench.runner.condition)) == (1, True)
        disk.full = False
        bench.clock.now_s += 6
        bench.tick()
    bench.roll_back(0)
    assert (bench.campaign.version.round, bench.runner.condition) == (0, "")
    bench.close(a=(1.0, 2), b=(1.0, 2))


def test_a_broker_that_lost_its_memory_is_told_everything_again(
    fleet: FleetData, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(fleet)
    bench.runner.handle(LinkUp())
    first = bench.link.boot_id
    with caplog.at_level("INFO", "shoal.aggregator"):
        bench.runner.handle(LinkDown("gone"), LinkUp(has_session=True))
    assert "Connected to the broker again: session_kept=true" in caplog.text
    assert bench.link.boot_id == first, "the broker has what waits for devices"
    bench.runner.handle(LinkDown("gone"), LinkUp(has_session=False))
    assert bench.link.boot_id == f"{first}.1", "devices check in again, and are sent their plans"


def test_the_lease_is_held_while_a_round_is_aggregated(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a second service would take the fleet for one whose aggregator has died."""
    bench, said = Bench(fleet), list[str]()
    monkeypatch.setattr("aggregator.leadership.identity.EVERY_S", 0.01)
    monkeypatch.setattr(
        bench.trainer, "announce", lambda: said.append(threading.current_thread().name)
    )

    def slowly(*given: Any) -> Any:
        time.sleep(0.3)
        return aggregate(*given)

    monkeypatch.setattr("aggregator.service.trainer.aggregate", slowly)
    bench.close(a=(1.0, 2), b=(1.0, 2))
    assert said.count("lease") > 3
    number = len(said)
    time.sleep(0.05)
    assert len(said) == number, "afterwards the service's own thread does"


def test_a_round_is_dated_when_its_models_are_there(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(fleet)

    def slowly(*given: Any) -> Any:
        bench.clock.now_s += 1000
        return aggregate(*given)

    monkeypatch.setattr("aggregator.service.trainer.aggregate", slowly)
    bench.close(a=(1.0, 2), b=(1.0, 2))
    assert bench.campaign.deadline_s == bench.clock.now_s + 100


def test_what_came_together_is_answered_in_order_and_a_plan_that_is_answered_is_not_sent(
    fleet: FleetData,
) -> None:
    bench = Bench(fleet)
    bench.answers()
    update = Delivery(bench.topics.device("a", "update"), bench.payload("a"))
    check_in = Delivery(bench.topics.device("a", "check-in"), encode(m.CheckIn("a", 10, 4)))
    bench.runner.handle(check_in, update, update)
    assert reasons(bench.answers()) == ["Acknowledge", "Acknowledge"]
    bench.runner.handle(
        Delivery(bench.topics.device("b", "check-in"), encode(m.CheckIn("b", 9, 4)))
    )
    assert reasons(bench.answers()) == ["Plan"]


def test_an_event_that_the_machine_fails_at_is_left_out(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(fleet)
    monkeypatch.setattr("aggregator.service.runner.take_in", lambda *_: 1 // 0)
    bench.send("a", "update", bench.payload("a"))
    assert (bench.runner.refused, bench.received) == ({"defect": 1}, {})
    monkeypatch.undo()
    assert isinstance(bench.verdict(bench.payload("a")), m.Acknowledge)


def test_a_withdrawal_that_cannot_be_stored_is_not_confirmed(fleet: FleetData) -> None:
    disk = Disk()
    bench = Bench(fleet, FullStore(disk))
    status = encode(m.DeviceStatus("a", False, "0f" * 16))
    disk.full = True
    bench.answers()
    for _ in range(2):
        bench.send("a", "status", status)
        assert bench.answers() == []
    assert not bench.known("a").withdrawn_s
    disk.full = False
    bench.clock.now_s += 6
    bench.tick()
    bench.send("a", "status", status)
    assert bench.answers()[-1] == m.Acknowledge("a", digest(status))
    assert bench.known("a").withdrawn_s


def test_a_silent_device_is_taken_for_absent(fleet: FleetData) -> None:
    bench = Bench(fleet, settings={"deadline_s": 1e4}, silence_s=180.0)
    for second in range(0, 400, 20):
        bench.clock.now_s = float(second)
        bench.send("a", "status", encode(m.DeviceStatus("a", True)))
    assert (bench.known("a").online, bench.known("b").online) == (True, False)


def test_blobs_that_are_not_on_offer_cannot_be_fetched(fleet: FleetData) -> None:
    bench = Bench(fleet)
    bench.verdict(payload := bench.payload("a"))
    (private,) = bench.blobs.put(payload)
    bench.answers()
    bench.send("b", "fetch", encode(m.Fetch("b", private)))
    assert bench.answers()[-1].reason == "unknown-blob"


def test_a_stop_that_ends_leaves_devices_their_timers(fleet: FleetData) -> None:
    bench = Bench(fleet)
    bench.trainer.stop("a blob is lost", lambda: None)
    work = bench.work("a")
    own = (bench.settings.run_id, bench.epoch, work.round, work.serial)
    bench.send("a", "decline", encode(m.Decline(*own, "a", "failed", "")))
    rests_until_s = bench.known("a").rests_until_s
    bench.clock.now_s += RETRY_S
    bench.tick()
    assert not bench.trainer.problem
    bench.clock.now_s = rests_until_s
    bench.tick()
    assert bench.work("a").serial > work.serial


def test_an_update_and_a_withdrawal_in_the_same_moment_stop_no_campaign(fleet: FleetData) -> None:
    bench = Bench(fleet, settings={"min_devices": 1, "min_updates": 1, "cohort": 1})
    (device_id,) = (d for d, known in bench.runner.fleet.devices.items() if known.assignment)
    status = encode(m.DeviceStatus(device_id, False, "0" * 32))
    update = Delivery(bench.topics.device(device_id, "update"), bench.payload(device_id), False)
    withdrawn = Delivery(bench.topics.device(device_id, "status"), status, False)
    bench.runner.handle(update, withdrawn)
    bench.tick()
    assert bench.trainer.problem == ""
    assert (bench.campaign.phase, bench.campaign.round) == ("training", 1)


def test_surveys_that_are_made_again_leave_no_blobs(fleet: FleetData) -> None:
    layout = (("response/x", "float32", (4,)),)
    bench = Bench(
        fleet,
        settings={"rounds": 1, "min_batch": 1, "responses": {"evaluate": (), "survey": layout}},
        algorithm="distfl",
    )

    def surveyed(number: int) -> str:
        facts = m.CheckIn("c", 0, 0, num_unlabelled=10, moved=True)
        bench.send("c", "check-in", encode(facts))
        work = bench.work("c")
        update = msgspec.structs.replace(
            bench.update,
            device_id="c",
            round=work.round,
            attempt=work.serial,
            model=work.model,
            num_train=0,
            num_steps=0,
            evaluated=m.Metrics(),
            trained=m.Metrics(),
        )
        answer = {"response/x": np.full(4, number, np.float32)}
        bench.send("c", "update", encode_update(update, answer))
        survey = bench.campaign.members["c"].survey
        assert survey is not None
        return survey.blob

    first, last = surveyed(1), surveyed(2)
    assert bench.blobs.get(last)
    with pytest.raises(BlobLost):
        bench.blobs.get(first)
