"""Every MQTT topic is built and parsed here and nowhere else (SPEC.md, 'Topics').

A topic is ``shoal/2/FLEET/...``; 2 is the protocol's major version. Device ids and fleet names are 1 to 64 of ``A-Z a-z 0-9 . _ -``,
so that they can never contain a topic separator or a wildcard.
"""

import re
from dataclasses import dataclass
from typing import Literal, cast

from wire.errors import ConfigError, UnknownTopic

PROTOCOL = "shoal/2"

FromDevice = Literal["check-in", "update", "decline", "fetch", "status"]
ToDevice = Literal["plan", "reply"]
Kind = Literal["check-in", "update", "decline", "fetch", "status", "plan", "reply", "blob", "aggregator"]

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DEVICE_KINDS = ("check-in", "update", "decline", "fetch", "status", "plan", "reply")


@dataclass(frozen=True)
class Address:
    """What a topic means: `kind`, and the device id (device topics) or blob digest (blob topics) it carries."""

    kind: Kind
    device_id: str = ""
    digest: str = ""


def check_name(value: str, what: str) -> str:
    """Return `value` if it may stand in a topic; `what` names it in the error.

    Raises:
        ConfigError: it is empty, too long, or has a character that a topic must not have.
    """
    if not _NAME.fullmatch(value):
        raise ConfigError(f"{what} {value!r}: expected 1 to 64 characters of A-Z a-z 0-9 . _ -")
    return value


class Topics:
    """The topics of one fleet."""

    def __init__(self, fleet: str) -> None:
        self.fleet = check_name(fleet, "fleet name")
        self._root = f"{PROTOCOL}/{self.fleet}"

    def device(self, device_id: str, kind: FromDevice | ToDevice) -> str:
        """A device's own topic; it writes check-in, update, decline, fetch and status, and reads plan and reply."""
        return f"{self._root}/device/{check_name(device_id, 'device id')}/{kind}"

    def blob(self, digest: str) -> str:
        """Where the bytes with this SHA-256 are published, retained, while devices need them."""
        return f"{self._root}/blob/{digest}"

    @property
    def aggregator(self) -> str:
        """The aggregator's retained status; a new boot id there asks every device to check in again."""
        return f"{self._root}/aggregator"

    @property
    def from_devices(self) -> tuple[str, ...]:
        """The subscriptions of the aggregator."""
        return tuple(f"{self._root}/device/+/{kind}" for kind in ("check-in", "update", "decline", "fetch", "status"))

    def parse(self, topic: str) -> Address:
        """Tell what a topic means.

        Raises:
            UnknownTopic: it is none of this fleet's topics.
        """
        root, _, rest = topic.partition(self._root + "/")
        match [] if root or not rest else rest.split("/"):
            case ["aggregator"]:
                return Address("aggregator")
            case ["blob", digest] if _DIGEST.fullmatch(digest):
                return Address("blob", digest=digest)
            case ["device", device_id, kind] if kind in _DEVICE_KINDS and _NAME.fullmatch(device_id):
                return Address(cast(Kind, kind), device_id=device_id)
        raise UnknownTopic(f"topic {topic[:200]!r}: expected {self._root}/(aggregator | blob/SHA256 | device/ID/KIND)")
