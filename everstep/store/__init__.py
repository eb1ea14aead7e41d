"""Remembers: sessions, executions, transcripts, requests, snapshots and envelopes, in PostgreSQL.

The package implements the repositories that ``agent_domain`` describes, and it alone writes SQL.

May import ``agent_domain`` and the database driver. Only ``everstep.runtime`` imports this package.
"""
