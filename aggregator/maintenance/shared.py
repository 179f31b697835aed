"""Checks a run's storage outside of the service's folder: a PostgreSQL database, and blobs in a
bucket. Nothing is written."""

from collections.abc import Iterator
from pathlib import Path

from aggregator.core.ports import StorageFailed
from aggregator.maintenance.blobs import needs
from aggregator.maintenance.database import read_run
from aggregator.maintenance.finding import Finding
from aggregator.storage.blob_bucket import blobs_name, open_blobs
from aggregator.storage.engine import database_name, sqlite_url
from aggregator.storage.schema import reading
from aggregator.storage.sql_store import run_names

RESTORE = "restore it with its own tools: a base backup with its log, or a version of the object"


def check_shared(folder: Path, database: str, where: str) -> Iterator[Finding]:
    """Read every run of a database as the service does, and every blob that they need.

    Raises:
        ConfigError: the database or the blobs cannot be opened.
    """
    url = database or sqlite_url(folder / "shoal.db")
    name = database_name(url)
    for run in run_names(url):
        try:
            with reading(url, StorageFailed) as connection:
                assert connection is not None
                saved = read_run(connection, run)
        except StorageFailed as error:
            yield Finding("wrong", name, f"{error}: {RESTORE}")
            continue
        told = f"{saved.state.phase}, round {saved.state.round}" if saved.state else "not begun"
        yield Finding("ok", name, f"run {run} can be read: {told}")
        blobs, kept, wanted = (
            open_blobs(where, folder, run),
            blobs_name(where, folder, run),
            needs(saved),
        )
        wrong = 0
        try:
            for digest, uses in sorted(wanted.items()):
                if problem := blobs.problem(digest):
                    wrong += 1
                    text = f"{problem}; it is {', '.join(map(str, uses))}: {RESTORE}"
                    yield Finding("wrong", f"{kept}/{digest[:12]}", text)
        except StorageFailed as error:
            yield Finding("wrong", kept, f"{error}: not every blob was checked")
            continue
        if not wrong:
            yield Finding("ok", kept, f"{len(wanted)} blobs, each is there and has its hash")
