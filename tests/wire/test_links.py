"""The link contract over every adapter and broker, and what only a network can do wrong."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from simulation.embedded_broker import EmbeddedBroker, free_port
from tests.conftest import wait_for_port
from tests.contracts.link import Connect, LinkContract, deliveries, settle
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
        sock = link._client.socket()
        assert sock is not None
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
            "require_certificate true\nuse_identity_as_username true\n"
        )
        process = subprocess.Popen([binary, "-c", str(tmp_path / "m.conf")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(port)
        yield port, authority
        process.terminate()
        process.wait()

    def address(self, port: int, authority: trustme.CA, folder: Path, with_certificate: bool = True) -> BrokerAddress:
        authority.cert_pem.write_to_path(folder / "own-ca.pem")
        device = authority.issue_cert("device-1", common_name="device-1")
        device.private_key_pem.write_to_path(folder / "device.key")
        device.cert_chain_pems[0].write_to_path(folder / "device.pem")
        own = (folder / "device.pem", folder / "device.key") if with_certificate else (None, None)
        return BrokerAddress.parse(f"mqtts://localhost:{port}", folder / "own-ca.pem", *own)

    def test_with_the_right_certificates(self, secured: tuple[int, trustme.CA], tmp_path: Path) -> None:
        link = MqttLink(self.address(*secured, tmp_path), "a")
        link.subscribe("t")
        settle(link)
        link.publish("t", b"x")
        assert deliveries(link, 1)
        link.close()

    def test_wrong_authority_is_refused_at_once(self, secured: tuple[int, trustme.CA], tmp_path: Path) -> None:
        started_s = time.monotonic()
        with pytest.raises(LinkError, match="TLS failed"):
            MqttLink(self.address(secured[0], trustme.CA(), tmp_path), "a")
        assert time.monotonic() - started_s < 5

    def test_without_a_certificate_there_is_no_connection(self, secured: tuple[int, trustme.CA], tmp_path: Path) -> None:
        with pytest.raises(LinkError):
            MqttLink(self.address(*secured, tmp_path, with_certificate=False), "a", wait_s=1)


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [("a/+/c", "a/b/c", True), ("a/+", "a/b/c", False), ("a/#", "a", True), ("a/#", "a/b/c", True), ("a", "a/b", False), ("+", "a", True)],
)
def test_topic_matches(pattern: str, topic: str, matches: bool) -> None:
    assert topic_matches(pattern, topic) is matches
