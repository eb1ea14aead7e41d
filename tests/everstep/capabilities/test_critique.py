"""Self-critique, in runs."""

import asyncio
import json
import logging
from typing import Any

import pytest

from everstep.agent_domain.agents.drivers import OnText, ToolCallingDriver
from everstep.agent_domain.errors import InvalidInput, ModelError, RateLimited
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import ScriptedModel, calls, says
from everstep.capabilities.critique import UseSelfCritique
from everstep.capabilities.tasks import UseTaskPlanning
from tests.everstep.capabilities.agent_words import LOOKS, Presets, an_agent, builder_of, run


def verdict(approved: bool, **fields: Any) -> str:
    return json.dumps({"approved": approved, "summary": "No source", **fields})


YES = verdict(True, summary="Fine", strengths=["short"])
NO = verdict(False, weaknesses=["unproven", " "], suggestions=["cite it"])


def outcome(state: AgentState) -> tuple[str, StopReason | None]:
    assert state.last_outcome is not None
    return state.last_outcome.decision.value, state.last_outcome.stop_reason


def revisions(state: AgentState) -> list[Message]:
    return [message for message in state.messages if message.text.startswith("[Critique")]


async def test_an_approved_answer_ends_the_run() -> None:
    """9.7.1, 9.7.2, 9.7.3: after the approval, it stops."""
    state, model = await run("Ulm", YES, having=[UseSelfCritique()])

    assert (state.final_response, state.step_count, len(model.requests)) == ("Ulm", 1, 2)
    assert outcome(state) == ("stop", StopReason.COMPLETED)
    assert state.metadata == {
        "self_critic_result": {
            "approved": True,
            "summary": "Fine",
            "strengths": ["short"],
            "weaknesses": [],
            "suggestions": [],
        },
        "self_critic_iteration": 1,
    }
    assert [message.text for message in state.messages] == ["Plan a trip", "Ulm"]


async def test_the_critic_gets_task_evidence_and_answer() -> None:
    """9.7.1: outside of the conversation."""
    _, model = await run(LOOKS, "Ulm", YES, having=[UseSelfCritique()])

    instructions, review = model.requests[2].messages
    assert instructions.is_system
    assert '"approved"' in instructions.text
    assert review.text == (
        "# Task\n\nPlan a trip\n\n# Evidence\n\nTool: look\nArguments: {}\nResult: seen\n\n"
        "# Answer to review\n\nUlm"
    )
    assert model.requests[2].tools == ()


async def test_a_rejected_answer_is_revised() -> None:
    """9.7.3: problem, bullets, a request to act; the answer stays once, and another step follows."""
    state, model = await run("Ulm", NO, "Ulm, says the map", YES, having=[UseSelfCritique()])

    (revision,) = revisions(state)
    assert revision.is_user
    assert revision.text.split("\n\n") == [
        "[Critique 1: revise your answer]",
        "Problem: No source",
        "Weaknesses:\n- unproven",
        "Suggestions:\n- cite it",
        "Act on this now: do what is missing, then give the complete revised answer.",
    ]
    texts = [message.text for message in state.messages]
    assert texts == ["Plan a trip", "Ulm", revision.text, "Ulm, says the map"]
    assert [message.text for message in model.requests[2].messages] == texts[:3]
    assert state.metadata["self_critic_iteration"] == 2
    assert outcome(state) == ("stop", StopReason.COMPLETED)
    record = state.execution.step_executions[0]
    assert record.outcome is not None
    assert record.outcome.resolved_by == "SelfCriticContinuationCheck"


@pytest.mark.parametrize(
    ("maximum", "critiques", "steps", "reason"),
    [
        (0, 0, 1, StopReason.COMPLETED),
        (1, 1, 1, StopReason.RETRY_LIMIT),
        (2, 2, 2, StopReason.RETRY_LIMIT),
        (3, 3, 3, StopReason.RETRY_LIMIT),
    ],
)
async def test_critiques_are_limited(maximum: int, critiques: int, steps: int, reason: StopReason) -> None:
    """9.7.3, 2.5: max 2 is at most 2 critiques and 1 revision."""
    critic = ScriptedModel(NO)
    agent = builder_of(UseSelfCritique(maximum, llm_preset="critic"))
    agent.with_driver(ToolCallingDriver(ScriptedModel("Ulm")))

    state = await agent.build(models=Presets(critic=critic)).arun("Plan a trip")

    assert (len(critic.requests), state.step_count) == (critiques, steps)
    assert outcome(state)[1] is reason
    assert len(revisions(state)) == max(0, critiques - 1)
    assert state.status is AgentStatus.COMPLETED
    assert state.final_response == "Ulm"


