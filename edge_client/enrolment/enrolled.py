"""Id, fleet and broker of an enrolled device, for the command line. Imports no certificate code."""

import argparse
from pathlib import Path

import msgspec

from edge_client.settings import usual
from host.files import file_error
from wire.errors import ConfigError

FOLDER = "enrolled"
"""Name of the default credentials folder in the state folder."""
PAIR, ENROLMENT = "device.pem", "enrolment.json"


class Enrolment(msgspec.Struct, frozen=True):
    """Identity of an enrolled device, its broker, and its enrolment service."""

    device_id: str
    fleet: str
    broker: str
    service: str
    """Address of the service that enrols devices and renews certificates, https://HOST[:PORT]."""


def read_enrolment(folder: Path) -> Enrolment:
    """Return the enrolment that is stored in a credentials folder.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = folder / ENROLMENT
    try:
        return msgspec.json.decode(file.read_bytes(), type=Enrolment)
    except OSError as error:
        raise ConfigError(file_error(file, error)) from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file} is damaged: {error}") from None


def fill_in(arguments: argparse.Namespace) -> Path | None:
    """Fill in missing options from the credentials folder and return that folder.

    Return None if the device is not enrolled, or if the command line names an id or a certificate
    and no credentials folder.

    Raises:
        ConfigError: the named folder has no credentials or those of another device, a file cannot
            be read, or there is no id.
    """
    named = arguments.enrolled is not None
    folder: Path = arguments.enrolled if named else arguments.state / FOLDER
    if not named and (
        not (folder / PAIR).exists() or arguments.id is not None or arguments.cert is not None
    ):
        if arguments.id is None:
            raise ConfigError(
                "--id is missing; set it, or enrol the device with `shoal-edge enrol`"
            )
        return None
    if not (folder / PAIR).exists():
        raise ConfigError(f"--enrolled {folder} has no {PAIR}, which `shoal-edge enrol` writes")
    enrolment = read_enrolment(folder)
    if arguments.id not in (None, enrolment.device_id):
        raise ConfigError(
            f"--id must be {enrolment.device_id}, the device of {folder}, got {arguments.id}"
        )
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
