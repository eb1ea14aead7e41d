"""The number of steps of an agent, and its stop reason: limits, retries and clocks in a real run."""

from collections.abc import Callable
from typing import Any

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.errors import InvalidModelOutput, ModelError, ModelTimeout, RateLimited
from everstep.agent_domain.loop.continuation import (
    ContinuationCriteria,
    ContinuationDecision,
    ContinuationOutcome,
)
from everstep.agent_domain.loop.error_policy import ErrorHandlingDecision, ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.stop_signal import StopSignal
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import MockTool, ScenarioStep
from tests.everstep.local.local_words import (
    AT,
    WorkClock,
    a_call_response,
    a_conversation,
    a_model,
    a_runner,
    a_scripted_driver,
)

RETRY, IGNORE = ErrorHandlingDecision.RETRY, ErrorHandlingDecision.IGNORE
SEARCH = MockTool.returning("search", "Finds things", "found")

ANSWER = ScenarioStep.final("Done")
CALL = ScenarioStep.tool_call("search")
FAILED = ScenarioStep.error("The model is down")


def calls_with(tokens: int) -> ScenarioStep:
    return ScenarioStep.tool_call("search", usage=Usage(input=tokens))


def a_broken_tool(error: Exception) -> MockTool:
    def fail() -> None:
        raise error

    return MockTool("search", handler=fail)


async def run(
    *steps: ScenarioStep,
    build: Callable[[DefinitionBuilder], object] = lambda _builder: None,
    tool: MockTool = SEARCH,
) -> AgentState:
    """The state after an agent has played this script; the last step repeats."""

    def configure(builder: DefinitionBuilder) -> None:
        builder.with_tools([tool])
        build(builder)

    return await a_runner(a_scripted_driver(*steps), configure).run(a_conversation())


def outcome_of(state: AgentState) -> ContinuationOutcome:
    assert state.last_continuation_outcome is not None
    return state.last_continuation_outcome


def outcome_summary(state: AgentState) -> tuple[int, str, str, StopReason, AgentStatus]:
    """The number of steps, the decision, its source, its reason, and the final status."""
    outcome = outcome_of(state)
    return state.step_count, outcome.decision, outcome.resolved_by, outcome.stop_reason, state.status


# --- Limits ---


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
async def test_the_limit_is_the_number_of_steps(steps: int) -> None:
    """2.6.1: StepsLimit(n) executes exactly n steps, 0 none."""
    state = await run(CALL, build=lambda b: b.with_max_steps(steps))

    assert outcome_summary(state) == (
        steps,
        "forbid",
        "StepsLimit",
        StopReason.STEPS_LIMIT,
        AgentStatus.COMPLETED,
    )


async def test_completed_and_failed_steps_count_towards_the_limit() -> None:
    """2.6.1: before the first step and after each."""
    runner = a_runner(
        a_model(ModelError("down")), lambda b: b.with_max_steps(3).with_error_policy(ErrorPolicy.retry_all(9))
    )
    state = await runner.run(a_conversation())

    assert outcome_summary(state) == (3, "forbid", "StepsLimit", StopReason.STEPS_LIMIT, AgentStatus.FAILED)
    assert all(step.is_failure for step in state.steps)


async def test_tokens_of_the_step_that_just_ended_count() -> None:
    """2.6.2: limit 10, steps of 9 and 2 tokens: two steps run."""
    state = await run(calls_with(9), calls_with(2), build=lambda b: b.with_max_tokens(10))

    assert outcome_summary(state) == (
        2,
        "forbid",
        "TokenUsageLimit",
        StopReason.TOKEN_LIMIT,
        AgentStatus.COMPLETED,
    )
    assert state.usage.total == 11


async def test_a_token_limit_that_is_met_exactly_is_reached() -> None:
    """2.5, 2.6.2: total tokens >= n."""
    state = await run(calls_with(10), build=lambda b: b.with_max_tokens(10))

    assert outcome_summary(state)[:3] == (1, "forbid", "TokenUsageLimit")


