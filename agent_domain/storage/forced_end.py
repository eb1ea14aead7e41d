"""The end of an execution whose own workflow cannot record it."""

from dataclasses import replace

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason, WireStatus, ended
from everstep.agent_domain.storage.executions import Settlement
from everstep.agent_domain.stream import envelopes, session_messages
from everstep.agent_domain.values import frozen_map

CLOSE = "close"
"""The key of the settlement, so that it happens once."""


def closed(
    ref: ExecutionRef, status: ExecutionStatus, *, step_count: int = 0, why: str | None = None
) -> Settlement:
    """The settlement that ends an execution.

    Args:
        ref: The execution.
        status: `CANCELLED` or `FAILED`.
        step_count: The steps so far.
        why: The error message for users and operators.
    """
    failed = status is ExecutionStatus.FAILED
    agent = AgentStatus.FAILED if failed else AgentStatus.COMPLETED
    reason = StopReason.ERROR if failed else StopReason.USER_REQUESTED
    wire = ended(agent, reason).wire
    standing = envelopes.status_changed(
        wire, WireStatus.PROCESSING, change=CLOSE, step_count=step_count, error_message=why
    )
    return Settlement(
        ref,
        CLOSE,
        status,
        stop_reason=reason,
        error_message=why,
        error_told=why,
        output=frozen_map({"response": None, "stop_reason": reason}),
        events=[replace(standing, announces=session_messages.ended(wire, reason, None, why))],
    )
