"""Backup of a service's folder while the service runs, and restore."""

import errno
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aggregator.enrolment import authority
from aggregator.fleet.records import Fleet
from aggregator.http.tokens import FILE as TOKENS
from aggregator.leadership.identity import CUT_OFF, SENT_ALERTS, is_served
from aggregator.maintenance.blobs import needs
from aggregator.maintenance.carried import BROKER, carry_over
from aggregator.maintenance.database import copy_database, read_database
from aggregator.maintenance.examine import examine
from aggregator.maintenance.releases import release_needs
from aggregator.operator.audit import AUDIT
from aggregator.storage.charter import CAMPAIGNS, RELEASES
from aggregator.storage.enrolment_store import FILE as ENROLMENTS
from host.files import file_error, make_folder, sync_folder, write_atomically
from wire.codec import digest as digest_of
from wire.errors import ConfigError

KEYS = {
    **{
        "secret.key": 0o600,
        "service.key": 0o600,
        "service.pub": 0o644,
        "service.voucher": 0o644,
        "trust.pem": 0o644,
        AUDIT: 0o644,
        TOKENS: 0o600,
        SENT_ALERTS: 0o600,
    },
    **authority.FILES,
}
"""Files that a service needs besides the database and the blobs, with their permissions."""
VOUCHER = "service.voucher"
"""Name of the voucher; a restore accepts an expired one, since `serve` says how to renew it."""
USUAL = {"lost+found", "lock"}
"""Names of entries that a folder may have which counts as empty."""
TRIES = 20
"""Maximum number of copies of the database, if the service deletes needed blobs meanwhile."""


@dataclass(frozen=True)
class Copied:
    """Contents of a backup."""

    runs: tuple[str, ...]
    blobs: int
    bytes: int


def back_up(folder: Path, to: Path) -> Copied:
    """Copy a service's folder to a new one, from which a service can go on.

    The copy has the database as of one moment, every blob that it needs, with its hash checked, and
    the keys. The service may run. The copy gets its name only when all of it is on the disk.

    Raises:
        ConfigError: `folder` is not a service's, `to` exists, a blob is damaged or missing, or a
        file cannot be read or written.
        StorageFailed: the database cannot be read.
    """
    if not folder.is_dir():
        raise ConfigError(f"No folder {folder}. `shoal serve --folder {folder}` makes it.")
    if not (folder / "shoal.db").exists():
        raise ConfigError(
            f"No shoal.db in folder {folder}. Copy a PostgreSQL database with pg_dump, then a "
            "bucket, then the .key files."
        )
    if to.exists():
        raise ConfigError(f"{to} exists already, and is not changed. Name another folder.")
    with _begun(to) as draft:
        for name, mode in KEYS.items():
            if (folder / name).exists():
                write_atomically(draft / name, (folder / name).read_bytes(), mode)
        _copy_files(
            folder, draft, (path for path in (folder / CAMPAIGNS).glob("[!.]*/*") if path.is_file())
        )
        if (folder / ENROLMENTS).exists():
            copy_database(folder / ENROLMENTS, draft / ENROLMENTS)
        return _copy_runs(folder, draft)


def restore(copy: Path, folder: Path) -> tuple[Path | None, list[str]]:
    """Put a backup in place of a service's folder; return the old folder's new name, and notes.

    The name is None if there was no folder, or an empty one, such as a mount point, which is
    filled. The notes are for the operator. Credentials, bans, sent alerts and broker's files of the
    old folder are carried over (`aggregator.maintenance.carried`).

    Raises:
        ConfigError: the backup is damaged, a service runs in the folder, or a file cannot be read
        or written.
    """
    if not (copy / "shoal.db").exists():
        raise ConfigError(f"{copy} is not a copy that `shoal backup` made: it has no shoal.db.")
    wrong = [
        str(finding)
        for finding in examine(copy)
        if finding.verdict == "wrong" and finding.where != VOUCHER
    ]
    if wrong:
        raise ConfigError(f"copy {copy}: damaged, so nothing is changed: {wrong[0]}")
    if is_served(folder):
        raise ConfigError(f"folder {folder}: a service runs there; stop it")
    if not folder.exists() and (folders := sorted(folder.parent.glob(f"{folder.name}.before-*"))):
        raise ConfigError(
            f"No folder {folder}, but {folders[-1]}: a restore may have been cut off. That folder "
            "has the credentials that were made after the copy. Rename it to "
            f"{folder.name}, or move it away."
        )
    aside, replaced = None, folder if folder.exists() and not _is_empty(folder) else None
    within = None if replaced or not folder.exists() else {path.name for path in copy.iterdir()}
    with _begun(folder) if within is None else _begun_inside(folder, within) as draft:
        _copy_files(copy, draft, (path for path in copy.rglob("*") if path.is_file()))
        notes = carry_over(replaced, draft)
        if replaced:
            aside = folder.with_name(f"{folder.name}.before-{time.strftime('%Y%m%dT%H%M%S')}")
            try:
                folder.rename(aside)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                raise ConfigError(
                    f"folder {folder}: a mount point, which cannot be moved aside. Move its "
                    "content away, and restore into the empty folder."
                ) from None
    if aside is not None:
        try:
            status = aside.stat()
            shutil.chown(folder, status.st_uid, status.st_gid)
            folder.chmod(status.st_mode & 0o777)
            if (aside / BROKER).is_dir():  # Mosquitto's configuration names paths there
                (aside / BROKER).rename(folder / BROKER)
        except OSError as error:
            notes.append(
                f"{error.filename or folder}: {error.strerror}: the owner and the broker's files "
                f"are still those of {aside}"
            )
    return aside, notes


