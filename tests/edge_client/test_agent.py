"""The agent on an in-process broker: what it does with what arrives, keys that are not trusted, and
time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edge_client.agent.loop import STATUS_WAIT_S
from edge_client.agent.sending import Sending
from edge_client.core.backoff import RESEND_S
from edge_client.core.session import Session
from edge_client.storage.state import BLOBS, UPDATE, DeviceState
from simulation.datasets.windows import FleetData
from tests.edge_client.device import NOW_S, Device, finished
from tests.support.bundles import Exported
from wire import messages as m
from wire.arrays import names
from wire.arrays.quantised import encoded
from wire.codec import decode, decode_update, digest, encode
from wire.identity.keys import new_key
from wire.identity.signed import Signer, Verifier, vouch
from wire.links.port import Delivery, Denied, LinkDown, LinkUp
from wire.pieces import cut

Make = Callable[..., Device]


@pytest.fixture
def make(fleet: FleetData, exported: Exported, tmp_path: Path) -> Make:
    return lambda **options: Device(fleet, exported, tmp_path / "state", **options)


@pytest.fixture
def device(make: Make) -> Device:
    return make()


@pytest.mark.parametrize("action", ["publish", "subscribe"])
def test_what_the_broker_denies_is_said(
    device: Device, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = "shoal/1/f/device/d0/plan"
    text = f"The broker denies access to a topic: device=d0 action={action} topic={topic}"
    for times in (1, 2):
        device.agent.handle(LinkUp())
        for _ in range(9):
            device.agent.handle(Denied(action, topic, "Not authorized"))
        said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(said) == times, "one line for each connection"
    assert said[0].startswith(f"{text} reason=Not authorized: is the device banned?")


def test_an_update_that_has_vanished_is_not_sent_as_empty_pieces(device: Device) -> None:
    agent, pieces = device.agent, cut(10, lambda _offset, size: bytes(size))
    sending = Sending("d0", DeviceState(), agent._outbox, agent._traffic, None, offered=pieces)
    with pytest.raises(FileNotFoundError):
        sending.on_want(
            m.Want("d0", pieces.digest, (0,)), Session(stage="pending", update=pieces.digest)
        )


class TestRounds:
    def test_a_round(self, make: Make) -> None:
        device = make(policy=m.Policy(min_windows=2))
        device.turn()
        check_in = decode(device.sent("check-in")[0], m.CheckIn)
        assert (check_in.num_train, check_in.policy) == (40, m.Policy(min_windows=2))
        payload = finished(device, epoch=7)
        update, tensors = decode_update(payload)
        assert (update.epoch, update.round, update.attempt, update.num_steps) == (7, 1, 0, 5)
        assert "delta/head.weight" in tensors
        device.reply(m.Acknowledge("d0", digest(payload)))
        device.turn()
        assert device.agent.session.stage == "answered"
        assert DeviceState(device.folder).files.read(UPDATE) is None

    def test_a_plan_that_asks_for_int8_is_answered_in_it_also_after_a_restart(
        self, make: Make
    ) -> None:
        device = make()
        device.turn()
        assert decode(device.sent("check-in")[0], m.CheckIn).encodings == ("int8",)
        payload = finished(device, encoding="int8")
        tensors = decode_update(payload)[1]
        assert {names.role_of(name) for name in tensors} == {names.INT8, names.STATISTIC}
        again = make()
        again.turn()
        assert set(again.sent("update")) == {payload}

    def test_int8_rounds_what_was_clipped(self, device: Device) -> None:
        clipped, sent = (
            decode_update(
                finished(device, number, encoding=encoding, verbs=(m.Train(8), m.Protect(0.01)))
            )[1]
            for number, encoding in ((1, "float32"), (2, "int8"))
        )
        expected = encoded(clipped, "int8", device.plan(2).seed, "d0")
        assert sent.keys() == expected.keys()
        assert all(sent[name].tobytes() == value.tobytes() for name, value in expected.items())

    def test_update_is_kept_and_sent_again_until_it_is_acknowledged(self, device: Device) -> None:
        first = finished(device)
        device.now_s += RESEND_S[0]
        device.turn()
        assert device.sent("update") == [first]
        device.start()
        device.turn()
        assert first in device.sent("update")
        device.say("another boot", epoch=2)
        device.turn()
        assert device.sent("update") == [first]
        device.reply(m.Acknowledge("d0", "0" * 64))
        device.turn()
        assert DeviceState(device.folder).files.read(UPDATE) == first
        device.reply(m.Acknowledge("d0", digest(first)))
        device.turn()
        device.now_s += 10_000
        device.turn()
        assert device.sent("update") == []

    def test_pauses_between_attempts_double(self, device: Device) -> None:
        finished(device)
        at = []
        for _ in range(1500):
            device.now_s += 1
            device.turn()
            at += [device.now_s] * len(device.sent("update"))
        assert at == [10, 30, 70, 150, 310, 610, 910, 1210]

    def test_a_busy_aggregator_says_when_to_try_again(self, device: Device) -> None:
        first = finished(device)
        device.reply(m.Busy("d0", digest(first), 77.0))
        device.now_s += 76
        device.turn()
        assert device.sent("update") == []
        device.now_s += 77
        device.turn()
        assert device.sent("update") == [first]

    def test_refused_update_is_dropped(self, device: Device) -> None:
        first = finished(device)
        device.reply(m.Refuse("d0", "malformed", "x", about="check-in"))
        device.turn()
        before = device.agent.session.stage
        assert DeviceState(device.folder).files.read(UPDATE) == first
        device.reply(m.Refuse("d0", "not-finite", "x", "update", digest(first)))
        device.turn()
        assert (before, device.agent.session.stage) == ("pending", "answered")
        assert DeviceState(device.folder).files.read(UPDATE) is None

    def test_missing_blob_is_asked_for(self, device: Device) -> None:
        device.send_plan()
        device.turn()
        device.now_s += RESEND_S[0]
        device.turn()
        asked = {decode(p, m.Fetch).digest for p in device.sent("fetch")}
        assert asked == {device.bundle.digest, digest(device.model)}

    def test_blob_of_a_plan_that_was_overtaken_is_not_waited_for(self, device: Device) -> None:
        device.send_plan(1, model="9" * 64)
        device.turn()
        finished(device, 2)
        assert device.agent.session.plan == device.plan(2)

    def test_blob_with_another_hash_is_ignored(self, device: Device) -> None:
        device.send_plan()
        device.turn()
        device.server.publish(device.topics.blob(device.bundle.digest), b"something else")
        device.turn()
        assert not DeviceState(device.folder).files.size(BLOBS + device.bundle.digest)

    def test_new_aggregator_makes_it_check_in_and_an_old_one_does_not(self, device: Device) -> None:
        device.turn()
        device.sent("check-in")
        for boot, epoch in (("one", 2), ("one", 2), ("two", 3), ("zero", 1)):
            device.say(boot, epoch)
        device.turn()
        assert len(device.sent("check-in")) == 2

    def test_heartbeat(self, device: Device) -> None:
        device.turn()
        device.sent("status")
        times = 0
        for _ in range(600):
            device.now_s += 1
            device.turn()
            times += len(device.sent("status"))
        assert times >= 600 / m.HEARTBEAT_S

    def test_heartbeat_while_working(self, make: Make) -> None:
        device = make(policy=m.Policy())
        device.turn()
        device.sent("status")
        run = device.load_graphs(device.bundle).run

        class Slow:
            max_batch = None

            def run(self, graph: str, inputs: Any) -> Any:
                device.now_s += 20
                return run(graph, inputs)

        device.load_graphs = lambda _bundle: Slow()
        device.start()
        device.offer()
        device.send_plan(verbs=(m.Train(8, 4),))
        device.turn()
        assert len(device.sent("status")) >= 20 * 20 / m.HEARTBEAT_S


class TestSignatures:
    def test_a_signed_round(self, make: Make, exported: Exported) -> None:
        device = make(signed=True)
        device.turn()
        before = device.agent.session
        for forged in (
            encode(device.plan()),
            Signer(new_key(), vouch(new_key(), "f", new_key().public_key(), 9e9))(device.plan()),
        ):
            device.server.publish(device.topics.device("d0", "plan"), forged)
        device.turn()
        assert device.agent.session == before
        assert sum(device.agent.incidents.counts.values()) == 2
        sent = device.send_plan()
        device.turn()
        assert device.agent.session.plan == sent

    def test_a_bundle_by_another_key_is_not_loaded(self, make: Make) -> None:
        device = make(signed=True)  # the bundle is signed with the key of its export
        device.offer()
        device.send_plan()
        device.turn()
        (declined,) = device.declines()
        assert (declined.reason, "not made with a trusted key" in declined.detail) == (
            "bundle",
            True,
        )

    def test_a_plan_of_an_epoch_that_is_over_is_answered_with_the_proof(self, make: Make) -> None:
        device = make(signed=True)
        newer = device.send_plan(3, epoch=5)
        device.send_plan(4, epoch=4)
        device.turn()
        stale = next(d for d in device.declines() if d.reason == "stale")
        assert (stale.round, stale.epoch) == (4, 4)
        assert Verifier("f", device.trusted).open(stale.proof.encode(), m.Plan, NOW_S) == newer

    def test_a_voucher_that_is_over_by_the_aggregators_clock_is_not_believed(
        self, make: Make
    ) -> None:
        device = make(signed=True, wall=lambda: 0.0)
        device.say(at_s=NOW_S + 9_999)
        device.turn()
        device.now_s += 10
        device.send_plan()
        device.turn()
        assert device.agent.session.plan is None

    @pytest.mark.parametrize("kind", ["plan", "reply"])
    def test_what_is_for_another_device_is_ignored(self, device: Device, kind: Any) -> None:
        device.turn()
        before = device.agent.session
        message = (
            device.plan(device_id="d1")
            if kind == "plan"
            else m.Finish("d1", "r", 1, "0" * 64, "1" * 64)
        )
        device.server.publish(device.topics.device("d0", kind), encode(message))
        device.turn()
        assert device.agent.session == before

    def test_garbage_changes_nothing(self, device: Device) -> None:
        device.turn()
        before = device.agent.session
        for topic in (
            device.topics.device("d0", "plan"),
            device.topics.device("d0", "reply"),
            device.topics.aggregator,
        ):
            for payload in (
                b"",
                b"\xff\x00garbage",
                b"\n\n\n",
                b'{"type":"plan"}',
                b"[" * 10_000,
                b"x" * 20_000_000,
            ):
                device.agent.handle(Delivery(topic, payload))
        device.agent.handle(Delivery("other", b""))
        device.agent.handle(LinkUp())
        assert device.agent.session == before
        assert sum(device.agent.incidents.counts.values()) == 19


def test_a_device_that_the_aggregator_does_not_know_checks_in_again(device: Device) -> None:
    device.turn()
    device.sent("check-in")
    device.reply(m.Refuse("d0", "unknown-device", "it has not checked in", "status"))
    device.reply(m.Refuse("d0", "unknown-blob", "not on offer", "fetch"))
    device.turn()
    assert len(device.sent("check-in")) == 1


def test_without_a_connection_nothing_is_sent_again(device: Device) -> None:
    first = finished(device)
    device.sent("update")
    device.agent.handle(LinkDown("gone"))
    for _ in range(60):
        device.now_s += 60
        device.agent.tick()
    assert device.sent("update") == []
    device.agent.handle(LinkUp())
    assert set(device.sent("update")) == {first}


def test_an_update_that_is_finished_without_a_connection_waits_for_the_next(device: Device) -> None:
    device.turn()
    device.agent.handle(LinkDown("gone"))
    device.offer()
    device.send_plan()
    device.turn()
    assert (device.agent.session.stage, device.sent("update")) == ("pending", [])
    device.agent.handle(LinkUp())
    (update,) = device.sent("update")
    assert digest(update) == device.agent.session.update


class TestTime:
    def test_work_waits_for_the_aggregators_status_but_not_for_ever(self, device: Device) -> None:
        device.broker.retained.clear()
        device.start()
        while device.agent.link.receive(timeout_s=0) is not None:
            pass
        device.agent.handle(LinkUp())
        device.offer()
        device.send_plan()
        device.turn()
        assert device.updates() == []
        assert device.agent.retry_at_s == STATUS_WAIT_S
        device.now_s += STATUS_WAIT_S
        device.turn()
        assert len(device.updates()) == 1

    def test_a_plan_whose_deadline_is_over_is_not_carried_out(self, device: Device) -> None:
        device.offer()
        device.send_plan(deadline_at_s=NOW_S - 5)
        device.turn()
        assert [(d.reason, d.detail) for d in device.declines()] == [
            ("expired", "its deadline was over 5 s ago")
        ]

    def test_a_plan_of_a_later_epoch_is_not_judged_by_the_clock_of_an_earlier_one(
        self, device: Device
    ) -> None:
        device.say("boot", 1, at_s=NOW_S + 86_400)  # the service's clock was a day ahead
        device.turn()
        device.offer()
        device.send_plan(epoch=2, deadline_at_s=NOW_S + 100)  # it was corrected, and restored
        device.turn()
        assert len(device.updates()) == 1

    def test_a_plan_of_a_later_epoch_is_judged_once_its_status_is_there(
        self, device: Device
    ) -> None:
        device.say("boot", 1, at_s=NOW_S + 86_400)
        device.turn()
        device.send_plan(epoch=2, deadline_at_s=NOW_S + 100)
        device.turn()
        device.say("again", 2, at_s=NOW_S + 101)
        device.offer()
        device.turn()
        assert [d.reason for d in device.declines()] == ["expired"]

    def test_time_goes_on_while_blobs_are_awaited(self, device: Device) -> None:
        device.send_plan(deadline_at_s=NOW_S + 100)
        device.turn()
        device.now_s += 101
        device.offer()
        device.turn()
        assert [d.reason for d in device.declines()] == ["expired"]

    def test_the_time_after_a_restart_is_the_aggregators(self, make: Make) -> None:
        device = make(wall=lambda: 0.0)
        device.send_plan(deadline_at_s=NOW_S + 100)
        device.turn()
        device.now_s += 200
        device.say()
        device.start()
        device.offer()
        device.turn()
        assert [d.reason for d in device.declines()] == ["expired"]
