"""A call of the ledger: what people and the tool's schema say before it runs, and its one result after."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from temporalio import activity

from everstep.activities import execution_events
from everstep.activities.contracts import ToolOutput
from everstep.activities.store_retry import until_written
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.errors import ToolFailed
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import NOTHING_BESIDES, Besides, CallFacts
from everstep.agent_domain.messages.disclosure import Disclosure, with_told
from everstep.agent_domain.storage.calls import CallRecord, RecordCall, Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.metadata_changes import NO_NOTES, Notes
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.inquiry import AskModel
from everstep.agent_domain.tools.tools import ToolCall, ToolContext, ToolExecution
from everstep.agent_domain.values import frozen_map, json_text

USUAL = Disclosure()

NOT_ALLOWED = "This call needs an approval, and nobody gave one"


def by_people(
    call: ToolCall, resolution: Resolution | None, answer: Resolution | None = None
) -> tuple[ToolCall, str, Resolution | None]:
    """The call as people left it, what the model is told first, and the result if no tool has to run."""
    match resolution and resolution.kind:
        case "answer":
            return call, "", resolution
        case "deny":
            reason = ((resolution and resolution.reason) or "").strip()
            return call, "", Resolution("deny", f"Denied by user: {reason}" if reason else "Denied by user")
        case "edit":
            args = frozen_map(resolution and resolution.edited_args)
            note = f"[Arguments edited by user: {json_text(args)}]\n"
            return replace(call, args=args, malformed=None), note, answer
        case "approve":
            return call, "", answer
        case _:
            return call, "", None


def without_running(
    definition: AgentDefinition, reserved: Reservation, started: datetime
) -> ToolExecution | None:
    """The result of a call whose tool has no say: people have spoken, or it cannot or may not run."""
    call, note, answer = by_people(reserved.call, reserved.resolution, reserved.answer)
    if answer is not None:
        return ToolExecution(call, answer.value, None, started, now(), note)
    explained = definition.tools.explained(call)
    if explained is not None:
        return ToolExecution(call, explained, None, started, now())
    refusal = definition.tools.refusal(call)
    if refusal is None and reserved.resolution is None and definition.needs_approval(call, reserved.allowed):
        # Whoever told the workflow otherwise: the store knows of no decision.
        refusal = NOT_ALLOWED
    if refusal is None:
        return None
    return ToolExecution(call, None, StepError(refusal, tool_name=call.name), started, now())


@dataclass(frozen=True, slots=True)
class Place:
    """Where a result belongs."""

    ref: ExecutionRef
    step_number: int
    index: int


@dataclass(frozen=True, slots=True)
class Came:
    """What came of a call."""

    execution: ToolExecution
    notes: Notes = NO_NOTES
    besides: Besides = NOTHING_BESIDES
    is_denied: bool = False
    """Whether a person said no: the call has not failed, and has not succeeded either."""
    seconds: float | None = None
    """How long it worked, where that is not the time from its beginning to its end."""
    is_default: bool = False
    """Whether it stands for an answer that nobody gave in time."""
    raised: Exception | None = None
    """What the tool raised, for the log."""


async def record(
    store: ExecutionStore,
    driver: StepDriver,
    place: Place,
    came: "Came",
    *,
    began: Sequence[EventRecord] = (),
    attempt: int = 1,
    disclosure: Disclosure = USUAL,
) -> CallRecord:
    """Write the result down, with all that follows from it; what an earlier attempt recorded wins."""
    execution = _disclosed(came.execution, place, disclosure)
    call, error = execution.call, execution.error
    result = CallRecord(
        call.id,
        execution.result,
        execution.error,
        execution.text,
        execution.started_at or now(),
        execution.completed_at or now(),
        execution.seconds if came.seconds is None else came.seconds,
        success=execution.error is None and not came.is_denied,
        besides=came.besides,
    )
    written = RecordCall(
        place.ref,
        place.step_number,
        place.index,
        result,
        tuple(with_told(message, error) for message in driver.answered(execution))
        if error
        else driver.answered(execution),
        came.notes,
        events=[*began, execution_events.call_ended(place.step_number, call, result)],
        attempt=attempt,
    )
    return await until_written(lambda: store.record_call(written))


def log_raised(record: CallRecord, raised: Exception) -> None:
    """Tell the operator what a tool raised; viewers are told of its own words and of nothing else."""
    error = record.error
    if error and not isinstance(raised, ToolFailed):
        words = "%s: %s (ref %s)", error.tool_name, error.message, error.ref
        activity.logger.warning(*words, exc_info=raised)


def _disclosed(execution: ToolExecution, place: Place, disclosure: Disclosure) -> ToolExecution:
    if execution.error is None:
        return execution
    error = disclosure.of(execution.error, place.ref.execution_id, execution.call.id)
    return replace(execution, error=error)


def is_denied(resolution: Resolution | None) -> bool:
    """Whether a person said no."""
    return resolution is not None and resolution.kind == "deny"


def output(call: ToolCall, known: CallRecord) -> ToolOutput:
    """What became of the call, without what it said."""
    error = known.error and replace(known.error, message="", tool_name=call.name)
    facts = CallFacts(call.id, call.name, is_settled=True, error=error)
    return ToolOutput(facts, known.seconds, known.besides)


def context(ref: ExecutionRef, reserved: Reservation, ask: AskModel) -> ToolContext:
    """What the tool of a call is told."""
    return ToolContext(
        ref.execution_id,
        reserved.call.id,
        reserved.step_number,
        reserved.metadata,
        ref.tenant_id,
        reserved.earlier,
        ask,
    )


def now() -> datetime:
    """This moment."""
    return datetime.now(UTC)
