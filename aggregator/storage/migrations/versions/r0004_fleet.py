"""The registry of devices, charters, releases, and enrolment. Tables that an earlier Shoal has made
without a revision are taken up."""

import sqlalchemy as sql
from alembic import op

revision = "0004"
down_revision = "0003"

_metadata = sql.MetaData()
_number = sql.BigInteger().with_variant(sql.Integer, "sqlite")
sql.Table(
    "devices",
    _metadata,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("entry", sql.LargeBinary, nullable=False),
)
sql.Table(
    "charters",
    _metadata,
    sql.Column("run", sql.String(64), primary_key=True),
    sql.Column("charter", sql.LargeBinary, nullable=False),
    sql.Column("files", sql.Text, nullable=False),
)
sql.Table(
    "release_events",
    _metadata,
    sql.Column("seq", _number, primary_key=True, autoincrement=True),
    sql.Column("fleet", sql.String(64), nullable=False, index=True),
    sql.Column("event", sql.LargeBinary, nullable=False),
)
sql.Table(
    "release_snapshots",
    _metadata,
    sql.Column("fleet", sql.String(64), primary_key=True),
    sql.Column("state", sql.LargeBinary, nullable=False),
)
sql.Table(
    "enrolment_tokens",
    _metadata,
    sql.Column("hash", sql.String(64), primary_key=True),
    sql.Column("made_at_s", sql.Float, nullable=False),
    sql.Column("expires_at_s", sql.Float, nullable=False),
    sql.Column("device_id", sql.String(64), nullable=False),
    sql.Column("tags", sql.Text, nullable=False),
    sql.Column("approve", sql.Boolean, nullable=False),
    sql.Column("used_key", sql.String(64), nullable=False),
    sql.Column("used_by", sql.String(64), nullable=False),
)
sql.Table(
    "enrolment_devices",
    _metadata,
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
sql.Table(
    "enrolment_bans",
    _metadata,
    sql.Column("device_id", sql.String(64), primary_key=True),
    sql.Column("lifted", sql.Boolean, nullable=False),
    sql.Column("at_s", sql.Float, nullable=False),
)
sql.Table(
    "enrolment_audit",
    _metadata,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("at_s", sql.Float, nullable=False),
    sql.Column("what", sql.String(32), nullable=False),
    sql.Column("device_id", sql.String(64), nullable=False),
    sql.Column("token", sql.String(64), nullable=False),
    sql.Column("detail", sql.Text, nullable=False),
)


def upgrade() -> None:
    """Change a database of revision 0003."""
    _metadata.create_all(op.get_bind())
    op.execute("UPDATE schema_version SET version = 4")
