"""A fleet on one machine: each host is a network namespace, and what goes wrong happens between hosts.

| module | concern |
|---|---|
| `network.py` | hosts with an address each, and partitions between them |
| `hosts.py` | the servers and processes of the fleet, on their hosts |
| `faults.py` | partitions, kills and freezes, at drawn moments |
| `__main__.py` | `make fleet`: the storm of `tests/acceptance/storm`, in the fleet |
"""
