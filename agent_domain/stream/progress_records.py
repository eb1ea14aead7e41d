"""The record of an envelope about the progress of a call."""

from dataclasses import replace

from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.stream.envelopes import status_changed_record
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.progress import Progress


def call_progress_record(
    step_number: int, tool_call_id: str, tool: str, progress: Progress, *, key: int | str
) -> EventRecord:
    """How far a call is: the status stays the same, and `detail` says it in words.

    Args:
        step_number: The step of the call.
        tool_call_id: The call.
        tool: The name of its tool.
        progress: How far it is.
        key: Identifies the report among those of the call.
    """
    status = status_changed_record(
        WireStatus.PROCESSING,
        WireStatus.PROCESSING,
        change=f"progress/{step_number}/{tool_call_id}/{key}",
        step_count=step_number - 1,
    )
    about = {
        "detail": progress.detail,
        "fraction": progress.fraction,
        "tool_call_id": tool_call_id,
        "tool_name": tool,
    }
    return replace(status, payload={**status.payload, **about})
