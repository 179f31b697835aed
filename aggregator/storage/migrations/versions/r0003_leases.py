"""Leases of fleets, and the number of each run's commits. An older Shoal sees by `schema_version`
that it must not write here."""

import sqlalchemy as sql
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Change a database of version 2."""
    op.create_table(
        "leases",
        sql.Column("fleet", sql.String(64), primary_key=True),
        sql.Column("epoch", sql.BigInteger, nullable=False),
        sql.Column("holder", sql.String(64), nullable=False),
        sql.Column("beat", sql.BigInteger, nullable=False),
        sql.Column("secret", sql.String(64), nullable=False),
    )
    op.add_column("runs", sql.Column("commits", sql.BigInteger, nullable=False, server_default="0"))
    op.execute("UPDATE schema_version SET version = 3")
    if (
        op.get_context().dialect.name == "postgresql"
    ):  # an SQLite column of any integer takes 64 bits
        op.alter_column("events", "seq", type_=sql.BigInteger)
        op.execute("ALTER SEQUENCE events_seq_seq AS bigint")
