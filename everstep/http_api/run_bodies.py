"""Loads what the envelopes of a run leave out: texts, arguments, results, and the conversation before it."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from uuid import UUID

from everstep.agent_domain.capabilities import questions
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.messages.disclosure import public_document
from everstep.agent_domain.storage.calls import CallRow
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataHistory
from everstep.agent_domain.storage.sessions import ExecutionFilter, SessionMessageRow
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.stream.session_messages import MessageRole
from everstep.agent_domain.values import EMPTY, json_text
from everstep.client.execution import Execution
from everstep.client.sessions import Sessions
from everstep.http_api.callers import Caller
from everstep.http_api.schemas.step_responses import Call
from everstep.wires.event_bodies import (
    Bodies,
    CallBody,
    ExecutionBody,
    Need,
    NeedsExecution,
    NeedsOutcome,
    NeedsStep,
    StepBody,
    reasoning_text,
)
from everstep.wires.run_events import Thread, ThreadMessage
from everstep.wires.thread_messages import CLIENT_MESSAGE_ID, step_messages

STEPS_AT_ONCE = 20
"""How many steps are read for an envelope: a reader of an old run needs those that follow as well."""
PAGE = 200

MAX_HISTORY = 1000
"""The limit of messages in the conversation before an execution."""
MAX_HISTORY_CHARS = 2 * 1024 * 1024
"""The limit of its texts and arguments, in characters."""
MAX_HISTORY_EXECUTIONS = 500
"""The limit of its executions."""

_NO_CHANGES = MetadataHistory(EMPTY, {})


@dataclass
class BodyLoader:
    """The bodies of one session, for one caller."""

    sessions: Sessions
    caller: Caller
    session_id: UUID
    _complete: dict[tuple[str, int], StepBody] = field(default_factory=dict[tuple[str, int], StepBody])
    """Steps that were read ahead; they do not change any more."""

    async def load(self, needs: Sequence[Need], bodies: Bodies) -> Bodies:
        """Load what is needed; return it with what was loaded before."""
        executions, outcomes, steps = {**bodies.executions}, {**bodies.outcomes}, {**bodies.steps}
        for need in needs:
            match need:
                case NeedsExecution(execution_id):
                    executions[execution_id] = await self._begin(execution_id)
                case NeedsOutcome(execution_id):
                    outcomes[execution_id] = await self._outcome(execution_id)
                case NeedsStep(execution_id, number):
                    steps[execution_id, number] = await self._step(need)
        return Bodies(executions, outcomes, steps)

    def _execution(self, execution_id: str) -> Execution:
        ref = ExecutionRef(UUID(execution_id), self.caller.tenant_id, self.session_id)
        return Execution(self.sessions.client, ref)

    async def _row(self, execution: Execution) -> ExecutionRow | None:
        return await execution.client.store.execution(execution.ref)

    async def _begin(self, execution_id: str) -> ExecutionBody | None:
        execution = self._execution(execution_id)
        row = await self._row(execution)
        if row is None:
            return None
        if row.parent_execution_id is not None:
            return ExecutionBody(row.agent, str(row.parent_execution_id))
        history = await execution.client.store.metadata_history(execution.ref)
        return ExecutionBody(row.agent, state=history.initial)

    async def _outcome(self, execution_id: str) -> ExecutionBody | None:
        execution = self._execution(execution_id)
        row = await self._row(execution)
        if row is None:
            return None
        because, _ = await execution.because_page(row, row.step_count, 1, in_full=self.caller.sees_all)
        return ExecutionBody(
            row.agent,
            because=because.sentence,
            stop_reason=row.stop_reason and row.stop_reason.value,
            usage=row.usage,
        )

    async def _step(self, need: NeedsStep) -> StepBody | None:
        key = need.execution_id, need.number
        if known := self._complete.get(key):
            return known
        self._complete.clear()
        execution = self._execution(need.execution_id)
        row = await self._row(execution)
        if row is None:
            return None
        page = await execution.explained_steps(
            row, need.number - 1, STEPS_AT_ONCE, in_full=self.caller.sees_all
        )
        # The metadata of subagents is their own.
        history = _NO_CHANGES
        if row.parent_execution_id is None:
            history = await execution.client.store.metadata_history(execution.ref)
        found: StepBody | None = None
        for step, because in zip(page.steps.rows, page.sentences, strict=True):
            body = step_body(step, history, because, in_full=self.caller.sees_all)
            if step.number == need.number:
                found = body
            if body is not None and step.completed_at is not None:
                self._complete[need.execution_id, step.number] = body
        return found


def step_body(
    row: StepRow, history: MetadataHistory, because: str | None = None, *, in_full: bool = False
) -> StepBody | None:
    """The body of a step; None if its reply is not recorded."""
    if row.facts is None:
        return None
    said = [message for message in row.messages[row.heard :] if message.is_assistant]
    text = said[0].text if said else ""
    if said and not in_full:
        text = str(public_document(said[0].to_dict() | {"content": text})["content"])
    calls = [_call_body(call, row.number, history, in_full=in_full) for call in row.calls]
    reasoning = reasoning_text(said[0]) if said else ""
    return StepBody(row.number, row.attempt, text, reasoning, tuple(calls), because)


def _call_body(row: CallRow, number: int, history: MetadataHistory, *, in_full: bool) -> CallBody:
    shown, record = Call.of(row, in_full=in_full), row.record
    return CallBody(
        row.call.id,
        row.call.name,
        row.call.args,
        text=shown.text or "",
        result=shown.result,
        error=shown.error.message if shown.error else None,
        is_done=record is not None,
        is_denied=row.decision is not None and row.decision.is_denied,
        is_question=row.call.name == questions.TOOL,
        changes=history.calls.get((number, row.index), NO_METADATA_CHANGES),
        files=tuple(each.to_dict() for each in record.attachments) if record else (),
    )


async def load_history(sessions: Sessions, caller: Caller, session_id: UUID, before: UUID) -> Thread:
    """The conversation of a session before an execution, oldest first: its last messages, within limits."""
    units = await _units_before(sessions, caller.scope, session_id, before)
    thread, size = list[ThreadMessage](), 0
    for unit in reversed(units):
        async for messages in _newest_first(sessions, caller, unit):
            size += sum(map(_size, messages))
            if size > MAX_HISTORY_CHARS or len(thread) + len(messages) > MAX_HISTORY:
                return tuple(thread[::-1])
            thread += reversed(messages)
    return tuple(thread[::-1])


_Unit = ExecutionRow | SessionMessageRow


async def _units_before(sessions: Sessions, scope: Scope, session_id: UUID, before: UUID) -> list[_Unit]:
    """The last messages of people and executions before an execution, in the order of the conversation."""
    executions, end = await _executions_before(sessions, scope, session_id, before)
    begin = executions[-1].created_at if len(executions) == MAX_HISTORY_EXECUTIONS else None
    entries: list[tuple[datetime, _Unit]] = [
        *((row.created_at, row) for row in executions),
        # A message is stored right after the execution that it begins.
        *((row.created_at, row) for row in await _user_messages(sessions, scope, session_id, begin)),
    ]
    units: list[_Unit] = []
    pending: list[_Unit] = []
    for at, row in sorted(entries, key=itemgetter(0)):
        if end is not None and at >= end:
            break
        if isinstance(row, SessionMessageRow):
            units.append(row)
        units += pending
        pending = [row] if isinstance(row, ExecutionRow) else []
    return [*units, *pending]


async def _newest_first(
    sessions: Sessions, caller: Caller, unit: _Unit
) -> AsyncGenerator[Sequence[ThreadMessage]]:
    """The messages of a unit: those of its last step first."""
    if isinstance(unit, SessionMessageRow):
        yield [_thread_message(unit)]
        return
    own = str(unit.ref.execution_id)
    subagent = None if unit.parent_execution_id is None else own
    end = unit.step_count + 1
    while end > 0:
        first = max(0, end - STEPS_AT_ONCE)
        page = await sessions.client.store.steps_after(unit.ref, first, end - first)
        for step in reversed(page.rows):
            if body := step_body(step, _NO_CHANGES, in_full=caller.sees_all):
                yield [*step_messages(own, body, subagent)]
        end = first


def _size(message: ThreadMessage) -> int:
    return len(message.text) + sum(len(json_text(call.args)) for call in message.calls)


async def _executions_before(
    sessions: Sessions, scope: Scope, session_id: UUID, before: UUID
) -> tuple[list[ExecutionRow], datetime | None]:
    """The last executions of a session before this one, newest first, and when this one began."""
    found: list[ExecutionRow] = []
    cursor, end = None, None
    while len(found) < MAX_HISTORY_EXECUTIONS:
        wanted = ExecutionFilter(session_id)
        page = await sessions.store.executions_of(scope, wanted, cursor=cursor, limit=PAGE)
        for row in page.rows:
            if end is not None and row.created_at < end:
                found.append(row)
            if row.ref.execution_id == before:
                end = row.created_at
        if (cursor := page.cursor) is None:
            break
    return found[:MAX_HISTORY_EXECUTIONS], end


async def _user_messages(
    sessions: Sessions, scope: Scope, session_id: UUID, begin: datetime | None
) -> list[SessionMessageRow]:
    """What people have said in a session since then, newest first; answers are results of calls."""
    found: list[SessionMessageRow] = []
    cursor = None
    while len(found) < MAX_HISTORY:
        page = await sessions.store.messages(scope, session_id, cursor=cursor, limit=PAGE)
        found += [
            row for row in page.rows if row.role is MessageRole.USER and "request_id" not in row.metadata
        ]
        is_past = begin is not None and bool(page.rows) and page.rows[-1].created_at < begin
        if is_past or (cursor := page.cursor) is None:
            break
    return [row for row in found if begin is None or row.created_at >= begin]


def _thread_message(row: SessionMessageRow) -> ThreadMessage:
    given = row.metadata.get(CLIENT_MESSAGE_ID)
    id_ = given if isinstance(given, str) else str(row.id)
    return ThreadMessage(id_, "user", row.content, files=tuple(each.to_dict() for each in row.attachments))
