"""Other aggregators of the fleet, and devices that show what they have had from them."""

import time
from typing import Any

import pytest

from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import encode
from wire.errors import OtherAggregator
from wire.keys import new_key
from wire.links.port import Delivery
from wire.signed import Signer, Verifier, vouch

ROOT, SERVICE = new_key(), new_key()
SIGN = Signer(SERVICE, vouch(ROOT, "f", SERVICE.public_key(), time.time() + 1e6))


@pytest.fixture
def bench(fleet: FleetData) -> Bench:
    return Bench(fleet, verifier=Verifier("f", (ROOT.public_key(),)))


def shown(bench: Bench, plan: m.Plan, device_id: str = "a", sign: Any = SIGN) -> None:
    """A device declines the open plan, since it has this one."""
    state = bench.state
    names = (state.settings.run_id, state.epoch, state.round, state.attempt)
    bench.send(device_id, "decline", encode(m.Decline(*names, device_id, "stale", "", sign(plan).decode())))


def plan(bench: Bench, epoch: int, device_id: str = "a") -> m.Plan:
    settings = bench.state.settings
    return m.Plan(settings.run_id, epoch, 7, 0, device_id, settings.bundle, bench.update.model, (), 1, 1e12)


def test_a_plan_of_a_greater_epoch_is_followed_by_a_greater_one_yet(bench: Bench) -> None:
    bench.answers()
    shown(bench, plan(bench, 50))
    assert bench.state.epoch == 51
    assert {(p.device_id, p.epoch) for p in bench.answers()} == {("a", 51), ("b", 51)}


@pytest.mark.parametrize("what", ["its own plan", "an older plan", "another device's plan", "a plan that nobody signed"])
def test_nobody_makes_the_aggregator_ask_again_and_again(bench: Bench, what: str) -> None:
    bench.answers()
    epoch = bench.state.epoch
    match what:
        case "its own plan":
            shown(bench, plan(bench, epoch))
        case "an older plan":
            shown(bench, plan(bench, epoch - 1))
        case "another device's plan":
            shown(bench, plan(bench, epoch + 1, "b"))
        case _:
            shown(bench, plan(bench, epoch + 1), sign=Signer(SERVICE, vouch(new_key(), "f", SERVICE.public_key(), time.time() + 1e6)))
    assert (bench.state.epoch, bench.answers()) == (epoch, [])


@pytest.mark.parametrize("online", [True, False])
def test_a_status_of_a_greater_epoch_ends_the_service(bench: Bench, online: bool) -> None:
    status = m.AggregatorStatus(online, "other", bench.state.epoch + 1, time.time(), "r")
    with pytest.raises(OtherAggregator, match="has taken over the fleet"):
        bench.runner.handle(Delivery(bench.topics.aggregator, SIGN(status)))


def test_a_status_of_an_older_epoch_or_that_nobody_signed_ends_nothing(bench: Bench) -> None:
    older = m.AggregatorStatus(True, "other", bench.state.epoch - 1, time.time(), "r")
    newer = m.AggregatorStatus(True, "other", bench.state.epoch + 1, time.time(), "r")
    bench.runner.handle(Delivery(bench.topics.aggregator, SIGN(older)), Delivery(bench.topics.aggregator, encode(newer)))
    assert bench.runner.refused == {"malformed": 1}
