"""An operator's orders on devices, and the withdrawal of an owner: what they do to the fleet."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.records import MOST_TAGS, Ban, Device, Fleet
from aggregator.fleet.step import steps
from aggregator.operator import device_orders as orders
from simulation.datasets.windows import FleetData
from tests.aggregator.inbox_cases import InboxBench
from wire import messages as m
from wire.codec import digest, encode
from wire.errors import ConfigError

WITHDRAWN = encode(m.DeviceStatus("a", False, "0f" * 16))


@pytest.fixture
def bench(fleet: FleetData) -> InboxBench:
    return InboxBench(fleet)


def after(fleet: Fleet, events: list[e.Event]) -> Fleet:
    return steps(fleet, events)[0]


class TestTag:
    def test_devices_may_be_tagged_before_they_were_ever_here(self) -> None:
        fleet = after(Fleet(), orders.tag(Fleet(), ["a", "b"], ["y", "x"], 1.0))
        fleet = after(fleet, orders.tag(fleet, ["a"], ["x", "z"], 2.0))
        fleet = after(fleet, orders.untag(fleet, ["b", "never"], ["y", "other"], 2.0))
        assert {d: device.tags for d, device in fleet.devices.items()} == {
            "a": ("x", "y", "z"),
            "b": ("x",),
        }

    def test_what_changes_nothing_is_no_event(self) -> None:
        fleet = after(Fleet(), orders.tag(Fleet(), ["a"], ["x"], 1.0))
        assert orders.tag(fleet, ["a"], ["x"], 2.0) == []
        assert orders.untag(fleet, ["a", "b"], ["y"], 2.0) == []

    @pytest.mark.parametrize(
        ("ids", "tags", "error"),
        [
            (
                ["a"],
                [f"t{i}" for i in range(MOST_TAGS + 1)],
                "tags; at most 64 are allowed",
            ),
            (["a b"], ["x"], "device id"),
            (["a"], ["no tag"], "tag"),
        ],
    )
    def test_what_cannot_be_is_refused(self, ids: list[str], tags: list[str], error: str) -> None:
        with pytest.raises(ConfigError, match=error):
            orders.tag(Fleet(), ids, tags, 1.0)

    def test_devices_are_named_by_their_ids_or_by_a_rule(self, bench: InboxBench) -> None:
        bench.take(*orders.tag(bench.fleet, ["b", "c"], ["nights"], 1.0))
        assert orders.named(bench.fleet, ["z", "b", "z"]) == ["z", "b"]
        assert orders.named(bench.fleet, [], "tags has nights") == ["b", "c"]
        assert orders.named(bench.fleet, [], "online and tags has nights") == ["b"]

    @pytest.mark.parametrize(
        ("ids", "where", "error"),
        [
            ([], "", r"either by their ids or by a rule \(where\)"),
            (["a"], "online", r"either by their ids or by a rule \(where\)"),
            ([], "tags has nobody", "no device matches it"),
            ([], "no rule", "no field 'no'"),
        ],
    )
    def test_an_order_that_names_no_device_is_refused(
        self, bench: InboxBench, ids: list[str], where: str, error: str
    ) -> None:
        with pytest.raises(ConfigError, match=error):
            orders.named(bench.fleet, ids, where)


class TestBan:
    def test_nothing_of_a_banned_device_is_taken_until_it_is_banned_no_longer(
        self, bench: InboxBench
    ) -> None:
        bench.verdict(bench.payload("a"))
        bench.take(*orders.ban(bench.fleet, "a", "stolen", 101.0))
        assert (bench.received, bench.device("a").assignment) == ({}, None)
        assert bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4))) == []
        commands = bench.take(e.Tick(at_s=bench.clock(), keys=("a", "")))
        assert not [c for c in commands if getattr(c, "device_id", "") == "a"]
        commands = bench.take(*orders.unban(bench.fleet, "a", bench.clock()))
        assert [c.device_id for c in commands if isinstance(c, e.SendPlan)] == ["a"]
        with pytest.raises(ConfigError, match="Device a is not banned"):
            orders.unban(bench.fleet, "a", bench.clock())

    def test_a_device_may_be_banned_before_it_was_ever_here_and_stays_so_since_then(self) -> None:
        fleet = after(Fleet(), orders.ban(Fleet(), "a", "stolen", 2.0))
        fleet = after(fleet, orders.ban(fleet, "a", "still", 3.0))
        assert fleet.devices["a"].ban == Ban(2.0, "still")
        with pytest.raises(ConfigError, match="device id"):
            orders.ban(fleet, "no id", "", 1.0)

    def test_of_a_forgotten_device_only_the_ban_stays(self, bench: InboxBench) -> None:
        bench.take(*orders.tag(bench.fleet, ["a", "b"], ["x"], 1.0))
        bench.take(*orders.ban(bench.fleet, "a", "stolen", 2.0))
        bench.take(*(e.Forgotten(at_s=3.0, device_id=device_id) for device_id in ("a", "b", "c")))
        assert {d: replace(v, sent_epoch=0) for d, v in bench.fleet.devices.items()} == {
            "a": Device(ban=Ban(2.0, "stolen"))
        }


class TestWithdrawal:
    def test_a_device_whose_owner_withdraws_is_asked_for_nothing_until_it_checks_in_again(
        self, bench: InboxBench
    ) -> None:
        assert m.Acknowledge("a", digest(WITHDRAWN)) in bench.send("a", "status", WITHDRAWN)
        assert (bench.device("a").withdrawn_s, bench.device("a").assignment) == (100.0, None)
        again = encode(m.DeviceStatus("a", False, "f0" * 16))
        bench.clock.now_s += 10
        assert m.Acknowledge("a", digest(again)) in bench.send("a", "status", again)
        assert bench.device("a").withdrawn_s == 100.0, "since the first"
        answers = bench.send("a", "status", encode(m.DeviceStatus("a", True)))
        assert not [x for x in answers if isinstance(x, e.SendPlan)], (
            "a beat that was on its way is no consent"
        )
        assert bench.device("a").withdrawn_s
        answers = bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4)))
        assert [x.device_id for x in answers if isinstance(x, e.SendPlan)] == ["a"]
        assert not bench.device("a").withdrawn_s

    @pytest.mark.parametrize("old", [WITHDRAWN, encode(m.DeviceStatus("a", False, "f0" * 16))])
    def test_a_broker_that_repeats_an_old_one_takes_no_device_out(
        self, bench: InboxBench, old: bytes
    ) -> None:
        for status in (WITHDRAWN, encode(m.DeviceStatus("a", False, "f0" * 16))):
            bench.send("a", "status", status)
            bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4)))
        before = bench.device("a")
        assert m.Acknowledge("a", digest(old)) in bench.send("a", "status", old)
        assert bench.device("a") == before

    def test_what_it_sent_for_the_open_round_does_not_count(self, bench: InboxBench) -> None:
        bench.verdict(bench.payload("a"))
        bench.send("a", "status", WITHDRAWN)
        assert bench.received == {}

    def test_one_of_a_device_that_is_not_known_is_confirmed_and_leaves_nothing(
        self, bench: InboxBench
    ) -> None:
        status = encode(m.DeviceStatus("x", False, "0f" * 16))
        assert bench.send("x", "status", status) == [m.Acknowledge("x", digest(status))]
        assert "x" not in bench.fleet.devices


def test_only_devices_that_the_rule_means_are_asked(fleet: FleetData) -> None:
    bench = InboxBench(fleet, {"where": "tags has nights and not metered", "min_devices": 1})
    assert not any(device.assignment for device in bench.fleet.devices.values())

    def asked() -> list[str]:
        return sorted(d for d, device in bench.fleet.devices.items() if device.assignment)

    bench.take(*orders.tag(bench.fleet, ["b", "c"], ["nights"], 1.0))
    assert asked() == [], "it is not known whether its traffic is paid for"
    bench.send("c", "check-in", encode(m.CheckIn("c", 10, 4, unmetered=False)))
    bench.send("b", "check-in", encode(m.CheckIn("b", 10, 4, unmetered=True)))
    assert asked() == ["b"]


ACTS: tuple[Callable[[Fleet, str], list[e.Event]], ...] = (
    lambda fleet, d: orders.tag(fleet, [d], ["t"], 1.0),
    lambda fleet, d: orders.untag(fleet, [d], ["t"], 1.0),
    lambda fleet, d: orders.ban(fleet, d, "x", 1.0),
    lambda _fleet, d: [e.Seen(at_s=1.0, device_id=d, online=False, withdrawal=1)],
    lambda _fleet, d: [e.Forgotten(at_s=1.0, device_id=d)],
    lambda _fleet, d: [e.CheckedIn(at_s=1.0, device_id=d, facts=m.CheckIn(d, 10, 4))],
)


@pytest.mark.parametrize("seed", range(20))
def test_what_becomes_of_other_devices_does_not_touch_a_device(seed: int) -> None:
    rng = random.Random(seed)
    every, own = Fleet(), Fleet()
    for _ in range(30):
        act, device_id = rng.choice(ACTS), rng.choice("abc")
        every = after(every, act(every, device_id))
        if device_id == "a":
            own = after(own, act(own, device_id))
    seen: list[Any] = [fleet.devices.get("a") for fleet in (every, own)]
    assert seen[0] == seen[1]
