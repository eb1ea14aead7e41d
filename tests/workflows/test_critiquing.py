"""Self-critique in durable executions: the critic's input, its consequences, and its cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.capabilities.critique import CRITIC_PROMPT
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.executions import NewExecution
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.agent_domain.values import json_text
from everstep.capabilities.critique import UseSelfCritique
from everstep.local.runner import LocalRunner
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import ExecutionInput, workflow_id
from tests.workflows.failpoints import FailpointStrike
from tests.workflows.harness import an_agent, at_work

LOOKS = calls(("look", {"at": "the sea"}), usage=Usage(input=10))
APPROVED = '{"approved": true, "summary": "Good"}'
REJECTED = (
    'Well: {"approved": false, "summary": "Too short", "weaknesses": ["no hue"], "suggestions": "look"}'
)
REVISE = "[Critique {}: revise your answer]"


class Critical(ScriptedModel):
    """The agent's model, which is its critic's as well; a critique costs a thousand tokens."""

    def __init__(self, script: Sequence[InferenceResponse | str], critic: Sequence[str | Exception]) -> None:
        super().__init__(*script)
        self.critic = ScriptedModel(*critic)

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        if request.messages[0].text != CRITIC_PROMPT:
            return await super().respond(request, on_text)
        response = await self.critic.respond(request, on_text)
        return says(response.text, Usage(input=1000))


@dataclass(frozen=True)
class Case:
    """The agent's replies, the critic's verdicts, and the outcome."""

    script: Sequence[InferenceResponse | str]
    critic: Sequence[str | Exception]
    steps: int
    asked: int
    """The number of critiques."""
    critiques: int
    said: Sequence[str]
    """The messages after the first."""
    reason: StopReason = StopReason.COMPLETED
    max_iterations: int = 2
    usage: int = 0
    """In addition to the critic's."""

    def model(self) -> Critical:
        return Critical(self.script, self.critic)

    def agent(self, model: Critical) -> DefinitionBuilder:
        agent = an_agent(model=model, tools=[MockTool.returning("look", "", "blue")])
        return agent.with_capability(UseSelfCritique(self.max_iterations))


