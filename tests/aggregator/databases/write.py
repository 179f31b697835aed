"""Writes a run into a database of today's schema, and the database into this folder: `python -m
tests.aggregator.databases.write NAME`.

Run it before you add a migration, with the revision of the schema as it is then as the name.
`version-2.sql` was written by the last Shoal whose schema had a number in place of a revision.
"""

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from aggregator.core.ports import Store
from aggregator.core.round.machine import step
from aggregator.core.state import DeviceCheckedIn, Resumed
from aggregator.storage.engine import sqlite_url
from aggregator.storage.sql_store import SqlStore
from tests.contracts.store import STARTED, record
from tests.support.known import known

FOLDER = Path(__file__).parent


def fill(store: Store) -> None:
    """A run with a snapshot, events after it, and records of two rounds."""
    store.commit([STARTED])
    state, _ = step(known(store.load()), DeviceCheckedIn(1.0, "c", 5, 2))
    store.commit([DeviceCheckedIn(1.0, "c", 5, 2)], [record(1)], state)
    store.commit([DeviceCheckedIn(1.5, "d", 6, 3)], [record(2, accuracy=0)])
    store.commit([Resumed(2.0, 7)])


def main() -> None:
    """Write the database."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shoal.db"
        for name in ("run-1", "another"):
            store = SqlStore(sqlite_url(path), name)
            fill(store)
            store.close()
        with closing(sqlite3.connect(path)) as connection:
            (FOLDER / f"{sys.argv[1]}.sql").write_text("\n".join(connection.iterdump()) + "\n")


if __name__ == "__main__":
    main()
