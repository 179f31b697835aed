"""What a service does with its registry: what survives a kill, bans, rules, and a device that is
forgotten."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from aggregator.core.ports import StorageFailed
from aggregator.core.registry import Entry
from aggregator.enrolment.order_handlers import DeviceOrders
from aggregator.operator.desk import Handler
from aggregator.service.devices import SAVE_EVERY_S, Devices
from aggregator.storage.blob_folder import BlobFolder
from aggregator.storage.engine import sqlite_url
from aggregator.storage.registry_table import RegistryTable
from aggregator.storage.sql_store import SqlStore
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from tests.aggregator.device_cases import found
from tests.aggregator.unlabelled_cases import (
    FOUR_OF_FIVE,
    LARGEST,
    aggregate,
    come,
    tell,
    with_unlabelled,
)
from wire import messages as m
from wire.codec import digest, encode
from wire.errors import ConfigError

GONE = "gone-zq7x"
PATTERN = np.float32(0.00123456789)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "shoal.db")


def said(device_id: str, **more: Any) -> m.CheckIn:
    return m.CheckIn(device_id, 10, 4, **more)


class Watch:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_device_without_labels_that_gets_some_is_placed_no_longer() -> None:
    devices, run = Devices(None, Watch()), with_unlabelled()[0]
    for device_id in "abu":
        devices.on_check_in(said(device_id))
    tell(run)
    for update in ("a", "b"):
        run.update(update)
    aggregate(run)
    devices.observe(run.state, run.log[-1], run.state)
    assert (devices.entry("u").group, devices.entry("u").placed) == ("1", FOUR_OF_FIVE)
    devices.changed()
    before = run.state
    come(run, num_train=10, at_s=5.0)
    devices.observe(before, run.log[-1], run.state)
    assert (devices.entry("u").group, devices.entry("u").placed, devices.changed()) == (
        "",
        None,
        {"u"},
    )


def test_a_device_that_comes_when_training_is_over_is_placed_at_once() -> None:
    devices, run = Devices(None, Watch()), with_unlabelled(rounds=1)[0]
    tell(run)
    for update in ("a", "b"):
        run.update(update)
    aggregate(run)
    devices.on_check_in(said("late"))
    before = run.state
    come(run, "late", num_train=10, at_s=5.0)
    devices.observe(before, run.log[-1], run.state)
    assert (devices.entry("late").group, devices.entry("late").placed) == (LARGEST.group, LARGEST)
    assert devices.entry("late").groups[-1].campaign == run.state.settings.name


class TestSaved:
    def test_an_order_is_safe_at_once_and_of_telemetry_a_kill_loses_what_came_since_it_was_saved(
        self, url: str
    ) -> None:
        watch = Watch()
        devices = Devices(RegistryTable(url), watch)
        devices.on_check_in(said("early", battery_percent=90.0))
        devices.tag(["early", "unseen"], ["nights"])
        devices.ban("bad", "stolen")
        watch.now_s += SAVE_EVERY_S
        devices.tick()
        devices.on_check_in(said("early", battery_percent=10.0))
        devices.on_check_in(said("late"))
        devices.ban("worse", "stolen too")
        devices.untag(["unseen"], ["nights"])
        after = Devices(RegistryTable(url), watch)  # as after a kill: nothing was closed
        assert sorted(after.entries) == ["bad", "early", "unseen", "worse"], (
            "late is lost, and checks in again"
        )
        early = after.entry("early")
        assert early.said is not None
        assert (early.said.battery_percent, early.tags, early.online) == (90.0, ("nights",), False)
        assert (after.entry("unseen").tags, after.is_banned("bad"), after.is_banned("worse")) == (
            (),
            True,
            True,
        )
        devices.save()
        assert "late" in Devices(RegistryTable(url), watch).entries

    def test_what_cannot_be_written_is_written_later_and_an_order_then_did_not_happen(
        self, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        store, watch = RegistryTable(url), Watch()
        devices = Devices(store, watch)
        devices.on_check_in(said("a"))

        def fails(entries: Any, gone: Any = ()) -> None:
            raise StorageFailed("the disk is full")

        monkeypatch.setattr(store, "save", fails)
        watch.now_s += SAVE_EVERY_S
        devices.tick()
        with pytest.raises(StorageFailed):
            devices.ban("a", "x")
        assert not devices.is_banned("a")
        monkeypatch.undo()
        watch.now_s += SAVE_EVERY_S
        devices.tick()
        assert list(store.load()) == ["a"]

    def test_the_table_keeps_replaces_and_deletes(self, url: str) -> None:
        store = RegistryTable(url)
        store.save({"a": Entry(tags=("x",)), "b": Entry(said=said("b", classes=(1, 2)))})
        store.save({"a": Entry(tags=("y",))}, gone=["b"])
        assert store.load() == {"a": Entry(tags=("y",))}
        store.scrub()


@pytest.fixture
def bench(fleet: FleetData, tmp_path: Path, url: str) -> Bench:
    return Bench(
        fleet,
        SqlStore(url, "run-1"),
        BlobFolder(tmp_path / "blobs" / "run-1"),
        settings={"keep_models": 3, "rounds": 9},
    )


def orders_of(bench: Bench, folder: Path, url: str) -> dict[str, Handler]:
    return DeviceOrders(bench.runner, folder, url).handlers


class TestWithdrawal:
    def test_a_device_whose_owner_withdraws_is_asked_for_nothing_until_it_checks_in_again(
        self, fleet: FleetData, url: str
    ) -> None:
        watch = Watch()
        bench = Bench(fleet, devices=Devices(RegistryTable(url), watch))
        bench.answers()
        status = encode(m.DeviceStatus("a", False, "0f" * 16))
        bench.send("a", "status", status)
        assert bench.answers() == [m.Acknowledge("a", digest(status))], (
            "it is confirmed, by the digest of what was said"
        )
        assert Devices(RegistryTable(url), watch).entry("a").withdrawn_s == watch.now_s, (
            "safe before it was confirmed"
        )
        assert not bench.runner.devices.may_be_asked("a", "")
        bench.runner.tick()
        assert not bench.state.devices["a"].eligible
        again = encode(m.DeviceStatus("a", False, "f0" * 16))
        bench.send("a", "status", again)
        assert bench.answers() == [m.Acknowledge("a", digest(again))]
        bench.send("a", "status", encode(m.DeviceStatus("a", True)))
        assert not [plan for plan in bench.answers() if isinstance(plan, m.Plan)], (
            "a beat that was on its way is no consent"
        )
        assert bench.runner.devices.entry("a").withdrawn_s
        bench.send("a", "check-in", encode(said("a")))
        assert bench.state.devices["a"].eligible
        assert not bench.runner.devices.entry("a").withdrawn_s

    def test_what_cannot_be_noted_is_not_confirmed(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise StorageFailed("the disk is full")

        bench.answers()
        monkeypatch.setattr(bench.runner.devices, "_store", type("Full", (), {"save": fail})())
        bench.send("a", "status", encode(m.DeviceStatus("a", False, "0f" * 16)))
        assert bench.answers() == []

    def test_nobody_withdraws_for_another_device(self, bench: Bench) -> None:
        bench.answers()
        bench.send("b", "status", encode(m.DeviceStatus("a", False, "0f" * 16)))
        assert [type(answer) for answer in bench.answers()] == [m.Refuse]
        assert not bench.runner.devices.entry("a").withdrawn_s


class TestBan:
    def test_nothing_of_a_banned_device_is_taken_until_it_is_banned_no_longer(
        self, fleet: FleetData, tmp_path: Path, url: str
    ) -> None:
        bench = Bench(fleet, devices=Devices(None, Watch()))
        orders = orders_of(bench, tmp_path, url)
        bench.verdict(bench.payload("a"))
        orders["ban-device"]("a", "stolen")
        assert ("a" in bench.state.cohort, "a" in bench.state.received) == (False, False)
        bench.answers()
        late = bench.payload("b")
        for kind, payload in {
            "check-in": encode(said("a")),
            "update": late,
            "status": encode(m.DeviceStatus("a", True)),
            "fetch": encode(m.Fetch("a", "0" * 64)),
            "decline": encode(m.Decline("r", 1, 1, 0, "a", "policy", "")),
        }.items():
            bench.send("a", kind, payload)
        assert bench.answers() == []
        assert bench.runner.refused == {"banned": 5}
        bench.send("b", "check-in", encode(said("b")))
        bench.send("b", "update", bench.payload("b"))
        orders["unban-device"]("a")
        bench.send("a", "check-in", encode(said("a")))
        assert bench.state.devices["a"].eligible
        with pytest.raises(ConfigError, match="it is not banned"):
            orders["unban-device"]("a")

    def test_a_ban_holds_from_the_next_start_on(self, bench: Bench, url: str) -> None:
        Devices(RegistryTable(url), bench.clock).ban("a", "stolen")
        bench.answers()
        bench.start(
            bench.state.settings,
            bench.store,
            bench.blobs,
            epoch=2,
            devices=Devices(RegistryTable(url), bench.clock),
        )
        asked = [plan.device_id for plan in bench.answers() if isinstance(plan, m.Plan)]
        assert asked == ["b"]


class TestWhere:
    def test_only_devices_that_the_rule_means_are_asked(
        self, bench: Bench, tmp_path: Path, url: str
    ) -> None:
        changed = msgspec.structs.replace(
            bench.state.settings, where="tags has nights and not metered"
        )
        bench.start(changed, bench.store, bench.blobs, epoch=2, devices=bench.runner.devices)
        bench.close(a=(1.0, 1), b=(1.0, 1))
        bench.answers()
        bench.runner.tick()
        assert [device.eligible for device in bench.state.devices.values()] == [False, False]
        orders = orders_of(bench, tmp_path, url)
        orders["tag-devices"](("b", "c"), ("nights",))
        assert not bench.state.devices["b"].eligible, (
            "it is not known whether its traffic is paid for"
        )
        bench.send("b", "check-in", encode(said("b", unmetered=True)))
        bench.send("c", "check-in", encode(said("c", unmetered=False)))
        assert {d: known.eligible for d, known in bench.state.devices.items()} == {
            "a": False,
            "b": True,
            "c": False,
        }
        orders["untag-devices"](("b",), ("nights",))
        assert not bench.state.devices["b"].eligible


class TestForget:
    def trained(self, bench: Bench) -> tuple[str, ...]:
        """Two rounds with the device that will be forgotten, and its update in a third. Returns
        names of its blobs."""
        blobs: list[str] = []
        bench.send(GONE, "check-in", encode(said(GONE, hardware="Marked-Board")))
        bench.close(a=(1.0, 1), b=(1.0, 1))
        for number in (2, 3):
            tensors, bench.tensors = (
                bench.tensors,
                {
                    name: np.full_like(array, PATTERN * number)
                    for name, array in bench.tensors.items()
                },
            )
            bench.send(GONE, "update", bench.payload(GONE))
            bench.tensors = tensors
            blobs.append(bench.state.received[GONE].blob)
            if number == 2:
                bench.close(a=(1.0, 1), b=(1.0, 1))
        return tuple(blobs)

    def test_nothing_of_it_is_left_in_the_database_or_the_blobs_and_the_run_goes_on(
        self, bench: Bench, tmp_path: Path, url: str
    ) -> None:
        devices = Devices(RegistryTable(url), bench.clock)
        bench.start(bench.state.settings, bench.store, bench.blobs, epoch=2, devices=devices)
        blobs = self.trained(bench)
        needles = (
            GONE.encode(),
            b"Marked-Board",
            np.full(4, PATTERN * 3).tobytes(),
            *(name.encode() for name in blobs),
        )
        bench.runner.devices.save()
        assert len(found(tmp_path, *needles)) >= 2
        told = orders_of(bench, tmp_path, url)["forget-device"](GONE)
        assert "it stays in models that it helped to train with others, in backups" in told
        assert found(tmp_path, *needles) == []
        assert GONE not in bench.state.devices
        assert [GONE in str(record) for record in bench.store.rounds()] == [False, False]
        notes = bench.close(a=(1.0, 1), b=(1.0, 1))
        assert (notes, bench.state.round, bench.runner.paused) == ({}, 4, "")
        reopened = SqlStore(url, "run-1").load()
        assert reopened == bench.state
        assert found(tmp_path, *needles) == []

    def test_it_is_forgotten_in_runs_that_are_not_open_too(
        self, bench: Bench, tmp_path: Path, url: str
    ) -> None:
        blobs = self.trained(bench)
        devices = Devices(RegistryTable(url), bench.clock)
        devices.on_check_in(said(GONE))
        devices.save()
        needles = (
            GONE.encode(),
            np.full(4, PATTERN * 3).tobytes(),
            *(name.encode() for name in blobs),
        )
        bench.runner.campaigns.clear()
        bench.runner.devices = devices
        orders_of(bench, tmp_path, url)["forget-device"](GONE)
        assert found(tmp_path, *needles) == []
        bench.start(bench.state.settings, bench.store, bench.blobs, epoch=2)
        assert (bench.state.round, bench.runner.paused) == (3, "")

    def test_a_device_that_comes_again_is_a_new_one(
        self, bench: Bench, tmp_path: Path, url: str
    ) -> None:
        self.trained(bench)
        orders_of(bench, tmp_path, url)["forget-device"](GONE)
        bench.answers()
        bench.send(GONE, "status", encode(m.DeviceStatus(GONE, True)))
        (refused,) = bench.answers()
        assert refused.reason == "unknown-device"
        bench.send(GONE, "check-in", encode(said(GONE)))
        assert bench.state.devices[GONE].accepted == ""

    def test_a_ban_stays_with_its_id(self, bench: Bench, tmp_path: Path, url: str) -> None:
        orders = orders_of(bench, tmp_path, url)
        orders["ban-device"]("a", "stolen")
        assert "its ban stays" in orders["forget-device"]("a")
        assert bench.runner.devices.is_banned("a")
        assert "a" not in bench.state.devices


def test_a_device_has_the_tags_of_its_enrolment_from_its_first_check_in_on(url: str) -> None:
    devices = Devices(
        RegistryTable(url),
        Watch(),
        lambda device_id: ("nights", "lab") if device_id == "new" else (),
    )
    devices.tag(["new"], ["early"])
    devices.on_check_in(said("new"))
    devices.on_check_in(said("other"))
    assert [sorted(devices.entry(d).tags) for d in ("new", "other")] == [
        ["early", "lab", "nights"],
        [],
    ]
    devices.untag(["new"], ["lab"])
    devices.on_check_in(said("new"))
    assert sorted(devices.entry("new").tags) == ["early", "nights"], (
        "what an operator took away stays away"
    )


def test_an_enrolment_that_cannot_be_read_costs_the_tags_and_not_the_device(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_device_id: str) -> tuple[str, ...]:
        raise StorageFailed("the disk is gone")

    devices = Devices(RegistryTable(url), Watch(), broken)
    devices.on_check_in(said("new"))
    assert devices.entry("new").online
    assert "device=new has not got the tags of its enrolment: the disk is gone" in caplog.text
