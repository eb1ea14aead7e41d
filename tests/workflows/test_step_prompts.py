"""The prompt of a step, which is built again from what is stored, is the one that the model got."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.token_counting import ContextWindow
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Messages, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls
from everstep.agent_domain.values import frozen_map
from everstep.client.client import Execution
from everstep.client.prompts import read_prompt
from tests.compaction import NarrowModel
from tests.workflows.harness import Office, an_agent, at_work, final_result
from tests.workflows.test_compaction import LONG, NOW, WINDOW, a_compacting, seen


def without_provider_items(messages: Messages) -> list[Any]:
    return [message.to_dict() for message in messages]


async def assert_prompts_equal(
    office: Office, execution: Execution, requests: list[InferenceRequest]
) -> None:
    """The prompt of each step is the request that the model received."""
    for number, received in enumerate(requests, 1):
        prompt = await read_prompt(office.client, execution.ref, number)
        built = prompt.request
        assert without_provider_items(built.messages) == without_provider_items(received.messages), number
        assert (built.tools, built.cached_messages) == (received.tools, received.cached_messages)
        assert prompt.is_current


async def test_the_prompt_of_each_step_is_rebuilt(temporal: TemporalClient) -> None:
    """16.4.11: with instructions, results, and what a hook has added."""

    class Dated(AgentHook):
        def before_step(self, state: AgentState) -> AgentState:
            return state.heard(user(f"It is day {state.facts.recorded_steps}"))

    model = ScriptedModel(calls(("look", {"n": 1})), calls(("look", {"n": 2})), "Done")
    agent = an_agent(model=model, tools=[MockTool("look", handler=seen)])
    async with at_work(temporal, agent.with_system_prompt("Be brief").add_hook(Dated())) as office:
        execution, _ = await office.run("Go")
        await assert_prompts_equal(office, execution, model.requests)
        # Another agent of this name does not change what the model has read.
        other = an_agent(model=ScriptedModel("Other")).with_system_prompt("Be long").definition()
        changed = replace(office.client, agents={(await execution.get()).agent: other})
        prompt = await read_prompt(changed, execution.ref, 3)
    assert not prompt.is_current
    assert without_provider_items(prompt.request.messages) == without_provider_items(
        model.requests[2].messages
    )
    assert prompt.request.tools == model.requests[2].tools
    assert len(model.requests) == 3


async def test_the_prompt_has_the_compaction_of_its_step(temporal: TemporalClient) -> None:
    """16.4.11: results that were cut, summaries, and those that the next execution takes over."""
    look = MockTool("look", handler=seen)
    cutting = NarrowModel(
        *(calls(("look", {"n": n})) for n in range(5)), "Done", window=ContextWindow(4200, 200)
    )
    async with at_work(temporal, a_compacting(cutting, look)) as office:
        execution, _ = await office.run("Look five times")
        await assert_prompts_equal(office, execution, cutting.requests)
    model = NarrowModel(window=WINDOW)
    agent = a_compacting(model).definition()
    async with at_work(temporal, agent) as office:
        first, _ = await office.run([*LONG, NOW])
        await assert_prompts_equal(office, first, model.requests)
        ref, plan = ExecutionRef(uuid4()), agent.plan()
        data = frozen_map(plan.model_dump(mode="json"))
        await office.store.accept(
            NewExecution(ref, agent.spec(), (user("Go on"),), continues=first.id, plan=data)
        )
        await final_result(await office.client.launch(ref, plan))
        await assert_prompts_equal(office, office.client.execution(ref.execution_id), model.requests[1:])
