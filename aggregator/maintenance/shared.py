"""Checks of storage outside of the service's folder: a PostgreSQL database, and blobs in a bucket.

Nothing is written.
"""

from collections.abc import Iterator
from pathlib import Path

from aggregator.maintenance.blobs import needs
from aggregator.maintenance.database import Contents, read_contents
from aggregator.maintenance.finding import Finding
from aggregator.ports import StorageFailed
from aggregator.storage.blob_bucket import blobs_name, open_blobs
from aggregator.storage.engine import database_name, sqlite_url
from aggregator.storage.schema import reading

RESTORE = "restore it with its own tools: a base backup with its log, or a version of the object"


def check_shared(folder: Path, database: str, where: str) -> Iterator[Finding]:
    """Yield findings on a database's fleet, and on every blob that it needs.

    Raises:
        ConfigError: the database or the blobs cannot be opened.
    """
    url = database or sqlite_url(folder / "shoal.db")
    name = database_name(url)
    try:
        with reading(url, StorageFailed) as connection:
            contents = read_contents(connection, url) if connection is not None else Contents()
    except StorageFailed as error:
        yield Finding("wrong", name, f"{error}: {RESTORE}")
        return
    if contents.damage:
        yield Finding("wrong", name, f"damaged: {'; '.join(contents.damage)}: {RESTORE}")
        return
    fleet = contents.fleet
    if fleet is None:
        yield Finding("note", name, "it has no campaign")
        return
    for campaign, record in fleet.campaigns.items():
        text = f"campaign {campaign} can be read: {record.phase}, round {record.round}"
        yield Finding("ok", name, text)
        blobs, place = open_blobs(where, folder, campaign), blobs_name(where, folder, campaign)
        wanted, wrong = needs(fleet, campaign, contents.records[campaign]), 0
        try:
            for digest, uses in sorted(wanted.items()):
                if problem := blobs.problem(digest):
                    wrong += 1
                    text = f"{problem}; it is {', '.join(map(str, uses))}: {RESTORE}"
                    yield Finding("wrong", f"{place}/{digest[:12]}", text)
        except StorageFailed as error:
            yield Finding("wrong", place, f"{error}: not every blob was checked")
            continue
        if not wrong:
            yield Finding("ok", place, f"all {len(wanted)} needed blobs are undamaged")
