"""`spawn_subagent`: the agent gives a task to another agent, and reads what that one answers.

In a durable execution the subagent is a child workflow with an execution of its own; in-process it runs where
its parent does. Either way it sees nothing of its parent's conversation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from agent_domain.agent_registry import AgentRegistry
from agent_domain.agent_spec import AgentSpec
from agent_domain.builder import AgentBuilder
from agent_domain.capabilities.subagents import (
    CHILD_MAX_STEPS,
    CHILD_MAX_TOKENS,
    CHILD_TIMEOUT_SECONDS,
    INHERIT,
    TOOL,
    SubagentListing,
    SubagentPolicy,
    description,
    inherited_tools,
    parameters,
    reported,
    unknown,
)
from agent_domain.definition import AgentDefinition
from agent_domain.errors import InvalidInput
from agent_domain.messages import Message, assistant, call_entry, system, tool_message, user
from agent_domain.spawning import ChildEnd, Spawn
from agent_domain.step_facts import CallNeed
from agent_domain.tools import Tool, ToolContext, ToolOptions
from agent_domain.toolsets import Asker, ListedTool, Toolset
from agent_domain.values import FrozenDict, valid_text

LOAD_SKILL = "load_skill"


class Skill(Protocol):
    """What a subagent begins with of a skill."""

    def rendered(self, arguments: str | None = None) -> str:
        """What the model reads when it loads the skill."""
        ...


class Skills(Protocol):
    """Where the skills are that specs name."""

    def get(self, name: str) -> Skill | None:
        """The skill of that name."""
        ...


@dataclass(frozen=True)
class SpawnSubagentTool:
    """Starts subagents for one agent, its `parent`; at `depth` 0 nobody started that one."""

    registry: AgentRegistry
    policy: SubagentPolicy
    skills: Skills | None = None
    depth: int = 0
    parent: AgentDefinition | None = None

    name = TOOL
    options = ToolOptions(need=CallNeed.SUBAGENT)

    @property
    def description(self) -> str:
        """What there is to start."""
        specs = self.registry.all()
        return description(
            SubagentListing(spec.name, spec.description, None if spec.tools is None else tuple(spec.tools))
            for spec in specs
        )

    @property
    def schema(self) -> FrozenDict:
        """The arguments."""
        return parameters(self.registry.names())

    def of(self, parent: AgentDefinition) -> "SpawnSubagentTool":
        """The same for this agent, whose tools its subagents inherit."""
        return replace(self, parent=parent)

    @cached_property
    def subagents(self) -> Mapping[str, AgentDefinition]:
        """The agents that can be started, as they are under this parent."""
        return {spec.name: self._definition(spec) for spec in self.registry.all()}

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        """The child to start, or why none is."""
        del context
        name = valid_text(args["subagent"], "subagent").strip()
        task = valid_text(args["prompt"], "prompt")
        if not self.registry.has(name):
            return unknown(name, self.registry.names())
        refusal = self.policy.refusal(name, self.depth)
        if refusal:
            return refusal
        if not task.strip():
            raise InvalidInput("prompt is blank; write down the whole task")
        return Spawn(
            name,
            tuple(self._beginning(self.registry.get(name), task)),
            max_steps=CHILD_MAX_STEPS,
            max_tokens=CHILD_MAX_TOKENS,
            timeout_seconds=CHILD_TIMEOUT_SECONDS,
        )

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        """What the parent reads of a child that has ended."""
        return reported(str(args["subagent"]).strip(), end, self.policy)

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Nobody calls it: whoever runs the agent asks `spawn` and `report`."""
        raise InvalidInput(f"{TOOL} is run by starting what it says; this runner cannot do that")

    def _beginning(self, spec: AgentSpec, task: str) -> list[Message]:
        """Its prompt, its skills as if it had loaded them, and the task."""
        said = [system(spec.system_prompt)]
        for number, name in enumerate(spec.skills or ()):
            skill = self.skills.get(name) if self.skills else None
            if skill is None:
                raise InvalidInput(f"the agent '{spec.name}' needs the skill '{name}', which is not there")
            call_id = f"skill-{number}"
            said.append(
                assistant("", tool_calls=[call_entry(call_id, LOAD_SKILL, FrozenDict(skill_name=name))])
            )
            said.append(tool_message(skill.rendered(), call_id, LOAD_SKILL))
        return [*said, user(task)]

    def _definition(self, spec: AgentSpec) -> AgentDefinition:
        """The subagent: what the spec says, and what it inherits."""
        parent = self.parent
        if parent is None:
            raise InvalidInput(f"{TOOL} belongs to no agent yet; build the agent first")
        builder = AgentBuilder.base().with_name(spec.name, spec.description)
        builder.with_max_steps(CHILD_MAX_STEPS).with_max_tokens(CHILD_MAX_TOKENS)
        builder.with_timeout(CHILD_TIMEOUT_SECONDS).with_error_policy(parent.base_plan.error_policy)
        builder.with_parallel_tools(parent.base_plan.parallel_tools)
        names = inherited_tools(parent.tools.names, spec.tools)
        builder.with_tools([parent.tools.get(name) for name in names if name != TOOL])
        if TOOL in names:
            builder.with_tools([replace(self, depth=self.depth + 1, parent=None)])
        for toolset in parent.toolsets:
            builder.with_toolset(toolset if spec.tools is None else Some(toolset, tuple(spec.tools)))
        child = builder.definition()
        # What a person has to allow for the parent, one has to allow for the child as well.
        approvals = {
            name: value for name, value in parent.approvals.items() if name in names or parent.toolsets
        }
        child = replace(child, approvals=FrozenDict(approvals))
        return _asking(child, parent, spec)


def _asking(child: AgentDefinition, parent: AgentDefinition, spec: AgentSpec) -> AgentDefinition:
    """With the parent's model, or the one that the spec names."""
    if spec.model is None or spec.model == INHERIT:
        driver = parent.driver
        return replace(
            child, driver=driver, llm_preset=parent.llm_preset, model_settings=parent.model_settings
        ).equipped()
    if isinstance(spec.model, str):
        return replace(child, llm_preset=spec.model)
    return replace(child, model_settings=spec.model)


@dataclass(frozen=True)
class Some:
    """A toolset of which only some tools may be used."""

    toolset: Toolset
    names: Sequence[str]

    @property
    def name(self) -> str:
        """The toolset's name."""
        return self.toolset.name

    async def listed(self, asker: Asker) -> Sequence[ListedTool]:
        """Those of its tools that may be used."""
        return [tool for tool in await self.toolset.listed(asker) if tool.name in self.names]

    def tool(self, listed: ListedTool) -> Tool:
        """The toolset's tool."""
        return self.toolset.tool(listed)


class UseSubagents:
    """Lets an agent start others."""

    name = "subagents"

    def __init__(
        self,
        registry: AgentRegistry,
        policy: SubagentPolicy | None = None,
        skill_library: Skills | None = None,
    ) -> None:
        self.registry = registry
        self.policy = policy or SubagentPolicy()
        self.skill_library = skill_library

    @classmethod
    def with_depth(
        cls,
        depth: int,
        registry: AgentRegistry,
        summary_max_chars: int = SubagentPolicy().summary_max_chars,
        skill_library: Skills | None = None,
    ) -> "UseSubagents":
        """Let subagents nest so deep."""
        return cls(registry, SubagentPolicy(depth, summary_max_chars), skill_library)

    def install(self, builder: AgentBuilder) -> AgentBuilder:
        """Add the tool."""
        return builder.with_tools([SpawnSubagentTool(self.registry, self.policy, self.skill_library)])
