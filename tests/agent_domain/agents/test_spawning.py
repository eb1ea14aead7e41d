"""Tools whose calls are executions."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.spawning import (
    CanSpawn,
    HasPrivateAgents,
    Spawn,
    child_end,
    child_execution,
    child_plan,
    child_ref,
    find_private_agent,
    private_agent_name,
    split_agent_name,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import ToolContext, ToolOptions
from everstep.agent_domain.values import EMPTY, frozen_map

PARENT = ExecutionRef(uuid4(), "acme", uuid4())
AT = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)

ROW = ExecutionRow(
    ref=PARENT,
    agent="hand",
    status=ExecutionStatus.COMPLETED,
    step_count=1,
    usage=EMPTY,
    stop_reason=StopReason.COMPLETED,
    output=frozen_map({"response": "Three", "stop_reason": "completed"}),
    error_message=None,
    metadata=EMPTY,
    created_at=AT,
    started_at=AT,
    completed_at=AT,
)


class Crew(MockTool):
    def __init__(self, **subagents: AgentDefinition) -> None:
        super().__init__("hire", options=ToolOptions(need=CallNeed.SUBAGENT))
        self.subagents = subagents

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        raise NotImplementedError

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        raise NotImplementedError


def an_agent(name: str, *tools: MockTool, **made: Any) -> AgentDefinition:
    builder = DefinitionBuilder.base().with_name(name).with_system_prompt("You help.").with_tools(tools)
    return replace(builder.definition(), **made)


def test_the_abilities_of_a_tool_follow_from_its_methods() -> None:
    """9.6.1."""
    assert isinstance(Crew(), CanSpawn)
    assert isinstance(Crew(), HasPrivateAgents)
    assert not isinstance(MockTool("look"), CanSpawn | HasPrivateAgents)


def test_a_child_begins_with_messages_that_can_be_stored() -> None:
    """9.6.2: text is enough."""
    spawn = Spawn("hand", ("Count",), metadata={"topic": "tea"})  # type: ignore[arg-type] -- as users write it

    assert spawn.messages == (user("Count"),)
    assert spawn.metadata == frozen_map({"topic": "tea"})
    with pytest.raises(InvalidInput):
        Spawn("hand", (), metadata={"when": AT})  # type: ignore[arg-type] -- no JSON


def test_a_child_has_the_given_limits_and_else_its_own() -> None:
    """9.6.2."""
    definition = an_agent("hand")

    own = child_plan(Spawn("hand", ()), definition, "hand")
    named = child_plan(
        Spawn("hand", (), max_steps=2, max_tokens=99, timeout_seconds=1.5), definition, "boss/hand"
    )

    assert own == definition.plan()
    assert named == own.model_copy(
        update={"agent": "boss/hand", "max_steps": 2, "max_tokens": 99, "timeout_seconds": 1.5}
    )


@pytest.mark.parametrize(("wanted", "preset"), [(None, "small"), ("large", "large")])
def test_a_child_is_accepted_under_its_parent(wanted: str | None, preset: str) -> None:
    """8.1.2, 9.6.5: in the parent's session and tenant; with its own prompt and tools."""
    definition = an_agent("hand", MockTool("look"), llm_preset="small")
    spawn = Spawn("hand", (user("Count"),), llm_preset=wanted, metadata=frozen_map({"topic": "tea"}))
    plan, ref = child_plan(spawn, definition, "boss/hand"), child_ref(PARENT, "c1")

    new = child_execution(spawn, definition, plan, ref, PARENT.execution_id)

    assert (new.ref.tenant_id, new.ref.session_id) == (PARENT.tenant_id, PARENT.session_id)
    assert (new.parent_execution_id, new.messages, new.metadata) == (
        PARENT.execution_id,
        spawn.messages,
        spawn.metadata,
    )
    assert (new.spec.agent, new.spec.llm_preset) == ("boss/hand", preset)
    assert new.spec.cached_context == definition.spec().cached_context
    assert new.plan["agent"] == "boss/hand"


def test_every_process_computes_the_same_child() -> None:
    """1.1.3: and no two calls have the same."""
    assert child_ref(PARENT, "c1") == child_ref(PARENT, "c1")
    assert child_ref(PARENT, "c1") != child_ref(PARENT, "c2")


def test_an_agent_that_a_tool_brings_along_is_found_through_its_parent() -> None:
    """9.6.4: under any name of the parent."""
    hand = an_agent("hand")
    boss = an_agent("boss", MockTool("look"), Crew(hand=hand))

    assert find_private_agent(boss, "hand") is hand
    assert find_private_agent(boss, "nobody") is None
    assert split_agent_name(private_agent_name("the/boss", "hand")) == ("the/boss", "hand")
    assert split_agent_name("boss") is None


def test_the_end_of_a_child_follows_from_its_row() -> None:
    """9.6.3: also where there is no row."""
    failed = replace(ROW, status=ExecutionStatus.FAILED, output=None, error_message="too long")

    assert child_end(ROW) == ChildEnd(ExecutionStatus.COMPLETED, "Three", None, StopReason.COMPLETED)
    assert child_end(failed) == ChildEnd(
        ExecutionStatus.FAILED, None, "too long", stop_reason=StopReason.COMPLETED
    )
    assert child_end(None) == ChildEnd(ExecutionStatus.FAILED, error="It was deleted")
