"""Tools whose calls are executions of their own: what starts a child, and what its parent reads of it.

A call of such a tool (`need=CallNeed.SUBAGENT`) is not run. The tool says which agent begins, on what; once
that has ended, however it did, the tool says what the parent's model reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.ids import ExecutionRef, subagent_id
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Messages, as_messages
from everstep.agent_domain.storage.executions import ExecutionRow, NewExecution
from everstep.agent_domain.tools.tools import ToolContext
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map


@dataclass(frozen=True, slots=True)
class Spawn:
    """A child to be started. A limit that is None is the agent's own."""

    agent: str
    """One that the tool brings along, or else one that workers know."""
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
        """The limits that are not the agent's own, by their names in a plan."""
        names = ("max_steps", "max_tokens", "timeout_seconds")
        given = {name: getattr(self, name) for name in names}
        return {name: limit for name, limit in given.items() if limit is not None}


@runtime_checkable
class CanSpawn(Protocol):
    """What a tool that declares `need=CallNeed.SUBAGENT` can do besides.

    Both methods return at once and depend on their arguments alone: whoever is lost in between asks again.
    """

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        """The child to start; or a text, which becomes the call's result without one."""
        ...

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        """What the parent's model reads of a child that has ended."""
        ...


@runtime_checkable
class BringsAgents(Protocol):
    """A tool with agents of its own, which nobody else can start."""

    @property
    def subagents(self) -> Mapping[str, AgentDefinition]:
        """The agents, by the names that `spawn` uses."""
        ...


def brought(parent: AgentDefinition, name: str) -> AgentDefinition | None:
    """The agent of that name that one of the parent's tools brings along."""
    known = (tool.subagents for tool in parent.tools if isinstance(tool, BringsAgents))
    return next((agents[name] for agents in known if name in agents), None)


def path(parent: str, name: str) -> str:
    """How everybody calls an agent that a tool of the parent brings along."""
    return f"{parent}/{name}"


def split(agent: str) -> tuple[str, str] | None:
    """Parent and name of an agent that a tool brings along; None for all others."""
    parent, slash, name = agent.rpartition("/")
    return (parent, name) if slash else None


def named(agents: Mapping[str, AgentDefinition], agent: str) -> AgentDefinition | None:
    """The agent that everybody calls so: one of these, or one that a tool of one of these brings along."""
    if agent in agents:
        return agents[agent]
    of = split(agent)
    parent = named(agents, of[0]) if of else None
    return brought(parent, of[1]) if of and parent else None


def child_ref(parent: ExecutionRef, call_id: str) -> ExecutionRef:
    """The child that a call starts, whoever computes it: in the parent's session, under an id of its own."""
    return ExecutionRef(subagent_id(parent.execution_id, call_id), parent.tenant_id, parent.session_id)


def child_plan(
    spawn: Spawn, definition: AgentDefinition, agent: str, tokens_left: int | None = None
) -> ExecutionPlan:
    """What governs the child; it gets no more tokens than its parent has left."""
    plan = definition.plan().model_copy(update={**spawn.limits, "agent": agent})
    if tokens_left is None:
        return plan
    own = plan.max_tokens
    return plan.model_copy(update={"max_tokens": tokens_left if own is None else min(own, tokens_left)})


def child_execution(
    spawn: Spawn, definition: AgentDefinition, plan: ExecutionPlan, ref: ExecutionRef, parent: UUID
) -> NewExecution:
    """The child as the store accepts it; it knows nothing of its parent's conversation."""
    own = {"agent": plan.agent, "llm_preset": spawn.llm_preset or definition.llm_preset}
    return NewExecution(
        ref,
        definition.spec().model_copy(update=own),
        spawn.messages,
        parent_execution_id=parent,
        metadata=spawn.metadata,
        plan=frozen_map(plan.model_dump(mode="json")),
    )


def child_end(row: ExecutionRow | None) -> ChildEnd:
    """How a child ended, by its row; one whose row is gone was deleted."""
    if row is None:
        return ChildEnd(ExecutionStatus.FAILED, error="It was deleted")
    response = row.output.get("response") if row.output else None
    return ChildEnd(row.status, response, row.error_told or row.error_message, row.stop_reason)
