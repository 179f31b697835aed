"""Nothing ends a service: what it cannot save, read or work out pauses it, is left out, or is asked
for again; and nothing counts twice."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from aggregator.aggregation.apply import aggregate
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.memory import MemoryBlobs
from aggregator.storage.sql_store import SqlStore
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.full_disk import Disk, FullStore
from wire import messages as m
from wire.codec import digest, encode
from wire.links.port import Delivery, LinkDown, LinkUp


class FullBlobs(MemoryBlobs):
    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def put(self, *payloads: bytes) -> list[str]:
        self._disk.use()
        return super().put(*payloads)


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
    assert (bench.runner.paused, bench.state.received) == ("no space left on device", {})
    assert isinstance(bench.verdict(bench.payload("b"), "b"), m.Busy)
    bench.send("a", "fetch", encode(m.Fetch("a", bench.state.settings.bundle)))
    assert bench.answers() == [], "what is on offer stays on offer"
    bench.clock.now_s += 6
    bench.runner.tick()
    assert bench.runner.paused
    disk.full = False
    bench.clock.now_s += 6
    bench.runner.tick()
    assert (bench.runner.paused, reasons(bench.answers())) == ("", ["Plan", "Plan"])
    assert isinstance(bench.verdict(bench.payload("a")), m.Acknowledge)
    bench.verdict(bench.payload("b"), "b")
    assert bench.state.round == 2


def test_a_database_that_was_removed_pauses_the_run_until_the_service_is_started_again(
    fleet: FleetData, tmp_path: Path
) -> None:
    path = tmp_path / "shoal.db"
    bench = Bench(fleet, SqlStore(sqlite_url(path), "run-1"))
    path.unlink()
    assert isinstance(bench.verdict(bench.payload("a")), m.Busy)
    told = "the file was removed or replaced while the service ran: restart the service"
    for word in (False, True):
        bench.clock.now_s += 6
        bench.runner.tick()
        bench.campaign.try_to_go_on(told=word)
        assert told in bench.runner.paused
    assert bench.state.received == {}


def test_a_topic_that_is_none_of_the_fleets_does_not_end_a_paused_run(fleet: FleetData) -> None:
    disk = Disk()
    bench = Bench(fleet, FullStore(disk))
    disk.full = True
    bench.verdict(bench.payload("a"))
    bench.runner.handle(Delivery("shoal/1/f/device/no such/update", b"x"))
    assert (bool(bench.runner.paused), bench.runner.refused) == (True, {"unknown-topic": 1})


def test_an_update_whose_blob_was_damaged_is_asked_for_again(
    fleet: FleetData, tmp_path: Path
) -> None:
    bench = Bench(fleet, blobs=BlobFolder(tmp_path))
    bench.verdict(bench.payload("a"))
    path = tmp_path / bench.state.received["a"].blob
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    bench.answers()
    bench.send("b", "update", bench.payload("b"))
    acknowledged, plan = bench.answers()
    assert (acknowledged.device_id, plan.device_id, plan.round, plan.attempt) == ("b", "a", 1, 1)
    assert (bench.state.phase, sorted(bench.state.received), bench.runner.paused) == (
        "training",
        ["b"],
        "",
    )
    assert path.with_name(f"{path.name}.damaged").exists()
    bench.send(
        "a", "update", bench.payload("a")
    )  # the same bytes: they are stored again before they are acknowledged
    assert bench.state.round == 2


def test_a_damaged_model_pauses_the_run_and_says_which(fleet: FleetData, tmp_path: Path) -> None:
    bench = Bench(fleet, blobs=BlobFolder(tmp_path))
    bench.verdict(bench.payload("a"))
    whole = (tmp_path / bench.state.memory).read_bytes()
    (tmp_path / bench.state.memory).write_bytes(b"damaged")
    bench.verdict(bench.payload("b"), "b")
    name = bench.state.memory
    told = (
        f"blob {name[:12]}: its file in {tmp_path} is damaged, and is now {name}.damaged: put it "
        "back from a backup"
    )
    assert bench.runner.paused == told
    bench.clock.now_s += 6
    bench.runner.tick()
    assert bench.runner.paused, "a restart, or time, does not heal it"
    (tmp_path / bench.state.memory).write_bytes(whole)
    bench.clock.now_s += 6
    bench.runner.tick()
    assert (bench.runner.paused, bench.state.round) == ("", 2)


def test_what_an_algorithm_fails_at_pauses_the_run_until_the_operator_says_so(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(fleet)
    bench.verdict(bench.payload("a"))
    with monkeypatch.context() as patch:
        patch.setattr("aggregator.service.campaign.aggregate", lambda *_: 1 // 0)
        bench.verdict(bench.payload("b"), "b")
    assert (
        bench.runner.paused
        == "round 1 cannot be aggregated: ZeroDivisionError: integer division or modulo by zero"
    )
    bench.clock.now_s += 1000
    bench.runner.tick()
    assert bench.runner.paused
    bench.campaign.try_to_go_on(told=True)
    assert (bench.runner.paused, bench.state.round) == ("", 2)


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
        (folder / bench.state.memory).write_bytes(b"damaged")
    bench.verdict(bench.payload("b"), "b")
    assert bench.runner.paused
    if disk.full:
        assert not bench.campaign.roll_back(0)
        assert (bench.state.made_in, bool(bench.runner.paused)) == (1, True)
        disk.full = False
    assert bench.campaign.roll_back(0)
    assert (bench.state.made_in, bench.runner.paused) == (0, "")
    bench.close(a=(1.0, 2), b=(1.0, 2))


def test_a_broker_that_lost_its_memory_is_told_everything_again(fleet: FleetData) -> None:
    bench = Bench(fleet)
    bench.runner.handle(LinkUp())
    first = bench.runner._fleet.boot_id
    bench.runner.handle(LinkDown("gone"), LinkUp(kept=True))
    assert bench.runner._fleet.boot_id == first, "the broker has what waits for devices"
    bench.runner.handle(LinkDown("gone"), LinkUp(kept=False))
    assert bench.runner._fleet.boot_id == f"{first}.1", (
        "devices check in again, and are sent their plans"
    )


def test_the_lease_is_held_while_a_round_is_aggregated(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a second service would take the fleet for one whose aggregator has died."""
    bench, said = Bench(fleet), list[str]()
    monkeypatch.setattr("aggregator.leadership.identity.EVERY_S", 0.01)
    monkeypatch.setattr(
        bench.campaign, "_announce", lambda: said.append(threading.current_thread().name)
    )

    def slowly(*given: Any) -> Any:
        time.sleep(0.3)
        return aggregate(*given)

    monkeypatch.setattr("aggregator.service.campaign.aggregate", slowly)
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

    monkeypatch.setattr("aggregator.service.campaign.aggregate", slowly)
    bench.close(a=(1.0, 2), b=(1.0, 2))
    assert bench.state.deadline_at_s == bench.clock.now_s + 100


