"""Effects of devices' messages on the fleet, and attacks on a service by messages."""

from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from msgspec.structs import replace

from aggregator.fleet import events as e
from aggregator.fleet.records import MOST_TAGS, Ban
from aggregator.ports import StorageFailed
from aggregator.transfer.assembly import Assembly
from simulation.datasets.windows import FleetData
from tests.aggregator.inbox_cases import InboxBench, Watch
from wire import messages as m
from wire.codec import digest, encode
from wire.errors import ConfigError
from wire.links.port import Delivery
from wire.pieces import PIECE_BYTES, cut, place

WITHDRAWN = encode(m.DeviceStatus("a", False, "0f" * 16))
HERE = encode(m.DeviceStatus("a", True))


@pytest.fixture
def bench(fleet: FleetData) -> InboxBench:
    return InboxBench(fleet)


def decline(bench: InboxBench, reason: Any, device_id: str = "a", **changes: Any) -> bytes:
    """A decline of a device's assignment."""
    work = bench.work(device_id)
    own = {"run_id": "r", "epoch": 1, "round": work.round, "attempt": work.serial}
    return encode(
        m.Decline(**{**own, "device_id": device_id, "reason": reason, "detail": "", **changes})
    )


def encode_piece(piece: m.Piece, payload: bytes) -> bytes:
    """A message with a piece of an update."""
    return encode(piece) + b"\n" + payload


class TestCheckIn:
    def test_a_check_in_becomes_facts_that_can_be_printed(self, bench: InboxBench) -> None:
        said = m.CheckIn("c", 10, 4, client="shoal\n1", hardware="Pi\x1b[31m", battery_percent=5.0)
        bench.send("c", "check-in", encode(said))
        facts = bench.device("c").facts
        assert facts is not None
        assert (facts.client, facts.hardware) == ("shoal\\n1", "Pi\\x1b[31m")
        assert facts.battery_percent == 5.0

    def test_a_device_has_the_tags_of_its_enrolment_from_its_first_check_in_on(
        self, fleet: FleetData
    ) -> None:
        bench = InboxBench(fleet, tags=lambda d: ("nights", "lab") if d == "new" else ())
        bench.take(e.Tagged(at_s=1.0, device_id="new", tags=("early",)))
        bench.send("new", "check-in", encode(m.CheckIn("new", 10, 4)))
        assert bench.device("new").tags == ("early", "lab", "nights")
        bench.take(e.Tagged(at_s=1.0, device_id="new", tags=("early",)))
        bench.send("new", "check-in", encode(m.CheckIn("new", 10, 4)))
        assert bench.device("new").tags == ("early",), "what an operator took away stays away"

    @pytest.mark.parametrize(
        ("problem", "text"),
        [(StorageFailed("the disk is gone"), "the disk is gone"), (None, "at most 64 are allowed")],
    )
    def test_an_enrolment_that_cannot_be_used_costs_the_tags_and_not_the_device(
        self,
        fleet: FleetData,
        caplog: pytest.LogCaptureFixture,
        problem: Exception | None,
        text: str,
    ) -> None:
        def tags(_device_id: str) -> tuple[str, ...]:
            if problem is not None:
                raise problem
            return tuple(f"t{i}" for i in range(MOST_TAGS + 1))

        bench = InboxBench(fleet, tags=tags)
        assert (bench.device("a").online, bench.device("a").tags) == (True, ())
        assert "Device did not get its enrolment's tags: device=a: " in caplog.text
        assert text in caplog.text


