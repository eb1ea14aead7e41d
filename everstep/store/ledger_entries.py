"""The ledger's entries of what the stores record, with digests of the texts that they store.

The parameters of a statement contain these texts, encoded once: the memory store makes them as well.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.budget_ledger import BudgetRequest, RaiseBudget
from everstep.agent_domain.storage.calls import InnerReply, RecordCall
from everstep.agent_domain.storage.compactions import RecordCompaction
from everstep.agent_domain.storage.executions import NewExecution, Settlement
from everstep.agent_domain.storage.ledger import (
    CallEffect,
    EntryKind,
    NewEntry,
    amount_text,
    decider_facts,
    digest_of,
    error_facts,
    judged_facts,
    microseconds,
    usage_facts,
)
from everstep.agent_domain.storage.requests import AnyRequestKind, Resolution
from everstep.agent_domain.storage.steps import BeginStep, RecordProcessing, RecordReply, RetryWait
from everstep.agent_domain.values import EMPTY, FrozenDict, format_moment
from everstep.store import bodies, budget_values, parameters
from everstep.store.transcripts import TranscriptLine

Values = Mapping[str, Any]
"""The parameters of a statement."""


@dataclass(frozen=True, slots=True)
class EndFacts:
    """What an execution's row says once it has ended."""

    stop_reason: str | None
    steps: int
    tokens: int
    cost_usd: Decimal | None


def acceptance_entry(new: NewExecution, values: Values) -> NewEntry:
    """Return the first entry of an execution."""
    ref = new.ref
    facts = {
        "agent": new.spec.agent,
        "definition_hash": new.spec.definition_hash or None,
        "user_id": values["user_id"],
        "session_id": _text(ref.session_id),
        "parent_execution_id": _text(new.parent_execution_id),
        "continues": _text(new.continues),
        "continues_until": new.continues_until,
        "messages": len(new.messages),
    }
    owner = (ref.tenant_id, values["user_id"], _text(ref.session_id), new.spec.agent)
    digests = {
        "execution/config": digest_of(values["spec"]),
        "execution/plan": digest_of(values["plan"]),
        "execution/input": digest_of(values["input"]),
        "execution/metadata": digest_of(values["agent_metadata"]),
        "execution/owner": digest_of(*owner, _text(new.parent_execution_id)),
        **_line_digests(values, 0),
    }
    return NewEntry(EntryKind.ACCEPTED, "accepted", facts, digests)


def copy_entry(row: Any, digests: Mapping[str, str]) -> NewEntry:
    """Return the first entry of an execution whose row was copied from that of another one."""
    facts = {
        "agent": row.agent_type,
        "definition_hash": row.definition_hash or None,
        "user_id": row.user_id,
        "session_id": _text(row.session_id),
        "parent_execution_id": _text(row.parent_execution_id),
        "continues": _text(row.continues_execution_id),
        "continues_until": row.continues_until,
        "messages": row.messages,
    }
    return NewEntry(EntryKind.ACCEPTED, "accepted", facts, digests)


def _text(identity: UUID | None) -> str | None:
    return None if identity is None else str(identity)


def tools_entry(values: Values) -> NewEntry:
    """Return the entry of the tools that toolsets listed."""
    return NewEntry(EntryKind.TOOLS_LISTED, "tools", EMPTY, {"execution/tools": digest_of(values["listed"])})


# Steps.


def begin_entries(begin: BeginStep, texts: Values) -> list[NewEntry]:
    """Return the entries of the beginning of a step: the first, and the judgement about the one before."""
    entries = list[NewEntry]()
    if begin.number == 1:
        entries.append(NewEntry(EntryKind.STARTED, "started"))
    if begin.outcome is not None and begin.number > 1:
        entries.append(judged_entry(begin.number - 1, begin.outcome, texts))
    return entries


def judged_entry(step: int, outcome: FrozenDict, texts: Values, replaces: str | None = None) -> NewEntry:
    """Return the entry of the evaluation after a step; `replaces` is the key of a settlement."""
    key = f"step/{step}/outcome"
    facts = judged_facts(step, outcome, replaces=replaces is not None)
    fallback = None if replaces is None else f"{key}/{replaces}"
    digests = {f"outcome/{step}": digest_of(texts["outcome"], texts["boundary"])}
    return NewEntry(EntryKind.JUDGED, key, facts, digests, fallback)


