"""Autovacuum visits the table of envelopes after 1 % of its rows were removed, not after 20 %.

A prune removes millions of rows in small transactions. Otherwise their space could not be used again before
a fifth of the table is dead. The change waits for no reader and no writer.
"""

from alembic import op

revision = "0030_vacuum"
down_revision = "0029_rates"


def upgrade() -> None:
    """Apply the revision."""
    op.execute("ALTER TABLE agent_envelopes SET (autovacuum_vacuum_scale_factor = 0.01)")
