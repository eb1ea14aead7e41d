"""Structured results of durable executions: stored, sent to viewers, and typed in what clients return."""

from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls
from everstep.client.temporal_entry import ExecutionReport
from tests.workflows.harness import an_agent, at_work
from tests.workflows.test_reacting import answers

LOOK = MockTool.returning("look", "Looks around", "a train at 8:25")
GOOD = '{"city":"Oslo"}'


class Trip(BaseModel):
    city: str
    days: int = 1


class Place(BaseModel):
    city: str


OSLO = {"city": "Oslo", "days": 1}


def planner(*script: Any, name: str = "agent", **given: Any) -> DefinitionBuilder:
    builder = an_agent(*script, tools=[LOOK]).with_name(name).with_output(Trip, **given)
    return builder.with_max_steps(10)


async def test_an_execution_ends_with_a_result_of_the_agents_type(temporal: TemporalClient) -> None:
    """9.8.4: after a tool and a correction, in the row, in the envelope of the end and in Python."""
    result_call = calls(("final_result", {"city": "Oslo"}))
    async with at_work(temporal, planner(calls(("look", {})), "Hm", result_call)) as office:
        execution = await office.start()
        result = await execution.result()

        row = await execution.get()
        assert (result.status, result.output) == (AgentStatus.COMPLETED, Trip(city="Oslo"))
        assert row.output == {"response": GOOD, "stop_reason": "completed", "data": OSLO}
        end = (await office.store.envelopes(row.ref.tenant_id, row.ref.stream_id))[-1]
        assert (end.payload["status"], end.payload["output"]) == ("completed", row.output)
        second = (await execution.steps())[1]
        assert [error.type for error in second.errors] == ["validation"]
        refusal = (await office.conversation(execution))[-2]
        assert refusal.startswith("Error: The result does not fit its schema: the answer is not valid JSON")
        assert (await ExecutionReport.of(execution)).data == OSLO


async def test_an_execution_without_a_result_says_null(temporal: TemporalClient) -> None:
    """9.8.6: after the corrections the error policy decides. Other agents have no `data` at all."""
    async with at_work(temporal, planner("Hm", max_retries=1), an_agent("Hm").with_name("free")) as office:
        execution = await office.start()
        result = await execution.result()
        free = await office.start(agent="free")
        await free.result()

        row = await execution.get()
        assert (result.stop_reason, result.steps, result.output) == (StopReason.ERROR, 2, None)
        assert row.output == {"response": "Hm", "stop_reason": "error", "data": None}
        assert (await free.get()).output == {"response": "Hm", "stop_reason": "completed"}


@pytest.mark.parametrize("output", [Place, Place.model_json_schema(), list[Place]], ids=str)
async def test_a_request_may_ask_for_another_result(temporal: TemporalClient, output: Any) -> None:
    """9.8.4: the worker knows its schema only, and the client has its type."""
    answer = '{"result":[{"city":"Oslo"}]}' if output == list[Place] else GOOD
    expected: Any = {"city": "Oslo"} if isinstance(output, dict) else Place(city="Oslo")
    async with at_work(
        temporal, planner('{"town":1}', answer), an_agent('{"town":1}', answer).with_name("free")
    ) as office:
        for agent in ("agent", "free"):
            execution = await office.start(agent=agent, output=output)
            result = await execution.result()

            assert result.output == ([expected] if output == list[Place] else expected)
            assert result.steps == 2


async def test_an_unusable_schema_starts_nothing(temporal: TemporalClient) -> None:
    """9.8.7"""
    async with at_work(temporal, an_agent(GOOD)) as office:
        for output, problem in (
            ({"type": "elephant"}, "cannot be used"),
            ({"$ref": "#"}, "refers to itself"),
        ):
            with pytest.raises(InvalidInput, match=problem):
                await office.start(output=output)
        assert (await office.client.list()).rows == ()


async def test_react_gives_results_durably(temporal: TemporalClient) -> None:
    """9.8.5"""
    driver = ReActDriver(ScriptedModel(answers("Oslo"), answers(GOOD)))
    agent = DefinitionBuilder.new().with_name("agent").with_driver(driver).with_output(Trip)
    async with at_work(temporal, agent) as office:
        assert (await (await office.start()).result()).output == Trip(city="Oslo")
