"""Two devices of one identity, as the service sees them: it takes the one that it knows, refuses
the other one by name, and an operator can decide otherwise."""

from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.records import Ban
from aggregator.http.dashboard.alerts import Alert, standing_alerts
from aggregator.http.dashboard.fleet import condition_of
from aggregator.operator import device_orders
from aggregator.view.fleet import FleetView
from simulation.datasets.windows import FleetData
from tests.aggregator.inbox_cases import InboxBench
from tests.fleet.test_view import WELL
from tests.support.known import known
from wire import messages as m
from wire.codec import encode
from wire.errors import ConfigError


@pytest.fixture
def bench(fleet: FleetData) -> InboxBench:
    return InboxBench(fleet)


def check_in(bench: InboxBench, start: int, instance: int, **facts: Any) -> list[m.Refuse]:
    """A check-in of the device `c`; returns the refusals."""
    usual = {"num_train": 10, "num_test": 4, "start": start, "instance": instance}
    answers = bench.send("c", "check-in", encode(m.CheckIn("c", **{**usual, **facts})))
    return [answer for answer in answers if isinstance(answer, m.Refuse)]


def test_the_second_device_is_refused_by_name_and_the_known_one_stays(bench: InboxBench) -> None:
    assert check_in(bench, 6, 11) == []
    before = bench.device("c")
    (refusal,) = check_in(bench, 6, 22, num_train=99)
    assert (refusal.reason, refusal.instance, refusal.about) == ("second-device", 22, "check-in")
    assert "this one is at start 6" in refusal.detail
    assert bench.device("c") == replace(before, second_s=bench.clock()), "its facts do not count"
    assert bench.inbox.refused == {"second-device": 1}
    assert check_in(bench, 6, 11) == [], "the known one checks in again"


def test_an_alert_names_the_id_and_what_to_do_until_the_operator_has_decided(
    bench: InboxBench,
) -> None:
    check_in(bench, 6, 11)
    assert "second-device" not in ids(bench)
    check_in(bench, 6, 22)
    (alert,) = (alert for alert in alerts(bench) if alert.id == "second-device")
    assert alert.title == "A device has a double"
    (device,) = alert.devices
    text = "the last refused check-in was at 1970-01-01 00:01 UTC"
    assert (device.id, device.text) == ("c", text)
    assert "`shoal devices unban`" in alert.text
    check_in(bench, 7, 11)
    assert "second-device" in ids(bench), "the second one may come again"
    bench.take(e.Banned(at_s=bench.clock(), device_id="c", ban=None))
    assert "second-device" not in ids(bench)


def test_no_alert_is_about_a_double_of_a_banned_device(bench: InboxBench) -> None:
    check_in(bench, 6, 11)
    check_in(bench, 6, 22)
    bench.take(e.Banned(at_s=bench.clock(), device_id="c", ban=Ban(1.0, "")))
    assert "second-device" not in ids(bench)


def alerts(bench: InboxBench) -> list[Alert]:
    return standing_alerts(WELL, FleetView(bench.fleet, bench.telemetry.records, {}, bench.clock()))


def ids(bench: InboxBench) -> set[str]:
    return {alert.id for alert in alerts(bench)}


def test_a_look_twice_finds_the_same(bench: InboxBench) -> None:
    check_in(bench, 6, 11)
    first = check_in(bench, 6, 22)
    fleet = bench.fleet
    assert check_in(bench, 6, 22) == first
    assert bench.fleet == fleet


