"""Whose a state folder is: its model, and what it keeps, were made of one device's data, and say
nothing of another's."""

import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from host.files import write_atomically
from wire.errors import ConfigError

log = logging.getLogger("shoal.edge")

DEVICE_JSON = "device.json"
FORMAT = 1
"""The format of state folders that this client reads and writes."""


class Owner(msgspec.Struct, frozen=True):
    """A device of a fleet, and the format of its state folder."""

    device_id: str
    fleet: str
    format: int = FORMAT

    def __str__(self) -> str:
        return f"device {self.device_id} of fleet {self.fleet}"


def owner_of(folder: Path) -> Owner | None:
    """Return whose a state folder is; None where nothing says it."""
    with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode((folder / DEVICE_JSON).read_bytes(), type=Owner)
    return None


def check_owner(folder: Path, owner: Owner) -> None:
    """Check that a state folder is this device's, or nobody's yet.

    Raises:
        ConfigError: the folder is another device's, or of another format.
    """
    held = owner_of(folder)
    if held is None or held == owner:
        return
    if held.format != FORMAT:
        raise ConfigError(
            f"state folder {folder}: format {held.format}, this client reads format {FORMAT}; name "
            "a folder of its own, or empty this one"
        )
    raise ConfigError(
        f"state folder {folder}: it is that of {held}, and this is {owner}, which must not answer "
        "with another device's model and memory; "
        "name a folder of its own, or empty this one"
    )


def claim(folder: Path, owner: Owner) -> None:
    """Note in a state folder whose it is. A disk that is full does not keep the client from
    starting.

    Raises:
        ConfigError: the folder is another device's, or of another format.
    """
    check_owner(folder, owner)
    if owner_of(folder) == owner:
        return
    try:
        write_atomically(folder / DEVICE_JSON, msgspec.json.encode(owner))
    except OSError as error:
        log.warning("state folder %s: whose it is cannot be noted: %s", folder, error.strerror)
