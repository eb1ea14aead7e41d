"""Builders for executions and their records, and a clock that the test controls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.step_facts import CallFacts, CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import (
    Message,
    Messages,
    assistant,
    call_entry,
    tool_message,
    user,
)
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.calls import CallRecord, RecordCall
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionSpec, NewExecution, Settlement
from everstep.agent_domain.storage.metadata_changes import MetadataChanges
from everstep.agent_domain.storage.steps import BeginStep, CallToRecord, RecordReply, RetryWait
from everstep.agent_domain.stream.records import EventRecord, StoredEnvelope
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map

AT = datetime(2026, 1, 16, 10, 5, 0, 123456, tzinfo=UTC)
TENANT, OTHERS = "acme", "umbrella"
CANCELLED = "Error: Cancelled before it finished"
TERMINAL = [ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED]
OUTCOME = frozen_map({"decision": "request", "shouldContinue": True, "evaluations": [{"reason": "more"}]})
WAIT = RetryWait(1, AT, AT + timedelta(seconds=12), "provider unavailable, next attempt in 12 s", "503")
WAIT_EVENT = EventRecord("status/wait/1/1", "agent.status", EMPTY)


@dataclass
class TestClock:
    """Advances by `tick` each time it is read."""

    __test__ = False

    at: datetime = AT
    tick: timedelta = timedelta(milliseconds=1)

    def __call__(self) -> datetime:
        self.at += self.tick
        return self.at


def a_ref(*, session_id: UUID | None = None, tenant: str = TENANT) -> ExecutionRef:
    """An execution that is not stored yet."""
    return ExecutionRef(uuid4(), tenant, session_id)


def of_another_tenant(ref: ExecutionRef) -> ExecutionRef:
    """The same execution id, requested by another tenant."""
    return replace(ref, tenant_id=OTHERS)


def a_new_execution(
    ref: ExecutionRef, *said: Message | str, agent: str = "helper", **fields: Any
) -> NewExecution:
    """An execution to be accepted."""
    messages = tuple(user(each) if isinstance(each, str) else each for each in said or ("Hello",))
    return NewExecution(ref, ExecutionSpec(agent=agent), messages, **fields)


def an_event(key: str, /, **payload: Any) -> EventRecord:
    """An envelope for viewers."""
    return EventRecord(key, "agent.status", payload)


def publishing(events: Sequence[EventRecord]) -> Callable[[object], Sequence[EventRecord]]:
    """Publish this, regardless of the stored facts."""
    return lambda _: events


def a_step_start(ref: ExecutionRef, number: int = 1, attempt: int = 1, **fields: Any) -> BeginStep:
    """A step begins."""
    return BeginStep(ref, number, attempt, fields.pop("outcome", None), **fields)


def a_call(call_id: str = "c1", name: str = "look", **args: Any) -> ToolCall:
    """A call that the model makes."""
    return ToolCall(call_id, name, frozen_map(args))


def a_reply(
    ref: ExecutionRef,
    text: str = "Hi",
    *calls: ToolCall,
    number: int = 1,
    attempt: int = 1,
    tokens: int = 0,
    needs: CallNeed = CallNeed.RUN,
    request: FrozenDict | None = None,
    events: Sequence[EventRecord] = (),
) -> RecordReply:
    """A model's reply, as the activity records it."""
    facts = StepFacts(
        number, tuple(CallFacts(c.id, c.name, needs) for c in calls), "stop", Usage(input=tokens), seconds=0.5
    )
    entries = [call_entry(call.id, call.name, call.arguments) for call in calls]
    return RecordReply(
        ref,
        number,
        attempt,
        facts,
        (),
        frozen_map(InferenceResponse(text, calls, "stop", Usage(input=tokens)).to_dict()),
        (assistant(text, tool_calls=entries) if calls else assistant(text),),
        [CallToRecord(call, needs, f"digest of {call.id}", request) for call in calls],
        events,
    )


def a_result(call_id: str = "c1", result: Any = "found", **fields: Any) -> CallRecord:
    """A successful result."""
    text = fields.pop("text", str(result))
    return CallRecord(
        call_id, result, fields.pop("error", None), text, AT, AT + timedelta(seconds=1), 1.0, **fields
    )


def a_failure(call_id: str = "c1", message: str = "broken") -> CallRecord:
    """A failed result."""
    error = StepError(message, None, "look", "ValueError")
    return a_result(call_id, None, error=error, text=f"Error: {message}", success=False)


def result_record(
    ref: ExecutionRef,
    record: CallRecord | None = None,
    *,
    step: int = 1,
    index: int = 0,
    messages: Messages | None = None,
    metadata: FrozenDict = EMPTY,
    events: Sequence[EventRecord] = (),
) -> RecordCall:
    """A call's result, as the activity records it."""
    record = record or a_result()
    said = (tool_message(record.text, record.call_id, "look"),) if messages is None else messages
    return RecordCall(ref, step, index, record, said, MetadataChanges(metadata), events)


def a_settlement(
    ref: ExecutionRef, status: ExecutionStatus, key: str | None = None, **fields: Any
) -> Settlement:
    """The status to which the execution changes."""
    return Settlement(ref, key or f"settlement/{status}", status, **fields)


async def accept_execution(store: ExecutionStore, *said: Message | str, **fields: Any) -> ExecutionRef:
    """A pending execution."""
    ref = a_ref(session_id=fields.pop("session_id", None), tenant=fields.pop("tenant", TENANT))
    await store.accept(a_new_execution(ref, *said, **fields))
    return ref


async def run_step(
    store: ExecutionStore, ref: ExecutionRef, number: int = 1, text: str = "Hi", *calls: ToolCall
) -> None:
    """A complete step, its calls answered in order."""
    await store.begin_step(a_step_start(ref, number))
    await store.record_reply(a_reply(ref, text, *calls, number=number))
    for index, call in enumerate(calls):
        await store.reserve_call(ref, call.id, 1)
        await store.record_call(result_record(ref, a_result(call.id), step=number, index=index))


async def end_execution(
    store: ExecutionStore, ref: ExecutionRef, status: ExecutionStatus = ExecutionStatus.COMPLETED
) -> None:
    """End the execution."""
    await store.settle(a_settlement(ref, status))


def texts(messages: Messages) -> list[str]:
    """The texts of messages, without their roles."""
    return [message.text for message in messages]


async def all_envelopes(store: ExecutionStore, ref: ExecutionRef) -> tuple[StoredEnvelope, ...]:
    return await store.envelopes(ref.tenant_id, ref.stream_id)


async def envelope_keys(store: ExecutionStore, ref: ExecutionRef) -> list[Any]:
    """The keys of the stream's envelopes, in order; each payload carries its key."""
    return [envelope.payload.get("key") for envelope in await all_envelopes(store, ref)]


def events_with_keys(*keys: str) -> list[EventRecord]:
    return [an_event(key, key=key) for key in keys]


async def readable_fields(store: ExecutionStore, ref: ExecutionRef) -> tuple[Any, ...]:
    """All fields of an execution that any caller can read, with counts."""
    return (
        await store.execution(ref),
        await store.steps(ref),
        await store.transcript(ref),
        await store.open_requests(ref),
        await store.material(ref),
        await all_envelopes(store, ref),
        len((await store.executions(ref.tenant_id)).rows),
    )