class TestPresence:
    def test_a_device_that_is_heard_and_has_not_checked_in_is_told_to(
        self, bench: InboxBench
    ) -> None:
        here, gone = (encode(m.DeviceStatus("c", online)) for online in (True, False))
        assert bench.send("c", "status", here, retained=True) == []
        assert bench.send("c", "status", gone) == [], "who leaves need not come"
        (told,) = bench.send("c", "status", here)
        assert (told.device_id, told.reason, told.about) == ("c", "unknown-device", "status")
        bench.take(e.Tagged(at_s=1.0, device_id="c", tags=("early",)))
        (told,) = bench.send("c", "status", here)
        assert told.reason == "unknown-device", "an operator has named it, and it has not been here"

    def test_a_silent_device_is_taken_for_absent_and_is_there_when_it_is_heard(
        self, fleet: FleetData
    ) -> None:
        bench = InboxBench(fleet, clock=Watch(0.0), silence_s=180.0)
        for second in range(0, 400, 20):
            bench.clock.now_s = float(second)
            bench.send("a", "status", HERE)
            bench.take(*bench.inbox.silent(bench.fleet))
            assert bench.device("b").online == (second <= 180)
        assert bench.device("a").online
        assert bench.inbox.silent(bench.fleet) == [], "it is said once"
        bench.send("b", "status", encode(m.DeviceStatus("b", True)))
        assert bench.device("b").online

    def test_after_a_start_devices_have_time_to_be_heard(self, fleet: FleetData) -> None:
        bench, started = InboxBench(fleet), InboxBench(fleet, silence_s=180.0)
        bench.clock.now_s = started.clock.now_s = 1e6
        assert started.inbox.silent(bench.fleet) == []
        started.clock.now_s += 181
        lost = started.inbox.silent(bench.fleet)
        assert [(type(x), x.device_id) for x in lost if isinstance(x, e.Seen)] == [
            (e.Seen, "a"),
            (e.Seen, "b"),
        ]
        assert len(started.inbox.silent(bench.fleet)) == 2, "until it is stored"

    def test_what_the_broker_retained_of_a_device_is_no_sign_of_life(
        self, bench: InboxBench
    ) -> None:
        bench.send("a", "status", encode(m.DeviceStatus("a", False)))
        assert not bench.device("a").online
        assert bench.send("a", "status", HERE, retained=True) == []
        assert not bench.device("a").online
        bench.send("a", "status", HERE)
        assert bench.device("a").online

    def test_a_forgotten_device_that_comes_again_is_a_new_one(self, bench: InboxBench) -> None:
        bench.verdict(bench.payload("a"))
        bench.take(e.Forgotten(at_s=bench.clock(), device_id="a"))
        bench.inbox.forget("a")
        (told,) = bench.send("a", "status", HERE)
        assert told.reason == "unknown-device"
        bench.send("a", "check-in", encode(m.CheckIn("a", 10, 4)))
        assert (bench.device("a").accepted, bench.device("a").updates) == ("", 0)


class TestWithdrawal:
    def test_it_is_confirmed_by_the_digest_of_what_was_said(self, bench: InboxBench) -> None:
        reading = bench.read("a", "status", WITHDRAWN)
        assert reading.events == [
            e.Seen(at_s=bench.clock(), device_id="a", online=False, withdrawal=ANY)
        ]
        assert reading.replies == [m.Acknowledge("a", digest(WITHDRAWN))]

    def test_one_that_the_broker_retained_is_taken_too(self, bench: InboxBench) -> None:
        bench.send("a", "status", WITHDRAWN, retained=True)
        assert bench.device("a").withdrawn_s

    def test_nobody_withdraws_for_another_device(self, bench: InboxBench) -> None:
        (told,) = bench.send("b", "status", WITHDRAWN)
        assert (type(told), told.reason) == (m.Refuse, "wrong-device")
        assert not bench.device("a").withdrawn_s


class TestDecline:
    @pytest.mark.parametrize(
        ("reason", "forbids"),
        [("data", False), ("policy", True), ("expired", False), ("failed", False)],
    )
    def test_a_device_that_declines_is_not_waited_for(
        self, bench: InboxBench, reason: Any, forbids: bool
    ) -> None:
        bench.send("a", "decline", decline(bench, reason, detail="no\nroom"))
        device = bench.device("a")
        assert (device.declines, device.failures, device.forbids) == (1, 1, forbids)
        last = bench.telemetry.of("a").decline
        assert last is not None
        assert (last.campaign, last.round, last.reason) == ("run-1", 1, reason)
        assert last.detail == "no\\nroom"
        assert bench.telemetry.declined == {reason: 1}

    @pytest.mark.parametrize("change", [{"attempt": 0}, {"round": 2}, {"run_id": "other"}])
    def test_a_decline_of_another_plan_changes_nothing(
        self, bench: InboxBench, change: dict[str, Any]
    ) -> None:
        assert bench.send("a", "decline", decline(bench, "data", **change)) == []
        assert not bench.work("a").lapsed

    def test_a_proof_of_a_greater_epoch_is_handed_on_and_is_no_failure(
        self, bench: InboxBench
    ) -> None:
        reading = bench.read("a", "decline", decline(bench, "stale", proof="signed"))
        assert (reading.proof, reading.events) == ("signed", [])

    def test_one_of_the_final_test_does_not_forbid_surveys(self, bench: InboxBench) -> None:
        device = bench.device("a")
        work = replace(bench.work("a"), kind="evaluate")
        devices = bench.fleet.devices.set("a", replace(device, assignment=work))
        bench.fleet = replace(bench.fleet, devices=devices)
        (declined,) = bench.read("a", "decline", decline(bench, "policy")).events
        assert isinstance(declined, e.AssignmentDeclined)
        assert not declined.forbidden


