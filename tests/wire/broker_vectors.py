"""The vectors of brokers, ``brokers.json``: addresses, answers to a connection, pieces."""

import json
from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.wire.signed_vectors import VECTORS
from wire.errors import ConfigError, LimitExceeded
from wire.links.mqtt import BrokerAddress, limit_of, objection
from wire.pieces import UNLIMITED, PacketLimit, cut

FILE = VECTORS / "brokers.json"

ADDRESSES = (
    "mqtt://broker.example",
    "MQTTS://Broker.Example",
    "mqtts://broker.example:443",
    "mqtt://[::1]:99",
    "mqtt://me:secret@broker.example",
    "mqtt://me@broker.example",
    "mqtt://me%40x:p%3Aq@broker.example",
    "mqtt://me:a:b@broker.example",
    "mqtt://me:one+two%20three@broker.example",
    "mqtt://me:%C3%A9%23%2F%3F%25@broker.example:1884",
    "mqtts://me:s%40@broker.example?version=3.1.1",
    "mqtts://broker.example?max_packet=131072",
    "mqtts://broker.example?version=5&max_packet=4096",
    "mqtt://broker.example/",
)
BAD_ADDRESSES = (
    "",
    "broker.example",
    "http://broker.example",
    "mqtt://",
    "mqtt://a b",
    "mqtt://broker.example:port",
    "mqtt://broker.example:0",
    "mqtt://broker.example:65536",
    "mqtt://broker.example/topic",
    "mqtt://broker.example#x",
    "mqtt://broker.example?version=4",
    "mqtt://broker.example?max_packet=4095",
    "mqtt://broker.example?max_packet=268435456",
    "mqtt://broker.example?max_packet=all",
    "mqtt://broker.example?secret=x",
    "mqtt://me:se#cret@broker.example",
    "mqtt://me:se?cret@broker.example",
    "mqtt://me:se/cret@broker.example",
    "mqtt://me:12/secret@broker.example",
    "mqtt://me:12?secret@broker.example",
    "mqtt://me:secret%@broker.example",
    "mqtt://me:secret%zz@broker.example",
    "mqtt://me:se@cret@broker.example",
    "mqtt://se#cret@broker.example",
    "mqtt://me:sec ret@broker.example",
    "mqtt://me:secret",
    "mqtt://me:secret@",
)
"""Addresses that are refused; no error shows what comes before the last @."""

ANSWERS: tuple[dict[str, int | str], ...] = (
    {},
    {"MaximumPacketSize": 131_072},
    {"MaximumPacketSize": 4096, "ReceiveMaximum": 5},
    {"MaximumPacketSize": 4095},
    {"MaximumPacketSize": 20},
    {"RetainAvailable": 0},
    {"RetainAvailable": 1, "MaximumQoS": 1},
    {"MaximumQoS": 0},
    {"ServerKeepAlive": 10, "TopicAliasMaximum": 8, "SharedSubscriptionAvailable": 0},
    {"WildcardSubscriptionAvailable": 0, "SubscriptionIdentifierAvailable": 0},
    {"AssignedClientIdentifier": "auto-1"},
    {"ReasonString": "welcome", "ResponseInformation": "x", "ServerReference": "other"},
    {"SessionExpiryInterval": 3600, "AuthenticationMethod": "m"},
)
"""Properties of a CONNACK (MQTT 5) by their names in paho."""

CUTS = (
    (131_073, 268_435_455),
    (144_888, 131_072),
    (144_888, 20_000),
    (130_048, 131_072),
    (130_049, 131_072),
    (50_000_000, 131_072),
    (66_584_576, 131_072),
    (66_584_577, 131_072),
    (92_160, 4096),
    (92_161, 4096),
    (67_108_864, 1_048_576),
    (100_000_000, 268_435_455),
)
"""Payloads and limits of packets (bytes)."""


def answer(values: dict[str, int | str]) -> bytes:
    """The packet of a CONNACK with these properties."""
    properties = Properties(PacketTypes.CONNACK)
    for name, value in values.items():
        setattr(properties, name, value)
    body: bytes = b"\x00\x00" + properties.pack()
    return b"\x20" + bytes([len(body)]) + body


def _address(url: str) -> dict[str, object]:
    try:
        read = BrokerAddress.parse(url)
    except ConfigError:
        return {"address": url, "refused": True}
    return {
        "address": url,
        "host": read.host,
        "port": read.port,
        "user": read.username,
        "password": read.password,
        "tls": read.tls,
        "versions": list(read.versions),
        "max_packet": read.max_packet,
        "shown": str(read),
    }


def _answer(values: dict[str, int | str]) -> dict[str, object]:
    packet = answer(values)
    read = Properties(PacketTypes.CONNACK)
    read.unpack(packet[4:])
    said = {
        "keep_alive_s": values.get("ServerKeepAlive"),
        "receive_maximum": values.get("ReceiveMaximum"),
        "wildcards": values.get("WildcardSubscriptionAvailable", 1) == 1,
    }
    limit = limit_of(read, BrokerAddress("broker.example", 1883), "5").num_bytes
    return {"packet": packet.hex(), **said, "max_packet": limit, "objection": objection(read)}


def _cut(num_bytes: int, most: int) -> dict[str, int | None]:
    limit = UNLIMITED if most == UNLIMITED.num_bytes else PacketLimit(most, "it does")
    try:
        pieces = cut(num_bytes, lambda _offset, size: bytes(size), limit)
    except LimitExceeded:
        return {"num_bytes": num_bytes, "max_packet": most, "piece_bytes": None, "pieces": None}
    count = len(pieces.pieces)
    sizes: dict[str, int | None] = {"piece_bytes": pieces.piece_bytes, "pieces": count}
    return {"num_bytes": num_bytes, "max_packet": most, **sizes}


def text() -> str:
    """The content of the file."""
    parts: dict[str, list[Any]] = {
        "addresses": [_address(url) for url in ADDRESSES + BAD_ADDRESSES],
        "answers": [_answer(values) for values in ANSWERS],
        "pieces": [_cut(*each) for each in CUTS],
    }
    lists = (
        f' "{name}": [\n  ' + ",\n  ".join(json.dumps(row) for row in rows) + "\n ]"
        for name, rows in parts.items()
    )
    return "{\n" + ",\n".join(lists) + "\n}\n"
