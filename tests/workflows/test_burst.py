"""The profile `burst`: model calls in the worker that runs the workflow, while they are short."""

import asyncio
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.testing import ActivityEnvironment

from everstep.activities import brief_inference
from everstep.activities.agent import AgentActivities
from everstep.activities.contracts import INFER, InferInput
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.plan import Profile
from everstep.agent_domain.errors import RateLimited
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.storage.steps import BeginStep
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.client.client import Execution
from everstep.runtime.agents import AgentBook
from everstep.workflows import agent_execution
from everstep.workflows.contracts import workflow_id
from tests.workflows.failpoints import FORGIVING, FailpointStrike
from tests.workflows.harness import (
    HeldModel,
    NoModels,
    Office,
    an_agent,
    an_office,
    at_work,
    events_of,
    eventually,
    final_result,
    of_type,
    scheduled_activities,
)
from tests.workflows.test_failures import MODEL_ATTEMPTS, TOOL_ATTEMPTS, StruckAttempt

QUICK = ToolOptions(quick=True)


def looks(times: int) -> list[Any]:
    """A script that looks this often, and answers."""
    return [*([calls(("look", {}))] * times), "Done"]


async def test_short_model_calls_are_no_activities_of_the_server(temporal: TemporalClient) -> None:
    """18.8.1, 18.8.6: nor are quick tools, so the whole execution is one workflow task."""
    agent = an_agent(*looks(3), tools=[MockTool("look", options=QUICK)]).with_profile("burst")
    async with at_work(temporal, agent) as office:
        execution, result = await office.run()
        events = await events_of(execution)

    assert (result.status, result.steps) == (AgentStatus.COMPLETED, 4)
    assert not of_type(events, "ACTIVITY_TASK_SCHEDULED")
    assert len(of_type(events, "WORKFLOW_TASK_COMPLETED")) == 1


