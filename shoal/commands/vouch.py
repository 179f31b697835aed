"""The command `shoal vouch`, with which the root key vouches for a service's key."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from host.files import file_error, write_atomically
from shoal.command import command
from wire.errors import BundleError, ConfigError
from wire.topics import check_name

if TYPE_CHECKING:
    from wire.identity.keys import PublicKey


T = TypeVar("T")


MOST_DAYS = 36_525


@command()
def vouch(
    fleet: Annotated[str, typer.Option(help="Name of the fleet that the service may speak for.")],
    key: Annotated[Path, typer.Option(help="Root key: signing.key of `shoal export`.")],
    service: Annotated[
        Path | None, typer.Option(help="Folder of the service; service.voucher is written there.")
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(help="Copy of service.pub, if the service's folder is on another machine."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the voucher; service.voucher beside service.pub when not given."
        ),
    ] = None,
    days: Annotated[
        float,
        typer.Option(help="Days for which devices believe the service; at most a hundred years."),
    ] = 365.0,
) -> None:
    """Sign a service's key with the root key, so that devices believe the service.

    The service reads the voucher when it starts.
    """
    from aggregator.leadership.identity import service_key
    from wire.identity.keys import key_name, read_private
    from wire.identity.signed import vouch as vouch_for

    check_name(fleet, "fleet name")
    if (service is None) == (public is None):
        raise ConfigError("shoal vouch needs either --service FOLDER or --public FILE")
    if not 0 < days <= MOST_DAYS:
        raise ConfigError(f"--days must be above 0 and at most {MOST_DAYS}, got {days:g}")
    root = _read(key, "--key", read_private)
    if service is not None:
        if not service.is_dir():
            raise ConfigError(
                f"No folder {service} (--service). `shoal serve --folder {service}` makes it."
            )
        vouched, path = service_key(service).public_key(), out or service / "service.voucher"
    else:
        assert public is not None
        vouched, path = (
            _read(public, "--public", _one_key),
            out or public.with_name("service.voucher"),
        )
    not_after_s = time.time() + days * 86_400
    until = datetime.fromtimestamp(not_after_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    try:
        write_atomically(path, vouch_for(root, fleet, vouched, not_after_s))
    except OSError as error:
        raise ConfigError(file_error(f"voucher {path}", error)) from None
    print(f"{path}: the key {key_name(vouched)[:12]} may speak for the fleet {fleet} until {until}")
    print("The service reads it when it starts; restart one that runs.")


def _one_key(pem: bytes) -> PublicKey:
    from wire.identity.keys import read_public

    keys = read_public(pem)
    if len(keys) != 1:
        raise BundleError(f"expected one key, got {len(keys)}")
    return keys[0]


def _read(path: Path, option: str, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise ConfigError(file_error(f"{option} {path}", error)) from None
    except BundleError as error:
        raise ConfigError(f"{option} {path}: {error}") from None
