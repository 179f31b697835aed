"""Link over MQTT by paho: version 5 or else 3.1.1, QoS 1, persistent session, last will, TLS.

No other module uses paho. The protocol uses nothing of MQTT 5 that 3.1.1 lacks. Version 5 bounds
the time for which the broker keeps a session (`SESSION_S`), and lets the broker name its limits.
"""

import importlib.util
import logging
import os
import random
import re
import socket
import ssl
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote

from wire.errors import ConfigError, LimitExceeded, LinkError
from wire.links.port import Delivery, Denied, LinkDown, LinkEvent, LinkUp, Will
from wire.pieces import UNLIMITED, WHOLE_BYTES, PacketLimit


def load_files(
    context: ssl.SSLContext, ca: Path | None, certificate: Path | None, key: Path | None
) -> None:
    """Load authorities and a certificate into a TLS context, for connections opened from now on.

    `ca`: file of trusted authorities; None for the system's. `certificate`: None to show none.
    `key` may be None if the certificate's file has the key.

    Raises:
        ConfigError: a file cannot be read, or certificate and key do not match.
    """
    try:
        if ca is not None:
            context.load_verify_locations(ca)
        else:
            context.load_default_certs()
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"TLS files {', '.join(str(file) for file in (ca, certificate, key) if file)}: not "
            f"readable, or the key is not that of the certificate: {error}"
        ) from None


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Replace a module that is not loaded by an empty one while the context is open."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = types.ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


# paho imports urllib.request for proxies alone, which it uses only with PySocks. With HTTP and
# e-mail, the import takes 1.5 MiB of a board's memory.
with _without("" if importlib.util.find_spec("socks") else "urllib.request"):
    import paho.mqtt.client as mqtt
    import paho.mqtt.properties
    from paho.mqtt.enums import CallbackAPIVersion, MessageState
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

log = logging.getLogger("shoal.link")

SESSION_S = 7 * 24 * 3600
KEEPALIVE_S = 30
CONNACK_S = 5.0
LEAST_PACKET, UNNAMED_PACKET = 2**12, 2**17
"""Size of the smallest packets with which Shoal works (bytes), and of the largest that it sends
over MQTT 3.1.1, where a broker cannot name its limit: the smallest of those in docs/brokers.md."""
IN_FLIGHT = 20
"""Maximum number of publications without an acknowledgement."""
SUSPICIOUS = 3
"""Number of connections after which a message without an acknowledgement counts as their end."""
MOST_FILTERS = 8
"""Maximum number of topics in one subscription (the limit of AWS IoT Core)."""
REFUSALS = {
    0x85: "does the broker have a rule for client ids?",
    0x86: "are the user and the password right (--broker-user, --broker-password-file)?",
    0x87: "are the user, the password and the certificate right, and may they use this client id?",
    0x8A: "the broker has banned this client",
    0x8C: "the broker has another method of authentication than user, password and certificate",
    0x90: "does the broker permit topics of six levels, such as shoal/1/FLEET/device/ID/status?",
    0x95: "the broker takes only smaller packets",
    0x9A: "the broker retains no messages, and Shoal needs retained messages",
    0x9B: "the broker does not take QoS 1, and Shoal needs it",
}
"""Reasons (CONNACK) for which another attempt would be in vain, with what to check."""
_SIGN = '[^\\s/?#\\[\\]@%:\\\\"<>^`{|}]|%[0-9A-Fa-f]{2}'
_LOGIN = re.compile(f"(?P<user>(?:{_SIGN})*)(?::(?P<password>(?:{_SIGN}|:)*))?")
_ADDRESS = re.compile(
    r"(?P<scheme>mqtts?)://(?:(?P<login>.*)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+)"
    r"(?::(?P<port>[0-9]{1,5}))?/?(?:\?(?P<query>[^#@]*))?",
    re.IGNORECASE | re.DOTALL,
)
_VERSIONS = {"5": mqtt.MQTTv5, "3.1.1": mqtt.MQTTv311}
MOST_BYTES = 128 * 2**20
"""Maximum number of bytes of waiting deliveries; above it, the connection is not read."""


