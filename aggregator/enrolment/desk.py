"""What whoever runs a service does about enrolment: makes tokens, approves, rejects, bans. Each is
one transaction, with a line of the audit, and may be done while the service runs."""

import secrets
import time
from collections.abc import Sequence

import msgspec

from aggregator.storage.enrolment_store import (
    AuditRow,
    BanRow,
    DeviceRow,
    EnrolmentStore,
    TokenRow,
    Transaction,
)
from aggregator.storage.schema import TOKENS
from wire.errors import ConfigError
from wire.identity.enrolment import SECRET_BYTES, Token
from wire.topics import check_name

FORGET_S = 30 * 86_400.0
"""So long after a token has expired, it is forgotten: a device that has used it may ask until
then."""
MOST_S = 365 * 86_400.0


def make_token(
    store: EnrolmentStore,
    authority: str,
    expires_in_s: float = 86_400.0,
    tags: Sequence[str] = (),
    device_id: str = "",
    approve: bool = False,
) -> Token:
    """A token for one device, which nobody can read again. `authority`: the fingerprint of the
    authority. `device_id`: the only device that it is for; such a token may also replace the device
    of that id. `approve`: whether somebody has to approve the device.

    Raises:
        ConfigError: not a name, or not a time of a year at most.
        StorageFailed: the database cannot be written.
    """
    if not 0 < expires_in_s <= MOST_S:
        raise ConfigError(
            f"a token for {expires_in_s:g} s: expected more than 0, and a year at most"
        )
    for tag in tags:
        check_name(tag, "tag")
    if device_id:
        check_name(device_id, "device id")
    now_s, token = time.time(), Token(secrets.token_bytes(SECRET_BYTES), authority)
    with store.transaction() as within:
        within.drop(TokenRow, TOKENS.c.expires_at_s < now_s - FORGET_S)
        within.put(
            TokenRow(token.hash, now_s, now_s + expires_in_s, device_id, tuple(tags), approve)
        )
        within.put(AuditRow(now_s, "token", device_id, token.hash, ",".join(tags)))
    return token


def approve(store: EnrolmentStore, device_id: str) -> None:
    """Let a device that waits have its certificate, which it gets when it next asks.

    Raises:
        ConfigError: no such device waits.
        StorageFailed: the database cannot be written.
    """
    with store.transaction() as within:
        _settle(within, device_id, "approved")


def reject(store: EnrolmentStore, name: str) -> str:
    """Refuse a device that waits; or take back a token that nobody has used, named by how its hash
    begins. Returns what was done.

    Raises:
        ConfigError: there is neither.
        StorageFailed: the database cannot be written.
    """
    with store.transaction() as within:
        device = within.device(name)
        begins = TOKENS.c.hash.startswith(name, autoescape=True)
        if device is None and len(name) >= 8 and within.drop(TokenRow, begins, used_key=""):
            within.put(AuditRow(time.time(), "token taken back", "", name[:64], ""))
            return f"token {name}: taken back"
        _settle(within, name, "rejected")
    return f"{name}: rejected"


def ban(store: EnrolmentStore, device_id: str, lifted: bool = False) -> None:
    """Ban a device: its certificate is not renewed, no token enrols it, and the running service
    cuts it off the broker within seconds. It need not be enrolled here. `lifted`: end its ban.

    Raises:
        ConfigError: not a device's id.
        StorageFailed: the database cannot be written.
    """
    check_name(device_id, "device id")
    with store.transaction() as within:
        if within.is_banned(device_id) == lifted:
            within.put(BanRow(device_id, lifted, time.time()))
            what = "restored" if lifted else "banned"
            within.put(AuditRow(time.time(), what, device_id, "", ""))


def forget(store: EnrolmentStore, device_id: str) -> None:
    """Forget a device and the token that it used, so that its certificate is not renewed, and
    another may enrol under its id. A ban stays.

    Raises:
        StorageFailed: the database cannot be written.
    """
    with store.transaction() as within:
        within.drop(DeviceRow, device_id=device_id)
        within.drop(TokenRow, used_by=device_id)
        within.put(AuditRow(time.time(), "forgotten", device_id, "", ""))


def _settle(within: Transaction, device_id: str, state: str) -> None:
    """Give a device that waits for approval another state."""
    device = within.device(device_id)
    if device is None or device.state != "waiting":
        now = f"it is {device.state}" if device else "it has not asked"
        raise ConfigError(f"{device_id}: no device of this id waits for approval; {now}")
    within.put(msgspec.structs.replace(device, state=state))
    within.put(AuditRow(time.time(), state, device.device_id, device.token, ""))
