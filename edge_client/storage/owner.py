"""Owner of a state folder, and its policy file.

A state folder serves one device only: its models were made from that device's data.
"""

import logging
import math
import tomllib
import typing
from contextlib import suppress
from pathlib import Path

import msgspec

from host.files import file_error, write_atomically
from wire.errors import ConfigError
from wire.messages import Policy, Verb

log = logging.getLogger("shoal.edge")

DEVICE_JSON = "device.json"
FORMAT = 1
"""Format number of the state folders that this client reads and writes."""


class Owner(msgspec.Struct, frozen=True):
    """A device of a fleet, and the format of its state folder."""

    device_id: str
    fleet: str
    format: int = FORMAT

    def __str__(self) -> str:
        return f"device {self.device_id} of fleet {self.fleet}"


def owner_of(folder: Path) -> Owner | None:
    """Return the owner of a state folder, or None if it has none or the file is damaged."""
    with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return msgspec.json.decode((folder / DEVICE_JSON).read_bytes(), type=Owner)
    return None


def check_owner(folder: Path, owner: Owner) -> None:
    """Check that a state folder belongs to this device or has no owner yet.

    Raises:
        ConfigError: the folder is another device's, or of another format.
    """
    folder_owner = owner_of(folder)
    if folder_owner is None or folder_owner == owner:
        return
    if folder_owner.format != FORMAT:
        raise ConfigError(
            f"state folder {folder} has format {folder_owner.format}, and this client reads format "
            f"{FORMAT}; use another folder, or empty this one"
        )
    raise ConfigError(
        f"state folder {folder} belongs to {folder_owner}, and this is {owner}, which must not "
        "use another device's model and memory; use another folder, or empty this one"
    )


def claim(folder: Path, owner: Owner) -> None:
    """Store the owner in a state folder.

    A failed write is logged only: the client starts with a full disk, too.

    Raises:
        ConfigError: the folder is another device's, or of another format.
    """
    check_owner(folder, owner)
    if owner_of(folder) == owner:
        return
    try:
        write_atomically(folder / DEVICE_JSON, msgspec.json.encode(owner))
    except OSError as error:
        log.warning("Owner of the state folder not stored: folder=%s: %s", folder, error.strerror)


VERBS = tuple(str(verb.__struct_config__.tag) for verb in typing.get_args(Verb))


def read_policy(path: Path) -> Policy:
    """Return the policy of a TOML file.

    Raises:
        ConfigError: the file cannot be read, or a field is unknown or has a value that is not
            permitted. The text names the file and the field.
    """
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(file_error(f"policy {path}", error)) from None
    except ValueError as error:
        raise ConfigError(f"policy {path}: not TOML: {error}") from None
    fields = Policy.__struct_fields__
    for name, value in table.items():
        if name not in fields:
            raise ConfigError(
                f"policy {path}: no field {name!r}. Known fields: {', '.join(fields)}."
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(
                f"policy {path}: {name} must be a finite number, got {value}; leave it out for no "
                "limit"
            )
        try:
            msgspec.convert({name: value}, Policy)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"policy {path}: {name} cannot be {value!r}: {str(error).partition(' - at')[0]}"
            ) from None
    policy = msgspec.convert(table, Policy)
    if unknown := [name for name in policy.verbs or () if name not in VERBS]:
        raise ConfigError(
            f"policy {path}: verbs: no verb {unknown[0]!r}. Known verbs: {', '.join(VERBS)}."
        )
    return policy
