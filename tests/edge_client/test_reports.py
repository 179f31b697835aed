"""Error reports of a board: what leaves it, when, and what a kill leaves of them."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_client.agent.health import linux_machine
from edge_client.core.report import WITHHELD, Machine
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import Device
from tests.support.bundles import Exported
from wire import messages as m
from wire.codec import decode, encode

MEMORY = Machine("boot-1", 3, 200_000_000, 512_000_000)


class Died(BaseException):
    """The end of the process."""


def failing(error: Exception) -> Callable[..., Any]:
    """Return a loader of graphs that raises this error."""

    def load(_bundle: object) -> Any:
        raise error

    return load


def dying(_bundle: object) -> Any:
    raise Died


@pytest.fixture
def device(fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
    device = Device(fleet, exported, tmp_path, machine=lambda: MEMORY)
    device.load_graphs = failing(ValueError("window of 98 Hz"))
    return device


def errors(device: Device) -> list[m.ErrorReport]:
    return [decode(payload, m.ErrorReport) for payload in device.sent("error")]


def fail(device: Device, number: int = 1) -> None:
    """Let a plan fail."""
    device.offer()
    device.send_plan(number)
    device.turn()


class TestReport:
    def test_a_failed_plan_is_reported_at_once_with_its_place_memory_and_version(
        self, device: Device
    ) -> None:
        device.start()
        fail(device)
        (report,) = errors(device)
        assert (report.what, report.error) == ("Plan failed", "ValueError")
        assert report.message == "window of 98 Hz"
        assert (report.peak_bytes, report.memory_bytes) == (200_000_000, 512_000_000)
        assert (report.client, report.device_id) == (m.CLIENT, "d0")
        assert report.frames[-1].startswith("tests/edge_client/test_reports.py:")
        assert any(frame.startswith("edge_client/work/plan.py:") for frame in report.frames)
        assert not any(frame.startswith("/") for frame in report.frames)

    def test_one_a_minute_is_sent_and_the_last_error_wins(self, device: Device) -> None:
        device.start()
        for number in range(1, 6):
            fail(device, number)
            device.now_s += 1.0
        assert len(errors(device)) == 1
        device.load_graphs = failing(ValueError("the last"))
        device.agent._work._load_graphs = device.load_graphs
        fail(device, 6)
        device.now_s += 60.0
        device.turn()
        assert [report.message for report in errors(device)] == ["the last"]
        device.now_s += 600.0
        device.turn()
        assert errors(device) == []

    def test_it_survives_a_kill_and_follows_each_check_in(self, device: Device) -> None:
        device.start()
        fail(device)
        reports = errors(device)
        device.start()
        device.turn()
        assert errors(device) == reports

    def test_without_a_connection_it_waits(self, device: Device) -> None:
        device.start()
        device.agent._outbox.connected = False
        device.agent._contained("work", lambda: failing(ValueError("x"))(None))
        assert errors(device) == []
        device.turn()
        assert [report.what for report in errors(device)] == ["Work failed"]

    def test_a_full_disk_is_reported_though_the_report_cannot_be_stored(
        self, device: Device, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full = OSError(errno.ENOSPC, "No space left on device", str(Path.home() / "state"))

        def save(_self: object, _session: object) -> None:
            raise full

        device.start()
        device.turn()
        monkeypatch.setattr(DeviceState, "save", save)
        for _ in range(3):
            device.agent._contained("work", lambda: failing(full)(None))
        (report,) = errors(device)
        assert report.message == "[Errno 28] No space left on device: '~/state'"

    def test_an_ignored_message_is_nobodys_error(self, device: Device) -> None:
        device.start()
        device.turn()
        device.server.publish(device.topics.device("d0", "reply"), b"{}")
        device.turn()
        assert errors(device) == []

    def test_an_error_whose_text_cannot_be_made_is_reported(self, device: Device) -> None:
        class Broken(Exception):
            def __str__(self) -> str:
                raise ValueError

        device.start()
        device.agent._contained("work", lambda: failing(Broken())(None))
        device.turn()
        assert [report.error for report in errors(device)] == ["Broken"]

    @pytest.mark.parametrize(
        "text",
        ["a\nb\x00\x1b[2J", "\ud800", "é" * 5000, "\\" * 5000],
        ids=["control", "surrogate", "long", "escaped"],
    )
    def test_whatever_the_text_the_report_is_small_and_can_be_read(
        self, device: Device, text: str
    ) -> None:
        device.start()
        device.agent._contained("work", lambda: failing(OSError(text))(None))
        device.turn()
        (report,) = errors(device)
        assert len(encode(report)) <= m.ERROR_BYTES
        assert report.message.isprintable()
        assert len(report.message.encode()) <= 500


class TestOwner:
    def test_an_owner_who_forbids_it_reports_no_text_of_an_error(self, device: Device) -> None:
        device.options["policy"] = m.Policy(report_errors=False)
        device.load_graphs = failing(ValueError("pulse 98.6 of Anna"))
        device.start()
        fail(device)
        payloads = []
        while (event := device.server.receive(timeout_s=0)) is not None:
            payloads.append(event)
        assert not [each for each in payloads if "Anna" in str(each) or "/error" in str(each)]
        assert '"reason":"bundle","detail":""' in str(payloads)
        device.release(7)
        assert device.in_use().problem == WITHHELD

    def test_what_was_stored_before_the_owner_forbade_it_is_not_sent(self, device: Device) -> None:
        device.start()
        fail(device)
        assert errors(device)
        device.options["policy"] = m.Policy(report_errors=False)
        device.start()
        device.turn()
        assert errors(device) == []


class TestKilled:
    @pytest.mark.parametrize(
        ("after", "error", "why"),
        [
            (Machine("boot-1", 4), "Killed", "killed 1 process for lack of memory (exit -9)"),
            (Machine("boot-1", 3), "Killed", "the kernel killed nothing for memory"),
            (
                Machine("boot-1", None),
                "Killed",
                "(exit -9), often for lack of memory, or it crashed",
            ),
            (Machine("boot-2", 0), "Restarted", "the machine restarted"),
        ],
    )
    def test_a_client_that_ended_at_work_says_why_at_its_next_start_and_once(
        self, device: Device, after: Machine, error: str, why: str
    ) -> None:
        device.load_graphs = dying
        device.start()
        device.offer()
        device.send_plan()
        with pytest.raises(Died):
            device.turn()
        device.options["machine"] = lambda: after
        device.load_graphs = failing(ValueError("x"))
        device.start()
        (report,) = (device.agent.session.error,)
        assert report is not None
        assert (report.error, report.peak_bytes) == (error, 200_000_000)
        assert report.message.startswith("the client ended while it worked on round 1: ")
        assert why in report.message
        device.turn()
        assert report in errors(device)
        device.start()
        assert device.agent.session.error != report or device.agent.session.machine is None

    def test_an_orderly_stop_in_the_midst_of_the_work_is_none(self, device: Device) -> None:
        device.start()
        device.offer()
        device.send_plan()
        device.agent._stop = lambda: True
        device.turn()
        device.start()
        assert device.agent.session.error is None


def test_the_machine_is_read_from_the_kernel_and_unknown_values_are_none(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b-1\n")
    (tmp_path / "vmstat").write_text("pgfault 3\noom_kill_disable 7\noom_kill 2\n")
    (tmp_path / "max").write_text("1048576\n")
    machine = linux_machine(tmp_path, tmp_path / "max")
    assert (machine.boot_id, machine.kills, machine.memory_bytes) == ("b-1", 2, 1_048_576)
    assert machine.peak_bytes is not None
    assert machine.peak_bytes > 2**20
    (tmp_path / "max").write_text("max\n")
    machine = linux_machine(tmp_path / "none", tmp_path / "max")
    assert (machine.boot_id, machine.kills) == ("", None), "an old kernel does not count them"
    assert machine.memory_bytes is not None
    assert machine.memory_bytes > 2**27