def failed_attempt_entry(number: int, attempt: int) -> NewEntry:
    """Return the entry of a model call that failed in transport."""
    facts = {"step": number, "attempt": attempt}
    return NewEntry(EntryKind.ATTEMPT_FAILED, f"step/{number}/failed/{attempt}", facts)


def wait_entry(number: int, wait: RetryWait, text: str) -> NewEntry:
    """Return the entry of a wait before the next attempt."""
    facts = {"step": number, "attempt": wait.attempt, "until": format_moment(wait.until, 6)}
    key = f"step/{number}/wait/{wait.attempt}"
    return NewEntry(
        EntryKind.WAITED, key, facts, {f"wait/{number}": digest_of(text)}, f"{key}/{digest_of(text)}"
    )


def reply_entry(reply: RecordReply, values: Values) -> NewEntry:
    """Return the entry of a model's reply, with its calls and their requests."""
    facts, number = reply.facts, reply.number
    settled = set(values["settled"])
    digests = {
        f"facts/{number}": digest_of(values["facts"], values["errors"]),
        f"response/{number}": digest_of(values["response"]),
        **_placed_digests(values),
    }
    calls = zip(
        reply.calls,
        *(values[name] for name in ("args", "malformed", "needs")),
        strict=True,
    )
    for each, args, malformed, need in calls:
        if each.call.id not in settled:
            parts = (each.call.name, args, malformed, need)
            digests[f"call/{each.call.id}"] = digest_of(*parts)
    asked = zip(
        *(values[name] for name in ("request_ids", "kinds", "requests", "policies")),
        strict=True,
    )
    digests |= {f"request/{identity}": digest_of(*parts) for identity, *parts in asked}
    told = {
        "step": number,
        "attempt": reply.attempt,
        "model": reply.response.get("model") or None,
        "finish_reason": facts.finish_reason,
        "failed": facts.is_failure,
        "usage": usage_facts(facts.usage),
        "microseconds": microseconds(facts.seconds),
        "errors": [error_facts(error) for error in facts.errors],
        "calls": [
            {
                "id": each.call.id,
                "tool": each.call.name,
                "args_digest": each.args_digest,
                "need": each.need,
            }
            for each in reply.calls
        ],
    }
    return NewEntry(EntryKind.REPLIED, f"step/{number}/reply", told, digests)


def compaction_entry(record: RecordCompaction, values: Values) -> NewEntry:
    """Return the entry of a compaction before a step."""
    done = record.compaction
    facts = {
        "step": done.step,
        "messages": done.messages,
        "results": done.results,
        "tokens_before": done.tokens_before,
        "tokens_after": done.tokens_after,
        "usage": usage_facts(done.usage),
    }
    key = f"step/{done.step}/compaction/{record.ordinal}"
    return NewEntry(EntryKind.COMPACTED, key, facts, _placed_digests(values))


def processing_entry(record: RecordProcessing, values: Values) -> NewEntry:
    """Return the entry of a step's processors."""
    number = record.number
    digests = {f"processed/{number}": digest_of(values["processed"]), **_placed_digests(values)}
    return NewEntry(EntryKind.PROCESSED, f"step/{number}/processed", {"step": number}, digests)


def inner_reply_entry(reply: InnerReply, usage: Usage, values: Values) -> NewEntry:
    """Return the entry of a reply to an inner model call."""
    digests = {f"inner/{reply.key}": digest_of(reply.digest, values["response"])}
    facts = {"key": reply.key, "usage": usage_facts(usage)}
    return NewEntry(EntryKind.INNER_REPLIED, f"inner/{reply.key}/{reply.digest}", facts, digests)


# Calls.


