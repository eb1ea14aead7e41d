"""Two executions of either store, side by side."""

import re
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionSpec
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map
from everstep.cli.comparison_page import comparison_page
from everstep.cli.comparison_texts import comparison_lines
from everstep.client.compared_executions import compare_executions
from tests.everstep.cli.test_pages import draw
from tests.everstep.store.store_words import (
    TENANT,
    a_call,
    a_failure,
    a_new_execution,
    a_ref,
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


def an_outcome(decision: str, by: str, reason: str = "completed", **votes: str) -> Any:
    evaluations = [{"criterion": name, "decision": vote, "reason": ""} for name, vote in votes.items()]
    return frozen_map(
        {
            "decision": decision,
            "shouldContinue": decision == "request",
            "resolvedBy": by,
            "stopReason": reason,
            "evaluations": evaluations,
        }
    )


async def a_run(store: ExecutionStore, *calls: ToolCall, answer: str = "Done", **fields: Any) -> ExecutionRef:
    """Steps with one call each, and an answer."""
    ref = await accept_execution(store, **fields)
    for number, call in enumerate(calls, 1):
        await run_step(store, ref, number, "Let me see", call)
    await run_step(store, ref, len(calls) + 1, answer)
    await store.settle(
        a_settlement(
            ref,
            ExecutionStatus.COMPLETED,
            outcome=an_outcome("stop", "ToolCallPresenceCheck", StepsLimit="allow"),
            stop_reason=StopReason.COMPLETED,
        )
    )
    return ref


async def test_equal_runs_have_no_differences(store: ExecutionStore) -> None:
    """15.4.1"""
    one = await a_run(store, a_call("c1", "look", where="here"))
    other = await a_run(store, a_call("c9", "look", where="here"))
    # The ids of calls differ from run to run; what the tools returned is here derived from nothing else.

    found = await compare_executions(store, one, other)

    assert (found.differing_steps, found.settings, found.notes) == (0, (), ())
    assert [(step.number.a, step.number.b, step.is_shared) for step in found.steps] == [
        (1, 1, False),
        (2, 2, False),
    ]
    assert [*comparison_lines(found)][-1] == "all 2 steps are the same"


async def test_arguments_results_and_texts_that_differ_are_named(store: ExecutionStore) -> None:
    """15.4.2"""
    one = await a_run(store, a_call("c1", "pay", order={"euros": 20, "to": "ann"}), answer="Paid 20")
    other = await accept_execution(store)
    await store.record_reply(
        a_reply(other, "Let me see", a_call("c1", "pay", order={"euros": 25, "to": "ann"}))
    )
    await store.record_call(result_record(other, a_result("c1", "too much")))
    await run_step(store, other, 2, "Paid 25")
    await end_execution(store, other)

    found = (await compare_executions(store, one, other)).to_dict()
    paid, answered = found["steps"]

    assert paid["calls"] == [
        {
            "same": False,
            "tool": {"a": "pay", "b": "pay"},
            "args": [{"path": "order.euros", "a": 20, "b": 25}],
            "result": {"a": "found", "b": "too much"},
        }
    ]
    assert (paid["same"], paid["text"]) == (False, None)
    assert answered["text"] == {"a": "Paid 20", "b": "Paid 25"}
    assert answered["decision"] == {
        "a": {"decision": "stop", "resolved_by": "ToolCallPresenceCheck", "stop_reason": "completed"},
        "b": None,
    }
    assert answered["votes"] == [{"criterion": "StepsLimit", "a": "allow", "b": None}]
    lines = [*comparison_lines(await compare_executions(store, one, other))]
    assert "        order.euros: 20 -> 25" in lines
    assert "      result  A  found" in lines
    assert "      decided A  stop by ToolCallPresenceCheck (completed)" in lines
    assert lines[-1] == "2 of 2 steps differ"
    page = draw(comparison_page(await compare_executions(store, one, other)), width=100)
    for row in (
        "order.euros +20 +25",
        "result +found +too much",
        "  tokens +0 +0",
        "vote +StepsLimit: allow +none",
    ):
        assert re.search(rf"{row} *\n", page), page


async def test_steps_are_aligned_by_their_calls(store: ExecutionStore) -> None:
    """15.4.2: a step that only one side has does not shift the others."""
    look, find, pay = (a_call(f"c{n}", name) for n, name in enumerate(("look", "find", "pay")))
    one, other = await a_run(store, look, pay), await a_run(store, look, find, pay)

    found = await compare_executions(store, one, other)

    assert [(step.number.a, step.number.b) for step in found.steps] == [(1, 1), (None, 2), (2, 3), (3, 4)]
    assert found.differing_steps == 1
    lines = [*comparison_lines(found)]
    assert any(line.startswith("  + step - | 2") for line in lines)
    assert any(line == "    + find" for line in lines)


async def test_a_fork_shares_the_steps_before_it(store: ExecutionStore) -> None:
    """15.4.1: also with a fork of a fork, and with its sibling."""
    origin = await a_run(store, a_call("c1"), a_call("c2", "pay"), a_call("c3"))

    async def fork(of: ExecutionRef, until: int, *calls: ToolCall) -> ExecutionRef:
        return await a_run(store, *calls, continues=of.execution_id, continues_until=until)

    child = await fork(origin, 2, a_call("c8"))
    grandchild = await fork(child, 1, a_call("c9", "ship"))
    sibling = await fork(origin, 1, a_call("c7", "ship"))

    for a, b, shared, own in (
        (origin, child, 2, [(3, 1), (4, 2)]),
        (child, origin, 2, [(1, 3), (2, 4)]),
        (origin, grandchild, 2, [(3, 1), (None, 1), (4, 2)]),
        (child, grandchild, 3, [(None, 1), (2, 2)]),
        (sibling, child, 1, [(1, 2), (None, 1), (2, 2)]),
    ):
        found = await compare_executions(store, a, b)
        assert found.shared_steps == shared
        assert [(each.number.a, each.number.b) for each in found.steps if not each.is_shared] == own
        assert all(step.is_same for step in found.steps if step.is_shared)
        assert f"  = {shared} step" in "\n".join(comparison_lines(found))


async def test_settings_that_differ_are_named(store: ExecutionStore) -> None:
    """15.4.3: the texts of an agent's prompt are not shown, only that they differ."""
    refs = list[ExecutionRef]()
    for limit, prompt in ((20, "Be kind"), (10, "Be brief")):
        ref = a_ref()
        new = a_new_execution(ref, plan=frozen_map({"max_steps": limit}))
        spec = ExecutionSpec(
            agent="helper", cached_context={"system": prompt}, definition_hash=prompt[-5:], llm_preset="main"
        )
        await store.accept(replace(new, spec=spec))
        refs.append(ref)

    found = (await compare_executions(store, *refs)).to_dict()

    assert found["settings"] == [
        {"path": "definition_hash", "a": " kind", "b": "brief"},
        {"path": "plan.max_steps", "a": 20, "b": 10},
        {"path": "definition.system", "a": "differs", "b": "differs"},
    ]
    assert "Be kind" not in str(found)


async def test_a_running_execution_is_compared_up_to_its_last_reply(store: ExecutionStore) -> None:
    """15.4.4"""
    one, other = await a_run(store, a_call("c1")), await accept_execution(store)
    await run_step(store, other, 1, "Let me see", a_call("c1"))
    await store.begin_step(a_step_start(other, 2))

    found = await compare_executions(store, one, other)

    assert found.notes == ("B is running: it is compared up to step 1.",)
    assert [(step.number.a, step.number.b) for step in found.steps] == [(1, 1), (2, None)]


async def test_an_unknown_execution_is_refused(store: ExecutionStore) -> None:
    """15.4.4"""
    one = await accept_execution(store)
    for unknown in (a_ref(), of_another_tenant(one), ExecutionRef(uuid4(), TENANT)):
        with pytest.raises(NotFound, match="There is no execution"):
            await compare_executions(store, one, unknown)


async def test_texts_of_errors_are_for_operators(store: ExecutionStore) -> None:
    """15.4.5"""
    one, other = await accept_execution(store), await accept_execution(store)
    for ref, message in ((one, "secret of db-7"), (other, "secret of db-8")):
        await store.record_reply(a_reply(ref, "Let me see", a_call()))
        await store.record_call(result_record(ref, a_failure(message=message)))

    (in_full,) = (await compare_executions(store, one, other, in_full=True)).to_dict()["steps"]
    (public,) = (await compare_executions(store, one, other)).to_dict()["steps"]

    assert in_full["calls"][0]["result"] == {"a": "Error: secret of db-7", "b": "Error: secret of db-8"}
    assert "secret" not in str(public)