async def test_a_revision_may_call_tools() -> None:
    """9.7.1, 9.7.3: only its final answer is criticised, with all evidence of the execution."""
    state, model = await run("Ulm", NO, LOOKS, "Ulm, seen", YES, having=[UseSelfCritique()])

    assert [step.step_type.value for step in state.steps] == ["final", "tool_execution", "final"]
    assert state.metadata["self_critic_iteration"] == 2
    assert "Result: seen" in model.requests[4].messages[1].text
    assert outcome(state) == ("stop", StopReason.COMPLETED)


@pytest.mark.parametrize("text", ["", " \n"])
async def test_an_answer_without_text_is_not_criticised(text: str) -> None:
    """9.7.1: after a final step with text."""
    state, model = await run(text, having=[UseSelfCritique()])
    assert (len(model.requests), dict(state.metadata)) == (1, {})


async def test_a_guard_forbids_the_revision() -> None:
    """2.2.2: a rejection under the maximum is a request, which no step limit permits."""
    state, _ = await run("Ulm", NO, having=[UseSelfCritique()], max_steps=1)
    assert outcome(state) == ("forbid", StopReason.STEPS_LIMIT)


@pytest.mark.parametrize(
    "wrong", ["Looks good", '{"summary": "s"}', ModelError("overloaded"), RateLimited("slow")]
)
async def test_a_failing_critic_is_called_again(wrong: str | Exception) -> None:
    """9.7.1: 2 retries."""
    state, model = await run("Ulm", wrong, wrong, NO, "Ulm!", YES, having=[UseSelfCritique()])
    assert (len(model.requests), len(revisions(state)), state.final_response) == (6, 1, "Ulm!")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("Looks good", "Approved without critique: the critic's answer is not valid JSON"),
        (ModelError("overloaded"), "Approved without critique: the critic failed: overloaded"),
    ],
)
async def test_a_critic_that_keeps_failing_approves(wrong: str | Exception, why: str) -> None:
    """9.7.1: after 2 retries; the iteration counts."""
    state, model = await run("Ulm", wrong, having=[UseSelfCritique()])

    assert len(model.requests) == 4
    assert state.metadata["self_critic_result"]["summary"].startswith(why)
    assert state.metadata["self_critic_iteration"] == 1
    assert (state.status, state.final_response) == (AgentStatus.COMPLETED, "Ulm")


async def test_the_critic_gets_the_error_of_its_answer() -> None:
    """9.7.1: its own answer precedes it."""
    _, model = await run("Ulm", "Looks good", YES, having=[UseSelfCritique()])
    *_, own, again = model.requests[2].messages
    assert own.text == "Looks good"
    assert again.text.startswith("That cannot be read: the critic's answer is not valid JSON")


async def test_another_model_may_criticise() -> None:
    """9.7.1: llm_preset."""
    critic = ScriptedModel(YES)
    agent = builder_of(UseSelfCritique(llm_preset="strict"))
    agent.with_driver(ToolCallingDriver(ScriptedModel("Ulm")))

    state = await agent.build(models=Presets(strict=critic)).arun("Plan a trip")

    assert len(critic.requests) == 1
    assert state.metadata["self_critic_result"]["approved"]


async def test_an_unknown_preset_is_a_failure_step_that_says_what_to_do() -> None:
    """4.5.4: the answer that was not criticised stays."""
    state, _ = await run("Ulm", having=[UseSelfCritique(llm_preset="strict")])
    assert state.status is AgentStatus.FAILED
    assert "No preset named 'strict'. Name a model with its provider" in state.steps[-1].errors_as_text
    assert state.final_response == "Ulm"


async def test_a_new_execution_begins_without_critiques() -> None:
    """9.7.2: so all of them are available again."""
    model = ScriptedModel("Ulm", NO, "Ulm!", NO, "Bonn", NO, "Bonn!", YES)
    agent = an_agent(model, UseSelfCritique())

    first = await agent.arun("Plan a trip")
    begun = first.with_user_message("And back?")
    second = await agent.arun(begun)

    assert outcome(first)[1] is StopReason.RETRY_LIMIT
    assert begun.metadata == {}
    assert outcome(second) == ("stop", StopReason.COMPLETED)
    assert len(model.requests) == 8


