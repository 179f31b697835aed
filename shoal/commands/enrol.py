"""The commands `shoal enrol`: tokens for devices, and the devices that used them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from host.files import file_error
from shoal.command import command, minute_of, print_json, seconds_of
from shoal.commands import options as opt
from wire.errors import ConfigError, ShoalError, WireError

if TYPE_CHECKING:
    from aggregator.enrolment.authority import Authority
    from aggregator.storage.enrolment_store import EnrolmentStore


Database = Annotated[
    str,
    typer.Option(
        help="SQLAlchemy URL, as for `shoal serve --database`; SQLite in the folder when empty."
    ),
]


enrol = typer.Typer(
    rich_markup_mode=None,
    help="Make tokens with which devices get certificates, and approve devices.",
    no_args_is_help=True,
)


@enrol.command("token")
@command()
def token(
    folder: opt.Folder,
    expires: Annotated[
        str, typer.Option(help="Time for which it can be used: 30m, 12h or 7d.")
    ] = "1d",
    tags: Annotated[str, typer.Option(help="Tags of the device, separated by commas.")] = "",
    device: Annotated[
        str,
        typer.Option(help="Id of the device; it may replace a device with this id."),
    ] = "",
    approve: Annotated[
        bool, typer.Option("--approve", help="Let the device wait for `shoal enrol approve`.")
    ] = False,
    database: Database = "",
) -> dict[str, str]:
    """Print a token for one device.

    It is printed only once, because the service has only its hash.
    """
    from aggregator.enrolment import desk
    from wire.identity.certificates import certificate_digest

    authority = _authority(folder)
    with _open(folder, database) as store:
        new_token = desk.make_token(
            store,
            certificate_digest(authority.certificate),
            seconds_of(expires, "--expires"),
            [tag for tag in tags.split(",") if tag],
            device,
            approve,
        )
    print(new_token)
    return {"token": str(new_token)}


@enrol.command("list")
@command()
def list_all(
    folder: opt.Folder,
    database: Database = "",
    as_json: opt.Json = False,
) -> None:
    """List valid tokens, and devices with their certificates' ends."""
    from aggregator.storage.enrolment_store import BanRow, DeviceRow, TokenRow

    with _open(folder, database) as store, store.transaction() as within:
        tokens, devices = within.rows(TokenRow), within.rows(DeviceRow)
        bans = {row.device_id: not row.lifted for row in within.rows(BanRow)}
    usable = [entry for entry in tokens if not entry.used_key and entry.expires_at_s > time.time()]
    banned = {name for name, is_banned in bans.items() if is_banned}
    if as_json:
        devices_json = [
            {**to_builtins(device), "banned": device.device_id in banned} for device in devices
        ]
        others = [
            {"device_id": name, "banned": True}
            for name in sorted(banned - {device.device_id for device in devices})
        ]
        print_json({"tokens": usable, "devices": [*devices_json, *others]})
        return
    for entry in usable:
        extra = " ".join(
            [
                *([f"for={entry.device_id}"] if entry.device_id else []),
                *entry.tags,
                *(["approve"] if entry.approve else []),
            ]
        )
        print(f"token {entry.hash[:12]} until {minute_of(entry.expires_at_s)} {extra}".rstrip())
    for device in devices:
        state = "banned" if device.device_id in banned else device.state
        until = (
            f"until {minute_of(device.not_after_s)}"
            if device.not_after_s
            else f"since {minute_of(device.since_s)}"
        )
        print(f"{device.device_id}  {state}  {until}  {','.join(device.tags)}".rstrip())
    for device_id in sorted(banned - {device.device_id for device in devices}):
        print(f"{device_id}  banned")


@enrol.command("approve")
@command()
def approve(
    folder: opt.Folder,
    device: Annotated[str, typer.Argument(help="Id of the device.")],
    database: Database = "",
) -> None:
    """Approve a waiting device, so that it gets its certificate."""
    from aggregator.enrolment import desk

    with _open(folder, database) as store:
        desk.approve(store, device)
    print(f"{device}: approved; it asks again within seconds")


@enrol.command("reject")
@command()
def reject(
    folder: opt.Folder,
    name: Annotated[
        str, typer.Argument(help="Id of a device, or the digits of a token in `list`.")
    ],
    database: Database = "",
) -> None:
    """Reject a waiting device, or an unused token."""
    from aggregator.enrolment import desk

    with _open(folder, database) as store:
        print(desk.reject(store, name))


@enrol.command("audit")
@command()
def audit(
    folder: opt.Folder,
    last: Annotated[int, typer.Option(min=1, help="Number of lines.")] = 100,
    database: Database = "",
    as_json: opt.Json = False,
) -> None:
    """Print the log of tokens, enrolments, renewals and bans."""
    from aggregator.storage.enrolment_store import AuditRow

    with _open(folder, database) as store, store.transaction() as within:
        rows = list(within.rows(AuditRow, last))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        moment = datetime.fromtimestamp(row.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        print(
            " ".join(
                part
                for part in (moment, row.what, row.device_id, row.token[:12], row.detail)
                if part
            )
        )


@enrol.command("renew")
@command()
def renew(
    folder: opt.Folder,
    broker_folder: Annotated[
        Path | None,
        typer.Option(help="Folder of the broker; FOLDER/broker when not given."),
    ] = None,
) -> None:
    """Renew the broker's and the service's own certificates.

    A certificate is renewed when at most a third of its time is left.
    """
    from aggregator.enrolment.authority import renew_own
    from aggregator.enrolment.mosquitto import renew_broker

    authority, place, now_s = _authority(folder), broker_folder or folder / "broker", time.time()
    try:
        renew_own(authority, folder, now_s)
        is_renewed = place.is_dir() and renew_broker(authority, place, now_s)
    except OSError as error:
        raise ConfigError(file_error(error.filename, error)) from None
    except WireError as error:
        raise ConfigError(
            f"certificates of {folder}: {error}; restore the damaged file from a backup"
        ) from None
    print(
        f"{place / 'broker.pem'}: renewed; now make Mosquitto read it: SIGHUP, or restart it"
        if is_renewed
        else f"{place}: nothing is due"
    )


@contextmanager
def _open(folder: Path, database: str) -> Iterator[EnrolmentStore]:
    from aggregator.ports import StorageFailed
    from aggregator.storage.enrolment_store import open_enrolments

    try:
        with closing(open_enrolments(folder, database)) as store:
            yield store
    except StorageFailed as error:
        raise ShoalError(str(error)) from None


def _authority(folder: Path) -> Authority:
    from aggregator.enrolment.authority import read_authority

    authority = read_authority(folder)
    if authority is None:
        raise ConfigError(
            f"No authority in {folder}. `shoal init --tls HOST --folder {folder}` makes one."
        )
    return authority
