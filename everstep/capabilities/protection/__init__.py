"""Paths that no agent may touch: one set of rules for commands and for file tools.

| file | concern |
|---|---|
| `rules.py` | which names and paths are hidden or read-only |
| `tree.py` | finds such paths below the directories that an agent can write to |
| `repositories.py` | the parts of a git directory that run code |
| `placeholders.py` | keeps names free while a command runs |

A process that runs agents calls `protect` once, with the paths of its installation's data and agents. Always
protected are the data folders of all installations of this user, and the environment that Python runs from.
"""

from everstep.capabilities.protection.rules import Protection, current, protect

__all__ = ["Protection", "current", "protect"]
