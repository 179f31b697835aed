"""Enrolment in a running service: HTTPS port, bans at the broker, credentials for the broker."""

import logging
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path

import msgspec

from aggregator.enrolment.api import create_enrolment_api
from aggregator.enrolment.attestation import read_attestation
from aggregator.enrolment.authority import (
    AGGREGATOR,
    CERTIFICATE,
    SERVER,
    read_authority,
    renew_own,
)
from aggregator.enrolment.gate import BrokerBans
from aggregator.enrolment.office import FleetSettings, Office
from aggregator.http.server import HttpServer
from aggregator.service_settings import EnrolmentSettings
from aggregator.storage.engine import sqlite_url
from aggregator.storage.enrolment_store import open_enrolments
from aggregator.storage.fleet_store import has_device
from host.files import file_error
from host.settings import settings_of
from wire.errors import ConfigError, WireError
from wire.links.mqtt import BrokerAddress
from wire.messages import Policy

log = logging.getLogger("shoal.enrolment")


@contextmanager
def enrolled_tags(folder: Path, database: str) -> Iterator[Callable[[str], tuple[str, ...]]]:
    """Yield a function that returns the tags that a device got with its enrolment token.

    It returns no tags if the folder has no authority. The enrolment database is opened at the first
    need, and closed with the context. The function raises ConfigError or StorageFailed if the
    database cannot be read.
    """
    with ExitStack() as stack:
        store = cache(lambda: stack.enter_context(closing(open_enrolments(folder, database))))

        def tags_of(device_id: str) -> tuple[str, ...]:
            if not (folder / CERTIFICATE).exists():
                return ()
            with store().transaction() as within:
                row = within.device(device_id)
            return tuple(row.tags) if row is not None else ()

        yield tags_of


@contextmanager
def enrolment(
    settings: EnrolmentSettings,
    folder: Path,
    fleet: str,
    broker: BrokerAddress,
    trust: Path,
    database: str = "",
) -> Iterator[None]:
    """Enrol devices and keep banned ones off the broker while the context is open.

    Nothing is done if the folder has no authority, or the port is 0.

    `trust`: path of the file with the root keys. `database`: as in `ServeSettings`.

    Raises:
        ConfigError: a setting, the authority or the port cannot be used.
    """
    authority = read_authority(folder)
    if authority is None or not settings.port:
        yield
        return
    if authority.fleet != fleet:
        raise ConfigError(
            f"authority {folder / CERTIFICATE}: it belongs to fleet {authority.fleet}, but --fleet "
            f"is {fleet}"
        )
    settings_of(EnrolmentSettings, "enrol_")["days"].read(settings.days)
    attester = read_attestation(settings.attestation) if settings.attestation is not None else None
    try:
        renew_own(authority, folder, time.time())
        offer = FleetSettings(
            settings.broker or str(broker), trust.read_text(), _policy(settings.policy)
        )
    except OSError as error:
        raise ConfigError(file_error(error.filename, error)) from None
    except WireError as error:
        raise ConfigError(f"authority in {folder}: {error}") from None
    if not (address := BrokerAddress.parse(offer.broker)).tls:
        raise ConfigError(
            f"broker address {str(address)!r}: enrolled devices need mqtts://; name one with "
            "--enrol-broker, or enrol no devices with --enrol-port 0"
        )
    if address.username:
        raise ConfigError(
            f"--enrol-broker {address}: its user would be that of every device; name the broker "
            "without a user, since enrolled devices have certificates"
        )
    with (
        closing(open_enrolments(folder, database)) as store,
        HttpServer(settings.host, settings.port, folder / SERVER) as https,
        closing(BrokerBans(authority, store, broker, folder)),
    ):
        registry = database or sqlite_url(folder / "shoal.db")
        office = Office(
            authority,
            store,
            offer,
            days=settings.days,
            is_known=lambda device_id: has_device(registry, device_id),
            attester=attester,
        )
        https.serve(create_enrolment_api(office))
        yield


def own_credentials(
    folder: Path, url: str, ca: Path | None, certificate: Path | None, key: Path | None
) -> BrokerAddress:
    """Return a broker's address with the credentials of the aggregator.

    For an ``mqtts://`` broker without `ca`, `certificate` and `key`, the credentials are those that
    the folder's own authority issued, if there are any.

    Raises:
        ConfigError: `url` is not an address.
    """
    if (
        url.startswith("mqtts://")
        and not (ca or certificate or key)
        and (folder / AGGREGATOR).exists()
    ):
        ca, certificate = folder / CERTIFICATE, folder / AGGREGATOR
    return BrokerAddress.parse(url, ca, certificate, key)


def _policy(path: Path | None) -> str:
    if path is None:
        return ""
    text = path.read_text()
    try:
        fields = tomllib.loads(text)
        if unknown := [name for name in fields if name not in Policy.__struct_fields__]:
            raise ConfigError(
                f"--enrol-policy {path}: unknown field {unknown[0]!r}; its fields are "
                f"{', '.join(Policy.__struct_fields__)}"
            )
        msgspec.convert(fields, Policy)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(f"--enrol-policy {path}: not TOML, or a wrong value: {error}") from None
    return text
