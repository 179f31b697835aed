"""Duties of a service besides messages and deadlines: renewal of its key and voucher."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aggregator.core.steps import Gate
from aggregator.fleet.records import Fleet
from aggregator.leadership.identity import VOUCHED_S, service_key, service_signer
from aggregator.operator import duties
from aggregator.operator.desk import Desk
from aggregator.operator.duties import Duties
from aggregator.releases import ReleaseMaker
from aggregator.storage.memory import MemoryBlobs
from aggregator.transfer.fleet import FleetLink
from wire.errors import Untrusted
from wire.identity.keys import new_key
from wire.identity.signed import Verifier, vouch
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery
from wire.messages import AggregatorStatus
from wire.topics import Topics

ROOT = new_key()
TRUSTED = (ROOT.public_key(),)


class Unconnected:
    """A runner as far as `Duties` knows it."""

    connected = False
    problem = ""
    fleet = Fleet()


def duties_of(folder: Path, renew: Callable[[], float]) -> Duties:
    """Duties of a service without campaigns."""
    runner: Any = Unconnected()
    maker = ReleaseMaker("off", (), Gate(), None, lambda _name: MemoryBlobs(), time.time)
    return Duties(runner, Desk(folder, {}), time.time, renew, maker)


class TestRenewal:
    def test_a_running_service_takes_up_a_new_voucher_unless_it_is_of_no_use(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(duties, "RENEW_EVERY_S", 0.0)
        now_s = time.time()
        broker, verifier = InProcessBroker(), Verifier("f", TRUSTED)
        reader = broker.connect("reader")
        first = service_signer(tmp_path, "f", TRUSTED, ROOT, now_s - VOUCHED_S + 100)
        fleet = FleetLink(broker.connect("aggregator"), Topics("f"), "boot", first)
        reader.subscribe(Topics("f").aggregator)

        def believed_at(s: float) -> bool:
            fleet.announce(1, s, "run")
            while not isinstance(event := reader.receive(timeout_s=1), Delivery):
                assert event is not None
            try:
                verifier.open(event.payload, AggregatorStatus, s)
            except Untrusted:
                return False
            return True

        def renew() -> float:
            signer = service_signer(tmp_path, "f", TRUSTED, None, now_s)
            fleet.sign = signer
            return signer.until_s

        kept = duties_of(tmp_path, renew)
        assert (believed_at(now_s), believed_at(now_s + 200)) == (True, False)
        (tmp_path / "service.voucher").write_bytes(b"half a vou")
        kept.done()
        assert "are kept: voucher" in caplog.text
        assert (believed_at(now_s), believed_at(now_s + 200)) == (True, False)
        (tmp_path / "service.voucher").write_bytes(
            vouch(ROOT, "f", service_key(tmp_path).public_key(), now_s + 1e6)
        )
        kept.done()
        assert (believed_at(now_s), believed_at(now_s + 200)) == (True, True)


def test_the_end_of_the_voucher_is_told(tmp_path: Path) -> None:
    assert duties_of(tmp_path, lambda: time.time() + 1).unvouched == ""
    told = duties_of(tmp_path, lambda: time.time() - 10).unvouched
    assert "the voucher ended 10 s ago: `shoal vouch`" in told