async def test_the_critics_usage_belongs_to_the_execution() -> None:
    """9.7.1, 2.6.2"""
    answers = says("Ulm", Usage(input=5))
    state, _ = await run(answers, says(YES, Usage(input=7)), having=[UseSelfCritique()])
    assert state.usage == Usage(input=12)


async def test_the_critics_usage_counts_also_if_a_later_processor_raises() -> None:
    """4.5.4: the completed step is recorded with it."""

    def raises(state: AgentState) -> AgentState:
        raise RuntimeError("broken")

    model = ScriptedModel(says("Ulm", Usage(input=5)), says(YES, Usage(input=7)))
    agent = builder_of(UseSelfCritique()).add_processor(raises).with_driver(ToolCallingDriver(model)).build()

    state = await agent.arun("Plan a trip")

    assert (state.status, state.usage) == (AgentStatus.FAILED, Usage(input=12))
    assert [step.errors_as_text for step in state.steps] == ["", "broken"]


@pytest.mark.parametrize(
    ("verbose", "logged"), [(True, ["critique 1: rejected", "critique 2: approved"]), (False, [])]
)
async def test_verbose_only_logs(verbose: bool, logged: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """9.7.1"""
    with caplog.at_level(logging.INFO, "everstep"):
        await run("Ulm", NO, "Ulm!", YES, having=[UseSelfCritique(verbose=verbose)])
    assert [record.getMessage() for record in caplog.records] == logged


async def test_reminders_are_not_the_task() -> None:
    """9.7.1: the task is the message that began the execution."""
    _, model = await run("Ulm", YES, having=[UseTaskPlanning(), UseSelfCritique()])
    assert model.requests[1].messages[1].text.startswith("# Task\n\nPlan a trip\n\n#")


async def test_the_task_of_a_continued_conversation_is_its_latest_request() -> None:
    """9.7.1: not the first message of the session, also where an answer was rejected before."""
    model = ScriptedModel("Ulm", YES, "Bonn", NO, "Bonn!", YES)
    agent = an_agent(model, UseSelfCritique())
    state = await agent.arun("Plan a trip")
    await agent.arun(state.with_user_message("Somewhere else"))

    tasks = [request.messages[1].text.split("\n")[2] for request in model.requests[1::2]]
    assert tasks == ["Plan a trip", "Somewhere else", "Somewhere else"]


async def test_a_failed_agent_is_not_criticised() -> None:
    """9.7.1: no final step, no critique."""
    model = ScriptedModel(ModelError("down"))
    agent = builder_of(UseSelfCritique()).with_driver(ToolCallingDriver(model))
    state = await agent.with_error_policy(ErrorPolicy.stop_on_any_error()).build().arun("Hello")
    assert (len(model.requests), dict(state.metadata)) == (1, {})


class SlowCritic:
    """Answers once all requests have arrived."""

    def __init__(self, script: list[str], together: asyncio.Barrier) -> None:
        self.model = ScriptedModel(*script)
        self.together = together

    async def respond(self, request: Any, on_text: OnText) -> InferenceResponse:
        await self.together.wait()
        return await self.model.respond(request, on_text)


async def test_two_runs_of_one_agent_are_criticised_separately() -> None:
    """9.7.2: each run keeps its critique."""
    together = asyncio.Barrier(2)
    agent = an_agent(
        SlowCritic(["Ulm", "Ulm", NO, NO, "Ulm!", "Ulm!", YES, YES], together), UseSelfCritique()
    )

    async with asyncio.timeout(10):
        states = await asyncio.gather(agent.arun("One"), agent.arun("Two"))

    assert [len(revisions(state)) for state in states] == [1, 1]
    assert [state.metadata["self_critic_iteration"] for state in states] == [2, 2]


def test_an_invalid_maximum_is_refused() -> None:
    """9.7.1"""
    with pytest.raises(InvalidInput, match="max_iterations is -1"):
        UseSelfCritique(-1)


async def test_calls_that_failed_are_evidence_too() -> None:
    """9.7.1: text results."""
    unknown = calls(("fly", {"to": "Ulm"}))
    model = ScriptedModel(unknown, "Ulm", YES)
    agent = builder_of(UseSelfCritique()).with_driver(ToolCallingDriver(model))
    await agent.with_error_policy(ErrorPolicy.retry_tool_errors()).build().arun("Plan a trip")
    review = model.requests[2].messages[1].text
    assert 'Tool: fly\nArguments: {"to":"Ulm"}\nResult: Error: No tool named' in review
