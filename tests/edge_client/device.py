"""An agent on an in-process broker, and the aggregator's side of the conversation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_client.agent.loop import Agent
from edge_client.core.ports import GraphLoader
from edge_client.graphs.onnx import OnnxGraphs
from edge_client.storage.state import DeviceState
from simulation.datasets.windows import FleetData
from tests.support.bundles import Exported
from tests.support.plans import plan
from wire import messages as m
from wire.arrays.tensors import Tensors, encode_tensors
from wire.bundle import Bundle
from wire.codec import decode, decode_update, digest, encode
from wire.identity.keys import new_key
from wire.identity.signed import Signer, vouch
from wire.links.in_process import InProcessBroker
from wire.links.port import Delivery
from wire.topics import Topics

NOW_S = 1_800_000_000.0


class Device:
    """One device `d0`. `now_s` is the time of every clock; `root` is the key that it trusts if
    `signed`."""

    def __init__(
        self,
        fleet: FleetData,
        exported: Exported,
        folder: Path,
        signed: bool = False,
        **options: Any,
    ) -> None:
        self.windows, self.bundle, self.folder, self.options = (
            fleet.devices["d0"],
            exported.bundle,
            folder,
            options,
        )
        self.topics, self.broker, self.now_s = Topics("f"), InProcessBroker(), 0.0
        self.root, service = new_key(), new_key()
        self.trusted: Sequence[Any] = (self.root.public_key(),) if signed else ()
        signer = Signer(service, vouch(self.root, "f", service.public_key(), NOW_S + 10_000))
        self.sign: Any = signer if signed else encode
        self.server = self.broker.connect("server")
        self.server.subscribe(*self.topics.from_devices)
        self.model = encode_tensors(initial_model(self.bundle))
        self.load_graphs: GraphLoader = OnnxGraphs
        self.say()
        self.start()

    def start(self, state: DeviceState | None = None) -> None:
        """Start the client, also again after it died."""
        link = self.broker.connect("d0")
        clocks = {"clock": lambda: self.now_s, "wall": lambda: NOW_S + self.now_s}
        state = state or DeviceState(self.folder)
        options = {"trusted": self.trusted, **clocks, **self.options}
        self.agent = Agent(
            "d0", self.topics, link, self.windows, state, self.load_graphs, **options
        )

    def turn(self) -> None:
        """Let the client do all that it can do now."""
        while (event := self.agent.link.receive(timeout_s=0)) is not None:
            self.agent.handle(event)
        self.agent.tick()

    def say(
        self, boot_id: str = "boot", epoch: int = 1, at_s: float | None = None, online: bool = True
    ) -> None:
        """Publish the aggregator's status."""
        status = m.AggregatorStatus(
            online, boot_id, epoch, NOW_S + self.now_s if at_s is None else at_s
        )
        self.broker.publish(self.topics.aggregator, self.sign(status), True)

    def offer(self, *payloads: bytes) -> None:
        """Publish blobs: the bundle and the model if none are given."""
        for payload in payloads or (self.bundle.payload, self.model):
            self.server.publish(self.topics.blob(digest(payload)), payload, retain=True)

    def plan(self, number: int = 1, **changes: Any) -> m.Plan:
        """A plan for the device's bundle and model."""
        return plan(
            number, **{"bundle": self.bundle.digest, "model": digest(self.model), **changes}
        )

    def send_plan(self, number: int = 1, **changes: Any) -> m.Plan:
        """Send such a plan."""
        sent = self.plan(number, **changes)
        self.server.publish(self.topics.device("d0", "plan"), self.sign(sent))
        return sent

    def reply(self, message: m.Reply) -> None:
        """Send a reply."""
        self.server.publish(self.topics.device("d0", "reply"), self.sign(message))

    def finish(self, run_id: str = "r", **changes: Any) -> None:
        """Say that the run is over, and offer its model, under the next number."""
        offer = {
            "epoch": 1,
            "bundle": self.bundle.digest,
            "model": digest(self.model),
            "number": self.agent.session.released + 1,
            **changes,
        }
        self.reply(m.Finish("d0", run_id, **offer))

    def release(
        self, number: int, model: bytes | None = None, bundle: bytes | None = None, **changes: Any
    ) -> None:
        """Offer a release's blobs and say that it is this device's, as a retained message; and let
        the device do what it does about it."""
        model, bundle = model or self.model, bundle or self.bundle.payload
        self.offer(model, bundle)
        fields = {
            "epoch": 1,
            "group": "left",
            "run_id": "r",
            "bundle": digest(bundle),
            "model": digest(model),
            **changes,
        }
        message = self.sign(m.Release("d0", number=number, **fields))
        self.server.publish(self.topics.device("d0", "release"), message, retain=True)
        self.turn()

    def in_use(self) -> m.InUse:
        """Return its last report of the release in use."""
        said: m.InUse = decode(self.sent("in-use")[-1], m.InUse)
        return said

    def sent(self, kind: str) -> list[bytes]:
        """Return the device's publications on its topic of this kind, and forget those on other
        topics."""
        found = []
        while (event := self.server.receive(timeout_s=0)) is not None:
            if isinstance(event, Delivery) and event.topic.endswith(f"/{kind}"):
                found.append(event.payload)
        return found

    def updates(self) -> list[tuple[m.Update, Tensors]]:
        """The updates that it sent."""
        return [decode_update(payload) for payload in self.sent("update")]

    def declines(self) -> list[m.Decline]:
        """The declines that it sent."""
        return [decode(payload, m.Decline) for payload in self.sent("decline")]


def finished(device: Device, number: int = 1, **changes: Any) -> bytes:
    """A round that was carried out, and its update."""
    device.offer()
    device.send_plan(number, **changes)
    device.turn()
    (payload,) = device.sent("update")
    return payload


def other_model(device: Device, scale: float = 1.5) -> bytes:
    """A model of the same layout whose weights are this multiple."""
    return encode_tensors(
        {
            key: (value * scale).astype(value.dtype)
            for key, value in initial_model(device.bundle).items()
        }
    )


def take_up(
    device: Device, model: bytes | None = None, bundle: bytes | None = None, run_id: str = "r"
) -> None:
    """Offer a model, and let the device do what it does about it."""
    model, bundle = model or device.model, bundle or device.bundle.payload
    device.offer(model, bundle)
    device.finish(run_id, model=digest(model), bundle=digest(bundle))
    device.turn()


def initial_model(bundle: Bundle) -> Tensors:
    """The tensors of a model, with their initial values."""
    return {spec.key: bundle.initial[spec.key] for spec in bundle.manifest.received()}
