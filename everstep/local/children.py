"""Subagents in this process: a call of such a tool runs another agent to its end, where its parent runs."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agent_domain.definition import AgentDefinition
from agent_domain.errors import InvalidInput
from agent_domain.spawning import CanSpawn, ChildEnd, Spawn, brought, child_plan, path
from agent_domain.state import AgentState
from agent_domain.status import AgentStatus, ended
from agent_domain.tools import ToolContext

RunChild = Callable[[AgentDefinition, AgentState], Awaitable[AgentState]]
"""Runs an agent until it ends."""


async def child_told(
    tool: CanSpawn, args: dict[str, Any], context: ToolContext, parent: "Parent"
) -> tuple[str, int]:
    """What the parent's model reads of the child, and how many tokens that used."""
    spawn = tool.spawn(args, context)
    if isinstance(spawn, str):
        return spawn, 0
    child = await parent.child(spawn)
    return tool.report(args, _end(child)), child.tokens


class Parent:
    """An agent in the midst of a step, as far as its children are concerned."""

    def __init__(self, definition: AgentDefinition, state: AgentState, run: RunChild) -> None:
        self.definition = definition
        self.state = state
        self.run = run

    async def child(self, spawn: Spawn) -> AgentState:
        """The child's state at its end."""
        child = brought(self.definition, spawn.agent)
        if child is None:
            raise InvalidInput(
                f"there is no agent '{spawn.agent}' in-process; let the tool bring it (`subagents`), "
                "or run the agent on a worker"
            )
        agent = path(self.definition.descriptor.name, spawn.agent)
        plan = child_plan(spawn, replace(child, criteria=()), agent, self._tokens_left())
        begun = AgentState.empty().with_messages(spawn.messages).with_metadata(spawn.metadata)
        begun = replace(begun, parent_agent_id=self.state.agent_id)
        return await self.run(replace(child, base_plan=plan), begun)

    def _tokens_left(self) -> int | None:
        limit = self.definition.base_plan.max_tokens
        step = self.state.current_step
        used = self.state.tokens + (step.usage.total if step else 0)
        return None if limit is None else max(1, limit - used)


def _end(child: AgentState) -> ChildEnd:
    reason = child.last_outcome.stop_reason if child.last_outcome else None
    if reason is None:
        raise InvalidInput("the subagent did not end; a hook paused it, which needs the durable runtime")
    error = None
    if child.status is AgentStatus.FAILED:
        errors = child.steps[-1].errors_as_text if child.steps else ""
        error = errors or f"stopped: {reason}"
    return ChildEnd(ended(child.status, reason).execution, child.final_response, error, reason)
