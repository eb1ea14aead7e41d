"""Which bodies an envelope needs, given what is known of its execution."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep.agent_domain.loop.status import TERMINAL_WIRE_STATUSES, WireStatus
from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.wires.event_bodies import Bodies, Need, NeedsExecution, NeedsOutcome, NeedsStep
from everstep.wires.lanes import Lane

AFTER_REPLY = (
    EnvelopeType.AGENT_TOOL_STARTED,
    EnvelopeType.AGENT_TOOL_COMPLETED,
    EnvelopeType.AGENT_APPROVAL_REQUESTED,
    EnvelopeType.AGENT_INPUT_REQUESTED,
)
"""Envelopes about a call: the reply that requested it is recorded."""


def is_budget_request(envelope: Mapping[str, Any]) -> bool:
    """Whether an envelope announces that an execution waits for a person to raise a budget."""
    if envelope["type"] != "execution.paused":
        return False
    metadata: Mapping[str, Any] = envelope["payload"].get("metadata") or {}
    return metadata.get("kind") == "budget" and "request_id" in metadata


def find_needs(
    envelope: Mapping[str, Any], root: Lane, lanes: Mapping[str, Lane], bodies: Bodies
) -> Sequence[Need]:
    """What has to be loaded for a stored envelope, beyond these bodies."""
    needed = [
        *_needs_of_lane(envelope["execution_id"], lanes, bodies),
        *_needs_of_event(envelope, root, lanes),
    ]
    return [need for need in needed if not _has_body(need, bodies)]


def _needs_of_lane(execution_id: str, lanes: Mapping[str, Lane], bodies: Bodies) -> Iterable[Need]:
    lane = lanes.get(execution_id)
    if lane is not None and lane.name:
        return
    yield NeedsExecution(execution_id)
    body = bodies.executions.get(execution_id)
    parent = lanes.get(body.parent_id or "") if body else None
    if parent is not None and parent.replied < parent.step:
        yield NeedsStep(parent.execution_id, parent.step)


def _needs_of_event(envelope: Mapping[str, Any], root: Lane, lanes: Mapping[str, Lane]) -> Iterable[Need]:
    kind, payload, lane = envelope["type"], envelope["payload"], lanes.get(envelope["execution_id"])
    if lane is None:
        return
    match kind:
        case EnvelopeType.AGENT_TOOL_COMPLETED:
            yield NeedsStep(lane.execution_id, lane.step, payload["tool_call_id"])
        case _ if kind in AFTER_REPLY and lane.replied < lane.step:
            yield NeedsStep(lane.execution_id, lane.step)
        case EnvelopeType.AGENT_STEP_COMPLETED:
            yield NeedsStep(lane.execution_id, payload["step_number"], is_complete=True)
        case EnvelopeType.AGENT_STATUS if lane is root and "detail" not in payload:
            if payload["status"] in {WireStatus.PAUSED, *TERMINAL_WIRE_STATUSES}:
                yield NeedsOutcome(lane.execution_id)
        case _ if is_budget_request(envelope):
            yield NeedsOutcome(root.execution_id)
        case _:
            return


def _has_body(need: Need, bodies: Bodies) -> bool:
    match need:
        case NeedsExecution(execution_id):
            return execution_id in bodies.executions
        case NeedsOutcome(execution_id):
            return execution_id in bodies.outcomes
        case NeedsStep(execution_id, number):
            return (execution_id, number) in bodies.steps
