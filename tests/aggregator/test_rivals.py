"""Other aggregators of the fleet, devices that show what they have had from them, and a broker that
does not let this one speak."""

import time
from typing import Any

import pytest

from aggregator.leadership.rivals import Rivals, WrongFleet
from simulation.datasets.windows import FleetData
from simulation.engine.messages import VirtualClock
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import encode
from wire.errors import OtherAggregator
from wire.identity.keys import new_key
from wire.identity.signed import Signer, Verifier, vouch
from wire.links.port import Delivery
from wire.topics import Topics

ROOT, SERVICE = new_key(), new_key()
SIGN = Signer(SERVICE, vouch(ROOT, "f", SERVICE.public_key(), time.time() + 1e6))


@pytest.fixture
def bench(fleet: FleetData) -> Bench:
    return Bench(fleet, verifier=Verifier("f", (ROOT.public_key(),)))


def shown(bench: Bench, plan: m.Plan, device_id: str = "a", sign: Any = SIGN) -> None:
    """A device declines the open plan, since it has this one."""
    work = bench.work("a")
    names = (bench.settings.run_id, bench.epoch, work.round, work.serial)
    bench.send(
        device_id, "decline", encode(m.Decline(*names, device_id, "stale", "", sign(plan).decode()))
    )


def plan(bench: Bench, epoch: int, device_id: str = "a") -> m.Plan:
    settings = bench.settings
    return m.Plan(
        settings.run_id, epoch, 7, 0, device_id, settings.bundle, bench.update.model, (), 1, 1e12
    )


def test_a_plan_of_a_greater_epoch_is_followed_by_a_greater_one_yet(bench: Bench) -> None:
    bench.answers()
    shown(bench, plan(bench, 50))
    assert bench.epoch == 51
    assert {(p.device_id, p.epoch) for p in bench.answers()} == {("a", 51), ("b", 51)}


@pytest.mark.parametrize(
    "what", ["its own plan", "an older plan", "another device's plan", "a plan that nobody signed"]
)
def test_nobody_makes_the_aggregator_ask_again_and_again(bench: Bench, what: str) -> None:
    bench.answers()
    epoch = bench.epoch
    match what:
        case "its own plan":
            shown(bench, plan(bench, epoch))
        case "an older plan":
            shown(bench, plan(bench, epoch - 1))
        case "another device's plan":
            shown(bench, plan(bench, epoch + 1, "b"))
        case _:
            shown(
                bench,
                plan(bench, epoch + 1),
                sign=Signer(
                    SERVICE, vouch(new_key(), "f", SERVICE.public_key(), time.time() + 1e6)
                ),
            )
    assert (bench.epoch, bench.answers()) == (epoch, [])


@pytest.mark.parametrize("online", [True, False])
def test_a_status_of_a_greater_epoch_ends_the_service(bench: Bench, online: bool) -> None:
    status = m.AggregatorStatus(online, "other", bench.epoch + 1, time.time(), "r")
    with pytest.raises(OtherAggregator, match="has taken over the fleet"):
        bench.runner.handle(Delivery(bench.topics.aggregator, SIGN(status)))


def test_a_status_of_an_older_epoch_or_that_nobody_signed_ends_nothing(bench: Bench) -> None:
    older = m.AggregatorStatus(True, "other", bench.epoch - 1, time.time(), "r")
    newer = m.AggregatorStatus(True, "other", bench.epoch + 1, time.time(), "r")
    bench.runner.handle(
        Delivery(bench.topics.aggregator, SIGN(older)),
        Delivery(bench.topics.aggregator, encode(newer)),
    )
    assert bench.runner.refused == {"malformed": 1}


class Counting:
    def __init__(self) -> None:
        self.clock, self.counted = VirtualClock(), list[str]()
        self.rivals = Rivals(
            Verifier("f", (ROOT.public_key(),)),
            self.clock,
            lambda reason, _: self.counted.append(reason),
        )


def status(boot_id: str) -> bytes:
    return SIGN(m.AggregatorStatus(True, boot_id, 1, 0.0))


@pytest.mark.parametrize("action", ["publish", "subscribe"])
def test_one_that_may_not_speak_for_the_fleet_ends_and_is_not_started_again(action: str) -> None:
    one = Counting()
    one.rivals.check(status("another"), b"", "boot", 1)
    told = (
        f"fleet f: the broker does not let this client {action} shoal/1/f/aggregator (Not "
        "authorized). Is --fleet f right, and the certificate (--cert) "
        "that of f@aggregator? `shoal acl --fleet f` prints the broker's access list"
    )
    with pytest.raises(WrongFleet) as raised:
        one.rivals.denied(action, Topics("f").aggregator, "Not authorized", Topics("f"))
    assert (str(raised.value), raised.value.exit_status) == (told, OtherAggregator.exit_status)


def test_a_denial_of_anything_else_or_later_is_counted() -> None:
    one = Counting()
    one.rivals.denied("publish", Topics("f").device("d", "plan"), "", Topics("f"))
    one.rivals.check(own := status("boot"), own, "boot", 1)
    one.rivals.denied("publish", Topics("f").aggregator, "", Topics("f"))
    assert one.counted == ["denied", "denied"]


def test_connections_that_are_lost_again_and_again_make_the_log_ask_for_another_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Counting()
    for now_s in (0.0, 40.0, 80.0, 120.0, 121.0, 122.0):
        one.clock.now_s = now_s
        one.rivals.lost("Session taken over")
    asked = [
        "does another client use the same certificate, or the same client id?" in record.message
        for record in caplog.records
    ]
    assert asked == [False, False, False, False, True, True]
