"""The link contract over every adapter and broker, and what only a network can do wrong."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from simulation.local.broker import EmbeddedBroker, free_port
from tests.contracts.link import Connect, LinkContract, deliveries, settle
from tests.support.nats import nats_server
from tests.support.waiting import wait_until
from wire.errors import ConfigError, LinkError
from wire.links.in_process import InProcessBroker, InProcessLink, topic_matches
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery, Link, LinkDown, LinkUp, Will


class TestInProcess(LinkContract):
    @pytest.fixture
    def connect(self, in_process_broker: InProcessBroker) -> Connect:
        return in_process_broker.connect

    def vanish(self, link: Link) -> None:
        assert isinstance(link, InProcessLink)
        link.vanish()


class OverMqtt(LinkContract):
    def vanish(self, link: Link) -> None:
        assert isinstance(link, MqttLink)
        link._closing = True
        link._client.loop_stop()
        cut(link).close()

    def test_what_was_not_confirmed_comes_again_after_a_new_connection(
        self, connect: Connect
    ) -> None:
        link, sender = connect("careful", confirmed=True), connect("sender")
        link.subscribe("c/#")
        settle(link)
        for number in range(4):
            sender.publish("c/1", str(number).encode())
        first = deliveries(link, 4)
        link.confirm(first[:2])
        settle(link)
        cut(link)
        assert [d.payload for d in deliveries(link, 2)] == [b"2", b"3"]
        link.confirm(first)  # of the connection that is gone: these numbers may be others by now
        cut(link)
        again = deliveries(link, 2)
        assert [d.payload for d in again] == [b"2", b"3"]
        link.confirm(again)
        settle(link)
        cut(link)
        sender.publish("c/1", b"4")
        assert [d.payload for d in deliveries(link, 2, patience_s=4)] == [b"4"]

    def test_what_was_not_confirmed_comes_again_to_the_next_process(self, connect: Connect) -> None:
        link, sender = connect("careful", confirmed=True), connect("sender")
        link.subscribe("c/#")
        settle(link)
        sender.publish("c/1", b"safe")
        sender.publish("c/1", b"not yet")
        link.confirm(deliveries(link, 2)[:1])
        settle(link)
        link.close()
        assert [
            d.payload for d in deliveries(connect("careful", confirmed=True), 2, patience_s=2)
        ] == [b"not yet"]

    def test_what_waits_to_be_read_is_bounded(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wire.links.mqtt.MOST_BYTES", 2**20)
        link, sender = connect("slow"), connect("sender")
        assert isinstance(link, MqttLink)
        link.subscribe("b")
        settle(link)
        for number in range(40):
            sender.publish("b", bytes([number]) * 2**18)
        wait_until(lambda: link._inbox._num_bytes > 2**20 - 2**18)
        for _ in range(50):  # more would come in now
            assert link._inbox._num_bytes <= 2**20
            time.sleep(0.01)
        assert [d.payload[0] for d in deliveries(link, 40)] == [*range(40)]
        sender.publish("b", bytes(3 * 2**20))
        assert len(deliveries(link, 1)[0].payload) == 3 * 2**20, (
            "one that is larger alone still comes"
        )


def cut(link: Link) -> socket.socket:
    """Break a link's connection; returns its socket."""
    assert isinstance(link, MqttLink)
    sock = link._client.socket()
    assert isinstance(sock, socket.socket)
    sock.shutdown(socket.SHUT_RDWR)
    return sock


def connector(url: str) -> Iterator[Connect]:
    links: list[MqttLink] = []

    def connect(client_id: str, will: Will | None = None, confirmed: bool = False) -> MqttLink:
        links.append(MqttLink(BrokerAddress.parse(url), client_id, will, confirmed=confirmed))
        return links[-1]

    yield connect
    for link in links:
        link.close(patience_s=0.2)


class TestEmbeddedMqtt311(OverMqtt):
    @pytest.fixture
    def connect(self, embedded_broker: EmbeddedBroker) -> Iterator[Connect]:
        yield from connector(embedded_broker.url)


@pytest.mark.full
class TestEmbeddedMqtt5(OverMqtt):
    @pytest.fixture
    def connect(self, embedded_broker: EmbeddedBroker) -> Iterator[Connect]:
        yield from connector(embedded_broker.url_v5)


class TestMosquitto(OverMqtt):
    @pytest.fixture
    def connect(self, mosquitto: str) -> Iterator[Connect]:
        yield from connector(mosquitto)


@pytest.mark.full
class TestMosquitto311(OverMqtt):
    @pytest.fixture
    def connect(self, mosquitto: str) -> Iterator[Connect]:
        yield from connector(mosquitto + "?version=3.1.1&max_packet=67109888")