async def test_an_answer_in_the_last_allowed_step_completes() -> None:
    """2.2.4: with max_steps 1, a final answer at step 1; the trace still shows the limit's forbid."""
    state = await run(ANSWER, build=lambda b: b.with_max_steps(1))
    limit = outcome_of(state).evaluation_for("StepsLimit")

    assert outcome_summary(state) == (
        1,
        "stop",
        "ToolCallPresenceCheck",
        StopReason.COMPLETED,
        AgentStatus.COMPLETED,
    )
    assert limit is not None
    assert limit.decision == "forbid"


async def test_a_tool_call_in_the_last_allowed_step_runs_into_the_limit() -> None:
    """2.2.4: with max_steps 1, a tool call at step 1."""
    state = await run(CALL, ANSWER, build=lambda b: b.with_max_steps(1))

    assert outcome_summary(state) == (
        1,
        "forbid",
        "StepsLimit",
        StopReason.STEPS_LIMIT,
        AgentStatus.COMPLETED,
    )


async def test_an_answer_that_uses_up_the_tokens_completes() -> None:
    """2.2.4: resource limits veto only further work."""
    final = ScenarioStep.final("Done", Usage(99))
    state = await run(final, build=lambda b: b.with_max_tokens(10))

    assert outcome_summary(state) == (
        1,
        "stop",
        "ToolCallPresenceCheck",
        StopReason.COMPLETED,
        AgentStatus.COMPLETED,
    )


async def test_every_evaluation_is_recorded_with_its_step() -> None:
    """2.2.1, 2.6.3: the whole base set votes after each step, in order, then the user's criteria."""

    def mine(_state: AgentState) -> ContinuationDecision:
        return ContinuationDecision.ALLOW

    state = await run(
        CALL,
        ANSWER,
        build=lambda b: b.add_continuation_criteria(ContinuationCriteria.when(mine)).with_cumulative_timeout(
            9
        ),
    )

    for record in state.execution.step_executions:
        assert record.outcome is not None
        assert [vote.name for vote in record.outcome.evaluations] == [
            "StepsLimit",
            "TokenUsageLimit",
            "CumulativeExecutionTimeLimit",
            "FinishReasonCheck",
            "ErrorPolicyCriterion",
            "ToolCallPresenceCheck",
            "CallableCriterion",
            "RepeatedCallLimit",
        ]


async def test_a_finish_reason_stops() -> None:
    """2.5: FinishReasonCheck, although the model called a tool."""
    runner = a_runner(
        a_model(a_call_response("search", finish_reason="length")),
        lambda b: b.with_tools([SEARCH]).with_finish_reasons("length"),
    )

    assert outcome_summary(await runner.run(a_conversation()))[1:4] == (
        "forbid",
        "FinishReasonCheck",
        StopReason.FINISH_REASON,
    )


# --- Retries ---


@pytest.mark.parametrize(("max_retries", "steps"), [(0, 1), (1, 1), (2, 2), (3, 3)])
async def test_the_nth_failure_in_a_row_stops(max_retries: int, steps: int) -> None:
    """3.3.1: n = 2: first failure retry, second stop; n = 0 never retries."""
    policy = ErrorPolicy.retry_all(max_retries)
    state = await run(FAILED, build=lambda b: b.with_error_policy(policy))

    assert outcome_summary(state) == (
        steps,
        "forbid",
        "ErrorPolicyCriterion",
        StopReason.ERROR,
        AgentStatus.FAILED,
    )


async def test_a_success_resets_the_count_of_failures() -> None:
    """3.4.3: consecutive failures go back to the first step without errors."""
    policy = ErrorPolicy.retry_all(2)
    state = await run(FAILED, CALL, FAILED, CALL, FAILED, ANSWER, build=lambda b: b.with_error_policy(policy))

    assert outcome_summary(state) == (
        6,
        "stop",
        "ToolCallPresenceCheck",
        StopReason.COMPLETED,
        AgentStatus.COMPLETED,
    )
    assert state.facts.total_failures == 3


