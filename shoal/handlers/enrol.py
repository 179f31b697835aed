"""`shoal enrol`: tokens for devices, and who has used them."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from msgspec import to_builtins

from aggregator.core.ports import StorageFailed
from aggregator.enrolment import desk
from aggregator.enrolment.authority import Authority, read_authority, renew_own
from aggregator.enrolment.mosquitto import renew_broker
from aggregator.storage.enrolment_store import EnrolmentStore, open_enrolments
from shoal.printing import print_json
from shoal.times import minute_of, seconds_of
from wire.errors import ConfigError, ShoalError, WireError


def token(
    folder: Path, expires: str, tags: str, device: str, approve: bool, database: str
) -> dict[str, str]:
    """Carry out `shoal enrol token`."""
    authority = _authority(folder)
    with _open(folder, database) as store:
        made = desk.make_token(
            store,
            authority.fingerprint,
            seconds_of(expires, "--expires"),
            [tag for tag in tags.split(",") if tag],
            device,
            approve,
        )
    print(made)
    return {"token": str(made)}


def list_all(folder: Path, database: str, as_json: bool) -> None:
    """Carry out `shoal enrol list`."""
    with _open(folder, database) as store, store.transaction() as within:
        tokens, devices, bans = within.tokens(), within.devices(), within.bans()
    usable = [made for made in tokens if not made.used_key and made.expires_at_s > time.time()]
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
    for made in usable:
        extra = " ".join(
            [
                *([f"for={made.device_id}"] if made.device_id else []),
                *made.tags,
                *(["approve"] if made.approve else []),
            ]
        )
        print(f"token {made.hash[:12]} until {minute_of(made.expires_at_s)} {extra}".rstrip())
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


def approve(folder: Path, device: str, database: str) -> None:
    """Carry out `shoal enrol approve`."""
    with _open(folder, database) as store:
        desk.approve(store, device)
    print(f"{device}: approved; it asks again within seconds")


def reject(folder: Path, name: str, database: str) -> None:
    """Carry out `shoal enrol reject`."""
    with _open(folder, database) as store:
        print(desk.reject(store, name))


def audit(folder: Path, last: int, database: str, as_json: bool) -> None:
    """Carry out `shoal enrol audit`."""
    with _open(folder, database) as store, store.transaction() as within:
        rows = list(within.audit(last))
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


def renew(folder: Path, broker_folder: Path | None) -> None:
    """Carry out `shoal enrol renew`."""
    authority, place, now_s = _authority(folder), broker_folder or folder / "broker", time.time()
    try:
        renew_own(authority, folder, now_s)
        made = place.is_dir() and renew_broker(authority, place, now_s)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    except WireError as error:
        raise ConfigError(f"certificates of {folder}: {error}") from None
    print(
        f"{place / 'broker.pem'}: renewed; now make Mosquitto read it: SIGHUP, or restart it"
        if made
        else f"{place}: nothing is due"
    )


@contextmanager
def _open(folder: Path, database: str) -> Iterator[EnrolmentStore]:
    try:
        with closing(open_enrolments(folder, database)) as store:
            yield store
    except StorageFailed as error:
        raise ShoalError(str(error)) from None


def _authority(folder: Path) -> Authority:
    authority = read_authority(folder)
    if authority is None:
        raise ConfigError(
            f"{folder}: there is no authority; `shoal init --tls HOST --folder {folder}` makes one"
        )
    return authority
