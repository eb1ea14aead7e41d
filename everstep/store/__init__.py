"""PostgreSQL storage for sessions, executions, transcripts, requests, snapshots and envelopes.

The package implements the repositories that ``agent_domain`` describes. No other package contains SQL.

May import ``agent_domain`` and the database driver. Only ``everstep.runtime`` imports this package.
"""
