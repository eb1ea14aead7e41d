"""`UseUserInput` in durable executions: a valid answer becomes the result, and so does silence."""

import gc
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.step_error import ErrorType
from everstep.agent_domain.testing import calls
from everstep.capabilities.user_input import UseUserInput
from everstep.workflows.agent_execution import AgentExecution
from tests.workflows.harness import an_agent, an_office, at_work, final_result
from tests.workflows.test_people import asks, results

DAY = {"type": "object", "properties": {"day": {"enum": ["Friday"]}}, "required": ["day"]}
MAYBE = {"type": ["string", "null"]}


def an_asker(use: UseUserInput | None = None, /, **question: Any) -> DefinitionBuilder:
    return an_agent(asks("Which day?", **question), "Done").with_capability(use or UseUserInput())


@pytest.mark.parametrize(
    ("question", "answer", "reads"),
    [
        ({}, {"text": " Friday "}, " Friday "),
        ({"choices": ["Monday", "Friday"]}, {"text": " Friday "}, "Friday"),
        ({"choices": []}, {"text": "Someday"}, "Someday"),
        ({"schema": DAY}, {"text": '{"day":"Friday"}'}, '{"day":"Friday"}'),
        ({"schema": DAY}, {"data": {"day": "Friday"}}, '{"day":"Friday"}'),
        ({"schema": MAYBE}, {"text": "null"}, "null"),
        ({"schema": {"type": "boolean"}}, {"data": False}, "false"),
    ],
)
async def test_an_answer_that_fits_is_the_result(
    temporal: TemporalClient, question: dict[str, Any], answer: dict[str, Any], reads: str
) -> None:
    """8.5.3, 5.4.2, 7.2: also an empty one; viewers learn in which step."""
    async with at_work(temporal, an_asker(**question)) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await execution.submit_input(**answer)
        await final_result(execution)
        envelopes = await office.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)

        assert await results(execution) == [(reads, True)]
    (asked,) = [e.payload for e in envelopes if e.type == "agent.input.requested"]
    (received,) = [e.payload for e in envelopes if e.type == "agent.input.received"]
    assert (asked["step_number"], asked["expires_at"]) == (1, None)
    assert (received["step_number"], received["source"]) == (1, "user")


@pytest.mark.parametrize(
    ("question", "answer", "message"),
    [
        ({}, {"text": " \n"}, r"^Answer cannot be empty$"),
        ({"choices": ["Monday", "Friday"]}, {"text": "friday"}, r"^Answer must be one of: Monday, Friday$"),
        ({"schema": DAY}, {"text": "Friday"}, r"^Answer does not match the schema: "),
        ({"schema": DAY}, {"data": {"day": "Monday"}}, r"^Answer does not match the schema: "),
    ],
)
async def test_an_answer_that_does_not_fit_leaves_the_question_open(
    temporal: TemporalClient, question: dict[str, Any], answer: dict[str, Any], message: str
) -> None:
    """8.5.4"""
    async with at_work(temporal, an_asker(**question)) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        with pytest.raises(InvalidInput, match=message):
            await execution.submit_input(**answer)

        assert len(await execution.requests()) == 1
        assert await office.statuses(execution) == ["processing", "paused"]
        await execution.cancel()
        await final_result(execution)


@pytest.mark.parametrize(
    ("default", "question", "result"),
    [
        ("Monday", {"choices": ["Monday", "Friday"]}, ("Monday", True)),
        ({"day": "Friday"}, {"schema": DAY}, ('{"day":"Friday"}', True)),
        ("Someday", {"choices": ["Monday", "Friday"]}, ("Error: No answer within 0.05s", False)),
        (None, {}, ("Error: No answer within 0.05s", False)),
    ],
)
async def test_no_answer_arrives_in_time(
    temporal: TemporalClient, default: Any, question: dict[str, Any], result: tuple[str, bool]
) -> None:
    """8.5.5, 7.2: the default answer, if there is one that fits; viewers get the deadline and the outcome."""
    agent = an_asker(UseUserInput(0.05, default), **question)
    async with at_work(temporal, agent) as office:
        execution, _ = await office.run()
        envelopes = await office.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)
        (step, *_) = await execution.steps()
        (asked,) = [e for e in envelopes if e.type == "agent.input.requested"]

        assert await results(execution) == [result]
        assert await execution.requests() == ()
    waits = datetime.fromisoformat(asked.payload["expires_at"]) - asked.created_at
    assert abs(waits.total_seconds() - 0.05) < 1
    by_default = {"step_number": 1, "source": "default", "message_id": None}
    received = [e.payload for e in envelopes if e.type == "agent.input.received"]
    common = {"request_id": asked.payload["request_id"], "tool_call_id": step.calls[0].call.id}
    assert received == ([common | by_default] if result[1] else [])
    record = step.calls[0].record
    assert record
    assert (record.error and record.error.type) == (None if result[1] else ErrorType.TIMEOUT)


async def test_an_invalid_question_fails_at_once(temporal: TemporalClient) -> None:
    """8.5.1: no person is asked."""
    refused = calls(("user_input", {"prompt": " "}), ("user_input", {"prompt": "?", "choices": [5]}))
    async with at_work(temporal, an_agent(refused, "Done").with_capability(UseUserInput())) as office:
        execution, _ = await office.run()

        assert await results(execution) == [
            ("Error: prompt is required", False),
            ("Error: a choice must be text, not int", False),
        ]
        assert "agent.input.requested" not in await office.envelope_types(execution)


async def test_a_model_that_fills_in_choices_and_a_schema_asks_for_a_choice(temporal: TemporalClient) -> None:
    """8.5.1: and people see only the choices."""
    both = calls(("user_input", {"prompt": "Which?", "choices": ["red", "blue"], "schema": DAY}))
    async with at_work(temporal, an_agent(both, "Done").with_capability(UseUserInput())) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        (request,) = await execution.requests()
        assert "schema" not in request.request
        await execution.submit_input("blue")
        await final_result(execution)

        assert await results(execution) == [("blue", True)]


async def test_paused_executions_beyond_those_in_memory_go_on_from_their_history(
    temporal: TemporalClient,
) -> None:
    """18.1.3"""
    asker = an_agent(*[asks("Which day?")] * 4, *["Done"] * 4).with_capability(UseUserInput())
    office = an_office(temporal, asker)
    office = replace(office, settings=office.settings.model_copy(update={"worker_cached_executions": 1}))

    def in_memory() -> int:
        gc.collect()
        return sum(isinstance(each, AgentExecution) for each in gc.get_objects())

    before = in_memory()
    async with office.worker():
        executions = [await office.start() for _ in range(4)]
        for execution in executions:
            await office.until_waiting(execution)
        assert in_memory() <= before + 1
        for execution in executions:
            await execution.submit_input(text="Friday")
            await final_result(execution)

        assert [await results(execution) for execution in executions] == [[("Friday", True)]] * 4