@pytest.mark.parametrize(
    ("last", "next_", "refused"),
    [
        ((6, 11), (6, 11), False),  # a reconnection
        ((6, 11), (7, 22), False),  # the next start
        ((6, 11), (900, 22), False),  # after a service returned to an old backup
        ((6, 11), (6, 22), True),  # a copy of the folder, made while the device was off
        ((6, 11), (5, 22), True),  # a board restored from an older image
        ((6, 11), (1, 22), False),  # the folder of the device is gone
        ((0, 0), (1, 22), False),  # the last start was not counted
        ((0, 11), (1, 22), False),  # the same, after a damaged file
        ((6, 11), (0, 0), False),  # a disk that was full at the first start
        ((6, 11), (0, 22), False),  # a file of starts that was damaged
    ],
)
def test_a_later_start_is_the_same_device_and_any_other_start_is_a_second_one(
    bench: InboxBench, last: tuple[int, int], next_: tuple[int, int], refused: bool
) -> None:
    check_in(bench, *last)
    assert bool(check_in(bench, *next_)) == refused


def test_a_device_whose_place_a_new_folder_took_is_refused_if_it_comes_again(
    bench: InboxBench,
) -> None:
    check_in(bench, 6, 11)
    assert not check_in(bench, 1, 22)
    assert check_in(bench, 6, 11)
    assert not check_in(bench, 1, 22)
    assert not check_in(bench, 2, 33)


@pytest.mark.parametrize("starts", [2, 3, 6])
@pytest.mark.parametrize("repeated", [1, 2])
def test_a_broker_that_repeats_an_old_check_in_has_the_known_device_not_refused(
    bench: InboxBench, starts: int, repeated: int
) -> None:
    for start in range(1, starts + 1):
        check_in(bench, start, 100 + start)
    refused = [refusal.instance for refusal in check_in(bench, repeated, 100 + repeated)]
    assert refused == [100 + repeated] * (repeated < starts), "a start of the device that is over"
    assert not check_in(bench, starts, 100 + starts)
    assert known(bench.device("c").facts).start == starts
    assert not check_in(bench, starts + 1, 999)


def test_two_that_alternate_are_named_each_time_and_one_of_them_takes_part(
    bench: InboxBench,
) -> None:
    refused = [check_in(bench, 6, instance) != [] for instance in (11, 22) * 5]
    assert refused == [False, True] * 5
    assert known(bench.device("c").facts).instance == 11


def test_a_copy_that_raises_its_number_is_taken_and_the_device_is_named(bench: InboxBench) -> None:
    """Nothing tells this copy from the device's next start, as docs/limits.md says."""
    check_in(bench, 6, 11)
    assert check_in(bench, 7, 22) == []
    (refusal,) = check_in(bench, 6, 11)
    assert refusal.instance == 11
    assert bench.device("c").second_s == bench.clock()


def test_an_operator_lets_the_refused_device_in_and_the_other_one_is_then_refused(
    bench: InboxBench,
) -> None:
    check_in(bench, 6, 11)
    with pytest.raises(ConfigError, match="not banned"):
        device_orders.unban(bench.fleet, "c", bench.clock())
    assert check_in(bench, 5, 22) != []
    bench.take(*device_orders.unban(bench.fleet, "c", bench.clock()))
    assert bench.device("c").second_s == 0
    assert check_in(bench, 5, 22) == []
    assert check_in(bench, 5, 11) != []


def test_the_dashboard_names_the_device_until_the_operator_has_decided(bench: InboxBench) -> None:
    check_in(bench, 6, 11)
    check_in(bench, 6, 22)

    def word() -> str:
        return condition_of(known(FleetView(bench.fleet).device("c"))).word

    assert word() == "second device"
    bench.take(*device_orders.unban(bench.fleet, "c", bench.clock()))
    assert word() != "second device"


def test_a_ban_and_its_end_leave_the_known_start_if_no_second_device_was_seen(
    bench: InboxBench,
) -> None:
    check_in(bench, 6, 11)
    bench.take(*device_orders.ban(bench.fleet, "c", "", bench.clock()))
    bench.take(*device_orders.unban(bench.fleet, "c", bench.clock()))
    assert check_in(bench, 6, 22) != []


def test_a_second_device_that_comes_while_the_service_is_away_is_refused_after_a_restart(
    bench: InboxBench,
) -> None:
    check_in(bench, 6, 11)
    bench.take(e.Resumed(at_s=bench.clock(), epoch=9))
    assert check_in(bench, 6, 22) != []
