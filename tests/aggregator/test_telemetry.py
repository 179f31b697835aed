"""Telemetry: what is shown of a device, what a kill loses of it, and what it costs in a fleet of
ten thousand."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from aggregator.core.telemetry import HISTORY, DeviceTelemetry, LastTraining
from aggregator.fleet.records import Assignment, Campaign, Device, Fleet, Member, Placed, Version
from aggregator.ports import StorageFailed
from aggregator.service.telemetry import SAVE_EVERY_S, Telemetry
from aggregator.storage.engine import sqlite_url
from aggregator.storage.telemetry_table import TelemetryTable
from tests.aggregator.device_cases import found
from tests.aggregator.inbox_cases import Watch
from tests.support.settings import SETTINGS
from wire.messages import Decline, Metrics, Update

WORK = Assignment(1, "train", "run", 1, "0", "0" * 64, (), 100.0)
DEVICE = Device(asked_s=90.0, assignment=WORK)


def update_of(device_id: str, examples: int = 160, train_s: float = 2.0) -> Update:
    trained = Metrics(examples, 1.0, 1)
    own = (device_id, "0" * 64, 160, 5, Metrics(), trained, 1000, train_s)
    return Update("r", 1, 1, 1, *own)


def decline_of(device_id: str) -> Decline:
    return Decline("r", 1, 3, 1, device_id, "policy", "no")


def fleet_with(*members: tuple[str, Member], number: int = 1, name: str = "run") -> Fleet:
    """A fleet whose campaign has these members in this round."""
    version = Version(round=0, models={}, memory="", programs={}, newcomers="")
    settings = replace(SETTINGS, name=name)
    campaign = Campaign(
        settings=settings,
        next_settings=settings,
        version=version,
        round=number,
        members=Map(dict(members)),
    )
    return Fleet(at_s=float(number), campaigns={name: campaign})


class TestRecord:
    @pytest.fixture
    def telemetry(self) -> Telemetry:
        return Telemetry(None, Watch())

    def test_it_has_the_last_training_and_the_last_decline(self, telemetry: Telemetry) -> None:
        telemetry.on_update(update_of("a"), DEVICE, WORK, 500)
        telemetry.on_decline(decline_of("a"), "run", "no")
        record = telemetry.of("a")
        assert record.training == LastTraining(160, 2.0, 10.0, 500, 1000)
        assert (record.bytes_up, record.bytes_down) == (500, 1000)
        assert record.decline is not None
        assert (record.decline.round, record.decline.reason) == (3, "policy")
        assert telemetry.declined == {"policy": 1}

    @pytest.mark.parametrize(
        ("kind", "examples"), [("train", 0), ("personalise", 160), ("survey", 0)]
    )
    def test_an_update_that_trained_in_no_round_leaves_the_last_training(
        self, telemetry: Telemetry, kind: Any, examples: int
    ) -> None:
        telemetry.on_update(update_of("a"), DEVICE, WORK, 500)
        work = replace(WORK, kind=kind)
        telemetry.on_update(update_of("a", examples, 9.0), DEVICE, work, 7)
        record = telemetry.of("a")
        assert record.training == LastTraining(160, 2.0, 10.0, 500, 1000)
        assert record.bytes_up == 7

    def test_changes_of_group_are_remembered_and_the_same_group_is_none(
        self, telemetry: Telemetry
    ) -> None:
        before = fleet_with(number=1)
        for number in range(1, 31):
            after = fleet_with(("a", Member(group=str(number // 2))), number=number)
            telemetry.observe(before, after, ["a", "b"])
            before = after
        groups = telemetry.of("a").groups
        assert [change.group for change in groups] == [str(n) for n in range(8, 16)]
        assert len(groups) == HISTORY
        assert "b" not in telemetry.records

    def test_a_group_by_a_survey_is_one_and_its_end_is_no_change(
        self, telemetry: Telemetry
    ) -> None:
        placed = fleet_with(("a", Member(placed=Placed("1", 0.8, 5))))
        telemetry.observe(fleet_with(), placed, ["a"])
        telemetry.observe(placed, fleet_with(("a", Member())), ["a"])
        telemetry.observe(fleet_with(number=3), fleet_with(("a", Member(group="1"))), ["a"])
        assert [(c.group, c.round) for c in telemetry.of("a").groups] == [("1", 1), ("1", 3)]

    def test_a_campaign_that_has_just_started_has_changed_no_group(
        self, telemetry: Telemetry
    ) -> None:
        telemetry.observe(Fleet(), fleet_with(("a", Member(group="1"))), ["a"])
        assert not telemetry.records


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "shoal.db")


class TestSaved:
    @pytest.fixture
    def table(self, url: str) -> Iterator[TelemetryTable]:
        with closing(TelemetryTable(url)) as table:
            yield table

    def test_a_kill_loses_what_came_since_it_was_saved(
        self, table: TelemetryTable, url: str
    ) -> None:
        watch = Watch()
        telemetry = Telemetry(table, watch)
        telemetry.on_update(update_of("early", 10), DEVICE, WORK, 500)
        watch.now_s += SAVE_EVERY_S
        telemetry.tick()
        telemetry.on_update(update_of("early", 20), DEVICE, WORK, 500)
        telemetry.on_decline(decline_of("late"), "run", "")
        after = Telemetry(table, watch)  # as after a kill: nothing was closed
        assert sorted(after.records) == ["early"]
        training = after.of("early").training
        assert training is not None
        assert training.examples == 10
        telemetry.save()
        assert Telemetry(table, watch).records == telemetry.records
        assert table.load() == dict(telemetry.records)

    def test_what_cannot_be_written_is_written_later(
        self, table: TelemetryTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watch = Watch()
        telemetry = Telemetry(table, watch)
        telemetry.on_decline(decline_of("a"), "run", "")

        def fails(*_: Any) -> None:
            raise StorageFailed("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(table, "save", fails)
            watch.now_s += SAVE_EVERY_S
            telemetry.tick()
        assert not table.load()
        watch.now_s += SAVE_EVERY_S
        telemetry.tick()
        assert list(table.load()) == ["a"]

    def test_a_message_alone_writes_nothing(self, table: TelemetryTable) -> None:
        telemetry = Telemetry(table, Watch())
        telemetry.on_heard("a")
        telemetry.save()
        assert telemetry.of("a").heard_s == 100.0
        assert not table.load()

    def test_nothing_is_left_of_a_forgotten_device(
        self, table: TelemetryTable, tmp_path: Path
    ) -> None:
        telemetry = Telemetry(table, Watch())
        telemetry.on_decline(decline_of("gone-zq7x"), "run", "Marked-Board")
        telemetry.on_decline(decline_of("b"), "run", "")
        telemetry.save()
        telemetry.on_decline(decline_of("gone-zq7x"), "run", "Marked-Board")
        needles = (b"gone-zq7x", b"Marked-Board")
        assert found(tmp_path, *needles)
        telemetry.forget("gone-zq7x")
        telemetry.save()
        assert found(tmp_path, *needles) == []
        assert list(telemetry.records) == list(table.load()) == ["b"]
        telemetry.forget("gone-zq7x")

    def test_the_table_keeps_replaces_and_deletes(self, table: TelemetryTable) -> None:
        table.save({"a": DeviceTelemetry(bytes_up=1), "b": DeviceTelemetry(bytes_up=2)})
        table.save({"a": DeviceTelemetry(bytes_up=3)}, gone=["b"])
        assert table.load() == {"a": DeviceTelemetry(bytes_up=3)}


ACTS: tuple[Callable[[Telemetry, str], object], ...] = (
    lambda telemetry, d: telemetry.on_heard(d),
    lambda telemetry, d: telemetry.forget(d),
    lambda telemetry, d: telemetry.on_update(update_of(d), DEVICE, WORK, 500),
    lambda telemetry, d: telemetry.on_decline(decline_of(d), "run", ""),
    lambda telemetry, d: telemetry.observe(
        fleet_with(), fleet_with((d, Member(group="1"))), ["a", "b", "c"]
    ),
)
ids = st.sampled_from("abc")


@given(st.lists(st.tuples(st.sampled_from(ACTS), ids), max_size=30), ids)
def test_what_becomes_of_other_devices_does_not_touch_a_record(
    history: list[tuple[Callable[[Telemetry, str], object], str]], device_id: str
) -> None:
    every, own = Telemetry(None, Watch()), Telemetry(None, Watch())
    for act, of in history:
        act(every, of)
        if of == device_id:
            act(own, of)
    assert every.records.get(device_id) == own.records.get(device_id)


def test_a_device_of_ten_thousand_costs_what_one_of_a_thousand_does() -> None:
    def held(count: int) -> int:
        tracemalloc.start()
        telemetry = Telemetry(None, Watch())
        for i in range(count):
            telemetry.on_heard(f"d{i:05d}")
            telemetry.on_update(update_of(f"d{i:05d}"), DEVICE, WORK, 500)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert len(telemetry.records) == count
        return size

    assert held(10_000) < 1.2 * 10 * held(1_000)