class TestRefusals:
    @pytest.mark.parametrize("value", [1e3, np.inf, np.nan])
    def test_refused_updates_of_most_devices_are_a_divergence(
        self, bench: InboxBench, value: float
    ) -> None:
        bench.tensors = {
            name: np.full_like(array, value) if name.startswith("delta/") else array
            for name, array in bench.tensors.items()
        }
        assert bench.verdict(bench.payload("a")).reason in ("norm-too-large", "not-finite")
        assert bench.campaign.divergence is None
        bench.verdict(bench.payload("b"), "b")
        assert bench.campaign.divergence is not None
        assert bench.campaign.divergence.cause == "rate"

    def test_updates_of_another_layout_are_none(self, bench: InboxBench) -> None:
        bench.tensors = {"delta/x": np.zeros(3, np.float32)}
        for device_id in "ab":
            assert bench.verdict(bench.payload(device_id), device_id).reason == "wrong-layout"
        assert bench.campaign.divergence is None


class TestInUse:
    def test_what_a_device_says_of_its_release_is_taken(self, bench: InboxBench) -> None:
        said = m.InUse("a", 1, 1, evaluated=m.Metrics(4, 1.0, 2), alone="of\nanother")
        bench.send("a", "in-use", encode(said))
        in_use = bench.device("a").in_use
        assert in_use is not None
        assert (in_use.number, in_use.alone) == (1, "of\\nanother")

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (m.InUse("b", 1, 1), "wrong-device"),
            (m.InUse("a", 1, 1, evaluated=m.Metrics(1, 0.0, 2)), "malformed"),
            (m.InUse("a", 1, 1, before=m.Metrics(1, 1e300, 1)), "malformed"),
            (m.InUse("a", 1, 1, latency_ms=-1.0), "malformed"),
            (m.CheckIn("a", 1, 1), "malformed"),
        ],
    )
    def test_what_cannot_be_is_refused(self, bench: InboxBench, message: Any, reason: str) -> None:
        (refused,) = bench.send("a", "in-use", encode(message))
        assert (refused.reason, refused.about) == (reason, "in-use")
        assert bench.device("a").in_use is None

    def test_a_device_that_has_not_checked_in_reports_nothing(self, bench: InboxBench) -> None:
        assert bench.send("c", "in-use", encode(m.InUse("c", 1, 1))) == []


