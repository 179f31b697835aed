"""The schema of version 2: a number in `schema_version` said so, before there were revisions."""

import sqlalchemy as sql
from alembic import op

revision = "0002"
down_revision = None

_metadata = sql.MetaData()
_version = sql.Table(
    "schema_version", _metadata, sql.Column("version", sql.Integer, primary_key=True)
)
sql.Table(
    "events",
    _metadata,
    sql.Column("seq", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("run", sql.String(64), nullable=False, index=True),
    sql.Column("event", sql.LargeBinary, nullable=False),
)
sql.Table(
    "snapshots",
    _metadata,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
sql.Table(
    "runs",
    _metadata,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("run", sql.String(64), nullable=False, unique=True),
)
sql.Table("checks", _metadata, sql.Column("filler", sql.LargeBinary))
sql.Table(
    "rounds",
    _metadata,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("round", sql.Integer, primary_key=True),
    sql.Column("record", sql.LargeBinary, nullable=False),
)


def create(connection: sql.Connection) -> None:
    """Make what is not there of a database of version 2. Every database begins as one: its first
    tables then lie at the same pages, by which a damaged one is read
    (`aggregator.storage.salvage`)."""
    _metadata.create_all(connection)
    if connection.scalar(sql.select(_version.c.version)) is None:
        connection.execute(_version.insert().values(version=2))


def upgrade() -> None:
    """Alembic calls this on a database that `create` has made."""
    create(op.get_bind())
