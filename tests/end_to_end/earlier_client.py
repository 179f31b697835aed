"""A client as it was before releases: it says only what a check-in has to have, reads no release,
and uses a finished run's model."""

import threading
from pathlib import Path

from msgspec.structs import replace

from edge_client.agent.loop import Agent
from edge_client.agent.state import FolderState
from edge_client.data.windows import load_folder
from edge_client.enrolment.credentials import FOLDER, PAIR, Credentials
from edge_client.graphs.onnx import OnnxGraphs
from wire import messages as m
from wire.codec import decode, encode
from wire.identity.keys import read_public
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Will
from wire.topics import Topics


class EarlierLink(MqttLink):
    """It sends what an earlier client sent."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        kind = topic.rpartition("/")[2]
        if kind == "in-use":
            return
        if kind == "check-in":
            said = decode(payload, m.CheckIn)
            payload = encode(m.CheckIn(said.device_id, said.num_train, said.num_test))
        super().publish(topic, payload, retain=retain)


class EarlierAgent(Agent):
    """It knows neither releases nor that a finished run may leave them the choice of the model."""

    def _act(
        self,
        message: m.Plan | m.Reply | m.Release | m.Want | m.AggregatorStatus | str,
        payload: bytes,
    ) -> None:
        if isinstance(message, m.Release):
            return
        super()._act(
            replace(message, releases=False) if isinstance(message, m.Finish) else message, payload
        )


class EarlierClient:
    """Takes part, in a thread, while the context is open."""

    def __init__(self, device_id: str, state: Path, data: Path) -> None:
        credentials = Credentials(state / FOLDER)
        enrolled, folder = credentials.enrolment(), credentials.folder
        topics, self._windows = Topics(enrolled.fleet), load_folder(data, 32, 32)
        address = BrokerAddress.parse(
            enrolled.broker, folder / "ca.pem", folder / PAIR, folder / PAIR
        )
        will = Will(topics.device(device_id, "status"), encode(m.DeviceStatus(device_id, False)))
        self._link = EarlierLink(address, f"{enrolled.fleet}.{device_id}", will)
        trusted = read_public((folder / "trust.pem").read_bytes())
        self._agent = EarlierAgent(
            device_id,
            topics,
            self._link,
            self._windows,
            FolderState(state),
            OnnxGraphs,
            trusted=trusted,
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._agent.run, args=(self._over.is_set,))

    @property
    def finished(self) -> bool:
        """Whether it has a model that a finished run left."""
        return self._agent._model.current is not None

    def accuracy(self) -> float:
        """The share of its test windows that the model names rightly."""
        return float(
            (self._agent.predict(self._windows.test_x).argmax(1) == self._windows.test_y).mean()
        )

    def __enter__(self) -> "EarlierClient":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join(20)
        self._link.close()
