"""The schema of the service's databases: made once, and refused where it is another."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sql

from aggregator.maintenance.database import check_database, read_database
from aggregator.storage.engine import make_engine, sqlite_url
from aggregator.storage.enrolment_store import EnrolmentStore
from aggregator.storage.registry_table import RegistryTable, read_registry
from aggregator.storage.schema import opened
from aggregator.storage.sql_store import FLEET, SqlStore, load_run, run_names
from wire.errors import ConfigError


@pytest.mark.parametrize(
    "use",
    [
        lambda url: SqlStore(url, "run-1"),
        lambda url: load_run(url, "run-1"),
        run_names,
        RegistryTable,
        read_registry,
        EnrolmentStore,
        lambda url: SqlStore(url, "f", log=FLEET),
        lambda url: read_database(Path(url.removeprefix("sqlite:///"))),
    ],
)
def test_a_database_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, use: Callable[[str], object]
) -> None:
    url = sqlite_url(tmp_path / "shoal.db")
    opened(url).dispose()
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        connection.executescript("DROP TABLE leases; UPDATE schema_version SET version = 4")
        before = list(connection.iterdump())
    with pytest.raises(
        ConfigError,
        match="its schema is version 4, and this Shoal reads version 1: use the Shoal that wrote "
        "it, or begin in another folder",
    ):
        use(url)
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        assert list(connection.iterdump()) == before
    finding, contents = check_database(tmp_path)
    assert (finding.verdict, contents) == ("wrong", None)
    assert "its schema is version 4" in finding.text


def test_sqlite_counts_events_by_itself(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "shoal.db")
    opened(url).dispose()
    with make_engine(url).begin() as connection:
        connection.execute(sql.text("INSERT INTO events (run, event) VALUES ('r', x'00')"))
        assert connection.scalar(sql.text("SELECT seq FROM events")) == 1