async def test_failures_of_any_type_are_in_a_row() -> None:
    """3.4.3: a model error after a tool error."""
    policy = ErrorPolicy.retry_all(2)
    broken = a_broken_tool(ValueError("no"))
    state = await run(CALL, FAILED, CALL, build=lambda b: b.with_error_policy(policy), tool=broken)

    assert outcome_summary(state)[:3] == (2, "forbid", "ErrorPolicyCriterion")


async def test_an_ignored_tool_error_is_left_to_the_model() -> None:
    """3.2, 3.3.1: ignore_tool_errors() continues after a failing call, because the model called a tool."""
    policy = ErrorPolicy.ignore_tool_errors()
    broken = a_broken_tool(ValueError("no"))
    state = await run(CALL, CALL, ANSWER, build=lambda b: b.with_error_policy(policy), tool=broken)

    assert outcome_summary(state) == (
        3,
        "stop",
        "ToolCallPresenceCheck",
        StopReason.COMPLETED,
        AgentStatus.COMPLETED,
    )


@pytest.mark.parametrize("error", [TimeoutError("late"), RateLimited("slow down")])
async def test_ignoring_tool_errors_still_stops_at_a_timeout_or_rate_limit(error: Exception) -> None:
    """3.3.1: already at the first."""
    policy = ErrorPolicy.ignore_tool_errors()
    state = await run(CALL, build=lambda b: b.with_error_policy(policy), tool=a_broken_tool(error))

    assert outcome_summary(state) == (
        1,
        "forbid",
        "ErrorPolicyCriterion",
        StopReason.ERROR,
        AgentStatus.FAILED,
    )


@pytest.mark.parametrize(("max_retries", "steps"), [(0, 1), (2, 2)])
async def test_retrying_tools_takes_retries(max_retries: int, steps: int) -> None:
    """3.3.1: stop_on_any_error().with_tool_error_handling(retry) stops until max_retries is raised."""
    policy = ErrorPolicy.stop_on_any_error().with_tool_error_handling(RETRY).with_max_retries(max_retries)
    broken = a_broken_tool(ValueError("no"))
    state = await run(CALL, build=lambda b: b.with_error_policy(policy), tool=broken)

    assert outcome_summary(state)[:4] == (steps, "forbid", "ErrorPolicyCriterion", StopReason.ERROR)


async def test_a_retry_that_runs_into_the_limit_of_steps_has_failed() -> None:
    """3.7.1: retry_all(5), max_steps 1, the model call fails: steps_limit, failed."""
    runner = a_runner(
        a_model(ModelError("down")), lambda b: b.with_max_steps(1).with_error_policy(ErrorPolicy.retry_all(5))
    )
    state = await runner.run(a_conversation())

    assert outcome_summary(state) == (1, "forbid", "StepsLimit", StopReason.STEPS_LIMIT, AgentStatus.FAILED)


async def test_an_exception_that_is_ignored_completes() -> None:
    """3.7.1, 2.5.3: a failure step whose error the policy ignores; ignoring requests no further step."""
    policy = ErrorPolicy(on_model_error=IGNORE)
    state = await a_runner(a_model(ModelError("down")), lambda b: b.with_error_policy(policy)).run(
        a_conversation()
    )

    assert outcome_summary(state) == (
        1,
        "stop",
        "ToolCallPresenceCheck",
        StopReason.COMPLETED,
        AgentStatus.COMPLETED,
    )


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RateLimited("slow down", 30), "Rate_limit"),
        (ModelTimeout("no answer"), "Timeout"),
        (ModelError("503"), "Model"),
        (ConnectionError("refused"), "Model"),
        (ModelError("The context is too long"), "Model"),
        (InvalidModelOutput("no JSON"), "Validation"),
    ],
)
async def test_the_policy_sees_the_exception_of_a_model_call(error: Exception, shown: str) -> None:
    """3.5.1, 3.5.2, 3.4.2: once the retries are used up, it becomes a step error of its type."""
    state = await a_runner(a_model(error), lambda b: b.with_max_retries(1)).run(a_conversation())
    vote = outcome_of(state).evaluation_for("ErrorPolicyCriterion")

    assert vote is not None
    assert vote.reason == f"{shown} error stops the run (failures in a row: 1, max_retries: 0)"
    assert [each.message for each in state.steps[0].errors] == [str(error)]


