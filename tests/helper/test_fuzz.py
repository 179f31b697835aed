"""A helper survives any bytes, and agrees to nothing but what its aggregator has asked."""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helper.metrics import HelperMetrics
from helper.service import HelperService
from helper.storage import HelperFolder, make_helper
from tests.helper.exchange import DEVICES, ROSTER, Exchange
from wire.identity.keys import new_key
from wire.identity.signed import Signer, vouch
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery
from wire.secret.messages import MaskSums
from wire.secret.payloads import decode_answer, encode_request
from wire.secret.roster import sign_roster
from wire.topics import Topics

TOPICS = Topics("watches")


class Bench:
    """A helper and its aggregator in this process."""

    def __init__(self, folder: Path) -> None:
        root, service = new_key(), new_key()
        self.sign = Signer(service, vouch(root, "watches", service.public_key(), time.time() + 1e4))
        (folder / "roster").write_bytes(sign_roster(root, "watches", ROSTER))
        make_helper(folder / "north", "watches", "north")
        broker, self.folder = InProcessBroker(), HelperFolder(folder / "north")
        self.link = broker.connect("aggregator")
        self.link.subscribe(TOPICS.of_kind("answer"))
        self.service = HelperService(
            self.folder,
            broker.connect("north"),
            (root.public_key(),),
            folder / "roster",
            5,
            HelperMetrics(lambda: self.folder.ledger),
        )
        self.exchange = Exchange(1)
        self.exchange.keys = [self.folder.key]
        self.exchange.ask("a" * 64)
        for device in DEVICES:
            self.exchange.upload(device)
        request = self.exchange.request(DEVICES)
        self.payload = encode_request(request, self.exchange.shares(DEVICES), self.sign)
        self.serve_one()  # that the link is up

    def serve_one(self) -> None:
        """Let the helper take in one event."""
        looks = iter([False, True])
        self.service.run(lambda: next(looks))

    def ask(self, payload: bytes) -> list[bytes]:
        """The answers to a payload on the topic of requests."""
        self.link.publish(TOPICS.helper("north", "request"), payload)
        self.serve_one()
        events = iter(lambda: self.link.receive(timeout_s=0), None)
        return [event.payload for event in events if isinstance(event, Delivery)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("helper"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    at=st.integers(0, 20_000),
    until=st.integers(0, 40),
    text=st.binary(max_size=40) | st.sampled_from([b"\n", b"[]", b"null", b'"', b"0"]),
    cut=st.booleans(),
)
def test_no_change_of_a_request_ends_a_helper_or_makes_it_agree_to_another_set(
    bench: Bench, at: int, until: int, text: bytes, cut: bool
) -> None:
    at %= len(bench.payload)
    end = len(bench.payload) if cut else at + until
    payload = bench.payload[:at] + text + bench.payload[end:]
    request = bench.exchange.request(DEVICES)
    for answer in bench.ask(payload):
        decode_answer(answer, bench.folder.key.public_key())
    assert bench.folder.ledger.sets.items() <= {(request.question.digest, request.set)}


def test_the_request_itself_is_answered(bench: Bench) -> None:
    (answer,) = bench.ask(bench.payload)
    assert isinstance(decode_answer(answer, bench.folder.key.public_key())[0], MaskSums)
    assert len(bench.folder.ledger.sets) == 1
