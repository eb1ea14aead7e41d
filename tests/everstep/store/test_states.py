"""States that are built from stored rows equal the states in which the rows were written."""

from typing import Any
from uuid import UUID

import pytest

from everstep.activities.call_records import CallPlace, ToolRun, record_run
from everstep.activities.state_loading import load_state_within, step_from
from everstep.agent_domain.agents.drivers import Reply, ToolCallingDriver, state_with_reply
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.messages.messages import assistant
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.steps import HookAdditions, RecordProcessing, StepRow
from everstep.agent_domain.tools.tools import ToolCall, ToolExecution
from everstep.agent_domain.values import frozen_map
from everstep.store.postgres import PostgresStore
from tests.everstep.store.queries import execute
from tests.everstep.store.store_words import (
    AT,
    CANCELLED,
    a_call,
    a_reply,
    a_settlement,
    a_step_start,
    accept_execution,
    run_step,
    texts,
)

CALL = a_call("c1")
EDITED = '[Arguments edited by user: {"a":1}]\n'
BROKEN = StepError("broken", None, "look", "ValueError")


def executed(**fields: Any) -> ToolExecution:
    return ToolExecution(CALL, started_at=AT, completed_at=AT, **fields)


EXECUTIONS = {
    "a result": executed(result={"a": [1]}),
    "nothing": executed(result=None),
    "a note and a result": executed(result=5, note=EDITED),
    "a note and nothing": executed(result=None, note=EDITED),
    "a text in place of nothing": executed(result=None, told="It is done"),
    "a text that ends with the result": executed(result=5, told="The sum is 5"),
    "a note and a text": executed(result=5, note=EDITED, told="The sum is 5"),
    "a result that is the note": executed(result=EDITED, note=EDITED),
    "an error": executed(error=BROKEN),
    "a note and an error": executed(error=BROKEN, note=EDITED),
    "a text in place of the error's": executed(error=BROKEN, told="Try later"),
}
"""Results of a call, with everything that its text can contain."""

GUESSED = {name: executed(result=5, note=EDITED) for name in ("a note and a result",)} | {
    name: EXECUTIONS[name] for name in ("a result", "nothing", "a note and nothing", "an error")
}
"""Those that a row of release 0.1 gives back as they were: it has the whole text only."""


async def record_execution(store: ExecutionStore, execution: ToolExecution) -> ExecutionRef:
    """Record a step with one call, and its result."""
    ref = await accept_execution(store, "Go")
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "", CALL))
    await record_run(store, ToolCallingDriver(), CallPlace(ref, 1, 0), ToolRun(execution))
    return ref


async def load_execution(store: ExecutionStore, ref: ExecutionRef) -> ToolExecution:
    """Load the result from the row."""
    (row,) = await store.steps(ref, with_responses=True)
    (execution,) = step_from(ref, row).tool_executions
    return execution


def parts(execution: ToolExecution) -> tuple[Any, ...]:
    """What a model and a hook read of a result; an error gets its reference when it is stored."""
    message = execution.error and execution.error.message
    return execution.result, message, execution.note, execution.told, execution.text


@pytest.mark.parametrize("name", EXECUTIONS)
async def test_a_result_has_the_parts_of_its_text(store: ExecutionStore, name: str) -> None:
    """8.1.3: none of them is derived from the text, which may contain anything."""
    ref = await record_execution(store, EXECUTIONS[name])

    assert parts(await load_execution(store, ref)) == parts(EXECUTIONS[name])


@pytest.mark.parametrize("name", GUESSED)
async def test_a_result_of_release_0_1_is_read_from_its_text(postgres: PostgresStore, name: str) -> None:
    """8.1.3: its row has no parts."""
    ref = await record_execution(postgres, EXECUTIONS[name])
    await execute(postgres, "UPDATE agent_tool_calls SET note = NULL, own_text = NULL")

    assert parts(await load_execution(postgres, ref)) == parts(GUESSED[name])


async def test_a_closed_call_has_its_text_as_result(store: ExecutionStore) -> None:
    """8.1.3"""
    ref = await accept_execution(store, "Go")
    await store.begin_step(a_step_start(ref))
    await store.record_reply(a_reply(ref, "", CALL))
    await store.settle(a_settlement(ref, ExecutionStatus.CANCELLED))

    assert parts(await load_execution(store, ref)) == (CANCELLED, None, "", "", CANCELLED)


async def load_state(store: ExecutionStore, ref: ExecutionRef, number: int) -> AgentState:
    return await load_state_within(store, ref, number, await store.material(ref))


async def test_a_state_has_each_message_once_although_two_are_equal(store: ExecutionStore) -> None:
    """8.1.3: a processor adds what the model said."""
    ref = await accept_execution(store, "Yes")
    await run_step(store, ref, 1, "Yes", CALL)
    await store.begin_step(a_step_start(ref, 2))
    await store.record_reply(a_reply(ref, "Yes", number=2))
    outcome = frozen_map({"facts": {"seconds": 0.1}})
    await store.record_processing(RecordProcessing(ref, 2, outcome, HookAdditions(said=(assistant("Yes"),))))

    state = await load_state(store, ref, 2)

    assert (
        texts(state.messages) == texts(await store.transcript(ref)) == ["Yes", "Yes", "found", "Yes", "Yes"]
    )
    assert state.current_step
    assert texts(state.current_step.output_messages) == ["Yes"]


async def test_a_state_within_a_step_excludes_its_messages(store: ExecutionStore) -> None:
    """8.1.3: they join with the last result, also if the input was read before that was recorded."""
    ref = await accept_execution(store, "Go")
    await store.begin_step(a_step_start(ref))
    early = await store.material(ref)
    await store.record_reply(a_reply(ref, "", CALL))

    for material in (early, await store.material(ref)):
        state = await load_state_within(store, ref, 1, material)
        assert texts(state.messages) == ["Go"]
        assert [call.id for call in state.facts.pending] == ["c1"]


def test_failures_within_a_reply_keep_their_calls() -> None:
    """8.1.3: a driver may answer calls of its reply itself, in any order, and report what is no call."""
    calls = a_call("c1"), a_call("c2")
    failures = [ToolExecution(call, error=StepError(f"{call.id} failed", tool_name="look")) for call in calls]
    unmade = ToolExecution(ToolCall("", "look"), error=StepError("unusable", tool_name="look"))
    reply = Reply(InferenceResponse("", calls), executions=(*reversed(failures), unmade))
    state = AgentState.empty().identified(UUID(int=2), UUID(int=1)).with_messages("Go")
    written = state_with_reply(ToolCallingDriver(), state.with_step_started(AT), reply).current_step
    assert written
    assert written.inference_response
    response = frozen_map(written.inference_response.to_dict())
    row = StepRow(1, 1, written.facts(1), written.errors, None, "", AT, AT, response=response)

    read = step_from(ExecutionRef(UUID(int=1)), row)

    assert [each.error for each in read.tool_executions] == [each.error for each in written.tool_executions]
    assert [each.call for each in read.tool_executions[1:]] == [*calls]
