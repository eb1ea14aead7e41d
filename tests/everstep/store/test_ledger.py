"""The ledger of an execution in either store, and its audit."""

import json
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.ids import ExecutionRef, Scope, request_id
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed, StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.audit import AuditReport, audit
from everstep.agent_domain.storage.calls import InnerReply
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.compactions import RecordCompaction
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.ledger import BEFORE_FIRST, FACTS, EntryKind
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.storage.steps import RecordProcessing
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    AT,
    OUTCOME,
    TENANT,
    WAIT,
    a_call,
    a_failure,
    a_reply,
    a_result,
    a_settlement,
    a_step_start,
    accept_execution,
    end_execution,
    of_another_tenant,
    result_record,
    run_step,
)

BY = Decider("ben", AT, ("approve",))


async def entries_of(store: ExecutionStore, ref: ExecutionRef) -> list[dict[str, Any]]:
    page = await store.sealed_ledger(ref, limit=1000)
    assert page is not None
    return [entry.to_dict() for entry in page.entries]


async def kinds_of(store: ExecutionStore, ref: ExecutionRef) -> list[str]:
    return [entry["kind"] for entry in await entries_of(store, ref)]


async def audit_of(store: ExecutionStore, ref: ExecutionRef) -> AuditReport:
    audited = await store.audited_execution(ref)
    assert audited is not None
    return audit(audited)


async def a_rich_execution(store: ExecutionStore, **fields: Any) -> ExecutionRef:
    """Everything that a ledger records, except budgets."""
    ref = await accept_execution(store, "Hello", user_id="ann", **fields)
    await store.record_tools(ref, frozen_map({"files": [{"name": "read", "limit": 1.5}]}))
    await store.begin_step(a_step_start(ref, 1))
    await store.note_failure(ref, 1, 1)
    await store.note_wait(ref, 1, WAIT)
    await store.record_compaction(RecordCompaction(ref, 0, Compaction(1, ("so far",), 0, step=1, messages=1)))
    book, look = a_call("c1", "book", hotel="Harbour Inn", price=80.5), a_call("c2")
    reply = a_reply(ref, "Let me see", book, look, attempt=2, tokens=7)
    (booking, looking) = reply.calls
    reply = replace(reply, calls=[replace(booking, need=CallNeed.APPROVAL), looking])
    await store.record_reply(reply)
    await store.record_inner_reply(
        ref, InnerReply("c2/1", "d1", frozen_map({"text": "inner", "model": "m"})), Usage(input=3)
    )
    await store.settle(a_settlement(ref, ExecutionStatus.PAUSED, "pause/1"))
    await store.resolve(ref, request_id(ref.execution_id, "c1"), Resolution("approve", by=BY))
    await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, "resume/1"))
    await store.ask(ref, "c1", frozen_map({"prompt": "Which day?"}))
    await store.reserve_call(ref, "c1", 1)
    await store.record_call(result_record(ref, a_result("c1", {"room": 7.25})))
    await store.record_call(result_record(ref, a_failure("c2"), index=1))
    await store.record_processing(RecordProcessing(ref, 1, frozen_map({"facts": {"seconds": 0.5}})))
    await store.steer(ref, "k1", user("Hurry up"))
    await store.command(ref, "pause/x", CommandKind.PAUSE, BY)
    await store.begin_step(a_step_start(ref, 2, outcome=OUTCOME, hears=1))
    await store.record_reply(a_reply(ref, "Trying", a_call("c3"), number=2))
    await store.settle(
        a_settlement(
            ref,
            ExecutionStatus.COMPLETED,
            "end",
            outcome=frozen_map(
                {
                    "decision": "stop",
                    "shouldContinue": False,
                    "resolvedBy": "StepsLimit",
                    "stopReason": "steps_limit",
                    "evaluations": [],
                }
            ),
            stop_reason=StopReason.STEPS_LIMIT,
            output=frozen_map({"response": "Done", "stop_reason": "steps_limit"}),
            error_message="too many steps",
        )
    )
    return ref


