"""Hours of the day in which a campaign asks devices for anything."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.hours import read_hours
from tests.fleet.cases import all_work, asked, configure, run
from tests.fleet.world import World
from tests.support.known import known
from wire.errors import ConfigError

DAY_S, HOUR_S = 86_400.0, 3600.0


def second_of(moment: str) -> float:
    """The second of a moment in UTC."""
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


NOON_S = second_of("2026-05-04T12:00")
NIGHT_S = NOON_S + 10 * HOUR_S


def begun(at_s: float, *device_ids: str, **settings: Any) -> World:
    """A campaign that is started at this second, and asks in the night."""
    world = World()
    world.now_s = at_s
    for device_id in device_ids:
        world.check_in(device_id)
    usual: dict[str, Any] = {"hours": "22:00-06:00 UTC", "min_devices": 2, "rounds": 2}
    world.start("run", **usual | settings)
    return world


def test_nobody_is_asked_before_the_hour_and_the_deadline_is_their_end() -> None:
    world = begun(NOON_S, "a", "b", deadline_s=DAY_S)
    assert (run(world).phase, asked(world)) == ("waiting", [])
    world.pass_time(60)
    world.crash()
    world.check_in("late")
    world.pass_time(NIGHT_S - world.now_s - 1)
    assert asked(world) == []
    world.pass_time(1)
    assert asked(world) == ["a", "b", "late"]
    deadlines = {known(device.assignment).deadline_s for device in world.fleet.devices.values()}
    assert deadlines == {NIGHT_S + 8 * HOUR_S}
    world.pass_time(8 * HOUR_S)
    assert (run(world).phase, asked(world)) == ("waiting", [])
    world.pass_time(16 * HOUR_S)
    assert asked(world) == ["a", "b", "late"], "the next night, twice as many as the round needs"


def test_other_hours_count_at_once() -> None:
    world = begun(NOON_S, "a", "b")
    configure(world, hours="20:00-06:00 UTC")
    assert asked(world) == []
    configure(world, hours="11:00-13:00 UTC")
    assert asked(world) == ["a", "b"]


def test_an_evaluation_waits_for_the_hour_too() -> None:
    world = begun(NIGHT_S + 8 * HOUR_S - 10, "a", "b", rounds=1, deadline_s=DAY_S)
    world.carry_out()
    for device_id in "ab":
        world.work(device_id)
    world.pass_time(20)
    all_work(world)
    assert (run(world).phase, asked(world, "evaluate")) == ("evaluating", [])
    world.pass_time(NIGHT_S + DAY_S - world.now_s - 1)
    assert asked(world, "evaluate") == []
    world.pass_time(1)
    assert asked(world, "evaluate") == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "at", "opens", "closes"),
    [
        ("22:00-06:00 Europe/Berlin", "2026-07-01T12:00", "2026-07-01T20:00", "2026-07-02T04:00"),
        ("22:00-06:00 Europe/Berlin", "2026-01-01T02:00", "2026-01-01T02:00", "2026-01-01T05:00"),
        ("9:30-17:00", "2026-01-01T17:00", "2026-01-02T09:30", "2026-01-02T17:00"),
        # the clock is put forward
        ("01:00-05:00 Europe/Berlin", "2026-03-29T00:30", "2026-03-29T00:30", "2026-03-29T03:00"),
        # that night has no such hour
        ("02:00-03:00 Europe/Berlin", "2026-03-28T12:00", "2026-03-30T00:00", "2026-03-30T01:00"),
    ],
)
def test_hours_in_a_time_zone(text: str, at: str, opens: str, closes: str) -> None:
    hours = known(read_hours(text))
    assert hours.opens_s(second_of(at)) == second_of(opens)
    assert hours.closes_s(second_of(at)) == second_of(closes)


@pytest.mark.parametrize(
    "text",
    [
        "22-6",
        "25:00-06:00",
        "22:00-06:00 Europe/Nowhere",
        "10:00-10:00",
        "22:00-06:00 ../etc/passwd",
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="hours "):
        read_hours(text)


@given(
    st.floats(1.7e9, 1.9e9),
    st.sampled_from(["22:00-06:00 Europe/Berlin", "09:00-17:00 America/New_York", "23:59-00:01"]),
)
def test_what_opens_is_open_until_it_closes(at_s: float, text: str) -> None:
    hours = known(read_hours(text))
    opens_s = hours.opens_s(at_s)
    assert at_s <= opens_s < hours.closes_s(at_s) <= at_s + 2 * DAY_S
    assert hours.opens_s(opens_s) == opens_s