class TestContainment:
    @pytest.mark.parametrize("kind", ["check-in", "update", "decline", "fetch", "status", "in-use"])
    def test_messages_of_one_device_are_limited_and_those_of_others_are_not(
        self, bench: InboxBench, kind: str
    ) -> None:
        for _ in range(1000):
            bench.send("a", kind, encode(m.CheckIn("a", 10, 4)))
        assert bench.inbox.refused["too-many"] >= 800
        bench.send("c", "check-in", encode(m.CheckIn("c", 10, 4)))
        assert "c" in bench.fleet.devices

    def test_a_flood_is_logged_in_part(
        self, bench: InboxBench, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(1000):
            bench.send(f"device-{number}", "update", b"junk")
        assert bench.inbox.refused == {"malformed": 1000}
        assert sum("reason=malformed" in record.getMessage() for record in caplog.records) == 50
        bench.clock.now_s += 10
        bench.send("a", "update", b"junk")
        assert "reason=malformed times=1001" in caplog.records[-1].getMessage()

    def test_messages_of_devices_that_are_not_known_leave_nothing(self, bench: InboxBench) -> None:
        for kind in ("update", "decline", "fetch", "status", "in-use", "offer", "piece"):
            bench.send("x", kind, encode(m.CheckIn("x", 10, 4)))
        bench.send("x", "decline", decline(bench, "data").replace(b'"a"', b'"x"'))
        assert "x" not in bench.fleet.devices
        assert sorted(bench.telemetry.records) == ["a", "b"]

    @pytest.mark.parametrize(
        ("payload", "reason"), [(b"junk", "malformed"), (b"\xff" * 100, "too-large")]
    )
    def test_an_update_that_cannot_be_read_is_taken_as_declined(
        self, bench: InboxBench, payload: bytes, reason: str
    ) -> None:
        assert bench.verdict(payload).reason == reason
        assert (bench.work("a").lapsed, bench.device("a").failures) == (True, 1)

    def test_nothing_of_a_banned_device_is_taken(self, bench: InboxBench) -> None:
        late = bench.payload("a")
        bench.take(e.Banned(at_s=1.0, device_id="a", ban=Ban(1.0, "stolen")))
        for kind, payload in {
            "check-in": encode(m.CheckIn("a", 10, 4)),
            "update": late,
            "status": HERE,
            "fetch": encode(m.Fetch("a", "0" * 64)),
            "decline": encode(m.Decline("r", 1, 1, 0, "a", "policy", "")),
        }.items():
            assert bench.send("a", kind, payload) == []
        assert bench.inbox.refused == {"banned": 5}

    def test_a_reader_that_fails_leaves_no_event_behind(
        self, bench: InboxBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bench.telemetry, "on_update", lambda *_: 1 // 0)
        reading = bench.read("a", "update", bench.payload("a"))
        assert (reading.events, reading.update) == ([], None)
        assert [type(reply) for reply in reading.replies] == [m.Refuse]

    def test_a_bundle_whose_updates_are_too_large_is_refused(
        self, fleet: FleetData, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match="--max-payload"):
            InboxBench(fleet, assembly=Assembly(tmp_path, 2**10))


class TestPieces:
    @pytest.fixture
    def bench(self, fleet: FleetData, tmp_path: Path) -> InboxBench:
        return InboxBench(fleet, assembly=Assembly(tmp_path / "pieces", clock=Watch()))

    def offered(self, bench: InboxBench, **changes: Any) -> tuple[bytes, m.Offer]:
        payload = bench.payload("a")
        pieces = cut(len(payload), lambda offset, size: payload[offset : offset + size])
        own = {"device_id": "a", "run_id": "r", "round": 1, "pieces": pieces}
        return payload, m.Offer(**{**own, **changes})

    def test_an_update_in_pieces_is_read_as_any_other(self, bench: InboxBench) -> None:
        payload, offer = self.offered(bench)
        reading = bench.read("a", "offer", encode(offer))
        assert reading.want is not None
        answers = list[Any]()
        for index in reading.want.pieces:
            offset, size = place(offer.pieces, index)
            piece = m.Piece("a", digest(payload), index)
            answers = bench.send("a", "piece", encode_piece(piece, payload[offset : offset + size]))
        assert e.AcknowledgeUpdate("a", digest(payload)) in answers
        assert list(bench.received) == ["a"]

    @pytest.mark.parametrize(
        ("changes", "reason"), [({"run_id": "x"}, "unknown-run"), ({"round": 2}, "wrong-round")]
    )
    def test_one_that_may_not_come_is_refused_before_its_pieces(
        self, bench: InboxBench, changes: dict[str, Any], reason: str
    ) -> None:
        (told,) = bench.send("a", "offer", encode(self.offered(bench, **changes)[1]))
        assert told.reason == reason

    def test_one_that_counts_already_is_acknowledged(self, bench: InboxBench) -> None:
        payload, offer = self.offered(bench)
        bench.verdict(payload)
        assert bench.send("a", "offer", encode(offer)) == [m.Acknowledge("a", digest(payload))]

    def test_a_damaged_piece_is_refused_and_not_waited_for(self, bench: InboxBench) -> None:
        payload, offer = self.offered(bench)
        bench.read("a", "offer", encode(offer))
        damaged = bytes(min(PIECE_BYTES, len(payload)))
        reading = bench.read("a", "piece", encode_piece(m.Piece("a", digest(payload), 0), damaged))
        assert [reply.reason for reply in reading.replies if isinstance(reply, m.Refuse)] == [
            "malformed"
        ]
        assert [type(event) for event in reading.events] == [e.AssignmentDeclined]


def test_a_topic_that_is_none_of_the_fleets_is_counted(bench: InboxBench) -> None:
    bench.inbox.read(Delivery("shoal/1/f/device/no such/update", b"x"), bench.fleet)
    assert bench.inbox.refused == {"unknown-topic": 1}


def test_a_device_row_can_be_read_whatever_its_texts_are(bench: InboxBench) -> None:
    """Unprintable characters are escaped, which makes a text longer."""
    long = "\n" * 1000
    (event,) = bench.read("b", "check-in", encode(m.CheckIn("b", 10, 4, client=long))).events
    assert isinstance(event, e.CheckedIn)
    assert len(event.facts.client) == 1000
    (event,) = bench.read("a", "in-use", encode(m.InUse("a", problem=long))).events
    assert isinstance(event, e.UsesRelease)
    assert len(event.in_use.problem) == 1000