def _read_text(buffer: bytes, most: int) -> tuple[str, int]:
    """Return a text of a publication's properties, which is not used, and the position of its end.

    paho ends the connection over a U+FEFF, which brokers pass on. Without this function, any device
    could keep the aggregator off the broker for as long as its session lasts.
    """
    end = 2 + int.from_bytes(buffer[:2], "big")
    return bytes(buffer[2 : min(end, most)]).decode(errors="replace"), end


paho.mqtt.properties.readUTF = _read_text


@dataclass(eq=False)
class _Inbox:
    """Events from paho's thread for the reader's thread, bounded in bytes."""

    _events: deque[LinkEvent] = field(default_factory=deque)
    _num_bytes: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def put(self, event: LinkEvent) -> None:
        """Add an event; a delivery waits until there is room."""
        size = len(event.payload) if isinstance(event, Delivery) else 0
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or not size
                    or not self._num_bytes
                    or self._num_bytes + size <= MOST_BYTES
                )
            )
            self._events.append(event)
            self._num_bytes += size
            self._changed.notify_all()

    def get(self, timeout_s: float | None) -> LinkEvent | None:
        """Return the next event; None if there is none in time."""
        with self._changed:
            if not self._events and timeout_s != 0:
                self._changed.wait_for(lambda: bool(self._events), timeout_s)
            if not self._events:
                return None
            event = self._events.popleft()
            self._num_bytes -= len(event.payload) if isinstance(event, Delivery) else 0
            self._changed.notify_all()
            return event

    def close(self) -> None:
        """End all waits for room, now and later."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(frozen=True)
class BrokerAddress:
    """Address of a broker, with credentials and MQTT versions, which are tried in order.

    `max_packet`: limit that the broker has and does not name; None for none.
    """

    host: str
    port: int
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    versions: tuple[str, ...] = ("5", "3.1.1")
    max_packet: int | None = None

    @classmethod
    def parse(
        cls,
        url: str,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> "BrokerAddress":
        """Return the address in a text.

        Its form is ``mqtt://[USER:PASSWORD@]HOST[:PORT][?version=5|3.1.1&max_packet=BYTES]``, or
        with ``mqtts://`` for TLS. In USER and PASSWORD, a sign such as # or / is %NN.

        Raises:
            ConfigError: the text has another form.
        """
        shown = f"broker address {_shown(url)!r}"
        match = _ADDRESS.fullmatch(url)
        login = _LOGIN.fullmatch((match or {"login": ""})["login"] or "")
        if "@" in url and (match is None or login is None):
            raise ConfigError(
                f"{shown}: in the user and the password, write each of / ? # @ [ ] % as %NN (# is "
                "%23), or set --broker-user and --broker-password-file, which have them as they are"
            )
        if match is None or login is None:
            raise ConfigError(
                f"{shown}: expected mqtt://[USER:PASSWORD@]HOST[:PORT], or mqtts:// for TLS"
            )
        tls, query = match["scheme"].lower() == "mqtts", match["query"] or ""
        port = int(match["port"] or (8883 if tls else 1883))
        if not 1 <= port <= 65_535:
            raise ConfigError(f"{shown}: the port must be between 1 and 65535, got {port}")
        named = parse_qs(query, keep_blank_values=True)
        if unknown := named.keys() - {"version", "max_packet"}:
            raise ConfigError(
                f"{shown}: {min(unknown)!r} is unknown; version and max_packet may follow the ?"
            )
        versions = tuple(named.get("version", ["5", "3.1.1"]))
        if wrong := [version for version in versions if version not in _VERSIONS]:
            raise ConfigError(f"{shown}: version must be 5 or 3.1.1, got {wrong[0]!r}")
        most = named["max_packet"][-1] if "max_packet" in named else str(LEAST_PACKET)
        if not re.fullmatch("[0-9]{1,9}", most) or not LEAST_PACKET <= int(most) < 2**28:
            raise ConfigError(
                f"{shown}: max_packet must be between {LEAST_PACKET} and {2**28 - 1} bytes, got "
                f"{most!r}"
            )
        if not tls and (ca or certificate or key):
            raise ConfigError(f"{shown}: certificates need mqtts://")
        return cls(
            match["host"].strip("[]").lower(),
            port,
            unquote(login["user"]),
            unquote(login["password"] or ""),
            tls,
            ca,
            certificate,
            key,
            versions,
            int(most) if "max_packet" in named else None,
        )

    def login(self, user: str | None, password_file: Path | None) -> "BrokerAddress":
        """Return the address with a user and a password beside those in the text.

        Without `user`, it is that of the address, or else of SHOAL_BROKER_USER. Without
        `password_file`, the password is that of the address, or else of SHOAL_BROKER_PASSWORD.

        Raises:
            ConfigError: one is set twice, the file cannot be read, or there is no user.
        """
        if (user and self.username) or (password_file and self.password):
            raise ConfigError(
                f"broker {self}: the user and the password stand in its address already; set them "
                "there, or with --broker-user and --broker-password-file"
            )
        username = user or self.username or os.environ.get("SHOAL_BROKER_USER", "")
        password = self.password or os.environ.get("SHOAL_BROKER_PASSWORD", "")
        if password_file is not None:
            try:
                password = password_file.read_text().rstrip("\r\n")
            except OSError as error:
                raise ConfigError(
                    f"--broker-password-file {password_file}: {error.strerror}; name a file that "
                    "this user can read"
                ) from None
            except UnicodeDecodeError:
                raise ConfigError(
                    f"--broker-password-file {password_file}: the password is not UTF-8; write "
                    "the file again as UTF-8"
                ) from None
        if password and not username:
            raise ConfigError(
                f"broker {self}: there is a password without a user; set --broker-user"
            )
        return replace(self, username=username, password=password)

    def __str__(self) -> str:
        named = [f"version={version}" for version in self.versions]
        named = [] if self.versions == ("5", "3.1.1") else named
        named += [f"max_packet={self.max_packet}"] if self.max_packet is not None else []
        host = f"[{self.host}]" if ":" in self.host else self.host
        query = f"?{'&'.join(named)}" if named else ""
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}{query}"


def _shown(url: str) -> str:
    """Return an address without what may be a user and a password."""
    scheme = "".join(re.findall("^[A-Za-z]*://", url))
    _, at, host = url.rpartition("@")
    if at:
        return f"{scheme}***@{host}"
    return scheme + re.sub(r":(?!\d+(?:[/?].*)?$).*", ":***", url.removeprefix(scheme))


def limit_of(properties: object, address: BrokerAddress, version: str) -> PacketLimit:
    """Return the limit of packets for a broker that said this in its CONNACK."""
    limits = [UNLIMITED]
    if (named := getattr(properties, "MaximumPacketSize", None)) is not None:
        text = f"broker {address} says in its CONNACK that packets have at most {named} bytes"
        limits.append(PacketLimit(named, text))
    if address.max_packet is not None:
        limits.append(PacketLimit(address.max_packet, f"the address {address} sets max_packet"))
    elif version == "3.1.1":
        text = (
            f"broker {address} speaks MQTT 3.1.1, which names no limit, so packets have at most "
            f"{UNNAMED_PACKET} bytes (max_packet in its address sets another limit)"
        )
        limits.append(PacketLimit(UNNAMED_PACKET, text))
    return min(limits)


def objection(properties: object) -> str:
    """Return the features that Shoal needs and a broker's CONNACK denies; empty if none."""
    if not getattr(properties, "RetainAvailable", 1):
        return "it retains no messages, and Shoal needs retained messages"
    if not getattr(properties, "MaximumQoS", 2):
        return "its maximum QoS is 0, and Shoal needs QoS 1"
    if (most := getattr(properties, "MaximumPacketSize", LEAST_PACKET)) < LEAST_PACKET:
        return f"it takes packets of at most {most} bytes, and Shoal needs {LEAST_PACKET}"
    if (assigned := getattr(properties, "AssignedClientIdentifier", None)) is not None:
        return f"it assigns the client id {assigned!r}, and Shoal needs its own"
    return ""


