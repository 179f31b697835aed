"""Checks of a service's secret, its key, and the voucher for it."""

from collections.abc import Iterator
from pathlib import Path

from aggregator.leadership.identity import RENEW_S, SECRET_BYTES
from aggregator.maintenance.finding import Finding
from wire.codec import decode
from wire.errors import BundleError, WireError
from wire.identity.keys import PublicKey, key_name, read_private
from wire.identity.signed import Verifier
from wire.messages import Voucher

VOUCH = "`shoal vouch` makes one"


def check_keys(
    folder: Path, trusted: tuple[PublicKey, ...], now_s: float, mend: bool
) -> Iterator[Finding]:
    """Yield findings on secret.key, service.key and service.voucher.

    The voucher's signature is checked only if there are `trusted` keys.
    """
    secret, key = folder / "secret.key", folder / "service.key"
    for path in (secret, key):
        yield from _private(path, mend)
    if (payload := _bytes(secret)) is not None and len(payload) != SECRET_BYTES:
        detail = (
            f"{len(payload)} bytes, expected {SECRET_BYTES}: the service does not start. Restore "
            "it from a backup, or begin another run"
        )
        yield Finding("wrong", "secret.key", detail)
    name = ""
    if (pem := _bytes(key)) is not None:
        try:
            name = key_name(read_private(pem).public_key())
            yield Finding("ok", "service.key", name[:12])
        except BundleError as error:
            detail = (
                f"{error}: the service does not start. Restore it from a backup, or delete it: "
                f"the next start makes another; then {VOUCH}"
            )
            yield Finding("wrong", "service.key", f"{detail} for that")
    yield _voucher(folder / "service.voucher", name, trusted, now_s)


def _private(path: Path, mend: bool) -> Iterator[Finding]:
    """Yield findings if a file is missing, or if others than its owner can read it."""
    try:
        mode = path.stat().st_mode & 0o777
        path.read_bytes()
    except FileNotFoundError:
        meaning = {
            "secret.key": "noise that was drawn from it cannot be subtracted. Restore it from a "
            "backup, or begin another run",
            "service.key": "the next start makes another. Restore it from a backup; or start the "
            f"service, then {VOUCH} for the new one",
        }[path.name]
        yield Finding("wrong", path.name, f"missing: {meaning}")
        return
    except OSError as error:
        yield Finding(
            "wrong",
            path.name,
            f"not readable: {error.strerror}: the service does not start. Give it back to the user "
            "who runs the service",
        )
        return
    if mode & 0o077:
        if mend:
            path.chmod(0o600)
        note = (
            "only its owner can read it now; others may have read it"
            if mend
            else "others can read it. `--mend` takes that away"
        )
        yield Finding("mended" if mend else "wrong", path.name, f"its mode was {mode:03o}: {note}")
    elif path.name == "secret.key":
        yield Finding("ok", path.name, "only its owner can read it")


def _voucher(path: Path, name: str, trusted: tuple[PublicKey, ...], now_s: float) -> Finding:
    text = _bytes(path)
    if text is None:
        return Finding(
            "wrong",
            path.name,
            f"missing: the service does not start without the root key. {VOUCH}",
        )
    try:
        voucher: Voucher = decode(text.partition(b"\n")[0], Voucher)
        if trusted:
            Verifier(voucher.fleet, trusted).voucher(text, now_s)
    except WireError as error:
        problem = str(error).removeprefix("voucher: ")
        detail = f"{problem}: devices do not believe the service. {VOUCH}"
        return Finding("wrong", path.name, detail)
    left_s = voucher.not_after_s - now_s
    if name and voucher.key != name:
        detail = (
            f"it is for the key {voucher.key[:12]}, not for {name[:12]}: devices do not believe "
            f"the service. {VOUCH}"
        )
        return Finding("wrong", path.name, detail)
    if left_s < 0:
        return Finding(
            "wrong",
            path.name,
            f"it ended {-left_s / 86_400:.0f} days ago: devices do not believe the service. "
            f"{VOUCH}",
        )
    detail = f"for the fleet {voucher.fleet}, {left_s / 86_400:.0f} days left" + (
        "" if trusted else "; its signature: checked with --bundle"
    )
    return Finding(
        "note" if left_s < RENEW_S else "ok",
        path.name,
        detail + (f". {VOUCH} for longer" if left_s < RENEW_S else ""),
    )


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
