"""Tokens, bans and sent alerts since a backup, which a restore must not set back."""

import time
from contextlib import closing
from pathlib import Path

from aggregator.enrolment.authority import CERTIFICATE
from aggregator.fleet.events import Banned
from aggregator.fleet.records import Device
from aggregator.http.tokens import FILE as TOKENS
from aggregator.leadership.identity import SENT_ALERTS
from aggregator.maintenance.database import carry_out as change
from aggregator.maintenance.database import copy_database, read_whole
from aggregator.operator.audit import AUDIT
from aggregator.ports import StorageFailed
from aggregator.storage.enrolment_store import FILE as ENROLMENTS
from aggregator.storage.enrolment_store import AuditRow, TokenRow, open_enrolments
from host.files import write_atomically
from wire.errors import ConfigError

BROKER = "broker"
"""Name of the folder with Mosquitto's files of `shoal init --tls`; backups do not have it."""


def carry_over(aside: Path | None, folder: Path) -> list[str]:
    """Bring credentials in a restored folder up to date, and return notes for the operator.

    `aside`: the folder that is replaced, or None if there is none.

    Raises:
        OSError: a file cannot be read or written.
    """
    if aside is not None and (aside / SENT_ALERTS).exists():
        write_atomically(folder / SENT_ALERTS, (aside / SENT_ALERTS).read_bytes(), 0o600)
    authorities = [
        path.read_bytes() if (path := place / CERTIFICATE).exists() else b""
        for place in (aside or folder, folder)
    ]
    if aside is None or authorities[0] != authorities[1]:
        return _take_tokens_back(folder)
    notes = []
    for name, mode in ((TOKENS, 0o600), (AUDIT, 0o644)):
        if (aside / name).exists():
            write_atomically(folder / name, (aside / name).read_bytes(), mode)
    try:
        if (aside / ENROLMENTS).exists():
            (folder / ENROLMENTS).unlink(missing_ok=True)
            copy_database(aside / ENROLMENTS, folder / ENROLMENTS)
            notes.append(
                "tokens and enrolled devices are those from before the restore, not the copy's"
            )
    except (ConfigError, StorageFailed) as error:
        notes += [
            f"enrolments since the copy cannot be read: {error}",
            *_take_tokens_back(folder),
        ]
    try:
        earlier, now = read_whole(aside).fleet, read_whole(folder).fleet
        before, here = (f.devices if f is not None else {} for f in (earlier, now))
        missing = {
            d: device.ban
            for d, device in before.items()
            if device.ban is not None and here.get(d, Device()).ban is None
        }
        lifted = [d for d, device in here.items() if device.ban and d in before]
        lifted = [d for d in lifted if before[d].ban is None]
        bans = {**missing, **dict.fromkeys(lifted)}
        at_s = now.at_s if now is not None else 0.0
        if bans:
            change(folder, *(Banned(at_s=at_s, device_id=d, ban=ban) for d, ban in bans.items()))
    except (ConfigError, StorageFailed) as error:
        return [*notes, f"bans since the copy cannot be read: {error}; ban again what was banned"]
    named = {"banned since the copy, and still": missing, "bans lifted since the copy": lifted}
    notes += [f"{what}: {', '.join(sorted(devices))}" for what, devices in named.items() if devices]
    return notes


def _take_tokens_back(folder: Path) -> list[str]:
    """Revoke unused enrolment tokens, and return notes for the operator.

    A token that was unused at the time of the backup may have been used or revoked since.
    """
    if not (folder / ENROLMENTS).exists():
        return []
    with closing(open_enrolments(folder)) as store, store.transaction() as within:
        count = within.drop(TokenRow, used_key="")
        within.put(
            AuditRow(time.time(), "restored from a copy", "", "", f"{count} tokens taken back")
        )
    return [
        f"{count} unused enrolment tokens are revoked: make new ones",
        "changes since the copy are not known: ban again the devices that were banned, and revoke "
        "again the tokens that were revoked",
    ]
