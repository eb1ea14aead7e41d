"""`llm_query`, in runs."""

from typing import Any

import pytest

from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import ModelError, RateLimited
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, calls, says
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.runtime.builder import AgentBuilder
from tests.everstep.capabilities.agent_words import Presets, results


async def run_query(
    answer: InferenceResponse | str | Exception, query: Any = "Why?", tool: LlmQueryTool | None = None
) -> tuple[AgentState, ScriptedModel]:
    """A run of one call, and the model that gives both responses."""
    model = ScriptedModel(calls(("llm_query", {"query": query})), answer)
    builder = AgentBuilder.base().with_tools(tool or LlmQueryTool()).with_max_steps(1)
    return await builder.with_driver(ToolCallingDriver(model)).build().arun("Hello"), model


async def test_a_model_answers_a_single_question() -> None:
    """9.9.1: it sees nothing of the conversation, and its usage belongs to the execution."""
    state, model = await run_query(says(" Because. ", Usage(input=3)))
    assert results(state) == [" Because. "]
    assert [message.text for message in model.requests[1].messages] == ["Why?"]
    assert model.requests[1].tools == ()
    assert state.usage == Usage(input=3)


async def test_another_model_may_be_called() -> None:
    """9.9.1: `using(preset)`."""
    fast = ScriptedModel("Fast.")
    builder = AgentBuilder.base().with_tools(LlmQueryTool.using("fast")).with_max_steps(1)
    builder.with_driver(ToolCallingDriver(ScriptedModel(calls(("llm_query", {"query": "Why?"})))))
    state = await builder.build(models=Presets(fast=fast)).arun("Hello")
    assert (results(state), len(fast.requests)) == (["Fast."], 1)


@pytest.mark.parametrize(
    ("query", "answer", "text"),
    [
        (" \n", "unasked", "Error: query is empty"),
        ("Why?", " ", "Error: The model returned no text"),
        ("Why?", ModelError("overloaded"), "Error: The model call failed: overloaded"),
    ],
)
async def test_problems_are_texts_and_not_failures(query: str, answer: str | Exception, text: str) -> None:
    """9.9.1"""
    state, model = await run_query(answer, query)
    assert results(state) == [text]
    assert not state.steps[0].has_errors
    assert len(model.requests) == (1 if "empty" in text else 2)


async def test_a_retryable_error_is_retried_before_the_model_reads_it() -> None:
    """9.9.1, 3.5.1, 3.5.4: the agent's retries apply to the question, too."""
    slow, query = RateLimited("slow"), calls(("llm_query", {"query": "Why?"}))
    model = ScriptedModel(query, slow, slow, "Because.", query, slow)
    builder = AgentBuilder.base().with_tools(LlmQueryTool()).with_max_steps(2).with_max_retries(3)
    state = await builder.with_driver(ToolCallingDriver(model)).build().arun("Hello")

    assert results(state) == ["Because.", "Error: The model call failed: slow"]
    assert not any(step.has_errors for step in state.steps)
    assert len(model.requests) == (1 + 3) + (1 + 3)


async def test_a_question_that_is_not_text_fails_with_a_message() -> None:
    """9.9.1: the result says what to send."""
    state, _ = await run_query("unasked", ["Why?"])
    assert results(state) == ["Error: query must be text, not list"]


async def test_an_unknown_preset_says_what_to_do() -> None:
    """9.9.1, 5.4.3: an exception in a tool is a failure with its message."""
    state, _ = await run_query("unasked", tool=LlmQueryTool.using("fast"))
    assert results(state)[0].startswith("Error: No preset named 'fast'. Name a model with its provider")
    assert state.status is AgentStatus.FAILED
