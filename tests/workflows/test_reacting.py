"""ReAct in durable executions: the same decisions, conversations and errors as in-process."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.step_state import errors_of
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel, says
from everstep.agent_domain.tools.tools import Tool
from everstep.capabilities.critique import UseSelfCritique
from everstep.capabilities.metadata import UseMetadataTools
from everstep.capabilities.tasks import UseTaskPlanning
from everstep.capabilities.user_input import UseUserInput
from everstep.local.runner import LocalRunner
from tests.workflows.harness import at_work, final_result

PLAN = {"todos": [{"content": "Säen", "status": "pending", "activeForm": "Sät"}]}
AT = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
IGNORING, RETRYING = ErrorPolicy.ignore_tool_errors(), ErrorPolicy.retry_all(3)
STOPPING = ErrorPolicy.stop_on_any_error()


def decides(**decision: Any) -> InferenceResponse:
    return says(json.dumps(decision), Usage(input=10, output=1))


def acts(tool: str, args: Any) -> InferenceResponse:
    return decides(thought="Next", type="call_tool", tool=tool, args=args)


def answers(text: str) -> InferenceResponse:
    return decides(thought="Enough", type="final_answer", answer=text)


def seen(at: str) -> dict[str, str]:
    return {"seen at": at}


def breaks() -> None:
    raise ValueError("broken")


def reacting(
    *script: InferenceResponse | str, policy: ErrorPolicy = STOPPING, via_inference: bool = False
) -> DefinitionBuilder:
    """An agent that looks, and breaks things."""
    driver = ReActDriver(ScriptedModel(*script), max_retries=1, final_via_inference=via_inference)
    tools: Sequence[Tool] = (MockTool("look", handler=seen, schema=AT), MockTool("break", handler=breaks))
    builder = DefinitionBuilder.new().with_name("reacting").with_driver(driver).with_tools(tools)
    return builder.with_error_policy(policy).with_max_steps(6)


def planning() -> DefinitionBuilder:
    note = acts("metadata_write", {"key": "Wetter", "value": "晴れ"})
    script = acts("todo_write", PLAN), note, acts("metadata_list", {}), answers("Done")
    return reacting(*script).with_capability(UseTaskPlanning()).with_capability(UseMetadataTools())


def a_criticised_builder() -> DefinitionBuilder:
    no, yes = says('{"approved":false,"summary":"Thin"}'), says('{"approved":true}')
    script = acts("look", {"at": "sea"}), answers("Blue"), no, answers("Bluer"), yes
    return reacting(*script).with_capability(UseSelfCritique())


DONE = answers("Done")
LOOK = acts("look", {"at": "sea", "unknown": 1, "why": None})
CASES: dict[str, Callable[[], DefinitionBuilder]] = {
    "a call": lambda: reacting(LOOK, DONE),
    "an answer by another call": lambda: reacting(LOOK, DONE, says("Blue"), via_inference=True),
    "a tool that fails": lambda: reacting(acts("break", {}), DONE, policy=IGNORING),
    "a tool that fails and stops": lambda: reacting(acts("break", {}), DONE),
    "arguments in an array": lambda: reacting(acts("look", ["sea"]), DONE, policy=IGNORING),
    "no arguments": lambda: reacting(acts("look", None), DONE, policy=IGNORING),
    "missing arguments": lambda: reacting(acts("look", {}), DONE, policy=IGNORING),
    "a decision at the second try": lambda: reacting("Hm", LOOK, DONE),
    "no decision": lambda: reacting("Hm", "Hm", DONE, policy=RETRYING),
    "no decision and stops": lambda: reacting("Hm"),
    "an unknown tool": lambda: reacting(acts("fly", {}), DONE, policy=RETRYING),
    "an unknown tool again and again": lambda: reacting(acts("fly", {}), policy=RETRYING),
    "plans and notes": planning,
    "a critic": a_criticised_builder,
}


@pytest.mark.parametrize("name", CASES)
async def test_react_is_the_same_in_every_shell(temporal: TemporalClient, name: str) -> None:
    """12.2, 1.1.6: messages, types of the steps, failures, notes, usage."""
    async with at_work(temporal, CASES[name]()) as office:
        execution, result = await office.run()
        said = [(m.role, m.text) for m in await office.store.transcript(execution.ref)]
        metadata = dict((await office.store.material(execution.ref)).metadata)
        steps = await execution.steps()
    started = AgentState.empty().with_messages((user("Go"),))
    local = await LocalRunner(CASES[name]().definition()).run(started)
    outcome = local.last_outcome

    assert said == [(message.role, message.text) for message in local.messages]
    types = [step.facts.step_type for step in steps if step.facts]
    assert types == [step.step_type for step in local.steps]
    failed = [[error.message for error in errors_of(step)] for step in steps]
    assert failed == [[error.message for error in step.errors] for step in local.steps]
    assert metadata == local.metadata
    assert (result.status, result.usage) == (local.status, local.usage)
    assert outcome is not None
    assert result.stop_reason is outcome.stop_reason


async def test_people_are_asked_under_react(temporal: TemporalClient) -> None:
    """12.2, 8.5.3, 8.6.2: approved, answered, denied and edited; each is read as an observation."""
    looks = [acts("look", {"at": place}) for place in ("sea", "hill", "wood")]
    script = looks[0], acts("user_input", {"prompt": "Which?"}), looks[1], looks[2], DONE
    agent = reacting(*script).with_capability(UseUserInput()).with_approval("look", "always")
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        for decide in (
            execution.approve,
            lambda: execution.submit_input('the "blue" one'),
            lambda: execution.deny(reason="too high"),
            lambda: execution.edit({"at": "town"}),
        ):
            await office.until_waiting(execution)
            await decide()
            await office.until_running_again(execution)
        result = await final_result(execution)
        said = await office.conversation(execution)

    assert [text for text in said if text.startswith("Observation")] == [
        'Observation: {"seen at":"sea"}',
        'Observation: "the \\"blue\\" one"',
        'Observation: "Denied by user: too high"',
        'Observation: [Arguments edited by user: {"at":"town"}]\n{"seen at":"town"}',
    ]
    assert (result.status, result.steps) == (AgentStatus.COMPLETED, 5)
