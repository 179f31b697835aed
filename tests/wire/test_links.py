"""The link contract over every adapter and broker, and what only a network can do wrong."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from simulation.local.broker import EmbeddedBroker, free_port
from tests.conftest import wait_for_port
from tests.contracts.link import Connect, LinkContract, deliveries, settle
from wire.errors import ConfigError, LinkError
from wire.links.in_process import InProcessBroker, InProcessLink, topic_matches
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery, Link, LinkDown, LinkUp, Will
from wire.topics import Topics

ACCESS_LIST = Path(__file__).parents[2] / "deploy" / "mosquitto" / "shoal.acl"


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
        sock = link._client.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()


def connector(url: str) -> Iterator[Connect]:
    links: list[MqttLink] = []

    def connect(client_id: str, will: Will | None = None) -> MqttLink:
        links.append(MqttLink(BrokerAddress.parse(url), client_id, will))
        return links[-1]

    yield connect
    for link in links:
        link.close(patience_s=0.2)


class TestEmbeddedMqtt311(OverMqtt):
    @pytest.fixture
    def connect(self, embedded_broker: EmbeddedBroker) -> Iterator[Connect]:
        yield from connector(embedded_broker.url)


class TestEmbeddedMqtt5(OverMqtt):
    @pytest.fixture
    def connect(self, embedded_broker: EmbeddedBroker) -> Iterator[Connect]:
        yield from connector(embedded_broker.url_v5)


class TestMosquitto(OverMqtt):
    @pytest.fixture
    def connect(self, mosquitto: str) -> Iterator[Connect]:
        yield from connector(mosquitto)


class TestMosquitto311(OverMqtt):
    @pytest.fixture
    def connect(self, mosquitto: str) -> Iterator[Connect]:
        yield from connector(mosquitto + "?version=3.1.1")


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


def test_comes_back_after_a_broker_restart_and_renews_its_subscriptions(embedded_broker: EmbeddedBroker) -> None:
    link = MqttLink(BrokerAddress.parse(embedded_broker.url), "a")
    link.subscribe("t")
    settle(link)
    embedded_broker.stop()
    assert isinstance(link.receive(timeout_s=5), LinkDown)
    link.publish("t", b"queued while down")
    embedded_broker.start()
    assert isinstance(link.receive(timeout_s=20), LinkUp)
    assert deliveries(link, 1) == [Delivery("t", b"queued while down")]
    link.close()


@pytest.mark.parametrize("url", ["localhost", "http://x", "mqtt://", "mqtt://h:notaport", "mqtt://h?version=4"])
def test_bad_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="broker address"):
        BrokerAddress.parse(url)


def test_certificates_need_tls() -> None:
    with pytest.raises(ConfigError, match="mqtts"):
        BrokerAddress.parse("mqtt://h", ca=Path("ca.pem"))


class TestTls:
    """Mosquitto with a certificate of its own authority, and clients that must show one."""

    @pytest.fixture
    def secured(self, tmp_path: Path) -> Iterator[tuple[int, trustme.CA]]:
        import shutil
        import subprocess

        binary = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin")
        if binary is None:
            pytest.skip("Mosquitto is not installed: apt-get install mosquitto would run this")
        authority, port = trustme.CA(), free_port()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        server = authority.issue_cert("localhost")
        server.private_key_pem.write_to_path(tmp_path / "server.key")
        server.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
        (tmp_path / "m.conf").write_text(
            f"user root\nlistener {port} 127.0.0.1\ncafile {tmp_path}/ca.pem\n"
            f"certfile {tmp_path}/server.pem\nkeyfile {tmp_path}/server.key\n"
            f"require_certificate true\nuse_identity_as_username true\nacl_file {ACCESS_LIST}\n"
        )
        process = subprocess.Popen([binary, "-c", str(tmp_path / "m.conf")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(port)
        yield port, authority
        process.terminate()
        process.wait()

    def address(self, port: int, authority: trustme.CA, folder: Path, name: str = "device-1") -> BrokerAddress:
        authority.cert_pem.write_to_path(folder / "own-ca.pem")
        own: tuple[Path | None, Path | None] = (None, None)
        if name:
            issued = authority.issue_cert(name, common_name=name)
            issued.private_key_pem.write_to_path(folder / f"{name}.key")
            issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
            own = (folder / f"{name}.pem", folder / f"{name}.key")
        return BrokerAddress.parse(f"mqtts://localhost:{port}", folder / "own-ca.pem", *own)

    def test_a_device_writes_only_its_own_topics(self, secured: tuple[int, trustme.CA], tmp_path: Path) -> None:
        topics = Topics("default")
        aggregator = MqttLink(self.address(*secured, tmp_path, "aggregator"), "aggregator")
        device = MqttLink(self.address(*secured, tmp_path), "device-1")
        aggregator.subscribe(*topics.from_devices)
        device.subscribe(topics.device("device-1", "plan"), topics.device("device-2", "plan"))
        settle(aggregator, device)
        device.publish(topics.device("device-2", "update"), b"as another")
        device.publish(topics.blob("0" * 64), b"as the aggregator", retain=True)
        device.publish(topics.device("device-1", "update"), b"as itself")
        assert deliveries(aggregator, 2, patience_s=1) == [Delivery(topics.device("device-1", "update"), b"as itself")]
        aggregator.publish(topics.device("device-2", "plan"), b"for another")
        aggregator.publish(topics.device("device-1", "plan"), b"for it")
        assert deliveries(device, 2, patience_s=1) == [Delivery(topics.device("device-1", "plan"), b"for it")]
        device.close()
        aggregator.close()

    def test_wrong_authority_is_refused_at_once(self, secured: tuple[int, trustme.CA], tmp_path: Path) -> None:
        started_s = time.monotonic()
        with pytest.raises(LinkError, match="TLS failed"):
            MqttLink(self.address(secured[0], trustme.CA(), tmp_path), "a")
        assert time.monotonic() - started_s < 5

    def test_without_a_certificate_there_is_no_connection(self, secured: tuple[int, trustme.CA], tmp_path: Path) -> None:
        with pytest.raises(LinkError):
            MqttLink(self.address(*secured, tmp_path, name=""), "a", wait_s=1)


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [("a/+/c", "a/b/c", True), ("a/+", "a/b/c", False), ("a/#", "a", True), ("a/#", "a/b/c", True), ("a", "a/b", False), ("+", "a", True)],
)
def test_topic_matches(pattern: str, topic: str, matches: bool) -> None:
    assert topic_matches(pattern, topic) is matches
