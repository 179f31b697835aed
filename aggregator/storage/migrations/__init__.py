"""Alembic's migrations of the service's database: `versions/` has one file for each revision,
`env.py` runs them on an open connection.

To change the schema: change `aggregator.storage.tables`, keep a database of the schema before
(`tests.aggregator.databases.write`), and add the next file to `versions/`, whose `down_revision` is
the last one. There is one line of revisions, and no way back: a service of an older Shoal goes on
with the copy that was made before.
"""
