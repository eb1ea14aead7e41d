"""Alembic's environment: runs revisions on the connection that `everstep.store.migrate` passes in."""

from alembic import context

from everstep.store import attachment_tables, cost_tables, feedback_tables
from everstep.store.budget_tables import metadata
from everstep.store.migrate import OPTIONS, HowToMigrate

# Importing a module of tables adds them to the metadata.
for table in (attachment_tables.attachments, feedback_tables.feedback, cost_tables.model_usage):
    assert table.metadata is metadata  # noqa: S101

connection = context.config.attributes.get("connection")
if connection is None:
    raise HowToMigrate

context.configure(connection=connection, target_metadata=metadata, **OPTIONS)
with context.begin_transaction():
    context.run_migrations()
