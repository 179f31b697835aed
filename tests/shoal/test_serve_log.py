"""Lines that `shoal serve` logs: rounds, and that it was asked to stop."""

import logging
import os
import signal
import time

import pytest

from aggregator.fleet import events as e
from shoal.commands.serve import ask_to_stop, log_rounds
from tests.fleet.cases import all_work
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
