"""Servers for runs that `make test` does not contain: each is a process that may be killed and started again.

| module | concern |
|---|---|
| `programs.py` | processes that end with this one, here or on a host of a network of namespaces |
| `postgres.py` | PostgreSQL of the operating system, on an address of its own |
| `pgbouncer.py` | PgBouncer, configured as the deployment guide says |
| `build.py` | the Temporal server and its SQL tool, built from their Go module |
| `temporal.py` | a Temporal cluster: schema, configuration, and a process for each role |
"""
