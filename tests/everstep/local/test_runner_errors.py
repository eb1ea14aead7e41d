"""Exceptions of a run in this process."""

from dataclasses import replace
from typing import Any

import pytest

from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.errors import RateLimited
from everstep.agent_domain.loop.continuation import ContinuationCriteria, ContinuationDecision
from everstep.agent_domain.loop.error_policy import ErrorHandlingDecision, ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.step_facts import StepType
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import MockTool
from tests.everstep.local.local_words import (
    Build,
    OwnDriver,
    a_call_response,
    a_conversation,
    a_model,
    a_runner,
    a_scripted_driver,
    boom,
    look_then_answer,
    outcomes_of,
    with_look,
    within_timeout,
)


def a_hook(method: str) -> AgentHook:
    """A hook that raises in one of its methods."""
    hook = AgentHook()
    setattr(hook, method, boom)
    return hook


async def boom_async(_state: AgentState) -> AgentState:
    raise ValueError("boom")


ESCAPES: list[tuple[str, Any, Build, int, str]] = [
    ("the driver", a_model(boom), with_look, 1, "boom"),
    ("the driver, later", a_model(a_call_response("look"), boom), with_look, 2, "boom"),
    ("a driver of one's own", OwnDriver(boom), with_look, 1, "boom"),
    (
        "a tool that throws",
        a_model(a_call_response("missing")),
        lambda b: with_look(b.with_throw_on_tool_failure()),
        1,
        "missing: No tool named 'missing'. Choose from: look",
    ),
    ("before_step", look_then_answer(), lambda b: with_look(b.add_hook(a_hook("before_step"))), 1, "boom"),
    (
        "before_tool",
        look_then_answer(),
        lambda b: with_look(b.add_hook(a_hook("before_tool"))),
        1,
        "ValueError in a hook before the call: boom",
    ),
    (
        "after_tool",
        look_then_answer(),
        lambda b: with_look(b.add_hook(a_hook("after_tool"))),
        1,
        "ValueError in a hook after the call: boom",
    ),
    ("after_step", look_then_answer(), lambda b: with_look(b.add_hook(a_hook("after_step"))), 2, "boom"),
    ("a processor", look_then_answer(), lambda b: with_look(b.add_processor(boom)), 2, "boom"),
    ("a coroutine", look_then_answer(), lambda b: with_look(b.add_processor(boom_async)), 2, "boom"),
    (
        "a criterion",
        look_then_answer(),
        lambda b: with_look(b.add_continuation_criteria(ContinuationCriteria.when(boom))),
        1,
        "boom",
    ),
]


@pytest.mark.parametrize(
    ("driver", "build", "number", "text"), [row[1:] for row in ESCAPES], ids=[r[0] for r in ESCAPES]
)
async def test_an_exception_that_escapes_is_a_failure_step(
    driver: Any, build: Build, number: int, text: str
) -> None:
    """4.3.4, 4.5.4, 2.2.7: under its own number; the run fails, because the policy does not ignore it."""
    state = await within_timeout(a_runner(driver, build).run(a_conversation()))
    assert (state.status, state.step_count) == (AgentStatus.FAILED, number)
    failure = state.execution.step_executions[-1]
    assert (failure.number, failure.step.is_failure) == (number, True)
    assert [step.is_failure for step in state.steps[:-1]] == [False] * (number - 1)
    assert (failure.step.step_type, failure.step.usage) == (StepType.ERROR, Usage())
    assert (failure.step.output_messages, failure.step.input_messages) == ((), state.messages)
    assert failure.step.errors_as_text == text


async def test_a_failed_tool_call_raises_no_exception() -> None:
    """4.3.4, 5.4.3: the model reads it, and the error policy evaluates it."""
    driver = a_model(a_call_response("look"), "Done")
    look = MockTool("look", handler=boom)
    policy = ErrorPolicy.ignore_tool_errors()
    state = await a_runner(driver, lambda b: b.with_tools([look]).with_error_policy(policy)).run(
        a_conversation()
    )
    assert (state.status, state.step_count) == (AgentStatus.COMPLETED, 2)
    assert not state.steps[0].is_failure
    assert state.messages[2].text == "Error: boom"


async def test_the_run_continues_after_a_retry() -> None:
    """4.5.4, 2.5.3: in progress, under the next number."""
    driver = a_model(RateLimited("slow down"), "Done")
    retries = ErrorPolicy.retry_all(2)
    runner = a_runner(driver, lambda b: b.with_error_policy(retries).with_max_retries(1))
    states = [state async for state in runner.iterate(a_conversation())]
    assert [state.status for state in states] == [AgentStatus.IN_PROGRESS, AgentStatus.COMPLETED]
    assert [step.is_failure for step in states[1].steps] == [True, False]
    assert outcomes_of(states[1]) == ["request", "stop"]


async def test_an_ignored_exception_requests_no_further_step() -> None:
    """4.5.4, 2.5.3, 3.7.1."""
    policy = replace(ErrorPolicy(), on_model_error=ErrorHandlingDecision.IGNORE)
    state = await a_runner(a_model(boom), lambda b: b.with_error_policy(policy)).run(a_conversation())
    assert (state.status, state.step_count) == (AgentStatus.COMPLETED, 1)


async def test_after_an_ignored_exception_the_run_continues_where_there_is_work() -> None:
    """4.5.4."""
    policy = replace(ErrorPolicy(), on_model_error=ErrorHandlingDecision.IGNORE)
    more = ContinuationCriteria.when(
        lambda state: ContinuationDecision.REQUEST if state.step_count < 2 else ContinuationDecision.ALLOW
    )
    runner = a_runner(
        a_model(boom, "Done"), lambda b: b.with_error_policy(policy).add_continuation_criteria(more)
    )
    states = [state async for state in runner.iterate(a_conversation())]
    assert [state.status for state in states] == [AgentStatus.IN_PROGRESS, AgentStatus.COMPLETED]


async def test_a_run_fails_when_its_retries_are_used_up() -> None:
    """3.3.1, 4.5.4."""
    state = await a_runner(a_model(boom), lambda b: b.with_error_policy(ErrorPolicy.retry_all(3))).run(
        a_conversation()
    )
    assert (state.status, state.step_count) == (AgentStatus.FAILED, 3)


class ForgetfulHook(AgentHook):
    def before_step(self, state: AgentState) -> Any:
        del state


def return_nothing(state: AgentState) -> Any:
    del state


FORGETFUL: list[tuple[Build, str]] = [
    (lambda b: b.add_processor(return_nothing), "return_nothing returned NoneType"),
    (lambda b: b.add_hook(ForgetfulHook()), "ForgetfulHook returned NoneType"),
    (lambda b: b.with_driver(OwnDriver(return_nothing)), "OwnDriver returned NoneType"),
]


@pytest.mark.parametrize(("build", "who"), FORGETFUL)
async def test_a_hook_or_processor_that_returns_no_state_is_named(build: Build, who: str) -> None:
    """4.3.4: instead of an attribute error elsewhere."""
    state = await a_runner(a_scripted_driver(), build).run(a_conversation())
    assert state.steps[-1].errors_as_text == f"{who}; return the state to go on with"
