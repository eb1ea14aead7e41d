"""The rates that all processes share."""

from alembic import op

revision = "0029_rates"
down_revision = "0028_webhooks"


def upgrade() -> None:
    """Apply the revision."""
    op.execute(
        """
        CREATE TABLE agent_rates (
            name TEXT NOT NULL,
            level DOUBLE PRECISION NOT NULL,
            granted DOUBLE PRECISION NOT NULL,
            filled_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
            paused_until TIMESTAMP WITH TIME ZONE,
            CONSTRAINT agent_rates_pkey PRIMARY KEY (name)
        )
        """
    )
