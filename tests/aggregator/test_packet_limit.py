"""A broker that takes only small packets: blobs are cut to fit, also when the limit changes, and a
campaign whose blobs do not fit is stopped until they do."""

import pytest

from simulation.datasets.windows import FleetData
from tests.aggregator.bench import Bench
from wire import messages as m
from wire.codec import decode, digest, encode
from wire.errors import LimitExceeded
from wire.links.in_process import InProcessLink
from wire.links.port import LinkDown, LinkUp
from wire.pieces import BESIDE_BYTES, UNLIMITED, PacketLimit


@pytest.fixture
def bench(fleet: FleetData) -> Bench:
    bench = Bench(fleet)
    bench.runner.handle(LinkUp())
    return bench


def limit(bench: Bench, num_bytes: int) -> None:
    """Give the service a new connection to a broker that takes packets of at most this size."""
    link = bench.link.link
    assert isinstance(link, InProcessLink)
    bench.runner.handle(LinkDown("gone"))
    link.limit = PacketLimit(num_bytes, "broker mqtt://b says in its CONNACK")
    bench.runner.handle(LinkUp())


def retained(bench: Bench) -> dict[str, bytes]:
    """Messages that the broker retains for devices, by the digest in the topic."""
    prefix = bench.topics.blob("")
    found = bench.broker.retained
    return {t.removeprefix(prefix): p for t, p in found.items() if t.startswith(prefix)}


def whole(bench: Bench, name: str) -> bytes:
    """A blob as a device reads it: whole, or from its pieces."""
    payload = retained(bench)[name]
    if digest(payload) == name:
        return payload
    pieces = decode(payload, m.Pieces)
    assert isinstance(pieces, m.Pieces)
    return b"".join(retained(bench)[piece] for piece in pieces.pieces)


@pytest.mark.parametrize("most", [131_072, 50_000, 12_345, 9000, 8192])
def test_blobs_are_cut_to_fit_a_limit_that_changes(bench: Bench, most: int) -> None:
    names = [bench.settings.bundle, bench.work("a").model]
    before = {name: retained(bench)[name] for name in names}
    for num_bytes in (most, most - 1000, UNLIMITED.num_bytes):
        limit(bench, num_bytes)
        room = num_bytes - BESIDE_BYTES
        assert {name: whole(bench, name) for name in names} == before
        assert max(map(len, retained(bench).values())) <= room
        kept = {*names}
        for name in names:
            if digest(payload := retained(bench)[name]) != name:
                pieces = decode(payload, m.Pieces)
                assert isinstance(pieces, m.Pieces)
                kept |= {*pieces.pieces}
        assert {name for name, payload in retained(bench).items() if payload} >= kept


def test_a_campaign_whose_bundle_does_not_fit_stops_and_goes_on_when_it_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wire.pieces.MOST_PIECES", 2)
    limit(bench, 4096)
    bench.send("c", "check-in", encode(m.CheckIn("c", 10, 4)))
    bench.clock.now_s += 200
    bench.tick()
    for device_id in ("a", "b", "c"):
        bench.send(device_id, "check-in", encode(m.CheckIn(device_id, 11, 4)))
    size = len(bench.blobs.get(bench.settings.bundle))
    assert bench.runner.condition == (
        "broker mqtt://b says in its CONNACK, so at most 6144 bytes can be sent in pieces, and a "
        f"payload has {size}"
    )
    limit(bench, UNLIMITED.num_bytes)
    bench.clock.now_s += 100
    bench.tick()
    assert bench.runner.condition == ""


def test_a_message_that_does_not_fit_is_not_a_defect(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise LimitExceeded("too large")

    monkeypatch.setattr(bench.link, "send", refuse)
    bench.runner._carry_out(m.Acknowledge("a", "0" * 64))
    assert bench.runner.refused == {}
