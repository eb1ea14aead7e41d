"""What the because of an execution needs is recorded, in both stores."""

from datetime import timedelta

from everstep.agent_domain.capabilities.rights import Decider
from everstep.agent_domain.ids import question_id
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.calls import AnsweredQuestion
from everstep.agent_domain.storage.commands import CommandKind
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.requests import Resolution
from everstep.agent_domain.values import frozen_map
from tests.everstep.store.store_words import (
    AT,
    a_call,
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    run_step,
)

JANE, BEN = Decider("jane", AT, ("sessions:all",)), Decider("ben", AT + timedelta(seconds=1))
OUTCOME = frozen_map({"decision": "forbid", "resolvedBy": "BudgetLimit"})


async def test_an_end_before_the_first_step_keeps_its_outcome(store: ExecutionStore) -> None:
    """15.1.1: no step has it; a pause before it has none."""
    ref = await accept_execution(store)
    await store.settle(a_settlement(ref, ExecutionStatus.PAUSED, outcome=OUTCOME))
    paused = await store.execution(ref)
    await store.settle(
        a_settlement(ref, ExecutionStatus.COMPLETED, outcome=OUTCOME, stop_reason=StopReason.GUARD)
    )
    ended = await store.execution(ref)

    assert paused
    assert ended
    assert (paused.outcome, ended.outcome) == (None, OUTCOME)


async def test_a_paused_execution_says_who_paused_it(store: ExecutionStore) -> None:
    """15.1.1: the last one, and no one after it was resumed or while it runs."""
    ref = await accept_execution(store)
    await store.command(ref, "pause/1", CommandKind.PAUSE, JANE)
    found = list[Decider | None]()
    for number, sender in enumerate((None, BEN)):
        await store.settle(a_settlement(ref, ExecutionStatus.PAUSED, f"paused/{number}"))
        row = await store.execution(ref)
        assert row
        found.append(row.paused_by)
        await store.command(ref, f"resume/{number}", CommandKind.RESUME)
        await store.settle(a_settlement(ref, ExecutionStatus.RUNNING, f"resumed/{number}"))
        running = await store.execution(ref)
        assert running
        assert running.paused_by is None
        if sender:
            await store.command(ref, "pause/2", CommandKind.PAUSE, sender)
    await store.settle(a_settlement(ref, ExecutionStatus.PAUSED, "paused/again"))
    last = await store.execution(ref)

    assert last
    assert [*found, last.paused_by] == [JANE, None, BEN]


async def test_a_step_has_the_keys_of_the_messages_that_it_received(store: ExecutionStore) -> None:
    """15.1.4: in the order of their arrival."""
    ref = await accept_execution(store)
    await run_step(store, ref)
    for key in ("b", "a", "later"):
        await store.steer(ref, key, user(key))
    await store.begin_step(a_step_start(ref, 2, hears=2))

    first, second = await store.steps(ref)

    assert (first.message_keys, second.message_keys) == ((), ("b", "a"))


async def test_a_step_has_the_attempts_that_failed_in_transport(store: ExecutionStore) -> None:
    """15.1.4: the others were lost."""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    await store.note_failure(ref, 1, 1)
    await store.begin_step(a_step_start(ref, attempt=2))
    await store.begin_step(a_step_start(ref, attempt=3))
    await store.note_failure(ref, 1, 3)

    (step,) = await store.steps(ref)

    assert (step.attempt, step.failed_attempts) == (3, (1, 3))


async def test_a_call_has_its_answered_question(store: ExecutionStore) -> None:
    """15.1.4: with who answered; an open question is none."""
    ref = await accept_execution(store)
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "?", a_call("c1"), needs=CallNeed.RUN))
    await store.ask(ref, "c1", frozen_map({"prompt": "Tea?"}))
    (before,) = await store.steps(ref)
    question, answer = question_id(ref.execution_id, "c1"), Resolution("answer", "yes", by=JANE)
    await store.resolve(ref, question, answer)

    (after,) = await store.steps(ref)

    assert before.calls[0].answered is None
    assert after.calls[0].answered == AnsweredQuestion(question, answer)
