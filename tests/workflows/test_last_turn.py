"""The last turn at a step limit: an answer without tools, durably as in this process."""

import json
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.last_turn import LAST_TURN
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.loop.status import AgentStatus, StopReason
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.local.runner import LocalRunner
from tests.workflows.harness import an_agent, at_work, final_result

LOOKS = calls(("look", {}))


class Trip(BaseModel):
    city: str


def agent(
    model: ScriptedModel, look: MockTool, *, steps: int, react: bool = False, output: Any = None
) -> DefinitionBuilder:
    builder = an_agent(model=model, tools=[look]).with_max_steps(steps).with_last_turn_without_tools()
    if react:
        builder.with_driver(ReActDriver(model))
    return builder.with_output(output) if output else builder


def acts() -> Any:
    return says(json.dumps({"thought": "Hm", "type": "call_tool", "tool": "look", "args": {}}))


@pytest.mark.parametrize(
    ("script", "given", "answer", "choices"),
    [
        ([LOOKS, LOOKS, "Half of it."], {"steps": 3}, "Half of it.", [None, None, "none"]),
        (
            [LOOKS, calls(("look", {}), text="I would look again.")],
            {"steps": 2},
            "I would look again.",
            [None, "none"],
        ),
        (["At once."], {"steps": 1}, "At once.", ["none"]),
        (["At once."], {"steps": 2}, "At once.", [None]),
        ([acts(), acts(), "Half of it."], {"steps": 2, "react": True}, "Half of it.", [None, None, None]),
        (
            [LOOKS, calls(("final_result", {"city": "Oslo"}))],
            {"steps": 2, "output": Trip},
            '{"city":"Oslo"}',
            [None, {"type": "function", "function": {"name": "final_result"}}],
        ),
    ],
)
async def test_the_user_gets_an_answer_at_the_limit(
    temporal: TemporalClient,
    script: list[Any],
    given: dict[str, Any],
    answer: str,
    choices: list[Any],
) -> None:
    """2.6.5: in the last step, in which calls are not run."""
    look, local_look = MockTool("look"), MockTool("look")
    model, local_model = ScriptedModel(*script), ScriptedModel(*script)
    async with at_work(temporal, agent(model, look, **given)) as office:
        execution = await office.start("Go")
        result = await final_result(execution)
        said = await office.conversation(execution)
        row = await execution.get()
    state = await LocalRunner(agent(local_model, local_look, **given).definition()).run(
        AgentState.empty().with_messages("Go")
    )

    assert (result.status, result.stop_reason) == (AgentStatus.COMPLETED, StopReason.COMPLETED)
    assert row.output is not None
    assert row.output["response"] == answer == state.final_response
    assert result.steps == state.step_count <= given["steps"]
    assert said == [message.text for message in state.messages]
    assert said.count(LAST_TURN) == (result.steps == given["steps"])
    # Only the last step has no call that ran; an answer before it ends the execution.
    assert len(look.calls) == len(local_look.calls) == result.steps - 1
    assert [request.tool_choice for request in model.requests] == choices


async def test_without_it_the_last_step_may_call_tools(temporal: TemporalClient) -> None:
    """2.6.5: off by default."""
    look = MockTool("look")
    async with at_work(temporal, an_agent(LOOKS, tools=[look]).with_max_steps(1)) as office:
        _, result = await office.run()

    assert (result.stop_reason, len(look.calls)) == (StopReason.STEPS_LIMIT, 1)
