"""MQTT topics, and the rights to write and read them (SPEC.md, 'Topics').

Topics are built and parsed here alone. A topic is ``shoal/1/FLEET/...``; 1 is the protocol's major
version. Device ids and fleet names are 1 to 64 of ``A-Z a-z 0-9 . _ -``, so that they can never
contain a topic separator or a wildcard.
"""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from wire.errors import ConfigError, UnknownTopic

PROTOCOL = "shoal/1"

FromDevice = Literal[
    "check-in", "update", "offer", "piece", "decline", "fetch", "status", "in-use", "error"
]
ToDevice = Literal["plan", "reply", "release", "want"]
OfHelper = Literal["request", "answer"]
Kind = Literal[
    "check-in",
    "update",
    "offer",
    "piece",
    "decline",
    "fetch",
    "status",
    "in-use",
    "error",
    "plan",
    "reply",
    "release",
    "want",
    "request",
    "answer",
    "blob",
    "aggregator",
]

Role = Literal["device", "helper", "aggregator"]
"""Writer or reader of a topic.

For a device's topic, `device` is that device; for any other topic, it is every device. `helper` is
the helper of the topic.
"""


class TopicRights(NamedTuple):
    """Rights to the topics of one kind. No other role may use them.

    The aggregator may also clear what a broker retains on any topic of the fleet.
    """

    kind: Kind
    writer: Role
    readers: tuple[Role, ...]
    retained: bool = False
    """True if the broker retains the last publication for later readers."""


TABLE = (
    TopicRights("check-in", "device", ("aggregator",)),
    TopicRights("status", "device", ("aggregator",), retained=True),
    TopicRights("update", "device", ("aggregator",)),
    TopicRights("offer", "device", ("aggregator",)),
    TopicRights("piece", "device", ("aggregator",)),
    TopicRights("decline", "device", ("aggregator",)),
    TopicRights("fetch", "device", ("aggregator",)),
    TopicRights("in-use", "device", ("aggregator",)),
    TopicRights("error", "device", ("aggregator",)),
    TopicRights("plan", "aggregator", ("device",)),
    TopicRights("reply", "aggregator", ("device",)),
    TopicRights("release", "aggregator", ("device",), retained=True),
    TopicRights("want", "aggregator", ("device",)),
    TopicRights("request", "aggregator", ("helper",)),
    TopicRights("answer", "helper", ("aggregator",)),
    TopicRights("blob", "aggregator", ("device",), retained=True),
    TopicRights("aggregator", "aggregator", ("device", "aggregator"), retained=True),
)
"""Table of SPEC.md, 'Topics', row by row."""
_ACCESS = {(True, True): "readwrite", (True, False): "write", (False, True): "read"}
"""Mosquitto's words for the rights (may write, may read)."""

RETAINED_OF_DEVICE: tuple[Kind, ...] = tuple(
    row.kind
    for row in TABLE
    if row.writer == "device" or (row.retained and row.kind not in ("blob", "aggregator"))
)
"""Kinds of a device's topics on which a broker may retain a message.

A device can have the broker retain whatever it publishes, on each topic that it writes.
"""
RECEIVED: tuple[ToDevice, ...] = get_args(ToDevice)
"""Kinds of a device's topics that the device reads."""
CONTROL = "$CONTROL/dynamic-security/v1"
"""Mosquitto's topic for orders to its plugin for dynamic security."""

_HELPER = "@helper"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HELPER_KINDS: tuple[Kind, ...] = get_args(OfHelper)
_DEVICE_KINDS: tuple[Kind, ...] = (*get_args(FromDevice), *get_args(ToDevice))


@dataclass(frozen=True)
class Address:
    """Parsed topic: its kind, and the device id, the helper's name, or the blob's digest."""

    kind: Kind
    device_id: str = ""
    digest: str = ""
    helper: str = ""


def check_name(value: str, what: str) -> str:
    """Return `value` if it may be a part of a topic; `what` names it in the error.

    Raises:
        ConfigError: it is empty, too long, or has a character that a topic must not have.
    """
    if not _NAME.fullmatch(value):
        raise ConfigError(f"{what} {value!r}: expected 1 to 64 characters of A-Z a-z 0-9 . _ -")
    return value


