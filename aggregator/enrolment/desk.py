"""Commands of an operator on enrolment: make tokens, approve, reject, ban, forget.

Each is one transaction with an audit line, and may run while the service runs.
"""

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
"""Seconds after a token's expiry when its row is deleted; until then a request can be repeated."""
MOST_S = 365 * 86_400.0


def make_token(
    store: EnrolmentStore,
    authority: str,
    expires_in_s: float = 86_400.0,
    tags: Sequence[str] = (),
    device_id: str = "",
    approve: bool = False,
) -> Token:
    """Return a new token for one device; its secret is not stored.

    `authority`: fingerprint of the authority. `device_id`: the only device that may use the token;
    such a token may also replace the device of that id. `approve`: True if an operator has to
    approve the device.

    Raises:
        ConfigError: a tag or the id is not a valid name, or `expires_in_s` is not in 0 to a year.
        StorageFailed: the database cannot be written.
    """
    if not 0 < expires_in_s <= MOST_S:
        raise ConfigError(f"expires must be above 0 s and at most a year, got {expires_in_s:g} s")
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
    """Approve a waiting device, which gets its certificate with its next request.

    Raises:
        ConfigError: no such device waits.
        StorageFailed: the database cannot be written.
    """
    with store.transaction() as within:
        _settle(within, device_id, "approved")


def reject(store: EnrolmentStore, name: str) -> str:
    """Reject a waiting device, or revoke an unused token, and return the answer to the operator.

    `name`: id of the device, or first characters of the token's hash (8 or more).

    Raises:
        ConfigError: no waiting device and no unused token has this name.
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
    """Ban a device, or lift its ban if `lifted`.

    The certificate of a banned device is not renewed, and no token enrols it. The running service
    cuts it off the broker within seconds. The device need not be enrolled here.

    Raises:
        ConfigError: `device_id` is not a valid id.
        StorageFailed: the database cannot be written.
    """
    check_name(device_id, "device id")
    with store.transaction() as within:
        if within.is_banned(device_id) == lifted:
            within.put(BanRow(device_id, lifted, time.time()))
            what = "restored" if lifted else "banned"
            within.put(AuditRow(time.time(), what, device_id, "", ""))


def forget(store: EnrolmentStore, device_id: str) -> None:
    """Delete a device and the token that it used; a ban stays.

    Its certificate is then not renewed, and another device may enrol under its id.

    Raises:
        StorageFailed: the database cannot be written.
    """
    with store.transaction() as within:
        within.drop(DeviceRow, device_id=device_id)
        within.drop(TokenRow, used_by=device_id)
        within.put(AuditRow(time.time(), "forgotten", device_id, "", ""))


def _settle(within: Transaction, device_id: str, state: str) -> None:
    """Change the state of a device that waits for approval.

    Raises:
        ConfigError: no such device waits.
    """
    device = within.device(device_id)
    if device is None or device.state != "waiting":
        now = f"it is {device.state}" if device else "no device has asked under this id"
        raise ConfigError(f"Device {device_id} does not wait for approval: {now}.")
    within.put(msgspec.structs.replace(device, state=state))
    within.put(AuditRow(time.time(), state, device.device_id, device.token, ""))