def test_a_device_that_is_heard_and_has_not_checked_in_is_told_to(fleet: FleetData) -> None:
    bench = Bench(fleet)
    bench.device.subscribe(bench.topics.device("c", "reply"))
    bench.answers()
    status = bench.topics.device("c", "status")
    bench.runner.handle(Delivery(status, encode(m.DeviceStatus("c", True)), retained=True))
    bench.runner.handle(Delivery(status, encode(m.DeviceStatus("c", False))))
    assert bench.answers() == [], "what was retained may be old, and who leaves need not come"
    bench.runner.handle(Delivery(status, encode(m.DeviceStatus("c", True))))
    assert [(r.device_id, r.reason, r.about) for r in bench.answers()] == [
        ("c", "unknown-device", "status")
    ]


def test_an_answer_does_not_overtake_a_plan(fleet: FleetData) -> None:
    """What came together is answered in the order in which it came, also an update that came
    twice."""
    bench = Bench(fleet)
    bench.answers()
    update = Delivery(bench.topics.device("a", "update"), bench.payload("a"))
    bench.runner.handle(
        Delivery(bench.topics.device("a", "check-in"), encode(m.CheckIn("a", 10, 4))),
        update,
        update,
    )
    assert reasons(bench.answers()) == ["Plan", "Acknowledge", "Acknowledge"]


def test_a_flood_is_logged_in_part(fleet: FleetData, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(fleet)
    for number in range(1000):
        bench.send(f"device-{number}", "update", b"junk")
    assert bench.runner.refused == {"malformed": 1000}
    assert sum("reason=malformed" in record.getMessage() for record in caplog.records) == 50
    bench.clock.now_s += 10
    bench.send("a", "update", b"junk")
    assert "reason=malformed times=1001" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    "failing", ["aggregator.core.record.step", "aggregator.service.campaign.place_late"]
)
def test_an_event_that_the_core_or_a_grouping_fails_at_is_left_out(
    fleet: FleetData, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    bench = Bench(fleet)
    monkeypatch.setattr(failing, lambda *_: 1 // 0)
    bench.send("a", "update", bench.payload("a"))
    assert (bench.runner.refused, bench.state.received) == ({"defect": 1}, {})
    monkeypatch.undo()
    assert isinstance(bench.verdict(bench.payload("a")), m.Acknowledge)


@pytest.mark.parametrize("kind", ["check-in", "update", "decline", "fetch", "status"])
def test_messages_of_one_device_are_limited_and_those_of_others_are_not(
    fleet: FleetData, kind: str
) -> None:
    bench = Bench(fleet)
    for _ in range(1000):
        bench.send("a", kind, encode(m.CheckIn("a", 10, 4)))
    assert bench.runner.refused["too-many"] >= 800
    bench.send("c", "check-in", encode(m.CheckIn("c", 10, 4)))
    assert "c" in bench.state.devices


def test_a_silent_device_is_taken_for_absent_and_is_there_when_it_is_heard(
    fleet: FleetData,
) -> None:
    bench = Bench(fleet, deadline_s=1e4, silence_s=180.0)
    for second in range(0, 400, 20):
        bench.clock.now_s = float(second)
        bench.send("a", "status", encode(m.DeviceStatus("a", True)))
        bench.runner.tick()
    assert {d: known.online for d, known in bench.state.devices.items()} == {"a": True, "b": False}
    bench.send("b", "status", encode(m.DeviceStatus("b", True)))
    assert bench.state.devices["b"].online
