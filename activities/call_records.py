"""Tool calls and their records: decisions and schema errors before the run, one result after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from temporalio import activity

from everstep.activities import execution_events
from everstep.activities.contracts import ToolOutput
from everstep.activities.store_retry import write_with_retry
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.attachments import DEFAULT_LIMITS, AttachmentLimits
from everstep.agent_domain.errors import ToolFailed
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.repeated_calls import call_digest
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed
from everstep.agent_domain.messages.disclosure import Disclosure, with_public_content
from everstep.agent_domain.storage.calls import CallRecord, RecordCall, Reservation
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.artifacts import Artifacts
from everstep.agent_domain.tools.inquiry import AskModel
from everstep.agent_domain.tools.resources import Resources
from everstep.agent_domain.tools.tools import ToolCall, ToolContext, ToolExecution
from everstep.agent_domain.values import frozen_map, json_text
from everstep.steps.tool_runs import ToolRun, result_without_run
from everstep.telemetry import metrics

DEFAULT_DISCLOSURE = Disclosure()

NOT_ALLOWED = "This call needs an approval, and there is none"


def apply_decision(
    call: ToolCall, resolution: Resolution | None, answer: Resolution | None = None
) -> tuple[ToolCall, str, Resolution | None]:
    """Apply the decision about a call.

    Returns:
        The call as it should run, a note for the model, and the result if the tool does not have to run.
    """
    match resolution and resolution.kind:
        case "answer":
            return call, "", resolution
        case "deny":
            return call, "", Resolution("deny", denial_text(resolution))
        case "edit":
            args = frozen_map(resolution and resolution.edited_args)
            note = f"[Arguments edited by user: {json_text(args)}]\n"
            return replace(call, args=args, malformed=None), note, answer
        case "approve":
            return call, "", answer
        case _:
            return call, "", None


def denial_text(resolution: Resolution | None) -> str:
    """Return the result of a denied call, which the model reads."""
    reason = ((resolution and resolution.reason) or "").strip()
    if resolution and resolution.is_expired:
        return f"Denied: {reason}"
    return f"Denied by user: {reason}" if reason else "Denied by user"


def result_of_decision(definition: AgentDefinition, reserved: Reservation) -> ToolExecution | None:
    """Return the result of a call that does not run its tool: answered, denied, malformed or not allowed."""
    call, note, answer = apply_decision(reserved.call, reserved.resolution, reserved.answer)
    if answer is not None:
        return ToolExecution(call, answer.value, None, now(), now(), note)
    # The workflow asked for this run; the store may have no decision about the call.
    is_undecided = reserved.resolution is None and (
        definition.need_of(call, reserved.allowed) is CallNeed.APPROVAL
    )
    return result_without_run(definition.tools, call, now, NOT_ALLOWED if is_undecided else None)


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The execution, step and index to which a result belongs."""

    ref: ExecutionRef
    step_number: int
    index: int


def ignore_record(recorded: RecordCall) -> None:
    """Do nothing when a result is recorded."""


async def record_run(
    store: ExecutionStore,
    driver: StepDriver,
    place: CallPlace,
    run: ToolRun,
    *,
    made: ToolCall | None = None,
    start_events: Sequence[EventRecord] = (),
    attempt: int = 1,
    disclosure: Disclosure = DEFAULT_DISCLOSURE,
    on_recorded: Callable[[RecordCall], None] = ignore_record,
) -> CallRecord:
    """Record the result with its messages and events; a result recorded by an earlier attempt wins.

    `made` is the call as the model made it, where a person may have edited its arguments. `on_recorded` is
    called if this result is the one that counts.
    """
    execution = _redact_error(run.execution, place, disclosure)
    call, error = execution.call, execution.error
    result = CallRecord(
        call.id,
        execution.result,
        execution.error,
        execution.text,
        execution.started_at or now(),
        execution.completed_at or now(),
        execution.seconds if run.seconds is None else run.seconds,
        success=execution.error is None and not run.is_denied,
        besides=run.besides,
        note=execution.note,
        own_text=execution.told,
        attachments=execution.attachments,
    )
    command = RecordCall(
        place.ref,
        place.step_number,
        place.index,
        result,
        tuple(with_public_content(message, error) for message in driver.answered(execution))
        if error
        else driver.answered(execution),
        run.notes,
        events=[*start_events, execution_events.call_end_event(place.step_number, call, result)],
        attempt=attempt,
        digest=call_digest(call.name, (made or call).arguments, result.text),
    )
    recorded = await write_with_retry(lambda: store.record_call(command))
    if recorded is result:
        _count_call(call.name, result, is_denied=run.is_denied)
        on_recorded(command)
    return recorded


def _count_call(tool: str, result: CallRecord, *, is_denied: bool) -> None:
    outcome = "denied" if is_denied else "ok" if result.error is None else "failed"
    metrics.TOOL_CALLS.add(tool, outcome)
    metrics.TOOL_CALL_SECONDS.observe(result.seconds, tool)
    if outcome == "failed":
        metrics.TOOL_FAILURES.add(tool)


def log_exception(record: CallRecord, exception: Exception) -> None:
    """Log what a tool raised, except `ToolFailed`, whose message is shown to viewers in full."""
    error = record.error
    if error and not isinstance(exception, ToolFailed):
        args = "%s: %s (ref %s)", error.tool_name, error.message, error.ref
        activity.logger.warning(*args, exc_info=exception)


def _redact_error(execution: ToolExecution, place: CallPlace, disclosure: Disclosure) -> ToolExecution:
    if execution.error is None:
        return execution
    error = disclosure.of(execution.error, place.ref.execution_id, execution.call.id)
    # The text without secrets is the error's own now.
    told = "" if execution.told == error.message else execution.told
    return replace(execution, error=error, told=told)


def output_from(call: ToolCall, record: CallRecord) -> ToolOutput:
    """Return the facts of a recorded call, without the texts."""
    error = record.error and replace(record.error, message="", tool_name=call.name)
    digest = call_digest(call.name, call.arguments, record.text)
    facts = CallFacts(call.id, call.name, is_settled=True, error=error, digest=digest)
    return ToolOutput(facts, record.seconds, record.besides)


def build_context(
    ref: ExecutionRef,
    reserved: Reservation,
    ask: AskModel,
    resources: Resources,
    attempt: int = 1,
    *,
    limits: AttachmentLimits = DEFAULT_LIMITS,
) -> ToolContext:
    """Build the context that the tool of a call receives."""
    context = ToolContext(
        ref.execution_id,
        reserved.call.id,
        reserved.step_number,
        reserved.metadata,
        earlier=reserved.earlier,
        ask=ask,
        attempt=attempt,
        resources=resources,
        artifacts=Artifacts(limits),
    )
    return context.for_run(reserved.run)


def now() -> datetime:
    """The current time, in UTC."""
    return datetime.now(UTC)
