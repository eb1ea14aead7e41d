"""Subagent tools: a call starts a child execution, and the child's end becomes the call's result.

A call of such a tool (`need=CallNeed.SUBAGENT`) is not run itself. `spawn` returns the agent to start and its
messages. When the child has ended, in any way, `report` returns the text for the parent's model.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from everstep.agent_domain.agents.definition import AgentDefinition, BindsToAgent
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.ids import ExecutionRef, subagent_id
from everstep.agent_domain.loop.budget import Budget
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Messages, as_messages
from everstep.agent_domain.storage.executions import ExecutionRow, NewExecution
from everstep.agent_domain.tools.resources import Resource, is_resource
from everstep.agent_domain.tools.tools import ToolContext
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map


@dataclass(frozen=True, slots=True)
class Spawn:
    """A child execution to start. A limit of None leaves the agent's own limit."""

    agent: str
    """The name of an agent of the tool, or else of one that is registered on workers."""
    messages: Messages
    max_steps: int | None = None
    max_tokens: int | None = None
    timeout_seconds: float | None = None
    llm_preset: str | None = None
    metadata: FrozenDict = EMPTY

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", as_messages(self.messages))
        object.__setattr__(self, "metadata", frozen_map(self.metadata, "metadata"))

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that override the agent's own, by their names in a plan."""
        names = ("max_steps", "max_tokens", "timeout_seconds")
        given = {name: getattr(self, name) for name in names}
        return {name: limit for name, limit in given.items() if limit is not None}


@runtime_checkable
class CanSpawn(Protocol):
    """A tool that declares `need=CallNeed.SUBAGENT`.

    Both methods must return at once and depend on their arguments only: a retried attempt calls them again.
    """

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        """The child to start, or a text, which becomes the call's result without a child."""
        ...

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        """The text that the parent's model reads about a child that has ended."""
        ...


@runtime_checkable
class HasPrivateAgents(Protocol):
    """A tool with private agents, which only this tool can start."""

    @property
    def subagents(self) -> Mapping[str, AgentDefinition]:
        """The agents, by the names that `spawn` uses."""
        ...


def find_private_agent(parent: AgentDefinition, name: str) -> AgentDefinition | None:
    """The private agent with this name of one of the parent's tools."""
    private_agents = (tool.subagents for tool in parent.tools if isinstance(tool, HasPrivateAgents))
    return next((agents[name] for agents in private_agents if name in agents), None)


def needed_resources(agents: Iterable[AgentDefinition]) -> tuple[Resource[Any], ...]:
    """The resources that agents and their tools declare, each once, with those of private agents."""
    found = (each for agent in agents for each in _resources_of(agent))
    return tuple(dict.fromkeys(filter(is_resource, found)))


def _resources_of(agent: AgentDefinition) -> Iterator[object]:
    yield from agent.resources
    for tool in agent.tools:
        declared = getattr(tool, "resources", ())
        # A tool's class may use that name for something else.
        yield from declared if isinstance(declared, tuple) else ()
        # Agents of a tool that binds to its agent have the tools of that agent.
        if isinstance(tool, HasPrivateAgents) and not isinstance(tool, BindsToAgent):
            yield from needed_resources(tool.subagents.values())


def private_agent_name(parent: str, name: str) -> str:
    """The full name of a private agent: the parent's name, a slash, and its own name."""
    return f"{parent}/{name}"


def split_agent_name(agent: str) -> tuple[str, str] | None:
    """The parent's full name and the own name of a private agent; None for all others."""
    parent, slash, name = agent.rpartition("/")
    return (parent, name) if slash else None


def find_definition(agents: Mapping[str, AgentDefinition], agent: str) -> AgentDefinition | None:
    """The agent with this full name: one of `agents`, or a private agent of one of their tools."""
    if agent in agents:
        return agents[agent]
    parts = split_agent_name(agent)
    parent = find_definition(agents, parts[0]) if parts else None
    return find_private_agent(parent, parts[1]) if parts and parent else None


def child_ref(parent: ExecutionRef, call_id: str) -> ExecutionRef:
    """The reference of a call's child: in the parent's session, with an id derived from the call.

    Every process and attempt computes the same reference.
    """
    return ExecutionRef(subagent_id(parent.execution_id, call_id), parent.tenant_id, parent.session_id)


def tokens_left(limit: int | None, used: int) -> int | None:
    """The tokens that a parent leaves to a child, at least one; None without a limit."""
    return None if limit is None else max(1, limit - used)


def child_plan(
    spawn: Spawn,
    definition: AgentDefinition,
    agent: str,
    tokens_left: int | None = None,
    budgets: tuple[Budget, ...] = (),
) -> ExecutionPlan:
    """The plan of a child.

    Args:
        spawn: The child to start; its limits override those of the definition.
        definition: The child's agent.
        agent: The full name of the child's agent.
        tokens_left: The parent's remaining tokens, which cap those of the child; None: no cap.
        budgets: The parent's budgets, which the child shares.
    """
    plan = definition.plan().model_copy(update={**spawn.limits, "agent": agent})
    if budgets:
        plan = plan.model_copy(update={"budgets": (*budgets, *plan.budgets)})
    if tokens_left is None:
        return plan
    own = plan.max_tokens
    return plan.model_copy(update={"max_tokens": tokens_left if own is None else min(own, tokens_left)})


def child_execution(
    spawn: Spawn, definition: AgentDefinition, plan: ExecutionPlan, ref: ExecutionRef, parent: UUID
) -> NewExecution:
    """The child as the store accepts it; it does not contain the parent's conversation."""
    spec = definition.spec()
    own = {"agent": plan.agent, "llm_preset": spawn.llm_preset or spec.llm_preset}
    return NewExecution(
        ref,
        spec.model_copy(update=own),
        spawn.messages,
        parent_execution_id=parent,
        metadata=spawn.metadata,
        plan=frozen_map(plan.model_dump(mode="json")),
    )


def child_end(row: ExecutionRow | None) -> ChildEnd:
    """The end of a child by its row; a missing row means that the child was deleted."""
    if row is None:
        return ChildEnd(ExecutionStatus.FAILED, error="It was deleted")
    response = row.output.get("response") if row.output else None
    result = row.output.get("data") if row.output else None
    error = row.error_told or row.error_message
    return ChildEnd(row.status, response, error, row.stop_reason, result)