async def test_a_longer_call_goes_on_in_an_activity(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.8.2: the model is asked once, and a message arrives meanwhile."""
    monkeypatch.setattr(brief_inference, "BRIEF_SECONDS", 0.01)
    model = HeldModel("Done")
    async with at_work(temporal, an_agent(model=model).with_profile("burst")) as office:
        execution = await office.start()
        await model.begun.wait()
        await eventually(lambda: is_moved(execution))
        await execution.steer("Be brief")
        model.go_on.set()
        result = await final_result(execution)

    assert (result.status, result.steps) == (AgentStatus.COMPLETED, 2)
    assert model.asked == 2


async def is_moved(execution: Execution) -> bool:
    """Whether the model call is an activity of the server."""
    return bool(scheduled_activities(await events_of(execution), INFER))


async def test_a_cancel_reaches_a_call_that_was_moved(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.8.2"""
    monkeypatch.setattr(brief_inference, "BRIEF_SECONDS", 0.01)
    model = HeldModel("Done")
    async with at_work(temporal, an_agent(model=model).with_profile("burst")) as office:
        execution = await office.start()
        await eventually(lambda: is_moved(execution))
        await execution.cancel()
        await office.until_status(execution, ExecutionStatus.CANCELLED)

    assert model.was_closed


async def test_messages_arrive_between_short_calls(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.8.3: a workflow task ends once local calls have taken long enough."""
    monkeypatch.setattr(agent_execution, "LONGEST_TASK", timedelta(milliseconds=20))

    async def take_a_moment() -> str:
        await asyncio.sleep(0.03)
        return "a sea"

    look = MockTool("look", handler=take_a_moment, options=QUICK)
    async with at_work(temporal, an_agent(*looks(3), tools=[look]).with_profile("burst")) as office:
        execution, result = await office.run()
        events = await events_of(execution)

    assert result.steps == 4
    assert len(of_type(events, "TIMER_FIRED")) == 3


async def test_a_call_that_fails_in_transport_is_repeated_after_a_timer(temporal: TemporalClient) -> None:
    """18.8.4"""
    agent = an_agent(RateLimited("slow down", retry_after=0.01), "Done").with_profile("burst")
    async with at_work(temporal, agent) as office:
        execution, result = await office.run()
        events, steps = await events_of(execution), await execution.steps()

    assert result.status is AgentStatus.COMPLETED
    assert of_type(events, "TIMER_FIRED")
    assert (steps[0].attempt, steps[0].failed_attempts) == (2, (1,))


BURST_ATTEMPTS = [*MODEL_ATTEMPTS, *(each for each in TOOL_ATTEMPTS if each.quick)]


async def test_a_second_attempt_repeats_nothing_that_is_recorded(temporal: TemporalClient) -> None:
    """18.8.5: the same attempts as those of regular activities, with the same outcomes."""
    agents = [struck_agent(each) for each in BURST_ATTEMPTS]
    strike = FailpointStrike()

    async def count(struck: StruckAttempt, agent: DefinitionBuilder) -> int:
        id_, driver = uuid4(), cast("Any", agent.definition().driver)
        strike.each[workflow_id(ExecutionRef(id_))] = struck.at
        execution, result = await office.run(agent=agent.definition().descriptor.name, execution_id=id_)
        calls_made = sum(len(cast("Any", tool).calls) for tool in agent.definition().tools)
        assert (await office.conversation(execution))[-1] == "Done"
        assert result.status in (AgentStatus.COMPLETED, AgentStatus.FAILED)
        return len(driver.model.requests) if struck in MODEL_ATTEMPTS else calls_made

    async with at_work(temporal, *agents, strike=strike) as office:
        counts = await asyncio.gather(*map(count, BURST_ATTEMPTS, agents))

    assert counts == [struck.did for struck in BURST_ATTEMPTS]
    assert not strike.each


def struck_agent(struck: StruckAttempt) -> DefinitionBuilder:
    """The agent of an attempt."""
    options = ToolOptions(effect=struck.effect, quick=True)
    script = ["Done"] if struck in MODEL_ATTEMPTS else [calls(("work", {})), "Done"]
    agent = an_agent(*script, tools=[MockTool("work", options=options)]).with_name(str(struck))
    return agent.with_error_policy(FORGIVING).with_profile("burst")


async def test_the_attempt_of_a_lost_worker_is_superseded(temporal: TemporalClient) -> None:
    """18.8.5: although every worker counts its attempts at a local activity from 1."""
    office = an_office(temporal, an_agent("Done").with_profile("burst"))
    ref, own = await accept(office), activities_of(office)
    await office.store.begin_step(BeginStep(ref, 1, 1, None))
    await ActivityEnvironment().run(own.infer_briefly, InferInput(ref, 1, profile=Profile.BURST))
    step = (await office.store.steps(ref))[0]

    assert step.attempt == 2
    assert "agent.attempt.superseded" in await office.envelope_types(Execution(office.client, ref))


async def test_a_call_that_no_activity_takes_over_ends(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18.8.2: another worker has the activity, or the execution has been cancelled."""
    monkeypatch.setattr(brief_inference, "BRIEF_SECONDS", 0.01)
    monkeypatch.setattr(brief_inference, "UNCLAIMED_SECONDS", 0.01)
    model = HeldModel("Done")
    office = an_office(temporal, an_agent(model=model).with_profile("burst"))
    ref, own = await accept(office), activities_of(office)
    facts = await ActivityEnvironment().run(own.infer_briefly, InferInput(ref, 1, profile=Profile.BURST))

    async def is_closed() -> bool:
        return model.was_closed

    assert facts is None
    await eventually(is_closed)


async def accept(office: Office) -> ExecutionRef:
    """Store an execution whose workflow does not run."""
    ref = ExecutionRef(uuid4())
    await office.store.accept(NewExecution(ref, office.agents[0].spec(), (user("Go"),)))
    return ref


def activities_of(office: Office) -> AgentActivities:
    """The activities of a worker."""
    return AgentActivities(office.port, AgentBook(office.agents, NoModels()))
