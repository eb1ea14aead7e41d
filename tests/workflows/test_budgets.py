"""Executions within budgets: reserved before each model call, stopped, paused or degraded on exhaustion."""

from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.call_limits import CallLimits
from everstep.agent_domain.capabilities.rights import ALL_SESSIONS, APPROVE, Actor
from everstep.agent_domain.errors import InvalidInput, ModelUnavailable, NotPermitted
from everstep.agent_domain.loop.continuation import ContinuationOutcome
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.pricing.prices import PriceList, Prices
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.storage.requests import RequestKind, RequestState
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import ToolContext
from everstep.client.errors import Ended
from everstep.client.execution import Execution
from tests.workflows.failpoints import FailpointStrike
from tests.workflows.harness import HeldModel, an_agent, at_work, final_result, progress
from tests.workflows.test_subagents import a_boss, a_hand, hires

APPROVER, OWNER = Actor("boss", (APPROVE,)), Actor("ann", (ALL_SESSIONS,))
PRICES = PriceList(Prices(Decimal(1), Decimal(10)))
USED = Usage(input=400, output=100)


class LimitedModel(ScriptedModel):
    """A scripted model whose prices and length of answers are known."""

    def __init__(self, *script: InferenceResponse | str, **limits: Any) -> None:
        super().__init__(*script)
        self.call_limits = CallLimits((PRICES,), **limits)


def looks(usage: Usage = USED) -> InferenceResponse:
    return calls(("look", {}), usage=usage)


def an_explorer(*script: InferenceResponse | str, **budget: Any) -> DefinitionBuilder:
    """An agent that looks twice, and then answers."""
    model = LimitedModel(*(script or (looks(), looks(), says("Done", usage=USED))), max_output_tokens=200)
    return an_agent(model=model, tools=[MockTool("look")]).with_budget(**budget)


async def because(execution: Execution) -> tuple[str, str]:
    """The criterion that ended the execution, and its reason."""
    (*_, last) = await execution.steps()
    assert last.outcome is not None
    outcome = ContinuationOutcome.from_dict(last.outcome)
    vote = outcome.forbidding_criterion()
    return outcome.resolved_by, vote.reason if vote else ""


@pytest.mark.parametrize(
    ("budget", "steps", "reason"),
    [
        ({"steps": 2}, 2, StopReason.STEPS_LIMIT),
        ({"tokens": 1700}, 2, StopReason.TOKEN_LIMIT),
        ({"steps": 0}, 0, StopReason.STEPS_LIMIT),
        ({"steps": 3, "tokens": 100_000}, 3, StopReason.COMPLETED),
    ],
)
async def test_an_exhausted_budget_ends_the_execution(
    temporal: TemporalClient, budget: dict[str, Any], steps: int, reason: StopReason
) -> None:
    """4.8.5: the next model call is not made."""
    async with at_work(temporal, an_explorer(**budget)) as office:
        execution, result = await office.run()
        row = await execution.get()
        accounts = await execution.budgets()

        assert (result.steps, result.stop_reason, row.step_count) == (steps, reason, steps)
        assert row.status is ExecutionStatus.COMPLETED
        assert [each.reserved for each in accounts] == [0] * len(accounts)
        assert {str(each.unit): int(each.spent) for each in accounts} == {
            unit: {"steps": steps, "tokens": 500 * steps}[unit] for unit in budget
        }
        if steps and reason is not StopReason.COMPLETED:
            assert (await because(execution))[0] == "BudgetLimit"


