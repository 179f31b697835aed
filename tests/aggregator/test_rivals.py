"""What an aggregator makes of a broker that does not let it speak, and of connections that are lost again and again."""

import time

import pytest

from aggregator.rivals import Rivals, WrongFleet
from simulation.engine.messages import VirtualClock
from wire.errors import OtherAggregator
from wire.keys import new_key
from wire.messages import AggregatorStatus
from wire.signed import Signer, Verifier, vouch
from wire.topics import Topics

ROOT, TOPICS = new_key(), Topics("f")


class Counting:
    def __init__(self) -> None:
        self.clock, self.counted = VirtualClock(), list[str]()
        self.rivals = Rivals(Verifier("f", (ROOT.public_key(),)), self.clock, lambda reason, _: self.counted.append(reason))


def status(boot_id: str) -> bytes:
    key = new_key()
    signer = Signer(key, vouch(ROOT, "f", key.public_key(), time.time() + 1000))
    return signer(AggregatorStatus(True, boot_id, 1, 0.0))


@pytest.mark.parametrize("action", ["publish", "subscribe"])
def test_one_that_may_not_speak_for_the_fleet_ends_and_is_not_started_again(action: str) -> None:
    one = Counting()
    one.rivals.check(status("another"), "boot", 1)
    told = (
        f"fleet f: the broker does not let this client {action} shoal/2/f/aggregator. Is --fleet f right, and the certificate (--cert) "
        "that of f@aggregator? `shoal acl --fleet f` prints the broker's access list"
    )
    with pytest.raises(WrongFleet) as raised:
        one.rivals.denied(action, TOPICS.aggregator, TOPICS)
    assert (str(raised.value), raised.value.exit_status) == (told, OtherAggregator.exit_status)


def test_a_denial_of_anything_else_or_later_is_counted() -> None:
    one = Counting()
    one.rivals.denied("publish", TOPICS.device("d", "plan"), TOPICS)
    one.rivals.check(status("boot"), "boot", 1)
    one.rivals.denied("publish", TOPICS.aggregator, TOPICS)
    assert one.counted == ["denied", "denied"]


def test_connections_that_are_lost_again_and_again_make_the_log_ask_for_another_client(caplog: pytest.LogCaptureFixture) -> None:
    one = Counting()
    for now_s in (0.0, 40.0, 80.0, 120.0, 121.0, 122.0):
        one.clock.now_s = now_s
        one.rivals.lost("Session taken over")
    asked = ["does another client use the same certificate, or the same client id?" in record.message for record in caplog.records]
    assert asked == [False, False, False, False, True, True]