async def test_a_ledger_records_what_happened_in_order(store: ExecutionStore) -> None:
    """15.7.1"""
    ref = await a_rich_execution(store)

    entries = await entries_of(store, ref)

    assert [entry["kind"] for entry in entries] == [
        *("accepted", "tools_listed", "started", "attempt_failed", "waited", "compacted", "replied"),
        *("inner_replied", "settled", "decided", "settled", "asked", "called", "called", "processed"),
        *("steered", "commanded", "judged", "replied", "called", "judged", "ended"),
    ]
    assert [entry["position"] for entry in entries] == [*range(1, len(entries) + 1)]
    by_kind = {entry["kind"]: entry["facts"] for entry in entries}
    assert by_kind["accepted"]["user_id"] == "ann"
    assert by_kind["decided"]["by"]["subject"] == "ben"
    assert (by_kind["decided"]["decision"], by_kind["decided"]["args_digest"]) == ("approve", "digest of c1")
    effects = [entry["facts"]["effect"] for entry in entries if entry["kind"] == "called"]
    assert effects == ["done", "failed", "cancelled"]
    assert by_kind["ended"]["stop_reason"] == "steps_limit"
    assert by_kind["commanded"]["by"]["subject"] == "ben"


async def test_an_entry_has_the_documented_facts_and_no_texts(store: ExecutionStore) -> None:
    """15.7.1, 15.7.2: no fraction either, which programs write differently."""
    ref = await a_rich_execution(store)

    entries = await entries_of(store, ref)

    for entry in entries:
        assert set(entry["facts"]) == set(FACTS[EntryKind(entry["kind"])]), entry["kind"]
    text = json.dumps(entries)
    for word in ("Hello", "Harbour", "Let me see", "Which day", "Hurry", "broken", "so far", "too many"):
        assert word not in text
    for entry in entries:
        json.loads(json.dumps(entry), parse_float=pytest.fail)


async def test_the_chain_can_be_verified_from_its_entries(store: ExecutionStore) -> None:
    """15.7.2"""
    ref = await a_rich_execution(store)

    last = BEFORE_FIRST
    for entry in await entries_of(store, ref):
        own = entry.pop("hash")
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert (entry["previous"], sha256(text.encode()).hexdigest()) == (last, own)
        last = own
    report = await audit_of(store, ref)
    assert (report.hash, report.is_closed) == (last, True)


async def test_an_untouched_execution_passes_its_audit(store: ExecutionStore) -> None:
    """15.7.4"""
    ref = await a_rich_execution(store)

    report = await audit_of(store, ref)

    assert [each.to_dict() for each in report.breaks] == []
    assert (report.gone, report.is_whole, report.is_sealed) == ((), True, True)
    assert report.bodies > 20


async def test_a_running_execution_passes_its_audit(store: ExecutionStore) -> None:
    """15.7.4"""
    ref = await accept_execution(store)
    await run_step(store, ref, 1, "Hi", a_call())
    await store.begin_step(a_step_start(ref, 2))

    report = await audit_of(store, ref)

    assert (report.is_whole, report.is_closed, report.breaks) == (True, False, ())


async def test_a_repeated_write_appends_nothing(store: ExecutionStore) -> None:
    """15.7.3"""
    ref = await accept_execution(store)
    for _ in range(2):
        await store.begin_step(a_step_start(ref, 1))
        await store.note_failure(ref, 1, 1)
        await store.record_reply(a_reply(ref, "Hi", a_call()))
        await store.record_call(result_record(ref))
        await store.steer(ref, "k1", user("Hurry"))
        await store.command(ref, "pause/x", CommandKind.PAUSE)
    late = a_reply(ref, "Something else", attempt=3)
    await store.record_reply(late)
    await end_execution(store, ref)
    await end_execution(store, ref)

    assert await kinds_of(store, ref) == [
        *("accepted", "started", "attempt_failed", "replied", "called", "steered", "commanded", "ended")
    ]
    assert (await audit_of(store, ref)).is_whole