async def test_a_person_raises_the_budget_and_the_execution_goes_on(temporal: TemporalClient) -> None:
    """4.8.6, 15.1.1: it waits in the same step, and holds nothing of the budget while it does."""
    async with at_work(temporal, an_explorer(steps=1, on_exhausted="ask")) as office:
        execution = await office.start(user_id="ann")
        await office.until_waiting(execution)
        (request,) = await execution.requests()
        waits = await progress(execution)
        assert (request.kind, request.step_number, request.request["unit"]) == (
            RequestKind.BUDGET,
            2,
            "steps",
        )
        assert waits.facts.awaited_budget is not None
        (waiting,) = await execution.budgets()
        assert (waiting.limit, waiting.spent, waiting.reserved) == (1, 1, 0)

        refusals: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"steps": 5, "by": OWNER}, NotPermitted, "Only callers with the scope 'approve'"),
            ({"steps": 0, "by": APPROVER}, InvalidInput, "is 1 step already; pass a larger total"),
            ({"usd": 5, "by": APPROVER}, InvalidInput, "has no budget in usd"),
            ({"steps": 5, "tokens": 9, "by": APPROVER}, InvalidInput, "pass one new total"),
            ({"steps": 5, "scope": "tenant", "by": APPROVER}, InvalidInput, "no budget of the tenant"),
        ]
        for refused, error, match in refusals:
            with pytest.raises(error, match=match):
                await execution.raise_budget(**refused)

        raised = await execution.raise_budget(steps=2, by=APPROVER)
        assert raised.limit == 2
        await office.until_running_again(execution)
        await office.until_waiting(execution)
        await execution.raise_budget(steps=9, by=APPROVER)
        result = await final_result(execution)

        assert (result.steps, result.stop_reason) == (3, StopReason.COMPLETED)
        # Each decision is recorded, although its step waited.
        went_on = "went on: the model called 1 tool: look"
        assert [step.sentence for step in (await execution.because()).steps][:2] == [went_on, went_on]
        resolved = await execution.all_requests()
        assert [(row.state, row.resolution and row.resolution.value) for row in resolved] == [
            (RequestState.RESOLVED, "2"),
            (RequestState.RESOLVED, "9"),
        ]
        assert resolved[0].resolution is not None
        assert resolved[0].resolution.by is not None
        assert (resolved[0].resolution.by.subject, resolved[0].resolution.by.scopes) == ("boss", (APPROVE,))
        with pytest.raises(Ended):
            await execution.raise_budget(steps=20, by=APPROVER)
        assert await office.statuses(execution) == [
            *("processing", "paused", "processing", "paused", "processing", "completed")
        ]


async def test_a_cancel_ends_the_wait_for_a_budget(temporal: TemporalClient) -> None:
    """4.8.6"""
    async with at_work(temporal, an_explorer(tokens=1100, on_exhausted="ask")) as office:
        execution = await office.start()
        await office.until_waiting(execution)
        await execution.cancel()
        await final_result(execution)

        assert (await execution.get()).status is ExecutionStatus.CANCELLED
        assert not await execution.requests()


async def test_the_answer_is_as_long_as_what_is_left_pays_for(temporal: TemporalClient) -> None:
    """4.8.2: where no length is set, and at least 1,000 tokens."""
    model = LimitedModel(looks(), looks(Usage(10, 2500)), "Done", most_output=3000)
    agent = an_agent(model=model, tools=[MockTool("look")]).with_budget(tokens=6000)
    async with at_work(temporal, agent) as office:
        _, result = await office.run()

    lengths = [request.max_output_tokens for request in model.requests]
    assert lengths[0] is None
    assert len(lengths) == 2 + (lengths[-1] != lengths[1])
    assert result.stop_reason in (StopReason.COMPLETED, StopReason.TOKEN_LIMIT)


@pytest.mark.parametrize("policy", ["stop", "ask"])
async def test_subagents_share_the_budgets_of_their_parent(temporal: TemporalClient, policy: str) -> None:
    """4.8.8: a person raises the budget of the parent, and the subagent goes on."""
    boss = a_boss(hires("hand"), "Done").with_budget(steps=2, on_exhausted=policy)  # type: ignore[arg-type]
    hand = a_hand(looks(), "Done", tools=[MockTool("look")])
    async with at_work(temporal, boss, hand) as office:
        execution = await office.start()
        if policy == "ask":
            await office.until_waiting(execution)
            assert not await execution.requests()
            (request,) = await execution.requests_of_all()
            assert (request.kind, request.agent) == (RequestKind.BUDGET, "hand")
            await execution.raise_budget(steps=9, by=APPROVER)
        result = await final_result(execution)
        (account,) = await execution.budgets()

    if policy == "ask":
        assert (result.stop_reason, account.spent) == (StopReason.COMPLETED, 4)
    else:
        assert (result.stop_reason, account.spent) == (StopReason.STEPS_LIMIT, 2)