class TestNats(OverMqtt):
    """NATS keeps topics apart by dots, has MQTT 3.1.1 alone, and takes at most 1 MiB."""

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Iterator[Connect]:
        with nats_server(tmp_path, "max_payload: 67108864\n") as address:
            yield from connector(f"mqtt://{address}?max_packet=67109888")

    def test_what_was_not_confirmed_comes_again_after_a_new_connection(
        self, connect: Connect
    ) -> None:
        """NATS repeats it after its ``ack_wait``, and again each time."""
        link, sender = connect("careful", confirmed=True), connect("sender")
        link.subscribe("c/#")
        settle(link)
        for number in range(4):
            sender.publish("c/1", str(number).encode())
        link.confirm([d for d in deliveries(link, 4) if d.payload in (b"0", b"1")])
        settle(link)
        cut(link)
        again = deliveries(link, 2)
        assert {d.payload for d in again} == {b"2", b"3"}
        link.confirm(again)
        sender.publish("c/1", b"4")
        assert b"4" in {d.payload for d in deliveries(link, 1)}

    def test_a_topic_that_nats_does_not_take_is_named(self, connect: Connect) -> None:
        link = connect("a")
        link.publish("device/pi one/status", b"x")
        reasons: list[str] = []
        while len(reasons) < 3:
            event = link.receive(timeout_s=20)
            reasons += [event.reason] if isinstance(event, LinkDown) else []
        assert "acknowledged" not in reasons[1]
        assert reasons[2].endswith(
            "3 times before it acknowledged a message of 1 bytes on device/pi one/status: does it "
            "permit this topic and size?"
        )

    def test_what_was_not_confirmed_comes_again_to_the_next_process(self, connect: Connect) -> None:
        link, sender = connect("careful", confirmed=True), connect("sender")
        link.subscribe("c/#")
        settle(link)
        sender.publish("c/1", b"safe")
        sender.publish("c/1", b"not yet")
        link.confirm(deliveries(link, 2)[:1])
        settle(link)
        link.close()
        again = connect("careful", confirmed=True)
        assert {d.payload for d in deliveries(again, 1)} == {b"not yet"}


def test_falls_back_to_311_when_the_broker_refuses_5(embedded_broker: EmbeddedBroker) -> None:
    link = MqttLink(BrokerAddress.parse(f"mqtt://127.0.0.1:{embedded_broker.port}"), "a")
    assert link.version == "3.1.1"
    link.close()


def test_prefers_5(embedded_broker: EmbeddedBroker) -> None:
    link = MqttLink(BrokerAddress.parse(f"mqtt://127.0.0.1:{embedded_broker.port_v5}"), "a")
    assert link.version == "5"
    link.close()


def test_no_broker_is_one_clear_error() -> None:
    port = free_port()
    with pytest.raises(LinkError, match=f"mqtt://127.0.0.1:{port}: no connection"):
        MqttLink(BrokerAddress.parse(f"mqtt://127.0.0.1:{port}"), "a", wait_s=0.3)


def test_a_broker_that_closes_the_connection_without_an_answer_makes_the_error_ask_for_tls() -> (
    None
):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=close, daemon=True).start()
        address = BrokerAddress.parse(f"mqtt://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(
            LinkError,
            match=r"closed the connection without an answer to MQTT .*; is the port one for TLS "
            r"\(mqtts://.*--cert",
        ):
            MqttLink(address, "a", wait_s=0.1)


def test_comes_back_after_a_broker_restart_and_renews_its_subscriptions(
    embedded_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shoal.link")
    address = BrokerAddress.parse(embedded_broker.url)
    link = MqttLink(address, "a")
    link.subscribe("t")
    settle(link)
    embedded_broker.stop()
    assert link.receive(timeout_s=5) == LinkDown("the broker or the network closed it")
    retry = f"No connection to the broker, trying again: broker={address}"
    wait_until(lambda: retry in caplog.messages)
    link.publish("t", b"queued while down")
    embedded_broker.start()
    assert link.receive(timeout_s=20) == LinkUp(has_session=False), (
        "the embedded broker keeps nothing"
    )
    assert deliveries(link, 1) == [Delivery("t", b"queued while down")]
    link.close()


@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_a_broker_that_keeps_the_session_is_known_by_it(mosquitto: str, version: str) -> None:
    for kept in (False, True):
        link = MqttLink(BrokerAddress.parse(f"{mosquitto}?version={version}"), "a")
        assert link.receive(timeout_s=5) == LinkUp(kept)
        link.close()


def test_text_that_paho_does_not_take_does_not_end_the_connection(mosquitto: str) -> None:
    """Mosquitto passes on U+FEFF in a publication's properties."""
    link = MqttLink(BrokerAddress.parse(mosquitto), "a")
    link.subscribe("t")
    settle(link)
    sender = paho.Client(CallbackAPIVersion.VERSION2, "b", protocol=paho.MQTTv5)
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = ("k", "\ufeffv")
    properties.ContentType = "\ufeff"
    sender.connect("127.0.0.1", int(mosquitto.rpartition(":")[2]))
    sender.loop_start()
    sender.publish("t", b"x", qos=1, properties=properties).wait_for_publish(5)
    sender.publish("t", b"y", qos=1).wait_for_publish(5)
    sender.loop_stop()
    assert deliveries(link, 2) == [Delivery("t", b"x"), Delivery("t", b"y")]
    assert link.receive(timeout_s=0.3) is None, "the connection stays"
    link.close()


@pytest.mark.parametrize(
    "url", ["localhost", "http://x", "mqtt://", "mqtt://h:notaport", "mqtt://h?version=4"]
)
def test_bad_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="broker address"):
        BrokerAddress.parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://me:secret@h:notaport",
        "mqtt://me:secret@h?version=4",
        "me:secret@h",
        "mqt://:secret@",
    ],
)
def test_a_bad_address_hides_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"broker address .*\*\*\*@") as raised:
        BrokerAddress.parse(url)
    assert "secret" not in str(raised.value)


def test_certificates_need_tls() -> None:
    with pytest.raises(ConfigError, match="mqtts"):
        BrokerAddress.parse("mqtt://h", ca=Path("ca.pem"))


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("a/+/c", "a/b/c", True),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a", "a/b", False),
        ("+", "a", True),
    ],
)
def test_topic_matches(pattern: str, topic: str, matches: bool) -> None:
    assert topic_matches(pattern, topic) is matches