async def test_nothing_follows_the_end(store: ExecutionStore) -> None:
    """15.7.3"""
    ref = await accept_execution(store)
    await store.record_reply(a_reply(ref, "Hi", a_call()))
    await end_execution(store, ref, ExecutionStatus.CANCELLED)
    before = await entries_of(store, ref)

    await store.record_call(result_record(ref))
    await store.record_reply(a_reply(ref, "Hi", a_call()))

    assert await entries_of(store, ref) == before
    assert [entry["kind"] for entry in before][-2:] == ["called", "ended"]
    assert (await audit_of(store, ref)).is_whole


async def test_a_step_that_a_settlement_replaces_has_both_entries(store: ExecutionStore) -> None:
    """15.7.3: the last one counts for the audit, and a late reply changes nothing."""
    ref = await accept_execution(store)
    await store.record_reply(a_reply(ref, "Hi", a_call()))
    failed = StepFacts(1, is_failure=True)
    await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, "failed/1", step=failed, outcome=OUTCOME))
    await store.record_reply(a_reply(ref, "Late"))
    await store.settle(
        a_settlement(
            ref,
            ExecutionStatus.FAILED,
            "end",
            outcome=frozen_map({"decision": "forbid"}),
            replaces_outcome=True,
        )
    )

    entries = await entries_of(store, ref)

    assert [entry["kind"] for entry in entries] == [
        *("accepted", "replied", "called", "replied", "judged", "settled", "judged", "ended")
    ]
    assert [entry["facts"]["replaces"] for entry in entries if entry["kind"] == "judged"] == [False, True]
    assert (await audit_of(store, ref)).breaks == ()


async def test_a_ledger_is_paged_and_belongs_to_its_tenant(store: ExecutionStore) -> None:
    """15.7.5"""
    ref = await a_rich_execution(store)

    first = await store.sealed_ledger(ref, limit=3)
    rest = await store.sealed_ledger(ref, after=3, limit=1000)

    assert first is not None
    assert rest is not None
    assert (first.has_more, rest.has_more) == (True, False)
    assert [each.position for each in (*first.entries, *rest.entries)] == [*range(1, 23)]
    assert await store.sealed_ledger(of_another_tenant(ref)) is None
    assert await store.audited_execution(of_another_tenant(ref)) is None


async def test_a_period_is_read_with_a_cursor(store: ExecutionStore) -> None:
    """15.7.6: each entry once, also of executions that go on in the meantime."""
    ann, ben = [await accept_execution(store, user_id=name) for name in ("ann", "ben")]
    await accept_execution(store, tenant="umbrella")
    started = (await entries_of(store, ann))[0]["at"]
    since, until = AT - timedelta(days=9999), AT + timedelta(days=9999)
    read, cursor = list[tuple[Any, int]](), None
    for number in range(1, 4):
        await run_step(store, ann, number)
        page = await store.ledger_of_period(Scope(TENANT), since, until, cursor, limit=3)
        read += [(entry.execution_id, entry.position) for entry in page.entries]
        cursor = page.cursor
    while (page := await store.ledger_of_period(Scope(TENANT), since, until, cursor, limit=3)).entries:
        read += [(entry.execution_id, entry.position) for entry in page.entries]
        cursor = page.cursor

    assert page.cursor == cursor
    assert sorted(position for ref, position in read if ref == ann.execution_id) == [1, 2, 3, 4, 5]
    assert len(set(read)) == len(read) == 6
    mine = await store.ledger_of_period(Scope(TENANT, "ben"), since, until)
    assert {entry.execution_id for entry in mine.entries} == {ben.execution_id}
    nothing = await store.ledger_of_period(Scope(TENANT), since, AT - timedelta(days=9))
    assert (nothing.entries, started is not None) == ((), True)