# --- Criteria, signals, requests ---


@pytest.mark.parametrize("after", [0, 1])
async def test_a_criterion_that_raises_ends_the_run_with_a_failure_step(after: int) -> None:
    """2.2.7: also before the first step."""

    def broken(state: AgentState) -> ContinuationDecision:
        if state.step_count == after:
            raise ZeroDivisionError("by zero")
        return ContinuationDecision.ALLOW

    state = await run(CALL, build=lambda b: b.add_continuation_criteria(ContinuationCriteria.when(broken)))

    assert outcome_summary(state) == (
        after + 1,
        "forbid",
        "CallableCriterion",
        StopReason.ERROR,
        AgentStatus.FAILED,
    )
    assert state.steps[-1].is_failure
    assert [error.message for error in state.steps[-1].errors] == ["by zero"]


async def test_a_stop_signal_of_a_processor_stops_after_its_step() -> None:
    """2.4.1, 2.4.2: at the evaluation that follows."""
    signal = StopSignal(StopReason.GUARD, "Enough")
    state = await run(CALL, build=lambda b: b.add_processor(lambda state: state.with_stop_signal(signal)))

    assert outcome_summary(state) == (1, "forbid", "StopSignal", StopReason.GUARD, AgentStatus.COMPLETED)


async def test_a_request_for_continuation_makes_one_more_step() -> None:
    """2.4.1, 2.4.2: it suppresses a signal, and is cleared when the next step starts."""

    def wavers(state: AgentState) -> AgentState:
        if state.step_count > 1:
            return state
        return state.with_stop_signal(StopSignal(StopReason.GUARD)).with_continuation_requested()

    state = await run(ANSWER, build=lambda b: b.add_processor(wavers))
    first, second = (record.outcome for record in state.execution.step_executions)

    assert first is not None
    assert second is not None
    assert (first.resolved_by, second.resolved_by) == ("ContinuationRequest", "ToolCallPresenceCheck")
    assert second.evaluation_for("StopSignal") is None


# --- Clocks ---


def a_working_driver(clock: WorkClock, *seconds: float) -> Any:
    """A model that takes this long for each call; every response but the last calls a tool."""

    def taking(each: float, last: bool) -> Callable[[], object]:
        def act() -> object:
            clock.advance(each)
            return "Done" if last else a_call_response("search")

        return act

    return a_model(*(taking(each, index == len(seconds)) for index, each in enumerate(seconds, 1)))


async def test_five_seconds_of_work_an_hours_pause_and_three_more_are_eight() -> None:
    """2.7.2: cumulative seconds survive the pause."""
    clock = WorkClock()
    runner = a_runner(a_working_driver(clock, 5, 3), lambda b: b.with_tools([SEARCH]), clock=clock)
    state = (await runner.next_step(a_conversation())).paused()
    clock.advance(3600)
    state = await runner.next_step(state.resumed(clock.now()))

    assert state.state_info.cumulative_execution_seconds == 8.0
    assert state.state_info.session_execution_seconds == 8.0


@pytest.mark.parametrize(("limit", "steps"), [(8.0, 2), (8.5, 3), (5.0, 1), (5.5, 2)])
async def test_a_cumulative_timeout_counts_work(limit: float, steps: int) -> None:
    """2.7, 2.5: no step once cumulative seconds >= s; waiting between steps does not count."""
    clock = WorkClock()
    runner = a_runner(
        a_working_driver(clock, 5, 3, 1, 0),
        lambda b: b.with_tools([SEARCH]).with_cumulative_timeout(limit).with_timeout(1),
        clock=clock,
    )
    state = a_conversation()
    while runner.has_next_step(state) and state.step_count < 3:
        state = await runner.next_step(state)
        clock.advance(100)

    assert state.step_count == steps