async def test_the_executions_of_a_session_share_its_budget(temporal: TemporalClient) -> None:
    """4.8.8: also those of another release of the agent, which has another limit."""
    session, others = uuid4(), uuid4()
    async with at_work(temporal, an_explorer("Done", steps=2, scope="session")) as office:
        ends = [
            (await office.run(session_id=each))[1].stop_reason for each in (session, session, others, session)
        ]

    assert ends == [*[StopReason.COMPLETED] * 3, StopReason.STEPS_LIMIT]


async def test_a_failed_step_and_a_killed_worker_reserve_once(temporal: TemporalClient) -> None:
    """4.8.3: the next attempt replaces the reservation; what the lost attempt used is not known."""
    strike = FailpointStrike(Failpoint.INFER_AFTER_RESPONSE)
    async with at_work(temporal, an_explorer("Done", tokens=5000), strike=strike) as office:
        execution, result = await office.run()
        (account,) = await execution.budgets()

    assert result.stop_reason is StopReason.COMPLETED
    assert (account.reserved, account.spent > 0) == (0, True)


async def test_a_failed_attempt_that_was_charged_is_spent(temporal: TemporalClient) -> None:
    """4.8.3: the next attempt reserves in addition to it."""
    error = ModelUnavailable("broke off")
    error.usage = Usage(100, 10)
    agent = an_agent(error, says("Done", usage=USED)).with_budget(tokens=200_000)
    async with at_work(temporal, agent) as office:
        execution, result = await office.run()
        (account,) = await execution.budgets()

    assert result.stop_reason is StopReason.COMPLETED
    assert (account.spent, account.reserved) == (USED.total + 110, 0)


async def test_a_question_of_a_tool_is_reserved_too(temporal: TemporalClient) -> None:
    """4.8.2: it counts as no step; a refusal is the result of the call."""

    @tool
    async def ask_again(context: ToolContext) -> str:
        """Ask the model of the agent."""
        return (await context.ask(InferenceRequest((user("And?"),)))).text

    for tokens, used, spent in ((10_000, USED, 1500), (850, Usage(800, 30), 830)):
        script = (calls(("ask_again", {}), usage=used), says("Well", usage=USED), says("Done", usage=USED))
        model = LimitedModel(*script, max_output_tokens=10)
        agent = an_agent(model=model, tools=[ask_again]).with_budget(tokens=tokens, steps=5)
        async with at_work(temporal, agent.with_error_policy(ErrorPolicy.ignore_tool_errors())) as office:
            execution, _ = await office.run()
            accounts = {str(each.unit): int(each.spent) for each in await execution.budgets()}
            (first, *_) = await execution.steps()
        is_paid = spent == 1500
        assert accounts == {"tokens": spent, "steps": 1 + is_paid}
        record = first.calls[0].record
        assert record is not None
        assert ("budget of 850 tokens is exhausted" in record.text) is not is_paid


async def test_a_steered_message_of_a_step_that_is_not_taken_waits_for_the_next_execution(
    temporal: TemporalClient,
) -> None:
    """4.8.5, 8.3.1"""
    model = HeldModel("Done", "Again")
    agent = an_agent(model=model).with_budget(steps=1)
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await model.begun.wait()
        await execution.steer("And then?", key="more")
        model.go_on.set()
        result = await final_result(execution)
        steering = await office.store.steering(execution.ref, "more")

    assert (result.steps, result.unheard) == (1, 1)
    assert not steering.is_settled
