"""The styles of pages: a colour for each meaning, which words repeat."""

from typing import Final

GOOD, BAD, WAITS, RUNS, QUIET, NAME = "good", "bad", "waits", "runs", "quiet", "name"
CHANGED = "changed"

COLORS: Final = {
    GOOD: "green",
    BAD: "bold red",
    WAITS: "yellow",
    RUNS: "cyan",
    QUIET: "dim",
    NAME: "bold",
    CHANGED: "magenta",
}

_OF_STATUS: Final = {
    "pending": QUIET,
    "running": RUNS,
    "paused": WAITS,
    "completed": GOOD,
    "failed": BAD,
    "cancelled": WAITS,
    "active": GOOD,
    "archived": QUIET,
    "closed": QUIET,
}


def status_style(status: str) -> str:
    """The style of a status of an execution or a session."""
    return _OF_STATUS.get(status, "")
