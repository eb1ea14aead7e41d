"""Ledgers in the memory store."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.messages.messages import export
from everstep.agent_domain.storage.audit import AuditedExecution
from everstep.agent_domain.storage.calls import RecordCall
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.storage.ledger import LedgerPage, PeriodPage, PrunedLedger, digest_of
from everstep.agent_domain.storage.requests import RequestKind
from everstep.store import bodies, parameters, transcripts
from everstep.store.bodies import encode
from everstep.store.cursors import LedgerCursor, page_size
from everstep.store.ledger_entries import result_digest
from everstep.store.memory_base import MemoryBase
from everstep.store.memory_records import MemoryCall, MemoryExecution, MemoryStep

_HUMAN_COMMANDS = frozenset({CommandKind.PAUSE, CommandKind.RESUME, CommandKind.CANCEL})


class MemoryLedger(MemoryBase):
    """Reads ledgers."""

    async def sealed_ledger(self, ref: ExecutionRef, after: int = 0, limit: int = 50) -> LedgerPage | None:
        """Return a page of an execution's entries, or None if it was accepted without a ledger."""
        size = page_size(limit)
        execution = self._find(ref)
        if execution is None or execution.ledger is None:
            return None
        left = execution.ledger.entries[after:]
        return LedgerPage(left[:size], has_more=len(left) > size)

    async def pruned_ledger(self, ref: ExecutionRef) -> PrunedLedger | None:
        """Return None: nothing is pruned from memory."""
        del ref

    async def ledger_of_period(
        self,
        scope: Scope,
        since: datetime,
        until: datetime,
        cursor: str | None = None,
        limit: int = 1000,
    ) -> PeriodPage:
        """Return a page of the entries of all executions that a caller sees, in the order of their times."""
        size = page_size(limit)
        last = LedgerCursor.parse(cursor) if cursor else LedgerCursor.first()
        ours = (e for e in self._executions.values() if e.ref.tenant_id == scope.tenant_id)
        entries = sorted(
            (
                entry
                for execution in ours
                if execution.ledger and scope.covers(execution.user_id)
                for entry in execution.ledger.entries
                if since <= entry.at < until
                and (entry.at, entry.execution_id, entry.position)
                > (last.at, last.execution_id, last.position)
            ),
            key=lambda entry: (entry.at, entry.execution_id, entry.position),
        )
        page = tuple(entries[:size])
        return PeriodPage(page, LedgerCursor.after(page, cursor), len(entries) > size)

    async def audited_execution(self, ref: ExecutionRef) -> AuditedExecution | None:
        """Return everything that an audit compares."""
        execution = self._find(ref)
        if execution is None:
            return None
        chain = execution.ledger
        return AuditedExecution(
            ref.execution_id,
            execution.status,
            chain is not None,
            chain and chain.head,
            chain.entries if chain else (),
            dict(_bodies(execution)),
        )


def accepted_values(execution: MemoryExecution, new: NewExecution) -> dict[str, Any]:
    """Return the texts of a new execution, as a database would store them."""
    sent = {"messages": export(new.messages)} | ({"request": execution.request} if execution.request else {})
    return {
        "user_id": execution.user_id,
        "spec": encode(execution.spec.model_dump(mode="json")),
        "plan": encode(execution.plan),
        "input": encode(sent),
        "agent_metadata": encode(execution.agent_metadata),
        **parameters.line_values(transcripts.lines(new.messages)),
    }


def end_digest(execution: MemoryExecution) -> str:
    """Return the digest of the end of an execution."""
    cost = None if execution.cost_usd is None else f"{execution.cost_usd:f}"
    return digest_of(
        str(execution.status),
        execution.stop_reason and str(execution.stop_reason),
        str(execution.step_count),
        str(execution.usage.get("total", 0)),
        cost,
        encode(execution.output or {}),
        execution.error_message,
        execution.error_told,
        bodies.encode_optional(execution.outcome),
    )


