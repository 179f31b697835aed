"""Alembic's entry: it runs the migrations on the connection that `aggregator.storage.schema` hands
over, in that one's transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
