"""What no agent may touch, wherever its tools work: one set of rules for commands and for file tools.

| file | concern |
|---|---|
| `rules.py` | which names and paths are hidden or read-only |
| `tree.py` | where these are below the directories that an agent can write to |
| `repositories.py` | what of a git directory runs code |
| `placeholders.py` | names that are to stay free while a command runs |

A process that runs agents says once with `protect` where its installation keeps its data and its agents. What
holds without being said: the data folders of all installations of this user, and the environment that Python
runs from.
"""

from everstep.capabilities.protection.rules import Protection, current, protect

__all__ = ["Protection", "current", "protect"]
