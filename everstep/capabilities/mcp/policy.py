"""The settings for using a server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class McpPolicy:
    """The options of `UseMCP`, as plain values."""

    prefix: str
    tools: tuple[str, ...] | None = None
    timeout_seconds: float = 60.0
    connect_seconds: float = 30.0
    idle_seconds: float = 300.0
    most_characters: int = 50_000
