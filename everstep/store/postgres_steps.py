"""Steps in PostgreSQL."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy import Row, select
from sqlalchemy.exc import IntegrityError

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.storage.compactions import RecordCompaction
from everstep.agent_domain.storage.ledger import NewEntry
from everstep.agent_domain.storage.steps import (
    BeginStep,
    BegunStep,
    PartialText,
    PartialTextOutcome,
    RecordProcessing,
    RecordReply,
    RetryWait,
    StepInput,
)
from everstep.agent_domain.stream.records import EventRecord
from everstep.agent_domain.tools.progress import Progress
from everstep.agent_domain.values import FrozenDict
from everstep.store import (
    bodies,
    budget_values,
    call_statements,
    execution_statements,
    ledger_entries,
    parameters,
    rows,
    step_statements,
    stream_statements,
    transcript_statements,
    transcripts,
)
from everstep.store.parameters import execution_key
from everstep.store.postgres_ledger import ledger_writes
from everstep.store.postgres_writing import PostgresWriter, require_active, require_execution
from everstep.store.tables import steps, tool_calls
from everstep.store.transaction import BoundStatement, QueryResult, Transaction


class PostgresSteps(PostgresWriter):
    """Steps: their begin, their text so far, their replies and their processing."""

    async def preview_step(self, ref: ExecutionRef, number: int) -> BegunStep:
        """Return the result of `begin_step` without steering messages; nothing is written."""
        async with self._transaction() as connection:
            # Read the conversation first: it then cannot contain an answer that the step row does not show
            # yet.
            said, found, seen = await connection.together(
                (transcript_statements.TRANSCRIPT, execution_key(ref)),
                (step_statements.PREVIEW_STEP, execution_key(ref) | {"number": number}),
                (execution_statements.EXECUTION, execution_key(ref)),
                last=True,
            )
            return _begun_step_from(ref, seen, found, said)

    async def begin_step(self, begin: BeginStep) -> BegunStep:
        """Complete the previous step and mark this one as started; a recorded step is returned unchanged."""
        ref = begin.ref
        async with self._transaction() as connection:
            values = parameters.step_values(begin)
            begun, stream_id = await self._mark_start(connection, begin, execution_key(ref) | values)
            if begun.recorded:
                return begun
            news = bodies.session_envelopes_from(ref.execution_id, begin.events(begun))
            head = (stream_statements.HEAD, execution_key(ref) | {"stream_id": stream_id})
            entries = ledger_writes(ref, ledger_entries.begin_entries(begin, values))
            heads = await self._append_envelopes(
                connection, ref, stream_id, news, head, last=True, ledger=entries
            )
            return replace(begun, after_seq=heads[0].scalar() if heads else None)

    async def _mark_start(
        self, connection: Transaction, begin: BeginStep, values: Mapping[str, Any]
    ) -> tuple[BegunStep, UUID]:
        """Return the step that begins, with its stream."""
        ref = begin.ref
        if begin.known is not None and begin.hears == 0:
            locked, found = await connection.together(
                (execution_statements.LOCK_STATUS, execution_key(ref)),
                (step_statements.BEGIN_KNOWN_STEP, values),
            )
            execution = require_execution(ref, locked.first())
            require_active(ref, execution)
            return _begun_step(begin.known, found.one()), execution.stream_id
        locked, found, *said = await connection.together(
            (execution_statements.LOCK_EXECUTION, execution_key(ref)),
            (step_statements.BEGIN_STEP, values),
            *([(transcript_statements.TRANSCRIPT, execution_key(ref))] if begin.known is None else []),
        )
        begun = _begun_step_from(ref, locked, found, said[0] if said else None)
        if begin.known is not None:
            begun = replace(begun, material=begun.material.with_conversation(begin.known))
        return begun, locked.one().stream_id

    async def note_partial(
        self,
        ref: ExecutionRef,
        number: int,
        attempt: int,
        text: str,
        *,
        next_index: int | None = None,
        after_seq: int | None = None,
        offset: int = 0,
    ) -> bool:
        """Store more of the text for late subscribers; return False if the attempt is no longer current."""
        values = {
            "number": number,
            "attempt": attempt,
            "text": text,
            "next_index": next_index,
            "after_seq": after_seq,
            "offset": offset,
        }
        return bool(await self._fetch_all(step_statements.NOTE_PARTIAL, execution_key(ref) | values))

    async def note_partials(self, texts: Sequence[PartialText]) -> Sequence[PartialTextOutcome]:
        """Store the texts of several steps, in one round trip; none waits for another one's step."""
        values = {
            "executions": [each.ref.execution_id for each in texts],
            "tenants": [each.ref.tenant_id for each in texts],
            "numbers": [each.number for each in texts],
            "attempts": [each.attempt for each in texts],
            "texts": [each.text for each in texts],
            "next_indexes": [each.next_index for each in texts],
            "after_seqs": [each.after_seq for each in texts],
            "offsets": [each.offset for each in texts],
        }
        return [_outcome(row) for row in await self._fetch_all(step_statements.NOTE_PARTIALS, values)]

    async def note_failure(self, ref: ExecutionRef, number: int, attempt: int) -> int:
        """Count a failed model call of this step; return the number of failures, this one included."""
        values = execution_key(ref) | {"number": number, "attempt": attempt}
        entry = ledger_entries.failed_attempt_entry(number, attempt)
        async with self._transaction() as connection:
            found, _ = await connection.together(
                (step_statements.NOTE_FAILURE, values),
                *ledger_writes(ref, [entry], begun=number),
                last=True,
            )
        if found.first() is None:
            raise NotFound("step", number)
        return found.one().failures

    async def note_wait(
        self, ref: ExecutionRef, number: int, wait: RetryWait, events: Sequence[EventRecord] = ()
    ) -> None:
        """Record that a step waits for its next attempt, unless that attempt or a reply is recorded."""
        written = bodies.dump_wait(wait)
        values = {"number": number, "attempt": wait.attempt, "wait": written}
        news = bodies.session_envelopes_from(ref.execution_id, events)
        async with self._transaction() as connection:
            found = (await connection.execute(step_statements.NOTE_WAIT, execution_key(ref) | values)).first()
            if found is not None:
                entry = ledger_entries.wait_entry(number, wait, written)
                await self._append_envelopes(
                    connection, ref, found.stream_id, news, last=True, ledger=ledger_writes(ref, [entry])
                )

    async def note_progress(
        self, ref: ExecutionRef, call_id: str, progress: Progress, events: Sequence[EventRecord] = ()
    ) -> None:
        """Store how far a call is, unless it has its result."""
        values = {"call_id": call_id, "progress": bodies.encode(progress.to_dict(), "the progress")}
        news = bodies.session_envelopes_from(ref.execution_id, events)
        async with self._transaction() as connection:
            found = (
                await connection.execute(call_statements.NOTE_PROGRESS, execution_key(ref) | values)
            ).first()
            if found is not None:
                await self._append_envelopes(connection, ref, found.stream_id, news)

    async def record_reply(self, reply: RecordReply) -> StepFacts:
        """Record the model's reply; a reply that an earlier attempt recorded wins."""
        ref, begins = reply.ref, reply.begins
        asked = [(execution_statements.LOCK_STATUS, execution_key(ref))]
        entries = list[NewEntry]()
        begun, hears = dict[str, Any](), bool(begins and begins.hears)
        if begins:
            begun = parameters.step_values(begins, seconds_ago=reply.facts.seconds)
            entries += ledger_entries.begin_entries(begins, begun)
        if hears:
            asked.append((step_statements.BEGIN_STEP, execution_key(ref) | begun))
        news = bodies.session_envelopes_from(ref.execution_id, reply.events)
        values = parameters.reply_values(reply)
        entries.append(ledger_entries.reply_entry(reply, values))
        given = begun | execution_key(ref) | values | parameters.envelope_values(news)
        later = list[BoundStatement]()
        if reply.spending:
            later = [*budget_values.settling(ref, reply.spending), *ledger_writes(ref, entries)]
        else:
            given |= ledger_entries.entry_values(ref, entries)
        begins_now = begins is not None and not hears
        asked.append((step_statements.record_reply(0 if later else len(entries), begins=begins_now), given))
        async with self._transaction() as connection:
            try:
                answers = await self._execute_with_append(connection, ref, *asked, *later, last=True)
                locked, recorded = answers[0], answers[len(asked) - 1]
            except IntegrityError as error:
                if not _is_call_id_conflict(error):
                    raise
                raise bodies.call_id_conflict(reply) from None
            execution, known = require_execution(ref, locked.first()), recorded.first()
            if ExecutionStatus(execution.status).is_terminal:
                return await self._find_reply_in_time(connection, reply, execution)
            self._push_after_commit(connection, ref, news, recorded)
            return reply.facts if known.facts is None else bodies.parse_facts(known.facts)

    async def record_compaction(self, record: RecordCompaction) -> Compaction:
        """Record a compaction; one that an earlier attempt recorded wins."""
        ref = record.ref
        values = execution_key(ref) | parameters.compaction_values(record)
        news = bodies.session_envelopes_from(ref.execution_id, record.events)
        async with self._transaction() as connection:
            locked, recorded = await connection.together(
                (execution_statements.LOCK_STATUS, execution_key(ref)),
                (step_statements.RECORD_COMPACTION, values),
            )
            execution, known = require_execution(ref, locked.first()), recorded.first()
            found = None if known is None else transcripts.parse_compaction(known.content)
            if found is not None:
                return found
            require_active(ref, execution)
            entry = ledger_entries.compaction_entry(record, values)
            await self._append_envelopes(
                connection, ref, execution.stream_id, news, last=True, ledger=ledger_writes(ref, [entry])
            )
            return record.compaction

    async def record_processing(self, record: RecordProcessing) -> FrozenDict:
        """Record the result of a step's processors; a result that an earlier attempt recorded wins."""
        ref = record.ref
        values = execution_key(ref) | parameters.processing_values(record)
        entry = ledger_entries.processing_entry(record, values)
        async with self._transaction() as connection:
            locked, recorded, *_ = await connection.together(
                (execution_statements.LOCK_STATUS, execution_key(ref)),
                (step_statements.RECORD_PROCESSING, values),
                *ledger_writes(ref, [entry], step=record.number),
                last=True,
            )
            known = recorded.first()
            if known is None:
                raise NotFound("step", record.number)
            if known.processed is not None:
                return bodies.document(known.processed, "what processors said")
            require_active(ref, require_execution(ref, locked.first()))
            return record.outcome

    async def _find_reply_in_time(
        self, connection: Transaction, reply: RecordReply, execution: Row[Any]
    ) -> StepFacts:
        """Return the step if it was recorded before the execution ended, and otherwise refuse the reply."""
        ref = reply.ref
        wanted = select(steps.c.facts).where(
            steps.c.execution_id == ref.execution_id, steps.c.number == reply.number
        )
        facts = (await connection.execute(wanted)).scalar()
        if facts is None:
            require_active(ref, execution)
        return bodies.parse_facts(facts)


def _begun_step_from(
    ref: ExecutionRef, found: QueryResult, known: QueryResult, said: QueryResult | None
) -> BegunStep:
    """Return a step that begins, or its record; without messages if these were not read."""
    execution, step = require_execution(ref, found.first()), known.one()
    require_active(ref, execution)
    return _begun_step(rows.material(ref, execution, said.all() if said else [], step), step)


def _begun_step(material: StepInput, step: Row[Any]) -> BegunStep:
    recorded = None if step.facts is None else bodies.parse_facts(step.facts)
    return BegunStep(
        material, recorded, step.attempt, bool(step.was_silent), wait=bodies.parse_wait(step.wait)
    )


def _is_call_id_conflict(error: IntegrityError) -> bool:
    constraint = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    return constraint == tool_calls.primary_key.name


def _outcome(row: Row[Any]) -> PartialTextOutcome:
    if row.is_stored:
        return PartialTextOutcome.CANCELLED if row.is_cancelled else PartialTextOutcome.STORED
    return PartialTextOutcome.BUSY if row.is_current else PartialTextOutcome.REPLACED
