"""Whose a state folder is: its model, and what it keeps, were made of one device's data, and say
nothing of another's."""

import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from edge_client.core.session import Session
from host.files import write_atomically
from wire.errors import ConfigError

log = logging.getLogger("shoal.edge")

DEVICE_JSON = "device.json"


class Owner(msgspec.Struct, frozen=True):
    """A device of a fleet; `fleet` is empty where a folder of an older version does not say it."""

    device_id: str
    fleet: str = ""

    def __str__(self) -> str:
        return f"device {self.device_id}" + (f" of fleet {self.fleet}" if self.fleet else "")


def owner_of(folder: Path) -> Owner | None:
    """Whose a state folder is. One of an older version is of the device that its last plan was for.
    None where nothing says it."""
    unreadable = (OSError, msgspec.MsgspecError, ValueError, RecursionError)
    with suppress(*unreadable):
        return msgspec.json.decode((folder / DEVICE_JSON).read_bytes(), type=Owner)
    with suppress(*unreadable):
        plan = msgspec.json.decode((folder / "session.json").read_bytes(), type=Session).plan
        return Owner(plan.device_id) if plan is not None else None
    return None


def check_owner(folder: Path, owner: Owner) -> None:
    """Check that a state folder is this device's, or nobody's yet.

    Raises:
        ConfigError: the folder is another device's.
    """
    held = owner_of(folder)
    if held is None or (held.device_id == owner.device_id and held.fleet in ("", owner.fleet)):
        return
    raise ConfigError(
        f"state folder {folder}: it is that of {held}, and this is {owner}, which must not answer "
        "with another device's model and memory; "
        "name a folder of its own, or empty this one"
    )


def claim(folder: Path, owner: Owner) -> None:
    """Note in a state folder whose it is. A disk that is full does not keep the client from
    starting.

    Raises:
        ConfigError: the folder is another device's.
    """
    check_owner(folder, owner)
    if owner_of(folder) == owner:
        return
    try:
        write_atomically(folder / DEVICE_JSON, msgspec.json.encode(owner))
    except OSError as error:
        log.warning("state folder %s: whose it is cannot be noted: %s", folder, error.strerror)
