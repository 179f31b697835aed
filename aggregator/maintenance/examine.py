"""All checks of a service's folder, one after the other."""

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from aggregator.enrolment import authority
from aggregator.http.local import FILE as LOCAL
from aggregator.http.tokens import FILE as TOKENS
from aggregator.leadership.identity import CUT_OFF, SENT_ALERTS
from aggregator.maintenance.blobs import HALF_WRITTEN, BlobCheck, leftover
from aggregator.maintenance.carried import BROKER
from aggregator.maintenance.database import Contents, check_database, read_database
from aggregator.maintenance.finding import Finding
from aggregator.maintenance.keys import check_keys
from aggregator.maintenance.releases import check_releases, release_needs
from aggregator.maintenance.shared import check_shared
from aggregator.operator.audit import AUDIT
from aggregator.storage.charter import BUNDLES, CAMPAIGNS, RELEASES
from aggregator.storage.enrolment_store import FILE as ENROLMENTS
from host.files import file_error
from wire.errors import BundleError, ConfigError
from wire.identity.keys import PublicKey, read_public

_OWN = re.compile(
    rf"shoal\.db(-wal|-shm)?|blobs|{RELEASES}|lock|boots|{CAMPAIGNS}|{AUDIT}"
    rf"|{re.escape(TOKENS)}|{re.escape(LOCAL)}"
    r"|trust\.pem|secret\.key|service\.(key|pub|voucher)"
    rf"|{'|'.join(map(re.escape, authority.FILES))}|{re.escape(ENROLMENTS)}(-wal|-shm)?"
    rf"|{BROKER}|pieces|{BUNDLES}|{re.escape(SENT_ALERTS)}"
)


def examine(
    folder: Path,
    bundle: Path | None = None,
    mend: bool = False,
    database: str = "",
    blobs: str = "",
) -> Iterator[Finding]:
    """Yield findings on a service's folder, or on a database and blobs elsewhere if they are named.

    `bundle`: path of the folder that `shoal export` wrote. With `mend`, the caller must hold the
    folder's lock; without, a service may be running. Storage elsewhere is never mended.

    Raises:
        ConfigError: there is no such folder, or the bundle's folder cannot be read.
    """
    if not folder.is_dir():
        raise ConfigError(f"No folder {folder}. `shoal serve --folder {folder}` makes it.")
    trusted, payload = tuple[PublicKey, ...](), b""
    if bundle is not None:
        try:
            trusted = read_public((bundle / "trust.pem").read_bytes())
            payload = (bundle / "device.shoal").read_bytes()
        except OSError as error:
            raise ConfigError(file_error(f"--bundle {error.filename}", error)) from None
        except BundleError as error:
            raise ConfigError(f"--bundle {bundle}: trust.pem: {error}") from None
    if not (database or blobs) and not any(
        (folder / name).exists() for name in ("secret.key", "service.key", "shoal.db", "blobs")
    ):
        yield Finding("note", str(folder), "no service was ever started here")
        return
    yield from check_keys(folder, trusted, time.time(), mend)
    yield from _boots(folder / "boots", mend)
    if database or blobs:
        yield from check_shared(folder, database, blobs)
        return
    finding, contents = check_database(folder)
    yield finding
    if contents is not None:
        again = partial(read_database, folder / "shoal.db")
        fleet = contents.fleet
        for name in fleet.campaigns if fleet is not None else ():
            yield from BlobCheck(folder, name, contents, payload, mend, again).findings()
        if release_needs(contents) or (folder / RELEASES).is_dir():
            yield from check_releases(folder, contents, mend, again)
    yield from _leftovers(folder, contents, mend)


def _boots(path: Path, mend: bool) -> Iterator[Finding]:
    """Yield a finding if the file of earlier boot ids is not text."""
    try:
        if path.exists():
            path.read_text()
    except UnicodeDecodeError:
        if mend:
            path.unlink()
        note = "the service does not start. " + ("It is deleted" if mend else "`--mend` deletes it")
        yield Finding(
            "mended" if mend else "wrong",
            path.name,
            f"not text: {note}; the next start may wait for its own last status",
        )
    except OSError as error:
        yield Finding("wrong", path.name, f"{error.strerror}: the service does not start")


def _leftovers(folder: Path, contents: Contents | None, mend: bool) -> Iterator[Finding]:
    """Yield findings on files in the folder that are not needed."""
    for path in sorted(folder.iterdir()):
        if _OWN.fullmatch(path.name):
            continue
        if path.name == CUT_OFF:
            text = "a restore was cut off, and no service starts here; run `shoal restore` again"
            yield Finding("wrong", path.name, text)
            continue
        if HALF_WRITTEN.fullmatch(path.name) and path.is_file():
            yield leftover(path, path.name, mend)
        else:
            yield Finding("note", path.name, "no file of Shoal's")
    if contents is None:
        return  # without the database, blobs have no known owner
    campaigns = contents.fleet.campaigns if contents.fleet is not None else {}
    for path in sorted((folder / "blobs").iterdir()) if (folder / "blobs").is_dir() else ():
        if path.name not in campaigns:
            yield Finding(
                "note",
                f"blobs/{path.name}",
                "blobs of a campaign that the database does not have; they may be deleted if "
                "nobody wants the campaign",
            )