async def test_the_work_of_tools_and_processors_counts() -> None:
    """2.7.1: inference, tools and processors."""
    clock = WorkClock()

    async def search() -> str:
        clock.advance(2.5)
        return "found"

    def process_for_a_second(state: AgentState) -> AgentState:
        clock.advance(0.25)
        return state

    runner = a_runner(
        a_working_driver(clock, 1, 1),
        lambda b: b.with_tools([MockTool("search", handler=search)]).add_processor(process_for_a_second),
        clock=clock,
    )
    state = await runner.run(a_conversation())

    assert [record.processing_seconds for record in state.execution.step_executions] == [3.75, 1.25]
    assert state.state_info.cumulative_execution_seconds == 5.0


async def test_the_time_of_a_failed_call_is_work() -> None:
    """2.7: processing seconds of each step, failed ones too."""
    clock = WorkClock()

    def failing() -> object:
        clock.advance(1.5)
        return ModelError("down")

    state = await a_runner(a_model(failing), clock=clock).run(a_conversation())

    assert state.steps[0].is_failure
    assert state.state_info.cumulative_execution_seconds == 1.5


async def test_the_wall_clock_includes_waiting() -> None:
    """2.7.3: it runs from the start or the last resume."""
    clock = WorkClock()
    runner = a_runner(
        a_working_driver(clock, 1, 1, 1, 1), lambda b: b.with_tools([SEARCH]).with_timeout(60), clock=clock
    )
    state = await runner.next_step(a_conversation())
    clock.advance(58)
    assert runner.has_next_step(state)
    clock.advance(1)
    assert not runner.has_next_step(state)

    # A pause of days causes no timeout: a resume restarts the wall clock.
    clock.advance(9 * 86400)
    resumed = state.paused().resumed(clock.now())
    assert runner.has_next_step(resumed)
    assert (await runner.next_step(resumed)).step_count == 2


async def test_a_run_that_takes_too_long_stops_between_two_steps() -> None:
    """2.7, 2.5: ExecutionTimeLimit."""
    clock = WorkClock()
    runner = a_runner(
        a_working_driver(clock, 30, 30, 30), lambda b: b.with_tools([SEARCH]).with_timeout(60), clock=clock
    )

    assert outcome_summary(await runner.run(a_conversation())) == (
        2,
        "forbid",
        "ExecutionTimeLimit",
        StopReason.TIME_LIMIT,
        AgentStatus.COMPLETED,
    )


async def test_the_wall_clock_starts_with_the_first_manual_step_and_with_each_run() -> None:
    """2.7: entry of a run or iterator, first manual step; reset at each of these."""
    clock = WorkClock()
    runner = a_runner(a_working_driver(clock, 1, 1, 1, 1), lambda b: b.with_tools([SEARCH]), clock=clock)
    first = await runner.next_step(a_conversation())
    second = await runner.next_step(first)
    assert (first.execution_started_at, second.execution_started_at) == (AT, AT)

    clock.advance(100)
    entered = clock.now()
    assert (await runner.run(second)).execution_started_at == entered
    assert second.state_info.started_at == AT


async def test_a_new_execution_in_an_old_session_starts_at_zero_work() -> None:
    """2.7: cumulative seconds are 0 at a new execution, session seconds never."""
    clock = WorkClock()
    runner = a_runner(a_working_driver(clock, 5, 3), lambda b: b.with_tools([SEARCH]), clock=clock)
    state = await runner.run(a_conversation())
    clock.advance(1000)
    again = state.with_user_message("And now?")
    assert again.execution_started_at is None
    state = await runner.run(again)

    assert state.state_info.cumulative_execution_seconds == 3.0
    assert state.state_info.session_execution_seconds == 11.0