def call_entry(given: RecordCall, values: Values) -> NewEntry:
    """Return the entry of a call's result."""
    record = given.record
    facts = {
        "step": given.step_number,
        "call_id": record.call_id,
        "attempt": given.attempt,
        "effect": CallEffect.of(record.success, record.error),
        "error": error_facts(record.error),
        "usage": usage_facts(record.besides.usage),
        "microseconds": microseconds(record.seconds),
    }
    digests = {f"result/{record.call_id}": result_digest(values), **_line_digests(values, given.step_number)}
    return NewEntry(EntryKind.CALLED, f"call/{record.call_id}/result", facts, digests)


def result_digest(values: Values) -> str:
    """Return the digest of a call's result."""
    return digest_of(
        *(values["result"], values["text"], values["error"], _truth(values["success"]), values["besides"]),
        *(values["note"], values["own_text"], values["attachments"]),
    )


def _truth(value: bool | None) -> str | None:
    return None if value is None else str(value).lower()


def call_end_entry(
    step: int, call_id: str, text: str, lines: Iterable[tuple[int, TranscriptLine]]
) -> NewEntry:
    """Return the entry of a call that ended without a result."""
    facts = {
        "step": step,
        "call_id": call_id,
        "attempt": None,
        "effect": CallEffect.CANCELLED,
        "error": None,
        "usage": usage_facts(Usage()),
        "microseconds": 0,
    }
    result = digest_of("null", text, None, "false", None, "", None, None)
    digests = {f"result/{call_id}": result, **placed_line_digests(lines)}
    return NewEntry(EntryKind.CALLED, f"call/{call_id}/result", facts, digests)


# People.


def asked_entry(request_id: UUID, call_id: str, kind: AnyRequestKind, *parts: str | None) -> NewEntry:
    """Return the entry of a question that an approved call asks."""
    facts = {"request_id": str(request_id), "call_id": call_id, "kind": kind}
    digests = {f"request/{request_id}": digest_of(kind, *parts)}
    return NewEntry(EntryKind.ASKED, f"request/{request_id}", facts, digests)


def decided_entry(
    request_id: UUID,
    kind: str,
    resolution: Resolution,
    *,
    call_id: str | None = None,
    args_digest: str | None = None,
) -> NewEntry:
    """Return the entry of a person's decision or answer."""
    facts = {
        "request_id": str(request_id),
        "call_id": call_id,
        "kind": kind,
        "args_digest": args_digest,
        "decision": resolution.outcome,
        "by": decider_facts(resolution.by),
    }
    digests = {f"resolution/{request_id}": digest_of(bodies.dump_resolution(resolution))}
    return NewEntry(EntryKind.DECIDED, f"resolution/{request_id}", facts, digests)


def steered_entry(key: str, role: str, content: str, metadata: str) -> NewEntry:
    """Return the entry of a message to a running execution."""
    digests = {f"steering/{key}": digest_of(role, content, metadata)}
    return NewEntry(EntryKind.STEERED, f"steering/{key}", {"key": key, "role": role}, digests)


def command_entry(key: str, kind: str, by: Decider | None, sender: str | None) -> NewEntry:
    """Return the entry of a pause, a resumption or a cancel."""
    facts = {"key": key, "kind": kind, "by": decider_facts(by)}
    return NewEntry(EntryKind.COMMANDED, f"command/{key}", facts, {f"command/{key}": digest_of(kind, sender)})


def withdrawn_entry(key: str) -> NewEntry:
    """Return the entry of a command that the workflow refused."""
    return NewEntry(EntryKind.WITHDRAWN, f"withdrawn/{key}", {"key": key})


def raised_entry(change: RaiseBudget) -> NewEntry:
    """Return the entry of a raised budget."""
    account, limit = change.account, amount_text(change.limit)
    facts = {
        "budget_id": str(account.id),
        "unit": account.unit,
        "limit": limit,
        "by": decider_facts(change.by),
    }
    return NewEntry(EntryKind.BUDGET_RAISED, f"budget/{account.id}/{limit}", facts)


# Statuses.