class Topics:
    """Topics of one fleet."""

    def __init__(self, fleet: str) -> None:
        self.fleet = check_name(fleet, "fleet name")
        self._root = f"{PROTOCOL}/{self.fleet}"
        self.aggregator = f"{self._root}/aggregator"
        """Topic of the aggregator's retained status.

        A new boot id in the status makes every device check in again.
        """
        self.from_devices = tuple(
            f"{self._root}/device/+/{row.kind}" for row in TABLE if row.writer == "device"
        )
        """Subscriptions of the aggregator."""

    def device(self, device_id: str, kind: FromDevice | ToDevice) -> str:
        """Return a device's own topic; its kind determines the writer (`TABLE`)."""
        return f"{self._root}/device/{check_name(device_id, 'device id')}/{kind}"

    def helper(self, name: str, kind: OfHelper) -> str:
        """Return a helper's own topic; its kind determines the writer (`TABLE`)."""
        return f"{self._root}/helper/{helper_name(name)}/{kind}"

    def blob(self, digest: str) -> str:
        """Return the topic that retains the bytes with this SHA-256 while devices need them."""
        return f"{self._root}/blob/{digest}"

    def of_kind(self, kind: Kind, party: str = "+") -> str:
        """Return a subscription to the topics of a kind, or to those of one device or helper.

        `party` is its name at the broker.
        """
        match kind:
            case "request" | "answer":
                return f"{self._root}/helper/{party}/{kind}"
            case "aggregator":
                return self.aggregator
            case "blob":
                return f"{self._root}/blob/+"
            case _:
                return f"{self._root}/device/{party}/{kind}"

    def parse(self, topic: str) -> Address:
        """Return the parsed topic.

        Raises:
            UnknownTopic: it is not a topic of this fleet.
        """
        root, _, rest = topic.partition(self._root + "/")
        match [] if root or not rest else rest.split("/"):
            case ["aggregator"]:
                return Address("aggregator")
            case ["blob", digest] if _DIGEST.fullmatch(digest):
                return Address("blob", digest=digest)
            case ["device", device_id, kind] if kind in _DEVICE_KINDS and _NAME.fullmatch(
                device_id
            ):
                return Address(kind, device_id=device_id)
            case ["helper", party, kind] if kind in _HELPER_KINDS and party.endswith(_HELPER):
                name = party.removesuffix(_HELPER)
                if _NAME.fullmatch(name):
                    return Address(kind, helper=name)
        raise UnknownTopic(
            f"topic {topic[:200]!r}: expected {self._root}/(aggregator | blob/SHA256 | "
            "device/ID/KIND | helper/NAME@helper/KIND)"
        )


def client_name(fleet: str, role: Literal["aggregator", "operator"]) -> str:
    """Return the broker's name for a fleet's aggregator, or for the operator that bans devices.

    It is the common name of the certificate, and the aggregator's client id. No device can have it.
    """
    return f"{check_name(fleet, 'fleet name')}@{role}"


def helper_name(name: str) -> str:
    """Return the broker's name for a helper: its certificate's common name, and its client id.

    No device can have it.
    """
    return check_name(name, "helper's name") + _HELPER


def mosquitto_acl(fleet: str) -> str:
    """Return Mosquitto's access list for a fleet, from `TABLE`: the text of an ``acl_file``.

    It applies to clients whose user name is their certificate's common name
    (``use_identity_as_username``).

    Raises:
        ConfigError: not a fleet's name.
    """
    topics, role = Topics(fleet), client_name(fleet, "aggregator")
    lines = [
        f"# Who may write and read the topics of the fleet '{fleet}', by the table of SPEC.md. "
        f"`shoal acl --fleet {fleet}` makes this.",
        f"# The aggregator's certificate has the common name '{role}'; a device's has the "
        "device's id, and a helper's ends with '@helper': that is %u here.",
        f"user {role}",
    ]
    for row in TABLE:
        rights = (True, "aggregator" in row.readers)
        lines.append(f"topic {_ACCESS[rights]} {topics.of_kind(row.kind)}")
    lines.append("")
    for row in TABLE:
        rights = (row.writer != "aggregator", row.readers != ("aggregator",))
        lines += (
            [f"pattern {_ACCESS[rights]} {topics.of_kind(row.kind, '%u')}"] if any(rights) else []
        )
    lines += [
        "",
        "# What bans devices, where the broker has its plugin for dynamic security; it can read "
        "and write no topic of the fleet.",
        f"user {client_name(fleet, 'operator')}",
        f"topic write {CONTROL}",
        f"topic read {CONTROL}/response",
    ]
    return "\n".join(lines) + "\n"
