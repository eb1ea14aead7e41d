"""The event of a compaction: the status stays the same, and `detail` has what happened."""

from dataclasses import replace

from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.stream.envelopes import status_changed_record
from everstep.agent_domain.stream.records import EventRecord


def compacted_record(compaction: Compaction, ordinal: int) -> EventRecord:
    """The event of a compaction; `ordinal` counts those before the same step."""
    status = status_changed_record(
        WireStatus.PROCESSING,
        WireStatus.PROCESSING,
        change=f"compaction/{compaction.step}/{ordinal}",
        step_count=compaction.step - 1,
    )
    return replace(
        status, payload={**status.payload, "detail": compaction.text, "compaction": compaction.to_wire()}
    )
