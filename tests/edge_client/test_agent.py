"""The agent on an in-process broker: what it does with what arrives, crashes and keys that are not trusted."""

from pathlib import Path
from typing import Any

import pytest

from edge_client.adapters.onnx_graphs import OnnxGraphs
from edge_client.adapters.state import FolderState
from edge_client.agent import RESEND_S, Agent
from edge_client.core.session import Session
from simulation.datasets.windows import FleetData
from tests.conftest import Exported
from tests.edge_client.plans import plan
from wire import messages as m
from wire.keys import new_key
from wire.codec import decode, decode_update, digest, encode
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery, LinkUp
from wire.tensors import encode_tensors
from wire.topics import Topics


class Device:
    """An agent on an in-process broker, and the aggregator's side of the conversation."""

    def __init__(self, fleet: FleetData, exported: Exported, folder: Path, trusted: Any = None) -> None:
        self.fleet, self.exported, self.folder, self.trusted = fleet, exported, folder, trusted
        self.topics, self.broker, self.now_s = Topics("f"), InProcessBroker(), 0.0
        self.server = self.broker.connect("server")
        self.server.subscribe(*self.topics.from_devices)
        self.model = encode_tensors({k: v for k, v in exported.bundle.initial.items() if not k.startswith("slot/")})
        self.start()

    def start(self) -> None:
        windows = self.fleet.devices["d0"]
        link = self.broker.connect("d0")
        self.agent = Agent(
            "d0", self.topics, link, windows, FolderState(self.folder), OnnxGraphs, trusted=self.trusted, clock=lambda: self.now_s
        )

    def turn(self) -> None:
        while (event := self.agent.link.receive(timeout_s=0)) is not None:
            self.agent.handle(event)
        self.agent.tick()

    def offer(self) -> None:
        for payload in (self.exported.bundle.payload, self.model):
            self.server.publish(self.topics.blob(digest(payload)), payload, retain=True)

    def send_plan(self, number: int = 1, **changes: Any) -> None:
        sent = plan(number, bundle=self.exported.bundle.digest, model=digest(self.model), **changes)
        self.server.publish(self.topics.device("d0", "plan"), encode(sent))

    def reply(self, message: Any) -> None:
        self.server.publish(self.topics.device("d0", "reply"), encode(message))

    def sent(self, kind: str) -> list[bytes]:
        found = []
        while (event := self.server.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery) and event.topic.endswith(f"/{kind}"):
                found.append(event.payload)
        return found


class TestAgent:
    @pytest.fixture
    def device(self, fleet: FleetData, exported: Exported, tmp_path: Path) -> Device:
        return Device(fleet, exported, tmp_path / "state")

    def test_a_round(self, device: Device) -> None:
        device.turn()
        assert decode(device.sent("check-in")[0], m.CheckIn).num_train == 40
        device.offer()
        device.send_plan()
        device.turn()
        update, tensors = decode_update(device.sent("update")[0])
        assert (update.round, update.num_steps) == (1, 5)
        assert "delta/head.weight" in tensors
        device.reply(m.Acknowledge("r", 1))
        device.turn()
        assert device.agent.session.answered == 1
        assert FolderState(device.folder).update() is None

    def test_update_is_kept_and_sent_again_until_it_is_acknowledged(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        (first,) = device.sent("update")
        device.now_s += RESEND_S[0]
        device.turn()
        assert device.sent("update") == [first]
        device.start()
        device.turn()
        assert first in device.sent("update")
        device.reply(m.Acknowledge("r", 1))
        device.turn()
        device.now_s += 10_000
        device.turn()
        assert device.sent("update") == []

    def test_plan_that_a_restart_interrupted_is_taken_up(self, device: Device) -> None:
        device.send_plan()
        device.turn()
        device.start()
        device.offer()
        device.turn()
        assert len(device.sent("update")) >= 1

    def test_update_that_was_finished_before_a_crash_is_not_made_again(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        (first,) = device.sent("update")
        before = device.agent.session
        state = FolderState(device.folder)
        state.save(
            Session(run_id="r", plan=plan(bundle=device.exported.bundle.digest, model=digest(device.model)), versions=before.versions)
        )
        device.start()
        device.turn()
        assert device.agent.session.pending == before.pending
        assert set(device.sent("update")) == {first}

    def test_missing_blob_is_asked_for(self, device: Device) -> None:
        device.send_plan()
        device.turn()
        device.now_s += RESEND_S[0]
        device.turn()
        asked = {decode(p, m.Fetch).digest for p in device.sent("fetch")}
        assert asked == {device.exported.bundle.digest, digest(device.model)}

    def test_blob_of_a_plan_that_was_overtaken_is_not_waited_for(self, device: Device) -> None:
        missed = plan(1, bundle=device.exported.bundle.digest, model="9" * 64)
        device.server.publish(device.topics.device("d0", "plan"), encode(missed))
        device.turn()
        device.offer()
        device.send_plan(2)
        device.turn()
        assert [decode_update(p)[0].round for p in device.sent("update")] == [2]

    def test_blob_with_another_hash_is_ignored(self, device: Device) -> None:
        device.send_plan()
        device.turn()
        device.server.publish(device.topics.blob(device.exported.bundle.digest), b"something else")
        device.turn()
        assert FolderState(device.folder).blob(device.exported.bundle.digest) is None

    def test_new_aggregator_makes_it_check_in(self, device: Device) -> None:
        device.turn()
        device.sent("check-in")
        for boot in ("one", "one", "two"):
            device.server.publish(device.topics.aggregator, encode(m.AggregatorStatus(True, boot)))
        device.turn()
        assert len(device.sent("check-in")) == 2

    def test_garbage_changes_nothing(self, device: Device) -> None:
        device.turn()
        before = device.agent.session
        for topic in (device.topics.device("d0", "plan"), device.topics.device("d0", "reply"), device.topics.aggregator):
            device.agent.handle(Delivery(topic, b"\xff\x00garbage"))
        device.agent.handle(Delivery("other", b""))
        device.agent.handle(LinkUp())
        assert device.agent.session == before

    def test_refused_update_is_dropped(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        device.reply(m.Refuse("not-finite", "x", "r", 1))
        device.turn()
        assert device.agent.session.pending is None
        assert device.agent.session.answered == 1

    def test_refusal_of_an_unreadable_update_drops_it(self, device: Device) -> None:
        device.offer()
        device.send_plan()
        device.turn()
        device.reply(m.Refuse("malformed", "x", about="check-in"))
        device.turn()
        assert device.agent.session.pending is not None
        device.reply(m.Refuse("too-large", "x", about="update"))
        device.turn()
        assert device.agent.session.pending is None

    def test_bundle_by_another_key_is_not_loaded(self, fleet: FleetData, exported: Exported, tmp_path: Path) -> None:
        device = Device(fleet, exported, tmp_path / "state", trusted=new_key().public_key())
        device.offer()
        device.send_plan()
        device.turn()
        (declined,) = device.sent("decline")
        assert "not made with the trusted key" in decode(declined, m.Decline).detail
        assert device.agent.session.plan is None

    def test_older_bundle_is_not_loaded(self, device: Device) -> None:
        FolderState(device.folder).save(Session(versions={device.exported.bundle.manifest.name: 2}))
        device.start()
        device.offer()
        device.send_plan()
        device.turn()
        assert device.sent("update") == []