@contextmanager
def _begun(folder: Path) -> Iterator[Path]:
    """Yield a new folder that gets the name of `folder` at the end of the context.

    Only its owner can read it. It is deleted if the context fails.

    Raises:
        ConfigError: a file cannot be read or written.
    """
    draft = folder.with_name(f"{folder.name}.incomplete")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft)
        draft.chmod(0o700)
        yield draft
        draft.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise ConfigError(file_error(error.filename or draft, error)) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    """Return True if a folder has nothing but what a cut-off restore or a file system put there."""
    names = {path.name for path in folder.iterdir()}
    return CUT_OFF in names or not names - USUAL


@contextmanager
def _begun_inside(folder: Path, names: set[str]) -> Iterator[Path]:
    """Yield a new folder whose content goes into `folder`, which is empty, at the end.

    `names`: names of the content. `folder` stays empty if the context fails. If the process is
    killed meanwhile, no service takes the folder until another restore has deleted what is there of
    these names, and has begun anew.

    Raises:
        ConfigError: a file cannot be read or written.
    """
    draft, is_whole = folder / CUT_OFF, False
    try:
        _clear(folder, {*names, CUT_OFF} if draft.exists() else set())
        make_folder(draft)
        draft.chmod(0o700)
        yield draft
        for path in list(draft.iterdir()):
            path.rename(folder / path.name)
        sync_folder(folder)
        is_whole = True
    except OSError as error:
        raise ConfigError(file_error(error.filename or draft, error)) from None
    finally:
        _clear(folder, set() if is_whole else names)
        shutil.rmtree(draft, ignore_errors=True)


def _clear(folder: Path, names: set[str]) -> None:
    """Delete the files and folders of these names in a folder."""
    for name in names:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)


def _copy_runs(folder: Path, to: Path) -> Copied:
    """Copy the database, then the blobs that it names.

    A running service may delete blobs meanwhile. The copy of the database is then repeated; copied
    blobs stay.
    """
    make_folder(to / "blobs")
    for _ in range(TRIES):
        copy_database(folder / "shoal.db", to / "shoal.db")
        contents = read_database(to / "shoal.db")
        if contents.damage:
            raise ConfigError(
                f"database {folder / 'shoal.db'}: damaged, {contents.damage[0]}; `shoal doctor "
                f"{folder}` says more"
            )
        fleet = contents.fleet or Fleet()
        wanted = [
            Path("blobs") / campaign / name
            for campaign in fleet.campaigns
            for name in sorted(needs(fleet, campaign, contents.records[campaign]))
        ]
        wanted += [Path(RELEASES) / name for name in sorted(release_needs(contents))]
        try:
            for path in wanted:
                if (to / path).exists():
                    continue
                payload = (folder / path).read_bytes()
                if digest_of(payload) != path.name:
                    raise ConfigError(
                        f"blob {folder / path}: damaged: its bytes do not match its hash; `shoal "
                        "doctor` says more"
                    )
                (to / path).parent.mkdir(parents=True, exist_ok=True)
                (to / path).write_bytes(payload)
        except FileNotFoundError as error:  # the service has deleted it since
            missing = Path(error.filename).name[:12]
            continue
        parts = [part for part in ("blobs", RELEASES) if (to / part).exists()]
        size = sum(
            _settle(to / part, {to / path for path in wanted if path.parts[0] == part})
            for part in parts
        )
        return Copied(tuple(fleet.campaigns), len(wanted), size)
    raise ConfigError(
        f"folder {folder}: blob {missing} is missing, {TRIES} times in a row; `shoal doctor "
        f"{folder}` says more"
    )


def _settle(folder: Path, wanted: set[Path]) -> int:
    """Put these files on the disk, delete all others, and return the number of their bytes."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path not in wanted:
            path.unlink()
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_folder(path)
    return sum(path.stat().st_size for path in wanted)


def _copy_files(copy: Path, to: Path, paths: Iterable[Path]) -> None:
    """Copy files with their permissions; each is on the disk when this returns."""
    for path in paths:
        target = to / path.relative_to(copy)
        make_folder(target.parent)
        write_atomically(target, path.read_bytes(), path.stat().st_mode & 0o777)
