"""The end of an execution whose own workflow cannot record it."""

from dataclasses import replace

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import (
    AgentStatus,
    ExecutionStatus,
    StopReason,
    WireStatus,
    final_situation,
)
from everstep.agent_domain.storage.executions import Settlement
from everstep.agent_domain.stream import envelopes, session_messages
from everstep.agent_domain.values import frozen_map

CLOSE_KEY = "close"
"""The key of the settlement, so that it happens once."""


def closing_settlement(
    ref: ExecutionRef, status: ExecutionStatus, *, step_count: int = 0, error_message: str | None = None
) -> Settlement:
    """The settlement that ends an execution.

    Args:
        ref: The execution.
        status: `CANCELLED` or `FAILED`.
        step_count: The steps so far.
        error_message: The error message for users and operators.
    """
    failed = status is ExecutionStatus.FAILED
    agent = AgentStatus.FAILED if failed else AgentStatus.COMPLETED
    reason = StopReason.ERROR if failed else StopReason.USER_REQUESTED
    wire = final_situation(agent, reason).wire
    status_event = envelopes.status_changed_record(
        wire, WireStatus.PROCESSING, change=CLOSE_KEY, step_count=step_count, error_message=error_message
    )
    return Settlement(
        ref,
        CLOSE_KEY,
        status,
        stop_reason=reason,
        error_message=error_message,
        error_told=error_message,
        output=frozen_map({"response": None, "stop_reason": reason}),
        events=[
            replace(
                status_event, announces=session_messages.ended_announcement(wire, reason, None, error_message)
            )
        ],
    )