def _bodies(execution: MemoryExecution) -> Iterator[tuple[str, str]]:
    """Yield the digests of the bodies that the ledger covers, by their names."""
    ref = execution.ref
    session, parent = ref.session_id, execution.parent_execution_id
    yield "execution/config", digest_of(encode(execution.spec.model_dump(mode="json")))
    yield "execution/plan", digest_of(encode(execution.plan))
    yield "execution/input", digest_of(execution.sent)
    yield "execution/metadata", digest_of(encode(execution.agent_metadata))
    owner = (ref.tenant_id, execution.user_id, session and str(session), execution.spec.agent)
    yield "execution/owner", digest_of(*owner, parent and str(parent))
    if execution.toolset_tools is not None:
        yield "execution/tools", digest_of(encode(execution.toolset_tools))
    if execution.status.is_terminal:
        yield "execution/end", end_digest(execution)
    for number, step in execution.steps.items():
        yield from _step_bodies(number, step)
    yield from _message_bodies(execution)
    for call in execution.calls.values():
        yield from _call_bodies(call)
    yield from _people_bodies(execution)


def _people_bodies(execution: MemoryExecution) -> Iterator[tuple[str, str]]:
    for request in execution.requests.values():
        if request.kind is not RequestKind.BUDGET:
            parts = (str(request.kind), encode(request.request), request.policy_text)
            yield f"request/{request.id}", digest_of(*parts)
        if request.resolution:
            yield f"resolution/{request.id}", digest_of(bodies.dump_resolution(request.resolution))
    for key, reply in execution.inner_replies.items():
        yield f"inner/{key}", digest_of(reply.digest, encode(reply.response))
    for key, steered in execution.steering.items():
        (line,) = transcripts.lines((steered.message,))
        yield f"steering/{key}", digest_of(line.role, line.content, line.metadata)
    for key, command in execution.commands.items():
        if command.kind in _HUMAN_COMMANDS:
            sender = bodies.encode_optional(command.sent_by and command.sent_by.to_dict())
            yield f"command/{key}", digest_of(str(command.kind), sender)


def _step_bodies(number: int, step: MemoryStep) -> Iterator[tuple[str, str]]:
    if step.facts is not None:
        yield f"facts/{number}", digest_of(bodies.dump_facts(step.facts), bodies.dump_errors(step.errors))
    if step.response is not None:
        yield f"response/{number}", digest_of(encode(step.response))
    if step.outcome is not None:
        yield f"outcome/{number}", digest_of(encode(step.outcome), bodies.dump_boundary(step.boundary))
    if step.processed is not None:
        yield f"processed/{number}", digest_of(encode(step.processed))
    if step.wait is not None:
        yield f"wait/{number}", digest_of(bodies.dump_wait(step.wait))


def _message_bodies(execution: MemoryExecution) -> Iterator[tuple[str, str]]:
    for (step, idx), message in execution.messages.items():
        (line,) = transcripts.lines((message,), idx)
        yield f"message/{step}/{idx}", digest_of(line.role, line.content, line.metadata)
    for (step, idx), notes in execution.notes.items():
        yield f"message/{step}/{idx}", digest_of(transcripts.NOTE, encode(notes.to_dict()), "{}")
    for (step, idx), compaction in execution.compactions.items():
        content = encode({transcripts.COMPACTED: compaction.to_dict()})
        yield f"message/{step}/{idx}", digest_of(transcripts.NOTE, content, "{}")


def _call_bodies(call: MemoryCall) -> Iterator[tuple[str, str]]:
    made = call.call
    parts = (made.name, encode(made.args), made.malformed, str(call.need))
    yield f"call/{made.id}", digest_of(*parts)
    if call.record is not None:
        record = RecordCall(ExecutionRef(UUID(int=0)), call.step, call.idx, call.record, ())
        yield f"result/{made.id}", result_digest(parameters.result_values(record))
