"""Databases of earlier schemas are taken up without loss; a migration that fails leaves the
database as it was."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from aggregator.storage import schema
from aggregator.storage.engine import make_engine, sqlite_url
from aggregator.storage.enrolment_store import open_enrolments, upgrade_enrolments
from aggregator.storage.salvage import read_database
from aggregator.storage.sql_store import SqlStore
from aggregator.storage.tables import METADATA
from tests.aggregator.databases.write import FOLDER
from tests.contracts.store import record
from tests.support.known import known
from wire.errors import ConfigError

KEPT = sorted(FOLDER.glob("*.sql"))
FAILS = """
from alembic import op
revision, down_revision = "9999", "{newest}"
def upgrade():
    op.execute("CREATE TABLE half (x INTEGER)")
    op.execute("DELETE FROM runs")
    op.execute("this is no statement")
"""


def put(path: Path, text: Path = KEPT[0]) -> str:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(text.read_text())
    return sqlite_url(path)


@pytest.mark.parametrize("text", KEPT, ids=lambda path: path.stem)
def test_an_earlier_database_is_taken_up_without_loss(text: Path, tmp_path: Path) -> None:
    """What is stored is all there. A field of the state that came later has its default."""
    url = put(tmp_path / "shoal.db", text)
    before_it = read_database(tmp_path / "shoal.db")
    assert before_it.damage == []
    with pytest.raises(
        ConfigError,
        match="stop the service that uses it, then `shoal database upgrade`, or `shoal serve`",
    ):
        SqlStore(url, "run-1")
    before, after = schema.upgrade(url)
    assert (before != after, after) == (True, schema.newest())
    assert schema.upgrade(url) == (after, after)
    for name in ("run-1", "another"):
        store, expected = SqlStore(url, name), before_it.runs[name]
        state = known(store.load())
        assert state == expected.state
        assert (sorted(state.devices), state.epoch, state.settings.run_id) == (
            ["c", "d"],
            7,
            "run-1",
        )
        assert store.rounds() == expected.records == [record(1), record(2, accuracy=0)]
        assert store.runs() == ["run-1", "another"]


def test_one_line_of_migrations_makes_the_tables_that_the_store_uses(tmp_path: Path) -> None:
    for name in ("new", "taken up"):
        url = put(tmp_path / name) if name == "taken up" else sqlite_url(tmp_path / name)
        schema.upgrade(url)
        with make_engine(url).connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_tables_that_were_made_without_a_revision_are_taken_up_with_their_rows(
    tmp_path: Path,
) -> None:
    """As the registry's, those of releases and of enrolment once were."""
    url = sqlite_url(tmp_path / "enrolment.db")
    with closing(made := open_enrolments(tmp_path)), made.transaction() as rows:
        rows.put_ban("d0", False, 1.0)
    with closing(sqlite3.connect(tmp_path / "enrolment.db")) as connection:
        others = (
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'enrolment%' "
            "AND name NOT LIKE 'sqlite%'"
        )
        connection.executescript(
            "; ".join(f"DROP TABLE {name}" for (name,) in connection.execute(others).fetchall())
        )
    upgrade_enrolments(tmp_path)
    assert schema.current(url) == schema.newest()
    with closing(opened := open_enrolments(tmp_path)), opened.transaction() as rows:
        assert rows.is_banned("d0")


def test_a_folder_without_enrolment_has_none_after_a_migration(tmp_path: Path) -> None:
    upgrade_enrolments(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_last_shoal_before_the_migrations_refuses_a_migrated_database(tmp_path: Path) -> None:
    schema.upgrade(put(tmp_path / "shoal.db"))
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(4,)]


@pytest.mark.parametrize(
    ("change", "said"),
    [("DROP TABLE leases; UPDATE alembic_version SET version_num = '8000'", "8000"), ("", "1")],
    ids=["newer", "ancient"],
)
def test_a_schema_that_cannot_be_read_is_refused_and_left_alone(
    change: str, said: str, tmp_path: Path
) -> None:
    url = put(tmp_path / "shoal.db")
    if change:
        schema.upgrade(url)
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        connection.executescript(change or "UPDATE schema_version SET version = 1")
        before = list(connection.iterdump())
    for use in (schema.upgrade, schema.current, lambda url: SqlStore(url, "run-1")):
        with pytest.raises(
            ConfigError,
            match=f"its schema is version {said}, this Shoal reads up to {schema.newest()}: use "
            "the Shoal that",
        ):
            use(url)
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        assert list(connection.iterdump()) == before


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = put(tmp_path / "shoal.db")
    newest = schema.newest()
    shutil.copytree(schema.MIGRATIONS, tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "r9999_fails.py").write_text(
        FAILS.format(newest=newest)
    )
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        before = list(connection.iterdump())
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", tmp_path / "migrations")
        with pytest.raises(ConfigError, match=r"shoal\.db: .*syntax error; nothing was changed"):
            schema.upgrade(url)
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as connection:
        assert list(connection.iterdump()) == before
    assert schema.upgrade(url) == ("0002", newest)


def test_the_doctor_reads_earlier_databases(tmp_path: Path) -> None:
    put(tmp_path / "shoal.db")
    contents = read_database(tmp_path / "shoal.db")
    assert (contents.revision, contents.damage, sorted(contents.runs)) == (
        "2",
        [],
        ["another", "run-1"],
    )


def test_sqlite_counts_events_by_itself(tmp_path: Path) -> None:
    schema.upgrade(sqlite_url(tmp_path / "shoal.db"))
    with make_engine(sqlite_url(tmp_path / "shoal.db")).begin() as connection:
        connection.execute(sql.text("INSERT INTO events (run, event) VALUES ('r', x'00')"))
        assert connection.scalar(sql.text("SELECT seq FROM events")) == 1
