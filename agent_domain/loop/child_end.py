"""The end of a child execution, as its parent reads it."""

from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.loop.status import ExecutionStatus, StopReason


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """The final status of a child execution, with its response or error."""

    status: ExecutionStatus
    response: str | None = None
    error: str | None = None
    stop_reason: StopReason | None = None
    output: Any = None
    """The structured result of a child whose agent has one, as JSON."""
