"""Retained messages on devices' topics: a device may ask the broker to retain what it publishes,
and what it should not have retained comes back at each start of the service, until it is cleared.
"""

import logging

import pytest

from aggregator.fleet.events import Banned
from aggregator.fleet.records import Ban
from aggregator.transfer.fleet import FleetLink
from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import encode
from wire.topics import TABLE, FromDevice

WRITTEN: list[FromDevice] = [row.kind for row in TABLE if row.writer == "device"]  # type: ignore[misc]
FLOOD = bytes(6 * 2**20)


@pytest.fixture
def bench(fleet: FleetData) -> Bench:
    return Bench(fleet)


def ban(bench: Bench, device_id: str) -> None:
    bench.runner.order(
        Banned(at_s=bench.clock(), device_id=device_id, ban=Ban(bench.clock(), "it floods"))
    )


def flood(bench: Bench, device_id: str) -> None:
    """Have a device retain 6 MiB on each topic that it may write."""
    for kind in WRITTEN:
        bench.broker.publish(bench.topics.device(device_id, kind), FLOOD, retain=True)


def retained(bench: Bench, device_id: str) -> dict[str, int]:
    """Sizes of what the broker retains on the topics of a device, by kind."""
    root = bench.topics.of_kind("status", device_id).removesuffix("status")
    messages = bench.broker.retained.items()
    return {topic.removeprefix(root): len(p) for topic, p in messages if topic.startswith(root)}


def drain(bench: Bench) -> int:
    """Have the service handle what comes; returns the bytes of messages from devices."""
    num_bytes = 0
    while (event := bench.runner.link.receive(timeout_s=0)) is not None:
        if "/device/" in getattr(event, "topic", ""):
            num_bytes += len(event.payload)  # type: ignore[union-attr]
        bench.runner.handle(event)
    bench.tick()
    return num_bytes


def restart(bench: Bench) -> int:
    """Start the service again, with other subscriptions."""
    bench.link = FleetLink(bench.broker.connect(f"start {bench.epoch}"), bench.topics, "boot")
    bench.start(bench.epoch + 1)
    return drain(bench)


def test_what_a_banned_device_retained_comes_back_once_is_cleared_and_counted_under_its_name(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    ban(bench, "a")
    flood(bench, "a")
    with caplog.at_level(logging.WARNING):
        assert restart(bench) == len(WRITTEN) * len(FLOOD)
    assert retained(bench, "a") == {}
    assert restart(bench) == 0
    assert bench.runner.refused.get("retained") is None, "nothing is left to refuse"
    lines = [r.getMessage() for r in caplog.records if "reason=retained" in r.getMessage()]
    assert len(lines) == len(WRITTEN)
    assert all(f"device=a topic={kind} bytes={len(FLOOD)}" in " ".join(lines) for kind in WRITTEN)


def test_what_a_forgotten_device_retained_is_cleared(bench: Bench) -> None:
    bench.runner.forget("a")
    drain(bench)
    flood(bench, "a")
    restart(bench)
    assert retained(bench, "a") == {}
    assert restart(bench) == 0
    assert "a" not in bench.runner.fleet.devices


def test_to_forget_a_device_clears_all_of_its_topics_and_nothing_is_refused(bench: Bench) -> None:
    flood(bench, "a")
    bench.broker.publish(bench.topics.device("a", "release"), b"release", retain=True)
    drain(bench)
    before = dict(bench.runner.refused)
    bench.runner.forget("a")
    assert retained(bench, "a") == {}
    drain(bench)
    assert bench.runner.refused == before, "its own empty messages are none"


def test_a_new_device_that_was_online_before_the_service_is_not_refused(bench: Bench) -> None:
    status = encode(m.DeviceStatus("new", True))
    bench.broker.publish(bench.topics.device("new", "status"), status, retain=True)
    restart(bench)
    assert retained(bench, "new") == {"status": len(status)}
    assert "retained" not in bench.runner.refused


def test_nothing_is_stored_of_a_device_that_nobody_knows(bench: Bench) -> None:
    bench.broker.publish(bench.topics.device("stranger", "status"), b"{", retain=True)
    restart(bench)
    assert retained(bench, "stranger") == {}
    assert "stranger" not in bench.runner.telemetry.records


def test_a_device_in_good_standing_keeps_its_status_and_nothing_else(bench: Bench) -> None:
    flood(bench, "b")
    here = encode(m.DeviceStatus("b", True))
    bench.broker.publish(bench.topics.device("b", "status"), here, retain=True)
    restart(bench)
    assert retained(bench, "b") == {"status": len(here)}
    assert bench.runner.telemetry.of("b").retained == len(WRITTEN) - 1


def test_a_retained_update_does_not_count_and_a_retained_check_in_is_no_check_in(
    bench: Bench,
) -> None:
    facts = bench.known("a").facts
    update, check_in = bench.payload("a"), encode(m.CheckIn("a", 99, 0))
    for kind, payload in (("update", update), ("check-in", check_in)):
        bench.send("a", kind, payload, retained=True)
    assert bench.received == {}
    assert bench.known("a").facts == facts


def test_a_status_that_cannot_be_read_is_cleared(bench: Bench) -> None:
    bench.broker.publish(bench.topics.device("b", "status"), FLOOD, retain=True)
    restart(bench)
    assert retained(bench, "b") == {}


def test_a_banned_device_that_goes_on_is_cleared_as_often_as_it_may_speak(bench: Bench) -> None:
    ban(bench, "a")
    flood(bench, "a")
    drain(bench)
    assert retained(bench, "a") == {}


def test_a_withdrawal_that_the_broker_retained_still_reaches_the_service(bench: Bench) -> None:
    gone = encode(m.DeviceStatus("a", False, "0f" * 16))
    bench.broker.publish(bench.topics.device("a", "status"), gone, retain=True)
    bench.clock.now_s = 5.0
    restart(bench)
    assert bench.known("a").withdrawn_s > 0
    assert retained(bench, "a") == {"status": len(gone)}
