"""Identity of a service: its folder's lock, its keys and voucher, its epoch and boot ids.

The rules are in SPEC.md, 'Who speaks for the fleet'. Messages of other aggregators are in
`rivals.py`.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aggregator.leadership.rivals import WrongFleet
from aggregator.ports import Clock
from host.files import file_error, is_locked, lock_folder, write_atomically
from host.logs import at_work
from wire.errors import BundleError, ConfigError, OtherAggregator, ShoalError, WireError
from wire.identity.keys import (
    PrivateKey,
    PublicKey,
    key_name,
    new_key,
    private_pem,
    public_pem,
    read_private,
)
from wire.identity.signed import Signer, Verifier, vouch
from wire.links.port import Delivery, Denied, Link
from wire.messages import LEASE_S, AggregatorStatus
from wire.topics import Topics

log = logging.getLogger("shoal.aggregator")

VOUCHED_S = 365 * 86_400.0
"""Validity of a voucher that a service makes for its own key, with the root key (s)."""
RENEW_S = 30 * 86_400.0
"""Remaining validity (s) below which a voucher is renewed, or a warning logged."""
SECRET_BYTES = 32
EVERY_S = LEASE_S / 3
"""Seconds between two statuses."""


SENT_ALERTS = "alerts-sent.json"
"""Name of the file with the alerts that a webhook was sent."""
CUT_OFF = "restore.incomplete"
"""Name of the folder in which a restore into an existing folder collects the files."""


def lock_service(folder: Path) -> int:
    """Lock a service's folder for this process, and return the lock's file descriptor.

    The process holds the lock until it ends.

    Raises:
        ConfigError: the folder cannot be made, another process has it, or a restore into it was
        cut off.
    """
    if (folder / CUT_OFF).exists():
        raise ConfigError(
            f"folder {folder}: a restore into it was cut off. Run `shoal restore` again."
        )
    try:
        return lock_folder(folder)
    except BlockingIOError:
        raise ConfigError(f"folder {folder}: another `shoal serve` uses it") from None
    except OSError as error:
        raise ConfigError(file_error(f"folder {folder}", error)) from None


def is_served(folder: Path) -> bool:
    """Return True if a process has the folder's lock now.

    Raises:
        ConfigError: the lock cannot be examined.
    """
    try:
        return is_locked(folder)
    except OSError as error:
        raise ConfigError(file_error(f"folder {folder}", error)) from None


def own_secret(path: Path) -> bytes:
    """Return 32 random bytes that only the aggregator knows; they are made at the first call.

    They are in a file that only its user can read, and stay the same after a restart.

    Raises:
        ConfigError: the file cannot be read or written, or has another length. A new secret
        cannot replace it, since noise drawn from the old one could not be subtracted.
    """
    try:
        if not path.exists():
            write_atomically(path, secrets.token_bytes(SECRET_BYTES), mode=0o600)
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigError(file_error(f"secret {path}", error)) from None
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"secret {path}: {len(secret)} bytes, expected {SECRET_BYTES}; restore it from a "
            "backup, or begin another run (--run)"
        )
    return secret


def service_key(folder: Path) -> PrivateKey:
    """Return the service's key of ``service.key``, which is made if absent.

    Its public half is written to ``service.pub``, for `shoal vouch`.

    Raises:
        ConfigError: a file cannot be read or written.
    """
    path, public = folder / "service.key", folder / "service.pub"
    try:
        if not path.exists():
            write_atomically(path, private_pem(new_key()), mode=0o600)
        key = read_private(path.read_bytes())
        if not public.exists() or public.read_bytes() != public_pem(key):
            write_atomically(public, public_pem(key))
    except OSError as error:
        raise ConfigError(file_error(f"service key {path}", error)) from None
    except BundleError as error:
        raise ConfigError(f"service key {path}: {error}") from None
    return key


def service_signer(
    folder: Path, fleet: str, trusted: Sequence[PublicKey], root: PrivateKey | None, now_s: float
) -> Signer:
    """Return the signer with the service's key and its voucher.

    They are in ``service.key`` and ``service.voucher``. The voucher is made or renewed if the root
    key is here (`root`).

    Raises:
        ConfigError: a file cannot be read or written, or there is no valid voucher and no root key
        to make one.
    """
    key, vouched = service_key(folder), folder / "service.voucher"
    try:
        text = vouched.read_bytes() if vouched.exists() else b""
        problem, left_s = _voucher_problem(text, fleet, key, trusted, now_s)
        if (problem or left_s < RENEW_S) and root is not None:
            text = vouch(root, fleet, key.public_key(), now_s + VOUCHED_S)
            write_atomically(vouched, text)
            problem, left_s = _voucher_problem(
                text, fleet, key, trusted, now_s
            )  # devices may not trust this root key
    except OSError as error:
        raise ConfigError(file_error(f"voucher {vouched}", error)) from None
    if problem:
        how = f"`shoal vouch --service {folder} --fleet {fleet} --key SIGNING_KEY` makes one"
        raise ConfigError(f"voucher {vouched}: {problem}; {how}")
    elif left_s < RENEW_S:
        log.warning(
            "Voucher ends soon, and devices then reject what this service signs; `shoal vouch` "
            "makes another: days=%.0f voucher=%s",
            left_s / 86_400,
            vouched,
        )
    return Signer(key, text)


def _voucher_problem(
    text: bytes, fleet: str, key: PrivateKey, trusted: Sequence[PublicKey], now_s: float
) -> tuple[str, float]:
    """Return the fault of a voucher (empty if none), and its remaining validity in seconds."""
    if not text:
        return "missing", 0.0
    try:
        voucher = Verifier(fleet, trusted).voucher(text, now_s)
    except WireError as error:
        return str(error).removeprefix("voucher: "), 0.0
    if voucher.key != key_name(key.public_key()):
        return "it is for another key than service.key", 0.0
    return "", voucher.not_after_s - now_s


def find_epoch(
    connect: Callable[[], Link],
    topics: Topics,
    verifier: Verifier,
    stored: int,
    boot_ids: Sequence[str],
    now_s: float,
    take_over: bool,
) -> int:
    """Return the epoch of this start, greater than every earlier one.

    It is greater than the stored epoch and that of the retained status, and not less than the time
    in seconds. If another aggregator is online, its status is watched for a lease's time.

    `connect` opens a link to read that status. The link confirms nothing, since a broker that binds
    client ids to certificates gives it the aggregator's own session. `boot_ids`: boot ids of
    earlier starts from this folder.

    Raises:
        OtherAggregator: another aggregator is at work, and `take_over` is False.
        WrongFleet: the broker does not let this client read the fleet's topic.
    """
    seen = 0
    link = connect()
    try:
        link.subscribe(topics.aggregator)
        first = _next_status(link, topics, verifier, 2.0)
        if first is not None:
            seen = first.epoch
            if first.online and first.boot_id.partition(".")[0] not in boot_ids and not take_over:
                log.info(
                    "Waiting to see whether the fleet's last aggregator is alive: epoch=%d "
                    "wait_s=%.0f",
                    first.epoch,
                    LEASE_S,
                )
                end_s = time.monotonic() + LEASE_S
                while (left_s := end_s - time.monotonic()) > 0:
                    newer = _next_status(link, topics, verifier, left_s)
                    if newer is not None and newer.online and newer.at_s > first.at_s:
                        raise OtherAggregator(
                            f"fleet {topics.fleet}: another aggregator is at work (epoch "
                            f"{newer.epoch}, run {newer.run_id[:12]}); stop it, "
                            "or start this one with --take-over"
                        )
    finally:
        link.close()
    return max(int(now_s), stored + 1, seen + 1)


def _next_status(
    link: Link, topics: Topics, verifier: Verifier, wait_s: float
) -> AggregatorStatus | None:
    """Return the next valid status on the fleet's topic, or None if none comes in time.

    Raises:
        WrongFleet: the broker does not let this client read the topic.
    """
    end_s = time.monotonic() + wait_s
    while (left_s := end_s - time.monotonic()) > 0:
        event = link.receive(timeout_s=left_s)
        if isinstance(event, Delivery) and event.topic == topics.aggregator:
            try:
                status: AggregatorStatus = verifier.open(
                    event.payload, AggregatorStatus, time.time()
                )
            except WireError as error:
                log.warning("Status of another aggregator rejected: %s", error)
                continue
            return status
        if isinstance(event, Denied) and event.topic == topics.aggregator:
            raise WrongFleet(event.action, topics, event.reason)
    return None


def steady_clock(last_s: float = 0.0) -> Clock:
    """Return a clock of the Unix epoch that never goes back.

    It starts at the later of the system's time and `last_s`, the latest stored time. A monotonic
    clock moves it on.
    """
    offset_s = max(time.time(), last_s) - time.monotonic()
    return lambda: offset_s + time.monotonic()


def boot_ids(path: Path, boot_id: str) -> list[str]:
    """Return the boot ids of the last starts from this folder since the machine's start.

    `boot_id`, that of this start, is added to the file. Boot ids of a folder of which this one is a
    copy are left out: they may belong to a running service.

    Raises:
        ShoalError: the file cannot be read or written.
    """
    try:
        words = path.read_text().split()[-8:] if path.exists() else []
        boot_file, place = Path("/proc/sys/kernel/random/boot_id"), path.parent.stat()
        machine = boot_file.read_text().strip() if boot_file.exists() else ""
        mark = f"{machine}.{place.st_dev}.{place.st_ino}"  # differs in a copy of this folder
        write_atomically(path, "\n".join([*words, f"{boot_id}@{mark}"]).encode())
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", "") or "not text; `shoal doctor --mend` deletes it"
        raise ShoalError(f"{path}: {problem}") from None
    return [name for name, _, origin in (word.partition("@") for word in words) if origin == mark]


@contextmanager
def kept_alive(announce: Callable[[], None]) -> Iterator[None]:
    """Call `announce` in another thread every `EVERY_S` seconds while the context is open.

    A service may aggregate for longer than a lease; no other may take its fleet meanwhile.
    """
    over = threading.Event()

    def say() -> None:
        while not over.wait(EVERY_S):
            announce()
            at_work()

    saying = threading.Thread(target=say, name="lease", daemon=True)
    saying.start()
    try:
        yield
    finally:
        over.set()
        saying.join()
