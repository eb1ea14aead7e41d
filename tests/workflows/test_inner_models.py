"""Processors and tools that ask models: each request is paid for once, and counts once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.activities.tool_runner import EFFECT_UNKNOWN
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.errors import ModelError, RateLimited
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.inquiry import AskModel
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.capabilities.structured_output import UseStructuredOutputs
from everstep.client.client import Execution
from tests.workflows.failpoints import FailpointStrike, results
from tests.workflows.harness import HeldModel, Office, an_agent, at_work, final_result

LOOKS = calls(("look", {}), usage=Usage(input=10, output=5))
DONE = says("Done", Usage(input=20, output=3))
BOTH_STEPS = 15 + 23


class Lost:
    """The worker is lost here, once: its work stops without a report."""

    def __init__(self) -> None:
        self.left = 1

    async def __call__(self) -> None:
        task = asyncio.current_task()
        if self.left and task:
            self.left -= 1
            task.cancel()
            await asyncio.sleep(0)


class Inner(ScriptedModel):
    """Replies to the agent by its script, and to each inner request by a script for those."""

    def __init__(
        self, *script: InferenceResponse | str, inner: Sequence[str | Exception | Lost] = ()
    ) -> None:
        super().__init__(*script)
        self.answers = list(inner)
        self.inner: list[str] = []

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        if request.messages[0].text == "Go":
            return await super().respond(request, on_text)
        self.inner.append(request.messages[-1].text)
        answer = self.answers.pop(0) if self.answers else f"Answer {len(self.inner)}"
        if isinstance(answer, Lost):
            await answer()
        if isinstance(answer, Exception):
            raise answer
        return says(str(answer), Usage(input=1000, output=len(self.inner)))


class Asks:
    """A processor that asks about each step, and notes the answers."""

    def __init__(self, *questions: str, then: Lost | None = None) -> None:
        self.questions = questions
        self.then = then

    async def process(self, state: AgentState, ask: AskModel) -> AgentState:
        said = list[str]()
        for question in self.questions:
            said.append((await ask(InferenceRequest((user(question),)))).text)
        if self.then:
            await self.then()
        return state.heard(user("Noted")).with_metadata(f"step {state.step_count}", said)


def an_asker(model: Inner, processor: Asks) -> DefinitionBuilder:
    return an_agent(model=model, tools=[MockTool("look")]).add_processor(processor)


async def metadata(office: Office, execution: Execution) -> dict[str, Any]:
    return dict((await office.store.material(execution.ref)).metadata)


class TestProcessors:
    @pytest.mark.parametrize("point", [Failpoint.PROCESS_BEFORE, Failpoint.PROCESS_AFTER_RECORD])
    async def test_a_lost_processor_has_its_answer_once(
        self, temporal: TemporalClient, point: Failpoint
    ) -> None:
        """1.1.1, 1.1.3: its request, its notes, and their cost."""
        model, strike = Inner(LOOKS, DONE), FailpointStrike(point)
        async with at_work(temporal, an_asker(model, Asks("How was it?")), strike=strike) as office:
            execution, result = await office.run()
            row, said = await execution.get(), await office.conversation(execution)

            assert await metadata(office, execution) == {"step 1": ["Answer 1"], "step 2": ["Answer 2"]}
        assert strike.at is None
        assert model.inner == ["How was it?"] * 2
        assert said == ["Go", "", "null", "Noted", "Done", "Noted"]
        assert result.usage.total == row.usage["total"] == BOTH_STEPS + 1001 + 1002

    async def test_a_processor_lost_with_all_answers_asks_nothing_again(
        self, temporal: TemporalClient
    ) -> None:
        """1.1.1, 1.1.3: the answers were recorded as they arrived."""
        model, lost = Inner(DONE), Lost()
        agent = an_asker(model, Asks("How was it?", "How come?", then=lost))
        async with at_work(temporal, agent) as office:
            execution, result = await office.run()
            row = await execution.get()

            assert await metadata(office, execution) == {"step 1": ["Answer 1", "Answer 2"]}
        assert lost.left == 0
        assert model.inner == ["How was it?", "How come?"]
        assert result.usage.total == row.usage["total"] == 23 + 1001 + 1002

    async def test_a_processor_lost_between_two_requests_repeats_the_second(
        self, temporal: TemporalClient
    ) -> None:
        """1.1.1, 1.1.3: the answer to the first was paid for."""
        model = Inner(DONE, inner=["Well", Lost(), "Luck"])
        async with at_work(temporal, an_asker(model, Asks("How was it?", "How come?"))) as office:
            execution, result = await office.run()

            assert await metadata(office, execution) == {"step 1": ["Well", "Luck"]}
        assert model.inner == ["How was it?", "How come?", "How come?"]
        assert result.usage.total == 23 + 1001 + 1003

    async def test_inner_requests_count_once_while_the_execution_runs(self, temporal: TemporalClient) -> None:
        """4.2.1: readers of the row see no more than was used."""
        model = HeldModel(LOOKS, says("Well", Usage(input=1000)), DONE, holds=3)
        agent = an_agent(model=model, tools=[MockTool("look")]).add_processor(Asks("How was it?"))
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await model.begun.wait()
            running = await execution.get()
            model.go_on.set()
            await final_result(execution)

        assert running.usage["total"] == 15 + 1000

    async def test_inner_requests_count_against_the_limit(self, temporal: TemporalClient) -> None:
        """2.6.2: together with the step."""
        agent = an_asker(Inner(LOOKS, DONE), Asks("How was it?")).with_max_tokens(1016)
        async with at_work(temporal, agent) as office:
            _, result = await office.run()

        assert (result.stop_reason, result.steps, result.usage.total) == (StopReason.TOKEN_LIMIT, 1, 1016)

    async def test_a_busy_model_is_retried(self, temporal: TemporalClient) -> None:
        """3.5.1: within the step, up to three times."""
        busy = RateLimited("busy", 0.01)
        agent = an_asker(Inner(DONE, inner=[busy, busy, "Well"]), Asks("How was it?"))
        async with at_work(temporal, agent) as office:
            execution, result = await office.run()

            assert await metadata(office, execution) == {"step 1": ["Well"]}
        assert result.status is AgentStatus.COMPLETED

    async def test_a_model_that_stays_busy_is_a_failure_step(self, temporal: TemporalClient) -> None:
        """4.3.4, 4.5.4: after the processed step."""
        agent = an_asker(Inner(DONE, inner=[RateLimited("busy", 0.01)] * 3), Asks("How was it?"))
        async with at_work(temporal, agent.with_max_retries(3)) as office:
            execution, result = await office.run()
            steps = await execution.steps()

        assert (result.status, result.stop_reason, result.steps) == (AgentStatus.FAILED, StopReason.ERROR, 2)
        assert [error.message for error in steps[1].errors] == ["busy"]

    async def test_cancelling_disconnects_from_the_provider(self, temporal: TemporalClient) -> None:
        """8.2.1: at once."""
        model = HeldModel("Done", holds=2)
        async with at_work(temporal, an_agent(model=model).add_processor(Asks("How was it?"))) as office:
            execution = await office.start()
            await model.begun.wait()
            await execution.cancel()
            result = await final_result(execution)

        assert model.was_closed
        assert result.stop_reason is StopReason.USER_REQUESTED


class Answer(BaseModel):
    """An answer."""

    number: int


def queries(*questions: str) -> InferenceResponse:
    asked = (("llm_query", {"query": question}) for question in questions)
    return calls(*asked, usage=Usage(input=10, output=5))


class TestTools:
    @pytest.mark.parametrize("point", [Failpoint.TOOL_AFTER_EFFECT, Failpoint.TOOL_BEFORE_REPORT])
    async def test_llm_query_is_paid_for_once(self, temporal: TemporalClient, point: Failpoint) -> None:
        """9.9.1, 1.1.3: also when it is run again."""
        model, strike = Inner(queries("How many?"), DONE), FailpointStrike(point)
        async with at_work(temporal, an_agent(model=model, tools=[LlmQueryTool()]), strike=strike) as office:
            execution, result = await office.run()
            row = await execution.get()

            assert await results(execution) == ["Answer 1"]
        assert strike.at is None
        assert model.inner == ["How many?"]
        assert result.usage.total == row.usage["total"] == BOTH_STEPS + 1001

    async def test_calls_of_one_step_ask_separately(self, temporal: TemporalClient) -> None:
        """9.9.1, 5.4.1: the same question twice is two requests."""
        model = Inner(queries("How many?", "How many?"), DONE)
        async with at_work(temporal, an_agent(model=model, tools=[LlmQueryTool()])) as office:
            execution, result = await office.run()

            assert sorted(await results(execution)) == ["Answer 1", "Answer 2"]
        assert result.usage.total == BOTH_STEPS + 1001 + 1002

    async def test_the_agent_reads_of_a_failed_model_call(self, temporal: TemporalClient) -> None:
        """9.9.1: no failure of the call."""
        model = Inner(queries("How many?", " "), DONE, inner=[ModelError("refused")])
        async with at_work(temporal, an_agent(model=model, tools=[LlmQueryTool()])) as office:
            execution, result = await office.run()

            assert await results(execution) == [
                "Error: The model call failed: refused",
                "Error: query is empty",
            ]
        assert result.status is AgentStatus.COMPLETED

    async def test_extraction_continues_where_it_was_lost(self, temporal: TemporalClient) -> None:
        """9.8.1, 9.8.3, 1.1.3: the first attempt was paid for, and its error is sent back again."""
        model = Inner(
            calls(
                ("extract_data", {"input": "Six", "schema": "answer", "store_as": "found"}), usage=LOOKS.usage
            ),
            DONE,
            inner=["Six", Lost(), '{"value": {"number": 6}}'],
        )
        agent = an_agent(model=model).with_capability(UseStructuredOutputs({"answer": Answer}))
        async with at_work(temporal, agent) as office:
            execution, result = await office.run()

            assert await results(execution) == ["Extracted answer into 'found': {\"number\":6}"]
            assert await metadata(office, execution) == {"found": {"number": 6}}
        assert len(model.inner) == 3
        assert model.inner[0] == "Six"
        assert model.inner[1] == model.inner[2]
        assert result.usage.total == BOTH_STEPS + 1001 + 1003

    async def test_the_requests_of_calls_count_against_the_limit(self, temporal: TemporalClient) -> None:
        """2.6.2: the inner requests of a step's calls count before the next step."""
        agent = an_agent(model=Inner(queries("How many?"), DONE), tools=[LlmQueryTool()])
        async with at_work(temporal, agent.with_max_tokens(1016)) as office:
            _, result = await office.run()

        assert (result.stop_reason, result.steps) == (StopReason.TOKEN_LIMIT, 1)

    @pytest.mark.parametrize("is_quick", [False, True])
    async def test_a_request_of_a_call_counts_although_its_effect_is_unknown(
        self, temporal: TemporalClient, is_quick: bool
    ) -> None:
        """1.1.3, 4.2.1: its tool does not run again, and the inner model call was paid."""

        @tool(options=ToolOptions(effect=Effect.AT_MOST_ONCE, quick=is_quick))
        async def consult(context: ToolContext) -> str:
            """Ask twice, and act on it."""
            said = [await context.ask(InferenceRequest((user(each),))) for each in ("One?", "Two?")]
            return " ".join(each.text for each in said)

        model, strike = Inner(calls(("consult", {}), usage=LOOKS.usage), DONE), FailpointStrike()
        agent = an_agent(model=model, tools=[consult]).with_error_policy(ErrorPolicy.ignore_tool_errors())
        strike.at = Failpoint.TOOL_AFTER_EFFECT
        async with at_work(temporal, agent, strike=strike) as office:
            execution, result = await office.run()
            row, (read,) = await execution.get(), await results(execution)

        assert read == f"Error: {EFFECT_UNKNOWN}"
        assert model.inner == ["One?", "Two?"]
        assert result.usage.total == row.usage["total"] == BOTH_STEPS + 1001 + 1002

    async def test_the_requests_of_calls_count_although_their_step_was_cancelled(
        self, temporal: TemporalClient
    ) -> None:
        """4.2.1: the row has the usage of all requests, also of a call whose result is no longer awaited."""
        begun = asyncio.Event()

        @tool
        async def ponder(context: ToolContext) -> str:
            """Ask, and then take for ever."""
            await context.ask(InferenceRequest((user("One?"),)))
            begun.set()
            return await asyncio.Future[str]()

        model = Inner(calls(("ponder", {}), usage=LOOKS.usage))
        async with at_work(temporal, an_agent(model=model, tools=[ponder])) as office:
            execution = await office.start()
            await begun.wait()
            await execution.cancel()
            await final_result(execution)
            row = await execution.get()

        assert row.status is ExecutionStatus.CANCELLED
        assert row.usage["total"] == 15 + 1001

    async def test_usage_counts_while_people_are_waited_for(self, temporal: TemporalClient) -> None:
        """4.2.1: the step is not complete, and was paid for."""
        model = Inner(queries("How many?"), DONE)
        agent = an_agent(model=model, tools=[LlmQueryTool()]).with_approval("llm_query", "always")
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_status(execution, ExecutionStatus.PAUSED)
            waiting = (await execution.get()).usage["total"]
            await execution.approve()
            result = await final_result(execution)

        assert (waiting, result.usage.total) == (15, BOTH_STEPS + 1001)