class MqttLink:
    """Connection (`wire.links.port.Link`) to an MQTT broker.

    `version` is the MQTT version in use. `limit` is the broker's limit of packets.
    """

    def __init__(
        self,
        address: BrokerAddress,
        client_id: str,
        will: Will | None = None,
        wait_s: float | None = 10.0,
        give_up: Callable[[], bool] = lambda: False,
        *,
        confirmed: bool = False,
        persistent: bool = True,
    ) -> None:
        """Connect, with repeated attempts for `wait_s` seconds.

        So a device may start before its broker. With `wait_s` None, the attempts end when `give_up`
        returns True. `confirmed`: True if the broker is to keep a delivery until it is passed to
        `confirm`. `persistent`: True if the broker is to keep the session.

        Raises:
            LinkError: no broker in that time, or the broker refuses this client.
        """
        self._address, self._client_id, self._will = address, client_id, will
        self._confirmed, self._persistent = confirmed, persistent
        self._inbox = _Inbox()
        self._connection = 0
        self._halves: dict[tuple[str, int | None], tuple[str, ...] | list[str]] = {}
        """Requests without an answer, and answers that came before their request.

        Keys are the action and the request's number. A request has its topics. An answer has the
        reason for each topic that the broker denies, and an empty text for others.
        """
        self.limit, self._has_wildcards = UNLIMITED, True
        self._first_unanswered, self._times = 0, 0
        """First message without an acknowledgement, and number of connections that it outlasted."""
        self._topics: dict[str, None] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._tls: ssl.SSLContext | None = None
        self.version, self._client = self._connect(wait_s, give_up)

    def subscribe(self, *topics: str) -> None:
        if not self._has_wildcards and any("+" in topic or "#" in topic for topic in topics):
            raise LinkError(
                f"broker {self._address} does not serve client {self._client_id!r}: it says in its "
                "CONNACK that it has no subscriptions with wildcards, and Shoal needs them"
            )
        with self._lock:
            self._topics.update(dict.fromkeys(topics))
        if self._client.is_connected():
            self._subscribe(self._client, topics)

    def unsubscribe(self, *topics: str) -> None:
        with self._lock:
            for topic in topics:
                self._topics.pop(topic, None)
        if self._client.is_connected():
            self._client.unsubscribe(list(topics))

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if (size := _packet_bytes(topic, payload)) > self.limit.num_bytes:
            raise LimitExceeded(f"{self.limit.origin}, and a message on {topic} has {size}")
        info = self._client.publish(topic, payload, qos=1, retain=retain)
        self._report("publish", info.mid, (topic,))

    def receive(self, timeout_s: float | None = None) -> LinkEvent | None:
        return self._inbox.get(timeout_s)

    def confirm(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            match delivery.receipt:
                case (self._connection, int(mid), int(qos)):
                    self._client.ack(mid, qos)

    def close(self, patience_s: float = 5.0) -> None:
        self._closing = True
        self._inbox.close()
        give_up = time.monotonic() + patience_s
        unsent = self._client._out_messages  # paho has no public count of unconfirmed messages
        while self._client.is_connected() and unsent and time.monotonic() < give_up:
            time.sleep(0.02)
        self._client.disconnect()
        self._client.loop_stop()

    def renew_certificate(self) -> None:
        """Load the certificate and its key again, and reconnect with them.

        The broker keeps the session. Any thread may call the function.

        Raises:
            ConfigError: the files cannot be read or do not match; the connection is unchanged.
        """
        if self._tls is not None:
            load_files(self._tls, self._address.ca, self._address.certificate, self._address.key)
        with suppress(OSError, AttributeError):  # there may be no connection now
            cast(Any, self._client.socket()).shutdown(socket.SHUT_RDWR)

    def _connect(
        self, wait_s: float | None, give_up: Callable[[], bool]
    ) -> tuple[str, mqtt.Client]:
        end_s = float("inf") if wait_s is None else time.monotonic() + wait_s
        pause_s, problem, logged = 0.2, "no attempt was made", ""
        while True:
            for version in self._address.versions:
                client, answered = self._new_client(version)
                try:
                    self._open(client, version)
                except (OSError, ValueError) as error:
                    problem = getattr(error, "strerror", "") or str(error) or type(error).__name__
                    if isinstance(error, ssl.SSLError):
                        raise LinkError(f"broker {self._address}: TLS failed: {error}") from None
                    break  # nobody answers, so another MQTT version would not help
                client.loop_start()
                has_answer, refusal = answered.wait(CONNACK_S), getattr(client, "refusal", "")
                if has_answer and not refusal and client.is_connected():
                    return version, client
                client.loop_stop()
                if isinstance(refusal, LinkError):
                    raise refusal
                problem = refusal or (
                    f"it closed the connection without an answer to MQTT {version}; "
                    f"{self._question()}"
                )
            if time.monotonic() + pause_s > end_s or give_up():
                raise LinkError(f"broker {self._address}: no connection: {problem}")
            if problem != logged or pause_s >= 1:  # the first attempts follow each other at once
                log.info(
                    "No connection to the broker, trying again: broker=%s retry_in_s=%.1f: %s",
                    self._address,
                    pause_s,
                    problem,
                )
            logged = problem
            wake_s = time.monotonic() + pause_s
            while time.monotonic() < wake_s and not give_up():
                time.sleep(min(0.5, pause_s))
            pause_s = min(pause_s * 2, 30.0) * random.uniform(0.8, 1.2)

    def _question(self) -> str:
        """Return a hint for the user if the broker closes the connection at once."""
        if not self._address.tls:
            return (
                "is the port one for TLS (mqtts://, with --cert and --key where the broker asks "
                "for a certificate)?"
            )
        if self._address.certificate:
            return "is the certificate right (--cert, --key)?"
        return "does it ask for a certificate (--cert, --key)?"

    def _new_client(self, version: str) -> tuple[mqtt.Client, threading.Event]:
        address, answered = self._address, threading.Event()
        session: dict[str, Any] = {} if version == "5" else {"clean_session": not self._persistent}
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            self._client_id,
            protocol=_VERSIONS[version],
            manual_ack=self._confirmed,
            **session,
        )
        client.reconnect_delay_set(1, 30)
        client.max_queued_messages_set(0)
        if address.username:
            client.username_pw_set(address.username, address.password or None)
        if address.tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            load_files(self._tls, address.ca, address.certificate, address.key)
            client.tls_set_context(self._tls)
        if self._will:
            client.will_set(self._will.topic, self._will.payload, qos=1, retain=True)

        is_up = False

        def on_connect(
            client: mqtt.Client,
            _data: object,
            flags: mqtt.ConnectFlags,
            code: Any,
            properties: object,
        ) -> None:
            nonlocal is_up
            if refusal := self._refusal(code, properties):
                client.refusal = refusal  # type: ignore[attr-defined]
                if self._connection:
                    message = "Broker refuses the connection, trying again: broker=%s reason=%s"
                    log.warning(message, self._address, refusal)
                if not code.is_failure:
                    cast(Any, client.socket()).shutdown(socket.SHUT_RDWR)
            else:
                self._obey(client, properties, version)
                with self._lock:
                    topics = list(self._topics)
                    self._connection += 1
                if topics:
                    self._subscribe(client, topics)
                is_up = True
                self._inbox.put(LinkUp(bool(flags.session_present)))
            answered.set()

        def on_disconnect(
            client: mqtt.Client, _data: object, _flags: object, code: Any, _properties: object
        ) -> None:
            nonlocal is_up
            was_up, is_up = is_up, False
            answered.set()
            if was_up and not self._closing:
                reason = str(code)
                if reason == "Unspecified error":  # paho's text for a lost connection
                    reason = self._cause(client)
                self._inbox.put(LinkDown(reason))

        def on_connect_fail(_client: mqtt.Client, _data: object) -> None:
            if self._connection and not self._closing:  # `_connect` logs the attempts before
                log.info("No connection to the broker, trying again: broker=%s", self._address)

        def on_message(_client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
            try:
                topic = message.topic
            except (
                UnicodeDecodeError
            ):  # paho decodes a topic on access; an undecodable one is not ours
                topic = "\N{REPLACEMENT CHARACTER}"
            receipt = (self._connection, message.mid, message.qos)
            self._inbox.put(Delivery(topic, bytes(message.payload), message.retain, receipt))

        def on_subscribe(
            _client: mqtt.Client, _data: object, mid: int, codes: list[Any], _properties: object
        ) -> None:
            self._report("subscribe", mid, [str(c) if c.is_failure else "" for c in codes])

        def on_publish(
            _client: mqtt.Client, _data: object, mid: int, code: Any, _properties: object
        ) -> None:
            self._report("publish", mid, [str(code) if code.is_failure else ""])

        client.on_connect, client.on_disconnect, client.on_message = (
            on_connect,
            on_disconnect,
            on_message,
        )
        client.on_subscribe, client.on_publish = on_subscribe, on_publish
        client.on_connect_fail = on_connect_fail
        return client, answered

    def _refusal(self, code: Any, properties: object) -> LinkError | str:
        """Return why the broker and Shoal cannot work together; empty if they can.

        It is a `LinkError` if another attempt would be in vain.
        """
        who = f"broker {self._address}: refused client {self._client_id!r}"
        if code.is_failure:
            hint = REFUSALS.get(code.value)
            return LinkError(f"{who}: {code}: {hint}") if hint else str(code)
        lack = objection(properties)
        return lack and LinkError(
            f"broker {self._address} does not serve client {self._client_id!r}: it says in its "
            f"CONNACK that {lack}"
        )

    def _cause(self, client: mqtt.Client) -> str:
        """Return a reason for a connection that ended without one.

        It names the message that the broker may not take, if the message outlasted connections.
        """
        mid, message = next(iter([*client._out_messages.items()]), (0, None))
        self._times = self._times + 1 if mid and mid == self._first_unanswered else 1
        self._first_unanswered = mid
        text = "the broker or the network closed it"
        if message is None or self._times < SUSPICIOUS:
            return text
        return (
            f"{text}, {self._times} times before it acknowledged a message of "
            f"{len(message.payload)} bytes on {message.topic}: does it permit this topic and size?"
        )

    def _obey(self, client: mqtt.Client, properties: object, version: str) -> None:
        """Take over the limits of a new connection, before paho sends anything on it."""
        self.limit = limit_of(properties, self._address, version)
        self._has_wildcards = bool(getattr(properties, "WildcardSubscriptionAvailable", 1))
        most = min(IN_FLIGHT, getattr(properties, "ReceiveMaximum", IN_FLIGHT))
        client._max_inflight_messages = most
        if self.limit.payload_bytes < WHOLE_BYTES:
            log.info("Larger payloads go in pieces: %s", self.limit.origin)
        with client._out_message_mutex:  # paho would send them on every connection
            for mid, message in [*client._out_messages.items()]:
                size = _packet_bytes(message.topic, message.payload)
                if size > self.limit.num_bytes:
                    del client._out_messages[mid]
                    text = "Message not sent: topic=%s bytes=%d: %s"
                    log.warning(text, message.topic, size, self.limit.origin)
            for message in [*client._out_messages.values()][most:]:
                message.state = MessageState.MQTT_MS_QUEUED

    def _subscribe(self, client: mqtt.Client, topics: Iterable[str]) -> None:
        every = tuple(topics)
        for at in range(0, len(every), MOST_FILTERS):
            chosen = every[at : at + MOST_FILTERS]
            _, mid = client.subscribe([(topic, 1) for topic in chosen])
            self._report("subscribe", mid, chosen)

    def _report(self, action: str, mid: int | None, half: tuple[str, ...] | list[str]) -> None:
        """Match the topics of a request with the broker's answer, and report denied topics.

        The answer has the reason for each denied topic. It may come before the request's number is
        known.
        """
        with self._lock:
            other = self._halves.pop((action, mid), None)
            if other is None or type(other) is type(half):
                self._halves[action, mid] = half
                return
        topics, denied = (half, other) if isinstance(half, tuple) else (other, half)
        for topic, reason in zip(topics, denied, strict=False):
            if reason:
                self._inbox.put(Denied(action, topic, reason))

    def _open(self, client: mqtt.Client, version: str) -> None:
        if version == "5":
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = SESSION_S if self._persistent else 0
            client.connect(
                self._address.host,
                self._address.port,
                KEEPALIVE_S,
                clean_start=not self._persistent,
                properties=properties,
            )
        else:
            client.connect(self._address.host, self._address.port, KEEPALIVE_S)


def _packet_bytes(topic: str, payload: bytes | bytearray) -> int:
    """Return the size of the packet of a publication with QoS 1 and without properties."""
    return 5 + 2 + len(topic.encode()) + 2 + 1 + len(payload)
