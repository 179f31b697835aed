"""Errors and versions that devices report: bounds, the page of a device, groups over devices, and
what an old client is to update."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.core.telemetry import LastError, error_key
from aggregator.fleet import events as e
from aggregator.http.dashboard.alerts import MOST_ERRORS, standing_alerts
from aggregator.http.dashboard.fleet import condition_of, fleet_page
from aggregator.http.devices import device_line
from aggregator.http.pages.rendering import render
from aggregator.service.telemetry import Telemetry
from aggregator.storage.engine import sqlite_url
from aggregator.storage.telemetry_table import TelemetryTable
from aggregator.view.fleet import RECENT_S, FleetView
from simulation.datasets.windows import FleetData
from tests.aggregator.inbox_cases import InboxBench, Watch
from tests.fleet.test_view import WELL
from wire import messages as m
from wire.codec import encode

FULL_DISK = m.ErrorReport(
    "a",
    90.0,
    "Update not stored",
    "OSError",
    "[Errno 28] No space left on device: '~/state/update.safetensors'",
    ("edge_client/agent/loop.py:402 _carry_out",),
    "shoal 0.1.0",
    peak_bytes=2**27,
    memory_bytes=2**29,
)


@pytest.fixture
def bench(fleet: FleetData) -> InboxBench:
    return InboxBench(fleet)


def view_of(bench: InboxBench) -> FleetView:
    return FleetView(bench.fleet, bench.telemetry.records, {}, bench.clock())


class TestInbox:
    def test_the_last_error_of_a_device_is_remembered(self, bench: InboxBench) -> None:
        bench.send("a", "error", encode(FULL_DISK))
        later = replace(FULL_DISK, at_s=95.0, message="another")
        assert bench.send("a", "error", encode(later)) == []
        assert bench.telemetry.of("a").error == LastError(100.0, later, first_s=95.0)

    def test_a_report_that_is_repeated_keeps_its_time(self, bench: InboxBench) -> None:
        bench.send("a", "error", encode(FULL_DISK))
        bench.clock.now_s += 3600.0
        bench.send("a", "error", encode(FULL_DISK))
        assert bench.telemetry.of("a").error == LastError(100.0, FULL_DISK, first_s=90.0)

    @pytest.mark.parametrize(("at_s", "shown_s"), [(90.0, 90.0), (0.0, 100.0), (9e9, 100.0)])
    def test_a_wrong_clock_of_a_device_dates_no_error_into_the_future(
        self, bench: InboxBench, at_s: float, shown_s: float
    ) -> None:
        bench.send("a", "error", encode(replace(FULL_DISK, at_s=at_s)))
        error = bench.telemetry.of("a").error
        assert error is not None
        assert (error.at_s, error.first_s) == (shown_s, shown_s)

    @pytest.mark.parametrize(
        "hostile",
        [
            replace(FULL_DISK, device_id="b"),
            replace(FULL_DISK, frames=("f" * 900,) * 8),
            b'{"type":"error","device_id":"a","at_s":1e999,"what":"x","error":"E"}',
            b'{"type":"error","device_id":"a","at_s":1,"what":"x","error":"E","frames":["'
            + b"x" * 1001
            + b'"]}',
        ],
    )
    def test_what_is_too_large_or_of_another_device_is_refused(
        self, bench: InboxBench, hostile: Any
    ) -> None:
        payload = hostile if isinstance(hostile, bytes) else encode(hostile)
        (refusal,) = bench.send("a", "error", payload)
        assert isinstance(refusal, m.Refuse)
        assert (bench.telemetry.of("a").error, bench.telemetry.of("b").error) == (None, None)

    def test_an_unknown_device_leaves_nothing(self, bench: InboxBench) -> None:
        bench.send("x", "error", encode(replace(FULL_DISK, device_id="x")))
        assert "x" not in bench.telemetry.records

    def test_a_device_that_floods_is_not_read(self, bench: InboxBench) -> None:
        for number in range(100):
            bench.send("a", "error", encode(replace(FULL_DISK, message=str(number))))
        error = bench.telemetry.of("a").error
        assert error is not None
        assert error.report.message == "4"

    def test_texts_are_made_safe_to_print(self, bench: InboxBench) -> None:
        hostile = replace(FULL_DISK, error="E\n", message="a\x1b[2J", frames=("f\r:1 x",))
        bench.send("a", "error", encode(hostile))
        error = bench.telemetry.of("a").error
        assert error is not None
        report = error.report
        assert all(text.isprintable() for text in (report.error, report.message, *report.frames))


class TestStore:
    def test_one_row_has_the_last_error_and_goes_with_the_device(self, tmp_path: Path) -> None:
        url = sqlite_url(tmp_path / "shoal.db")
        with closing(TelemetryTable(url)) as table:
            telemetry = Telemetry(table, Watch())
            for number in range(50):
                telemetry.on_error(replace(FULL_DISK, message=str(number)))
            telemetry.save()
            assert {d: r.error for d, r in table.load().items()} == {
                "a": LastError(100.0, replace(FULL_DISK, message="49"), first_s=90.0)
            }
            telemetry.forget("a")
            assert table.load() == {}


class TestOldClients:
    CHECK_IN = b'{"type":"check-in","device_id":"a","num_train":-1,"num_test":1,"client":"%b"%b}'

    @pytest.mark.parametrize(
        ("client", "app", "advice"),
        [
            (b"shoal 0.0.9", b"", "shoal 0.0.9 is older than this service, 0.1.0: update the"),
            (b"shoal 0.0.9", b',"app":"2.7"', "update the app, which is 2.7, of the device"),
            (b"shoal 99.0", b"", ""),
            (b"mine", b"", ""),
            (b"", b"", ""),
        ],
    )
    def test_the_refusal_of_an_unreadable_check_in_names_what_to_update(
        self,
        bench: InboxBench,
        monkeypatch: pytest.MonkeyPatch,
        client: bytes,
        app: bytes,
        advice: str,
    ) -> None:
        monkeypatch.setattr("aggregator.fleet.eligibility.VERSION", "0.1.0")
        (refusal,) = bench.send("a", "check-in", self.CHECK_IN % (client, app))
        assert refusal.reason == "malformed"
        assert advice in refusal.detail
        assert ("update" in refusal.detail) == bool(advice)

    def test_another_message_is_judged_by_the_last_check_in(
        self, bench: InboxBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        facts = m.CheckIn("a", 10, 4, client="shoal 0.0.9")
        bench.take(e.CheckedIn(at_s=101.0, device_id="a", facts=facts))
        (refusal,) = bench.send("a", "in-use", b"not json")
        assert "shoal 0.0.9 is older than this service" in refusal.detail

    def test_a_client_that_cannot_read_its_plan_is_shown_as_outdated(
        self, bench: InboxBench
    ) -> None:
        work = bench.work("a")
        decline = m.Decline("r", 1, work.round, work.serial, "a", "outdated", "update the client")
        bench.send("a", "decline", encode(decline))
        device = view_of(bench).device("a")
        assert device is not None
        assert device.declined is not None
        assert (device.declined.reason, device.record.failures) == ("outdated", 1)


class TestRefusals:
    def test_the_refusal_of_an_update_is_the_last_answer_of_its_device(
        self, bench: InboxBench
    ) -> None:
        bench.tensors = {name: array + 1e9 for name, array in bench.tensors.items()}
        (refusal,) = (
            a for a in bench.send("a", "update", bench.payload("a")) if hasattr(a, "reason")
        )
        assert refusal.reason == "norm-too-large"
        (alert,) = (a for a in standing_alerts(WELL, view_of(bench)) if a.id == "failing")
        assert alert.devices[0].text.startswith("its update was refused: norm-too-large (")
        assert "update refused: norm-too-large" in page(bench)
        assert bench.telemetry.declined == {}, "the device declined nothing"
        device = view_of(bench).device("a")
        assert device is not None
        assert condition_of(device).word == "refused"

    def test_an_unreadable_update_is_too(self, bench: InboxBench) -> None:
        bench.send("a", "update", b"no update")
        (alert,) = (a for a in standing_alerts(WELL, view_of(bench)) if a.id == "failing")
        assert "its update was refused: too-large" in alert.devices[0].text


class TestPages:
    def test_the_page_of_a_device_has_its_last_error(self, bench: InboxBench) -> None:
        facts = m.CheckIn("a", 10, 4, client="shoal 0.1.0", protocol="1.1", app="2.7")
        bench.take(e.CheckedIn(at_s=101.0, device_id="a", facts=facts))
        shown = page(bench)
        assert "It has reported none." in shown
        assert "shoal 0.1.0, protocol 1.1" in shown
        bench.send("a", "error", encode(FULL_DISK))
        shown = page(bench)
        for text in ("No space left on device", "loop.py:402 _carry_out", "128", "512", "2.7"):
            assert text in shown

    def test_an_owner_who_forbids_reports_is_named(self, bench: InboxBench) -> None:
        facts = m.CheckIn("a", 10, 4, policy=m.Policy(report_errors=False))
        bench.take(e.CheckedIn(at_s=101.0, device_id="a", facts=facts))
        assert "Its owner does not permit error reports." in page(bench)

    def test_what_a_device_says_of_its_error_is_text(self, bench: InboxBench) -> None:
        bench.send("a", "error", encode(replace(FULL_DISK, message="<script>", error="<b>")))
        assert "<script>" not in page(bench)
        assert "&lt;script&gt;" in page(bench)

    def test_devices_are_found_by_their_error(self, bench: InboxBench) -> None:
        bench.send("b", "error", encode(replace(FULL_DISK, device_id="b")))
        rows = fleet_page(view_of(bench), "no space", "all", "id", 1).rows
        assert [line.id for line, _ in rows] == ["b"]


class TestGroups:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ("[Errno 28] No space: '/home/a/x.bin'", "[Errno 28] No space: '/srv/b/y 1.bin'"),
            ("index 17 is out of 98", "index 3 is out of 5"),
            ("blob 0a1b2c3d4e5f is damaged", "blob ffffffffffff is damaged"),
            ("cannot open C:\\Users\\a\\b", "cannot open ~/b"),
        ],
    )
    def test_numbers_paths_and_digests_make_no_difference(self, one: str, other: str) -> None:
        assert error_key("E", one).split(" ")[:3] == error_key("E", other).split(" ")[:3]

    def test_other_types_and_other_words_do(self) -> None:
        keys = {error_key("E", "a 1"), error_key("F", "a 1"), error_key("E", "b 1")}
        assert len(keys) == 3

    def test_a_hostile_message_costs_no_time(self) -> None:
        for text in ("/" * 1000, "'/" * 500, "~:/\\" * 250, "0a" * 500):
            assert len(error_key("E", text)) <= 200

    def test_the_alert_has_the_share_of_the_devices_that_had_it(self, bench: InboxBench) -> None:
        for number in range(38):
            device_id = f"d{number:02d}"
            bench.take(
                e.CheckedIn(at_s=101.0, device_id=device_id, facts=m.CheckIn(device_id, 1, 1))
            )
            if number < 11:
                text = f"[Errno 28] No space left on device: '/home/u{number}/x'"
                report = replace(FULL_DISK, device_id=device_id, message=text)
                bench.send(device_id, "error", encode(report))
        alerts = [a for a in standing_alerts(WELL, view_of(bench)) if "No space" in a.title]
        assert [alert.title for alert in alerts] == [
            "11 of 40 devices: OSError: [Errno 28] No space left on device"
        ]
        assert len(alerts[0].devices) == 11

    def test_only_errors_of_the_last_day_of_devices_that_may_take_part_count(
        self, bench: InboxBench
    ) -> None:
        bench.send("a", "error", encode(FULL_DISK))
        assert [error.devices for error in view_of(bench).totals.errors] == [("a",)]
        bench.clock.now_s += RECENT_S
        assert view_of(bench).totals.errors == ()

    def test_an_error_ends_once_its_device_has_carried_out_an_assignment(
        self, bench: InboxBench
    ) -> None:
        bench.take(e.CheckedIn(at_s=100.0, device_id="b", facts=m.CheckIn("b", 10, 4)))
        for device_id in "ab":
            bench.send(device_id, "error", encode(replace(FULL_DISK, device_id=device_id)))
        assert [error.devices for error in view_of(bench).totals.errors] == [("a", "b")]
        bench.clock.now_s += 10.0
        bench.send("a", "update", bench.payload("a"))
        assert [error.devices for error in view_of(bench).totals.errors] == [("b",)]
        bench.clock.now_s += 10.0
        bench.send("b", "update", bench.payload("b"))
        assert view_of(bench).totals.errors == ()
        bench.send("a", "error", encode(FULL_DISK))
        assert view_of(bench).totals.errors == (), "a report that is repeated"
        bench.clock.now_s += 10.0
        again = replace(FULL_DISK, at_s=bench.clock())
        bench.send("a", "error", encode(again))
        assert [error.first_s for error in view_of(bench).totals.errors] == [130.0]

    def test_an_error_began_when_it_came_first(self, bench: InboxBench) -> None:
        for at_s in (100.0, 160.0, 220.0):
            bench.clock.now_s = at_s
            bench.send("a", "error", encode(replace(FULL_DISK, at_s=at_s)))
        (alert,) = (a for a in standing_alerts(WELL, view_of(bench)) if a.id == "errors")
        assert alert.since_s == 100.0
        bench.clock.now_s = 300.0
        other = replace(FULL_DISK, at_s=290.0, error="KeyError", message="x")
        bench.send("a", "error", encode(other))
        (alert,) = (a for a in standing_alerts(WELL, view_of(bench)) if a.id == "errors")
        assert alert.since_s == 290.0, "of another error"

    @pytest.mark.parametrize(
        ("changes", "ends"),
        [
            ({"client": "shoal 0.2.0"}, True),
            ({"num_train": 20}, True),
            ({"free_bytes": 10 * 2**30}, True),
            ({"battery_percent": 99.0}, False),
            ({"free_bytes": 100 * 2**20}, False),
        ],
    )
    def test_an_error_ends_with_facts_that_may_end_its_cause(
        self, bench: InboxBench, changes: dict[str, Any], ends: bool
    ) -> None:
        facts = m.CheckIn("a", 10, 4, free_bytes=90 * 2**20)
        bench.send("a", "check-in", encode(facts))
        bench.clock.now_s += 10.0
        bench.send("a", "error", encode(FULL_DISK))
        bench.clock.now_s += 10.0
        before = bench.fleet
        bench.send("a", "check-in", encode(replace(facts, **changes)))
        bench.telemetry.observe(before, bench.fleet, ["a"])
        assert (view_of(bench).totals.errors == ()) is ends

    def test_many_different_errors_make_few_alerts(self, bench: InboxBench) -> None:
        for number in range(26):
            device_id = f"d{number}"
            bench.take(
                e.CheckedIn(at_s=101.0, device_id=device_id, facts=m.CheckIn(device_id, 1, 1))
            )
            text = f"an error called {chr(97 + number)}"
            report = replace(FULL_DISK, device_id=device_id, message=text)
            bench.send(device_id, "error", encode(report))
        alerts = [a for a in standing_alerts(WELL, view_of(bench)) if "called" in a.title]
        assert len(alerts) == MOST_ERRORS


def page(bench: InboxBench, device_id: str = "a") -> str:
    """Return the page of a device."""
    view = view_of(bench)
    device = view.device(device_id)
    assert device is not None
    return render(
        "device.html",
        device=device,
        line=device_line(view, device),
        condition=condition_of(device),
        standing=[],
        urgent=0,
        user=None,
        may_order=False,
        told=None,
        here="",
        current="fleet",
    )
