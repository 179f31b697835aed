"""An enrolled device's id, fleet and broker, for the command line. It loads nothing of
certificates."""

import argparse
from pathlib import Path

import msgspec

from edge_client.settings import usual
from wire.errors import ConfigError

FOLDER = "enrolled"
"""Name of the folder in the state folder, where no other is named."""
PAIR, ENROLMENT = "device.pem", "enrolment.json"


class Enrolment(msgspec.Struct, frozen=True):
    """As what a device is enrolled, and where."""

    device_id: str
    fleet: str
    broker: str
    service: str
    """Where it enrolled, and renews its certificate: ``https://HOST[:PORT]``."""


def read_enrolment(folder: Path) -> Enrolment:
    """Return what the folder of an enrolled device says.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = folder / ENROLMENT
    try:
        return msgspec.json.decode(file.read_bytes(), type=Enrolment)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file}: {error}") from None


def fill_in(arguments: argparse.Namespace) -> Path | None:
    """Fill in, from the folder of an enrolled device, what the command line leaves open, and return
    that folder. None if the device is not enrolled, or is run with credentials of another kind.

    Raises:
        ConfigError: the folder that is named has no credentials, or they cannot be read; or there
        is no id.
    """
    named = arguments.enrolled is not None
    folder: Path = arguments.enrolled if named else arguments.state / FOLDER
    if not named and (
        not (folder / PAIR).exists() or arguments.id is not None or arguments.cert is not None
    ):
        if arguments.id is None:
            raise ConfigError("no --id: name this device, or enrol it with `shoal-edge enrol`")
        return None
    if not (folder / PAIR).exists():
        raise ConfigError(f"--enrolled {folder}: there is no {PAIR}; `shoal-edge enrol` writes it")
    enrolment = read_enrolment(folder)
    if arguments.id not in (None, enrolment.device_id):
        raise ConfigError(f"--id {arguments.id}: {folder} is of the device {enrolment.device_id}")
    policy = folder / "policy.toml"
    values: dict[str, object] = {
        "id": enrolment.device_id,
        "fleet": enrolment.fleet,
        "broker": enrolment.broker,
        "trust": folder / "trust.pem",
        "ca": folder / "ca.pem",
        "policy": policy if policy.exists() else None,
    }
    for name, value in values.items():
        if getattr(arguments, name) in (None, usual(name)):
            setattr(arguments, name, value)
    arguments.cert, arguments.key = folder / PAIR, folder / PAIR
    return folder
