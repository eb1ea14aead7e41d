"""Random programs under random faults, and an account of every acknowledged operation.

| module | concern |
|---|---|
| `programs.py` | the agent: it plays the program that its message holds, and journals what it does |
| `operations.py` | clients that retry by key, and a record of every definite answer |
| `people.py` | what clients do: sessions, answers, approvals, steering, pauses, cancels, forks |
| `relays.py` | links to PostgreSQL and Temporal that can be cut or fall silent |
| `weather.py` | kills, freezes, restarts and links, at drawn moments |
| `scene.py` | an installation under test, the people who use it, and its viewers |
| `local.py` | the installation on this machine, with links that fail |
| `accounts.py` | what must be true of each operation in the end |
"""
