"""The tables of the service's database, as they are after the last migration (`aggregator.adapters.migrations`)."""

import sqlalchemy as sql

METADATA = sql.MetaData()
NUMBER = sql.BigInteger().with_variant(sql.Integer, "sqlite")  # SQLite counts up by itself only in a column of this very type

EVENTS = sql.Table(
    "events",
    METADATA,
    sql.Column("seq", NUMBER, primary_key=True, autoincrement=True),
    sql.Column("run", sql.String(64), nullable=False, index=True),
    sql.Column("event", sql.LargeBinary, nullable=False),
)
SNAPSHOTS = sql.Table(
    "snapshots",
    METADATA,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
RUNS = sql.Table(
    "runs",
    METADATA,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("run", sql.String(64), nullable=False, unique=True),
    sql.Column("commits", sql.BigInteger, nullable=False, server_default="0"),
)
ROUNDS = sql.Table(
    "rounds",
    METADATA,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("round", sql.Integer, primary_key=True),
    sql.Column("record", sql.LargeBinary, nullable=False),
)
CHECKS = sql.Table("checks", METADATA, sql.Column("filler", sql.LargeBinary))
LEASES = sql.Table(
    "leases",
    METADATA,
    sql.Column("fleet", sql.String(64), primary_key=True),
    sql.Column("epoch", sql.BigInteger, nullable=False),
    sql.Column("holder", sql.String(64), nullable=False),
    sql.Column("beat", sql.BigInteger, nullable=False),
    sql.Column("secret", sql.String(64), nullable=False),
)
SCHEMA_VERSION = sql.Table("schema_version", METADATA, sql.Column("version", sql.Integer, primary_key=True))
"""One row. A Shoal from before the migrations reads it, and refuses a database in which it is not 2."""
