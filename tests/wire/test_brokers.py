"""Brokers as companies have them: their limits and logins, on a real Mosquitto with the same limits
and on a server that answers with given bytes."""

import json
import logging
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from simulation.local.broker import free_port
from simulation.local.fleet import stop_processes
from tests.contracts.link import deliveries, settle
from tests.end_to_end.fleet import find_mosquitto
from tests.support.brokers import wait_for_port
from tests.wire import broker_vectors
from wire.errors import ConfigError, LimitExceeded, LinkError
from wire.links.mqtt import BrokerAddress, MqttLink
from wire.links.port import Delivery, Denied, LinkDown, LinkEvent, LinkUp, Will

VECTORS = json.loads(broker_vectors.FILE.read_text())
Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts Mosquitto with these lines of configuration; returns its address."""
    binary, processes = find_mosquitto(), list[subprocess.Popen[bytes]]()

    def run(lines: str = "", *, anonymous: bool = True, port: int = 0) -> str:
        port, file = port or free_port(), tmp_path / "mosquitto.conf"
        if port_in_use := [*processes]:
            stop_processes(port_in_use)
        persistence = f"user root\npersistence true\npersistence_location {tmp_path}/\n"
        file.write_text(
            f"{persistence}listener {port} 127.0.0.1\nallow_anonymous {str(anonymous).lower()}\n"
            f"{lines}\n"
        )
        processes[:] = [
            subprocess.Popen(
                [binary, "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        ]
        wait_for_port(port)
        return f"mqtt://127.0.0.1:{port}"

    yield run
    stop_processes(processes)


def connect(url: str, client_id: str = "f.d", **options: object) -> "closing[MqttLink]":
    """A link that is closed at the end of the block."""
    return closing(MqttLink(BrokerAddress.parse(url), client_id, **options))  # type: ignore[arg-type]


def event(link: MqttLink, kind: type[LinkEvent], patience_s: float = 20.0) -> LinkEvent:
    """The next event of this kind."""
    for _ in range(int(patience_s * 10)):
        if isinstance(found := link.receive(timeout_s=0.1), kind):
            return found
    raise AssertionError(f"no {kind.__name__} came")


class TestLogin:
    @pytest.mark.parametrize("case", VECTORS["addresses"], ids=lambda case: case["address"])
    def test_addresses_are_those_of_every_implementation(self, case: dict[str, object]) -> None:
        url = str(case["address"])
        if "refused" not in case:
            address = BrokerAddress.parse(url)
            assert address.password not in repr(address) or not address.password
            return
        with pytest.raises(ConfigError) as raised:
            BrokerAddress.parse(url)
        hidden = url.removeprefix("mqtt://").rpartition("@")[0] or ("secret" * ("secret" in url))
        if "?secret" not in url or "@" in url:
            assert not hidden or hidden not in str(raised.value)
            assert "cret" not in str(raised.value)

    def test_a_sign_that_is_not_written_as_a_percent_sign_is_explained(self) -> None:
        for sign in "#?/@[]%":
            with pytest.raises(ConfigError, match=r"as %NN \(# is %23\), or set --broker-"):
                BrokerAddress.parse(f"mqtt://me:one{sign}two@localhost")

    def test_options_come_before_the_address_and_that_before_variables(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "password").write_text("from #?/@% file\n")
        plain, named = BrokerAddress.parse("mqtt://h"), BrokerAddress.parse("mqtt://me:word@h")
        monkeypatch.setenv("SHOAL_BROKER_USER", "variable")
        monkeypatch.setenv("SHOAL_BROKER_PASSWORD", "from variable")
        found = [
            plain.login("option", tmp_path / "password"),
            plain.login(None, None),
            named.login(None, None),
            BrokerAddress.parse("mqtt://me@h").login(None, tmp_path / "password"),
        ]
        assert [(each.username, each.password) for each in found] == [
            ("option", "from #?/@% file"),
            ("variable", "from variable"),
            ("me", "word"),
            ("me", "from #?/@% file"),
        ]

    def test_what_cannot_be_used_is_said_without_the_password(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "password"
        file.write_bytes(b"\xff\xfe")
        address = BrokerAddress.parse("mqtt://me:word@h")
        plain = BrokerAddress.parse("mqtt://h")
        for user, path, text in (
            ("other", None, "stand in its address already"),
            (None, file, "stand in its address already"),
        ):
            with pytest.raises(ConfigError, match=text) as raised:
                address.login(user, path)
            assert "word" not in str(raised.value).replace("password", "")
        for path, text in ((file, "not UTF-8"), (tmp_path / "none", "No such file")):
            with pytest.raises(ConfigError, match=f"--broker-password-file.*{text}"):
                plain.login("me", path)
        monkeypatch.setenv("SHOAL_BROKER_PASSWORD", "word")
        with pytest.raises(ConfigError, match="a password without a user; set --broker-user"):
            plain.login(None, None)

    def test_a_broker_with_passwords_takes_the_right_one(
        self, start: Start, tmp_path: Path
    ) -> None:
        file, password = tmp_path / "passwords", "p#/?@%: é"
        subprocess.run(
            ["mosquitto_passwd", "-b", "-c", str(file), "me", password],
            check=True,
        )
        url = start(f"password_file {file}", anonymous=False)
        (tmp_path / "secret").write_text(password)
        right = BrokerAddress.parse(url).login("me", tmp_path / "secret")
        with closing(MqttLink(right, "f.d")) as link:
            assert isinstance(link.receive(timeout_s=5), LinkUp)
        for address in (
            BrokerAddress.parse(url),
            BrokerAddress.parse(url.replace("//", "//me:x@")),
        ):
            with pytest.raises(
                LinkError, match=r"refused client 'f\.d': .*password.* right"
            ) as raised:
                MqttLink(address, "f.d", wait_s=None)
            assert "me:x" not in str(raised.value)


class TestLimits:
    @pytest.mark.parametrize("most", [131_072, 65_536, 20_000, 8192, 4096])
    def test_a_larger_packet_is_refused_and_the_connection_stays(
        self, start: Start, most: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "shoal.link")
        with connect(start(f"max_packet_size {most}")) as link:
            said = f"says in its CONNACK that packets have at most {most} bytes"
            assert link.limit.num_bytes == most
            assert said in link.limit.origin
            assert said in caplog.text
            link.subscribe("t")
            settle(link)
            with pytest.raises(LimitExceeded, match=f"{said}, and a message on t has {most + 5}"):
                link.publish("t", bytes(most - 6))
            link.publish("t", bytes(most - 16))
            assert [len(each.payload) for each in deliveries(link, 1)] == [most - 16]

    def test_a_limit_that_became_smaller_drops_what_waits(
        self, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = start()
        with connect(url) as link:
            link.subscribe("t")
            settle(link)
            start("max_packet_size 10000", port=BrokerAddress.parse(url).port)
            event(link, LinkDown)
            link.publish("t", bytes(50_000))
            link.publish("t", b"small")
            assert [each.payload for each in deliveries(link, 1, 20)] == [b"small"]
            assert "Message not sent: topic=t bytes=50011" in caplog.text
            assert link.receive(timeout_s=2) is None, "the connection stays"

    @pytest.mark.parametrize("will", [Will("w", b"gone"), None])
    @pytest.mark.parametrize(
        ("line", "text"),
        [
            ("retain_available false", "retains no messages, and Shoal needs retained messages"),
            ("max_qos 0", "QoS"),
            ("max_packet_size 1000", "packets of at most 1000 bytes, and Shoal needs 4096"),
        ],
    )
    def test_what_a_broker_does_not_offer_ends_the_client(
        self, start: Start, line: str, text: str, will: Will | None
    ) -> None:
        with pytest.raises(LinkError, match=f"client 'f.d': .*{text}"):
            MqttLink(BrokerAddress.parse(start(line)), "f.d", will, wait_s=None)

    def test_a_rule_for_client_ids_is_said(self, start: Start) -> None:
        url = start("clientid_prefixes company-")
        for version in ("5", "3.1.1"):
            with pytest.raises(
                LinkError, match=r"refused client 'f\.d': Not authorized: .*client id"
            ):
                MqttLink(BrokerAddress.parse(f"{url}?version={version}"), "f.d", wait_s=None)
        with connect(url, "company-f.d") as link:
            assert isinstance(link.receive(timeout_s=5), LinkUp)

    def test_the_brokers_keep_alive_is_kept(self, start: Start) -> None:
        with connect(start("max_keepalive 12")) as link:
            assert link._client._keepalive == 12

    @pytest.mark.parametrize("most", [1, 3])
    def test_no_more_messages_are_in_flight_than_the_broker_takes(
        self, start: Start, most: int
    ) -> None:
        url = start(f"max_inflight_messages {most}")
        with connect(url) as link:
            assert link._client._max_inflight_messages == most
            link.subscribe("n")
            settle(link)
            start(f"max_inflight_messages {most}", port=BrokerAddress.parse(url).port)
            event(link, LinkDown)
            for number in range(30):
                link.publish("n", str(number).encode())
            assert [int(each.payload) for each in deliveries(link, 30, 20)] == [*range(30)]

    def test_topics_that_are_too_deep_are_denied_with_the_brokers_reason(
        self, start: Start, tmp_path: Path
    ) -> None:
        """A broker that permits topics of at most four levels."""
        (tmp_path / "acl").write_text(
            "".join(f"topic readwrite {'/'.join('+' * depth)}\n" for depth in (1, 2, 3, 4))
        )
        with connect(start(f"acl_file {tmp_path}/acl")) as link:
            link.publish("a/b/c/d", b"x")
            link.publish("a/b/c/d/e/f", b"x")
            found = event(link, Denied)
            assert found == Denied("publish", "a/b/c/d/e/f")
            assert isinstance(found, Denied)
            assert found.reason == "Not authorized"

    def test_an_address_sets_a_limit_that_the_broker_does_not_name(self, start: Start) -> None:
        url = start()
        for query, most in (
            ("", 2**28 - 1),
            ("?version=3.1.1", 131_072),
            ("?max_packet=65536", 65_536),
            ("?version=3.1.1&max_packet=1000000", 1_000_000),
        ):
            with connect(url + query) as link:
                assert link.limit.num_bytes == most


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that answers each connection with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted = list[socket.socket]()

        def accept() -> None:
            while True:
                try:
                    accepted.append(server.accept()[0])
                    accepted[-1].recv(2**16)
                    accepted[-1].sendall(answer)
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"mqtt://127.0.0.1:{server.getsockname()[1]}?version=5"
        for each in accepted:
            each.close()


class TestAnswers:
    @pytest.mark.parametrize("case", VECTORS["answers"], ids=lambda case: case["packet"])
    def test_answers_are_read_as_by_every_implementation(self, case: dict[str, object]) -> None:
        with answering(bytes.fromhex(str(case["packet"]))) as url:
            if case["objection"]:
                with pytest.raises(LinkError) as raised:
                    MqttLink(BrokerAddress.parse(url), "f.d", wait_s=None)
                assert str(raised.value).endswith(
                    f"does not serve client 'f.d': it says in its CONNACK that {case['objection']}"
                )
                return
            with connect(url) as link:
                assert link.limit.num_bytes == case["max_packet"]
                assert link._client._keepalive == (case["keep_alive_s"] or 30)
                link.subscribe("a/b")
                if not case["wildcards"]:
                    with pytest.raises(LinkError, match="no subscriptions with wildcards"):
                        link.subscribe("a/+")

    @pytest.mark.parametrize("code", [0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95, 0x9A, 0x9B])
    def test_a_refusal_that_lasts_ends_the_client(self, code: int) -> None:
        with (
            answering(bytes([0x20, 3, 0, code, 0])) as url,
            pytest.raises(LinkError, match=r"refused client 'f\.d'"),
        ):
            MqttLink(BrokerAddress.parse(url), "f.d", wait_s=None)

    @pytest.mark.parametrize("code", [0x80, 0x88, 0x89, 0x97, 0x9F])
    def test_a_refusal_that_passes_does_not(self, code: int) -> None:
        with (
            answering(bytes([0x20, 3, 0, code, 0])) as url,
            pytest.raises(LinkError, match="no connection"),
        ):
            MqttLink(BrokerAddress.parse(url), "f.d", wait_s=0.3)

    def test_a_subscription_names_at_most_eight_topics(self, start: Start) -> None:
        with connect(start()) as link:
            sizes: list[int] = []
            subscribe = link._client.subscribe
            link._client.subscribe = lambda topics: (  # type: ignore[method-assign,assignment,misc]
                sizes.append(len(topics)) or subscribe(topics)  # type: ignore[func-returns-value]
            )
            link.subscribe(*(f"t/{number}" for number in range(19)))
            assert sizes == [8, 8, 3]
            settle(link)
            link.publish("t/18", b"x")
            assert deliveries(link, 1) == [Delivery("t/18", b"x")]
