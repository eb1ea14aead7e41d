"""A model that repeats itself reads so, and is stopped: durably as in this process."""

from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.local.runner import LocalRunner
from tests.workflows.harness import an_agent, at_work, final_result

LOOKS = calls(("look", {"at": "sea"}))
TOLD = "<loop-reminder>\nlook was called 4 times in a row with the same arguments"


def seen(at: str) -> str:
    return f"{at} seen"


def looking(name: str, *, quick: bool) -> DefinitionBuilder:
    look = MockTool("look", handler=seen, options=ToolOptions(quick=quick))
    return an_agent(LOOKS, tools=[look]).with_name(name).with_repeated_call_limit(6)


async def test_a_model_that_repeats_itself_is_told_and_stopped(temporal: TemporalClient) -> None:
    """2.6.4: once after two thirds, before the next step; also with quick calls."""
    builders = (looking("slow", quick=False), looking("quick", quick=True))
    async with at_work(temporal, *builders) as office:
        for builder in builders:
            execution = await office.start("Go", agent=builder.definition().descriptor.name)
            result = await final_result(execution)
            state = await LocalRunner(builder.definition()).run(AgentState.empty().with_messages("Go"))

            said = await office.conversation(execution)
            assert (result.stop_reason, result.steps) == (StopReason.GUARD, 6)
            assert said == [message.text for message in state.messages]
            assert [place for place, text in enumerate(said) if text.startswith(TOLD)] == [9]
            assert state.last_outcome is not None
            assert (state.last_outcome.stop_reason, state.step_count) == (StopReason.GUARD, 6)


async def test_a_step_that_waits_for_a_budget_keeps_the_reminder(temporal: TemporalClient) -> None:
    """2.6.4, 4.8.6: the model reads it once a person has raised the budget."""
    builder = looking("poor", quick=False).with_budget(steps=4, on_exhausted="ask")
    async with at_work(temporal, builder) as office:
        execution = await office.start("Go", agent="poor")
        await office.until_waiting(execution)
        await execution.raise_budget(steps=9)
        result = await final_result(execution)
        said = await office.conversation(execution)

    assert (result.stop_reason, result.steps) == (StopReason.GUARD, 6)
    assert [place for place, text in enumerate(said) if text.startswith(TOLD)] == [9]
