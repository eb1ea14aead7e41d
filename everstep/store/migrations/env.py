"""Alembic's environment: runs revisions on the connection that `everstep.store.migrate` passes in."""

from alembic import context

from everstep.store.migrate import OPTIONS, HowToMigrate
from everstep.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise HowToMigrate

context.configure(connection=connection, target_metadata=metadata, **OPTIONS)
with context.begin_transaction():
    context.run_migrations()
