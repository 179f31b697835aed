"""Lines that `shoal serve` logs: rounds, and that it was asked to stop."""

import logging
import os
import signal
import time

import pytest

from aggregator.fleet import events as e
from shoal.commands import serve as serve_module
from shoal.commands.serve import ask_to_stop, log_rounds
from tests.fleet.cases import all_work, configure
from tests.fleet.world import World


def test_a_service_says_at_once_that_it_was_asked_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stopping: list[int] = []
    try:
        ask_to_stop(stopping)
        with caplog.at_level(logging.INFO, "shoal"):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            until_s = time.monotonic() + 10
            while not caplog.records and time.monotonic() < until_s:
                time.sleep(0.01)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stopping == [signal.SIGTERM, signal.SIGTERM]
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
        "Stopping after the current task; if killed, the service resumes from the last saved state"
    ], "once, however often it is asked"


class Logged(World):
    """A world whose rounds are logged as those of a service are."""

    def __init__(self) -> None:
        super().__init__()
        self.observe = log_rounds()

    def feed(self, event: e.Event) -> list[e.Command]:
        commands = super().feed(event)
        self.observe(self.fleet, event)
        return commands


def test_the_log_says_what_a_campaign_waits_for_and_what_devices_lack_at_first_and_each_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Logged()
    with caplog.at_level(logging.INFO, "shoal"):
        world.start("run", min_devices=2, where="battery >= 90", rounds=1)
        for device_id in "abc":
            world.check_in(device_id)
        world.now_s += 60
        world.check_in("a")
        world.now_s += 3599
        world.check_in("a")
        world.now_s += 1
        world.check_in("a")
        for device_id in "ab":
            world.clients[device_id].battery = 95
            world.check_in(device_id)
    lacks = "Round 1 waits for 2 more devices: 0 of 2 ready: campaign=run"
    values = 'devices=3 excluded by "battery >= 90" (a: 80, b: 80, c: 80)'
    assert [line for line in logged_of(caplog) if line.startswith("Round")] == [
        lacks,
        f"{lacks} {values}",
        f"{lacks} {values}",
        "Round 1 opened: campaign=run devices=2 phase=training",
    ]


def test_the_log_has_the_present_reason_of_a_wait_within_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Logged()
    for device_id in "ab":
        world.check_in(device_id)
    with caplog.at_level(logging.INFO, "shoal"):
        world.start("run", min_devices=2, where="battery >= 90", rounds=1)
        world.now_s += 60
        world.check_in("a")
        world.leave("b")
        configure(world, where="")
        world.now_s += 60
        world.check_in("a")
        world.now_s += 60
        world.check_in("a")
    waits = [line for line in logged_of(caplog) if " waits " in line]
    assert [line.partition("devices=")[2] for line in waits] == [
        '2 excluded by "battery >= 90" (a: 80, b: 80)',
        "1 free, 1 offline since 00:01 UTC",
    ]


def test_the_log_does_not_say_that_a_campaign_waits_for_its_pace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Logged()
    for device_id in "ab":
        world.check_in(device_id)
    with caplog.at_level(logging.INFO, "shoal"):
        world.start("run", min_devices=2, rounds=9, pace_s=100.0)
        all_work(world)
        world.pass_time(70)
        assert [line for line in logged_of(caplog) if "waits" in line] == []
        world.leave("a")
        world.pass_time(70)
        (line,) = (line for line in logged_of(caplog) if "waits" in line)
        assert "1 offline" in line


def test_the_log_of_a_round_says_when_it_opens_and_is_aggregated_and_how_many_devices_took_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Logged()
    for device_id in "abc":
        world.check_in(device_id)
    with caplog.at_level(logging.INFO, "shoal"):
        world.start("run", auto=False, rounds=2, min_devices=2, cohort=2)
        for _ in range(3):
            all_work(world)
    assert [record.getMessage() for record in caplog.records] == [
        "Round 1 opened: campaign=run devices=2 phase=training",
        "Round 1 closed: campaign=run updates=2",
        "Round 1 aggregated: campaign=run groups=2",
        "Round 2 opened: campaign=run devices=2 phase=training",
        "Round 2 closed: campaign=run updates=2",
        "Round 2 aggregated: campaign=run groups=2",
        "Round 3 opened: campaign=run phase=evaluating",
        "Campaign finished: campaign=run devices=3",
    ]


def logged_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines since the last call."""
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


def test_the_log_says_who_comes_and_goes_and_what_a_round_lacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Logged()
    with caplog.at_level(logging.INFO, "shoal"):
        world.check_in("a")
        world.start("run", auto=False, rounds=2, min_devices=3)
        assert logged_of(caplog)[-1] == (
            "Round 1 waits for 2 more devices: 1 of 3 ready: campaign=run devices=1 free"
        )
        world.check_in("b")
        world.check_in("b")
        assert logged_of(caplog) == ["Device online: device=b"], "the wait is logged once"
        world.check_in("c")
        world.leave("c")
        assert logged_of(caplog) == [
            "Device online: device=c",
            "Round 1 opened: campaign=run devices=3 phase=training",
            "Device offline: device=c",
        ]
        world.pass_time(world.fleet.campaigns["run"].settings.deadline_s)
        assert [line for line in logged_of(caplog) if "waits" in line] == [
            "Round 1 waits for 3 more updates: 2 devices can still send one: campaign=run "
            "devices=1 offline since 00:00 UTC",
            "Round 1 waits for 3 more devices: 0 of 3 ready: campaign=run "
            "devices=1 offline since 00:00 UTC",
        ]


def test_the_log_of_a_large_fleet_does_not_say_who_comes_and_goes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "MOST_LOGGED", 1)
    world = Logged()
    with caplog.at_level(logging.INFO, "shoal"):
        for device_id in "ab":
            world.check_in(device_id)
        world.leave("a")
    assert logged_of(caplog) == []


def test_the_log_says_in_which_view_no_test_for_groups_was_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Logged()
    for device_id in "ab":
        world.check_in(device_id)
    world.start("run", auto=False, rounds=2, min_devices=2)
    version = world.fleet.campaigns["run"].version
    notes = {"untested": [{"view": "labels", "devices": 6, "needed": 8}]}
    done = e.Aggregated(at_s=1.0, campaign="run", round=1, version=version, notes=notes)
    with caplog.at_level(logging.INFO, "shoal"):
        world.observe(world.fleet, done)
    expected = "Groups not looked for: campaign=run round=1 view=labels devices=6 needed=8"
    assert expected in logged_of(caplog)


def test_the_log_says_whose_updates_a_round_left_out_and_why_it_changed_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Logged()
    for device_id in "ab":
        world.check_in(device_id)
    with caplog.at_level(logging.INFO, "shoal"):
        world.start("run", auto=False, rounds=2, min_devices=2)
        notes = {"left_out": {"b": "the norm of its delta is 9"}, "set_aside": "too far"}
        campaign = world.fleet.campaigns["run"]
        done = e.Aggregated(
            at_s=1.0, campaign="run", round=1, version=campaign.version, notes=notes
        )
        world.observe(world.fleet, done)
    assert [(r.levelname, r.getMessage()) for r in caplog.records if r.levelno > logging.INFO] == [
        ("WARNING", "Round 1 changed nothing: campaign=run: too far"),
        (
            "WARNING",
            "Round 1 left an update out: campaign=run device=b: the norm of its delta is 9",
        ),
    ]
