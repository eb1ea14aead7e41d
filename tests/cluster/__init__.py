"""Everstep on a Temporal cluster whose roles are processes of their own, on PostgreSQL.

| module | concern |
|---|---|
| `throughput.py` | executions per second and seconds per execution, on any Temporal |
| `kills.py` | kills every process in turn while people use the installation |
| `features.py` | encrypted payloads, search attributes, fair dispatch |
| `report.py` | the figures, for people |
| `__main__.py` | `make cluster` |
"""
