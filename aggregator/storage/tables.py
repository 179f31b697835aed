"""The tables of the service's databases, as they are after the last migration
(`aggregator.storage.migrations`).

A PostgreSQL database has all of them in use. In SQLite those of enrolment are in use in a file of
their own."""

import sqlalchemy as sql

METADATA = sql.MetaData()
NUMBER = sql.BigInteger().with_variant(
    sql.Integer, "sqlite"
)  # SQLite counts up by itself only in a column of this very type

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
SCHEMA_VERSION = sql.Table(
    "schema_version", METADATA, sql.Column("version", sql.Integer, primary_key=True)
)
"""One row. A Shoal from before the migrations reads it, and refuses a database in which it is not
2."""
DEVICES = sql.Table(
    "devices",
    METADATA,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("entry", sql.LargeBinary, nullable=False),
)
CHARTERS = sql.Table(
    "charters",
    METADATA,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("charter", sql.LargeBinary, nullable=False),
    sql.Column("files", sql.Text, nullable=False),
)
RELEASE_EVENTS = sql.Table(
    "release_events",
    METADATA,
    sql.Column("seq", NUMBER, primary_key=True, autoincrement=True),
    sql.Column("fleet", sql.String(64), nullable=False, index=True),
    sql.Column("event", sql.LargeBinary, nullable=False),
)
RELEASE_SNAPSHOTS = sql.Table(
    "release_snapshots",
    METADATA,
    sql.Column("fleet", sql.String(64), primary_key=True),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
TOKENS = sql.Table(
    "enrolment_tokens",
    METADATA,
    sql.Column("hash", sql.String(64), primary_key=True),
    sql.Column("made_at_s", sql.Float, nullable=False),
    sql.Column("expires_at_s", sql.Float, nullable=False),
    sql.Column("device_id", sql.String(64), nullable=False),
    sql.Column("tags", sql.Text, nullable=False),
    sql.Column("approve", sql.Boolean, nullable=False),
    sql.Column("used_key", sql.String(64), nullable=False),
    sql.Column("used_by", sql.String(64), nullable=False),
)
ENROLLED = sql.Table(
    "enrolment_devices",
    METADATA,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("state", sql.String(16), nullable=False),
    sql.Column("key", sql.String(64), nullable=False),
    sql.Column("previous_key", sql.String(64), nullable=False),
    sql.Column("certificate", sql.Text, nullable=False),
    sql.Column("not_after_s", sql.Float, nullable=False),
    sql.Column("token", sql.String(64), nullable=False),
    sql.Column("tags", sql.Text, nullable=False),
    sql.Column("since_s", sql.Float, nullable=False),
)
BANS = sql.Table(
    "enrolment_bans",
    METADATA,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("lifted", sql.Boolean, nullable=False),
    sql.Column("at_s", sql.Float, nullable=False),
)
AUDIT = sql.Table(
    "enrolment_audit",
    METADATA,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("at_s", sql.Float, nullable=False),
    sql.Column("what", sql.String(32), nullable=False),
    sql.Column("device_id", sql.String(64), nullable=False),
    sql.Column("token", sql.String(64), nullable=False),
    sql.Column("detail", sql.Text, nullable=False),
)
