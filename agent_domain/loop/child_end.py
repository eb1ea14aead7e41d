"""How a child execution ended, as its parent reads it."""

from dataclasses import dataclass

from everstep.agent_domain.loop.status import ExecutionStatus, StopReason


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended."""

    status: ExecutionStatus
    response: str | None = None
    error: str | None = None
    stop_reason: StopReason | None = None