def status_entries(settlement: Settlement, values: Values, judged: int | None) -> list[NewEntry]:
    """Return the entries of a change of the status, without its end.

    Args:
        settlement: The change.
        values: The texts of its facts, errors, outcome and request.
        judged: The step that its outcome is about.
    """
    entries, key = list[NewEntry](), settlement.key
    if settlement.step:
        entries.append(_failed_step_entry(settlement, values))
    if settlement.outcome is not None and judged is not None:
        replaces = key if settlement.replaces_outcome else None
        entries.append(judged_entry(judged, settlement.outcome, values, replaces))
    if not settlement.status.is_terminal:
        entries.append(_status_entry(settlement, values))
    return entries


def settlement_texts(settlement: Settlement) -> dict[str, Any]:
    """Return the texts of a settlement's bodies, as they are stored."""
    texts = parameters.outcome_values(settlement)
    if settlement.step:
        texts |= parameters.failed_step_values(settlement, settlement.step)
    if settlement.budget_request:
        texts |= budget_values.request_values(settlement.budget_request)
    return texts


def _failed_step_entry(settlement: Settlement, values: Values) -> NewEntry:
    step = settlement.step
    assert step is not None  # noqa: S101
    facts = {
        "step": step.number,
        "attempt": None,
        "model": None,
        "finish_reason": step.finish_reason,
        "failed": step.is_failure,
        "usage": usage_facts(step.usage),
        "microseconds": microseconds(step.seconds),
        "errors": [error_facts(error) for error in settlement.errors or step.errors],
        "calls": [],
    }
    key = f"step/{step.number}/reply"
    digests = {f"facts/{step.number}": digest_of(values["facts"], values["errors"])}
    return NewEntry(EntryKind.REPLIED, key, facts, digests, f"{key}/{settlement.key}")


def _status_entry(settlement: Settlement, values: Values) -> NewEntry:
    asked: BudgetRequest | None = settlement.budget_request
    facts = {
        "key": settlement.key,
        "status": settlement.status,
        "request_id": str(asked.id) if asked else None,
    }
    digests = (
        {f"request/{asked.id}": digest_of("budget", values["request"], values["policy"])} if asked else {}
    )
    return NewEntry(EntryKind.SETTLED, f"status/{settlement.key}", facts, digests)


def end_entry(settlement: Settlement, end: EndFacts, digest: str) -> NewEntry:
    """Return the last entry of an execution."""
    facts = {
        "key": settlement.key,
        "status": settlement.status,
        "stop_reason": end.stop_reason,
        "steps": end.steps,
        "tokens": end.tokens,
        "cost_usd": amount_text(end.cost_usd),
        "error": error_facts(next(iter(settlement.errors), None)),
    }
    return NewEntry(EntryKind.ENDED, "ended", facts, {"execution/end": digest})


# Lines of the transcript.


def _line_digests(values: Values, step: int) -> dict[str, str]:
    """Return the digests of lines of one step among the parameters of a statement."""
    lines = zip(*(values[name] for name in _LINE), strict=True)
    return {f"message/{step}/{idx}": digest_of(*parts) for idx, *parts in lines}


def _placed_digests(values: Values) -> dict[str, str]:
    """Return the digests of lines of several steps among the parameters of a statement."""
    lines = zip(values["steps"], *(values[name] for name in _LINE), strict=True)
    return {f"message/{step}/{idx}": digest_of(*parts) for step, idx, *parts in lines}


_LINE = ("places", "roles", "contents", "metadatas")
"""The parameters of transcript lines."""


def placed_line_digests(lines: Iterable[tuple[int, TranscriptLine]]) -> dict[str, str]:
    """Return the digests of lines, each with its step."""
    return {
        f"message/{step}/{line.idx}": digest_of(line.role, line.content, line.metadata)
        for step, line in lines
    }


def entry_values(ref: ExecutionRef, entries: Sequence[NewEntry]) -> dict[str, Any]:
    """Return the parameters of entries to append."""
    values: dict[str, Any] = {"ends": any(entry.ends for entry in entries)}
    for number, entry in enumerate(entries, 1):
        values[f"key_{number}"] = entry.key
        values[f"fallback_{number}"] = entry.fallback_key
        values[f"body_{number}"] = entry.text_after_time(ref.execution_id)
    return values