CASES = {
    "approved": Case(["Blue"], [APPROVED], 1, 1, 1, ["Blue"]),
    "rejected once": Case(
        ["It is there", LOOKS, "Blue"],
        [REJECTED, APPROVED],
        3,
        2,
        2,
        ["It is there", REVISE.format(1), "", "blue", "Blue"],
        usage=10,
    ),
    "rejected to the end": Case(
        ["Green", "Red"],
        [REJECTED],
        2,
        2,
        2,
        ["Green", REVISE.format(1), "Red"],
        StopReason.RETRY_LIMIT,
    ),
    "rejected and no revision allowed": Case(
        ["Green"], [REJECTED], 1, 1, 1, ["Green"], StopReason.RETRY_LIMIT, max_iterations=1
    ),
    "no critique at all": Case(["Green"], [REJECTED], 1, 0, 0, ["Green"], max_iterations=0),
    "only answers are criticised": Case([LOOKS, "Blue"], [APPROVED], 2, 1, 1, ["", "blue", "Blue"], usage=10),
    "a critic that cannot be read is asked three times": Case(["Blue"], ["Fine, I guess"], 1, 3, 1, ["Blue"]),
    "a critic that is read at last": Case(
        ["Green", "Blue"], ["Hm", REJECTED, APPROVED], 2, 3, 2, ["Green", REVISE.format(1), "Blue"]
    ),
    "a critic that fails three times approves": Case(["Blue"], [ModelError("refused")], 1, 3, 1, ["Blue"]),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_critique_decides_whether_the_agent_revises(temporal: TemporalClient, name: str) -> None:
    """9.7.1, 9.7.2, 9.7.3, 2.5: the same as in-process; the critic reads the same, and its usage counts."""
    case = CASES[name]
    model, local_model = case.model(), case.model()
    async with at_work(temporal, case.agent(model)) as office:
        execution, result = await office.run()
        said = await office.conversation(execution)
        metadata = (await office.store.material(execution.ref)).metadata
        row = await execution.get()
    local = await LocalRunner(case.agent(local_model).definition()).run(
        AgentState.empty().with_messages((user("Go"),))
    )

    assert (result.steps, result.stop_reason, result.status) == (
        case.steps,
        case.reason,
        AgentStatus.COMPLETED,
    )
    assert [text.split("\n", maxsplit=1)[0] for text in said] == ["Go", *case.said]
    assert len(model.critic.requests) == case.asked
    assert metadata.get("self_critic_iteration", 0) == case.critiques
    paid = 0 if "fails" in name else 1000 * case.asked
    assert result.usage.total == row.usage["total"] == case.usage + paid

    assert said == [message.text for message in local.messages]
    assert json_text(metadata) == json_text(local.metadata)
    assert model.critic.requests == local_model.critic.requests
    assert (result.steps, result.usage) == (local.step_count, local.usage)
    assert local.last_outcome
    assert result.stop_reason is local.last_outcome.stop_reason


async def test_the_words_of_a_rejection_reach_the_agent(temporal: TemporalClient) -> None:
    """9.7.3: the problem, and the advice."""
    case = CASES["rejected once"]
    async with at_work(temporal, case.agent(case.model())) as office:
        execution, _ = await office.run()
        revise = (await office.conversation(execution))[2]

    assert "Problem: Too short" in revise
    assert "- no hue" in revise
    assert "- look" in revise


@pytest.mark.parametrize("point", [Failpoint.PROCESS_BEFORE, Failpoint.PROCESS_AFTER_RECORD])
async def test_a_critic_whose_worker_is_lost_critiques_once(
    temporal: TemporalClient, point: Failpoint
) -> None:
    """9.7.2, 1.1.1: one critique, one request to revise, and paid for once."""
    case, strike = CASES["rejected once"], FailpointStrike(point)
    model = case.model()
    async with at_work(temporal, case.agent(model), strike=strike) as office:
        execution, result = await office.run()
        said = await office.conversation(execution)

    assert strike.at is None
    assert [text.split("\n", maxsplit=1)[0] for text in said] == ["Go", *case.said]
    assert len(model.critic.requests) == 2
    assert result.usage.total == 2010


async def test_the_task_is_the_message_that_began_the_execution(temporal: TemporalClient) -> None:
    """9.7.1: not the first message of the conversation."""
    model = Critical(["Red", "Blue"], [APPROVED])
    agent = an_agent(model=model).with_capability(UseSelfCritique())
    async with at_work(temporal, agent) as office:
        first, _ = await office.run("Paint the door")
        ref = ExecutionRef(uuid4())
        said = (user("Paint the gate"),)
        await office.store.accept(NewExecution(ref, office.agents[0].spec(), said, continues=first.id))
        await temporal.execute_workflow(
            AgentExecution.run,
            ExecutionInput(ref, office.agents[0].plan()),
            id=workflow_id(ref),
            task_queue=office.settings.task_queue,
        )

    tasks = [request.messages[1].text.split("\n")[2] for request in model.critic.requests]
    assert tasks == ["Paint the door", "Paint the gate"]


async def test_a_critique_counts_against_the_tokens(temporal: TemporalClient) -> None:
    """2.6.2, 9.7.3: a revision without remaining tokens is not begun."""
    case = CASES["rejected once"]
    async with at_work(temporal, case.agent(case.model()).with_max_tokens(1000)) as office:
        _, result = await office.run()

    assert (result.stop_reason, result.steps) == (StopReason.TOKEN_LIMIT, 1)


async def test_the_working_time_of_a_critic_counts(temporal: TemporalClient) -> None:
    """2.7.1: as work of the execution."""
    case = CASES["approved"]
    async with at_work(temporal, case.agent(case.model())) as office:
        execution, result = await office.run()
        (step,) = await execution.steps()

    assert step.facts
    assert result.seconds > step.facts.seconds
