"""`spawn_subagent`: the agent gives a task to another agent, and reads its answer.

In a durable execution the subagent is a child workflow with its own execution; in-process it runs where its
parent does. In both cases it sees nothing of its parent's conversation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.agents.model_name import address_problem
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities.approvals import parse_approval
from everstep.agent_domain.capabilities.subagents import (
    CHILD_MAX_STEPS,
    CHILD_MAX_TOKENS,
    CHILD_TIMEOUT_SECONDS,
    INHERIT,
    TOOL,
    SubagentListing,
    SubagentPolicy,
    description,
    failure_text,
    inherited_tools,
    outcome_text,
    parameters,
    unknown_agent_text,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import (
    Message,
    assistant,
    call_entry,
    system,
    tool_message,
    user,
)
from everstep.agent_domain.tools.tools import Tool, ToolContext, ToolOptions, result_text
from everstep.agent_domain.tools.toolsets import Asker, ListedTool, Toolset
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.steps.json_schema import require_usable

LOAD_SKILL = "load_skill"

BLANK = "Its prompt is blank; write down the whole task"


class LoadableSkill(Protocol):
    """A skill that a subagent starts with."""

    def rendered(self, arguments: str | None = None) -> str:
        """The text that the model reads when it loads the skill."""
        ...


class SkillSource(Protocol):
    """Finds the skills that specs name."""

    def get(self, name: str) -> LoadableSkill | None:
        """The skill with this name, or None."""
        ...


@dataclass(frozen=True)
class SpawnSubagentTool:
    """Starts subagents for one agent, its `parent`, which is at `depth`; a root agent is at 0."""

    registry: AgentSpecRegistry
    policy: SubagentPolicy
    skills: SkillSource | None = None
    depth: int = 0
    parent: AgentDefinition | None = None

    name = TOOL
    options = ToolOptions(need=CallNeed.SUBAGENT)

    @property
    def description(self) -> str:
        """The tool's description, with the list of agents."""
        specs = self.registry.all()
        return description(
            SubagentListing(spec.name, spec.description, None if spec.tools is None else tuple(spec.tools))
            for spec in specs
        )

    @property
    def schema(self) -> FrozenDict:
        """The schema of the arguments."""
        return parameters(self.registry.names())

    @property
    def declared_settings(self) -> FrozenDict:
        """The definitions of the subagents, for the record."""
        agents = {spec.name: _spec_record(spec) for spec in self.registry.all()}
        policy = {"max_depth": self.policy.max_depth, "summary_max_chars": self.policy.summary_max_chars}
        return frozen_map({"agents": agents, "policy": policy})

    def of(self, parent: AgentDefinition) -> "SpawnSubagentTool":
        """The tool for this agent, whose tools its subagents inherit.

        Agents that are registered later belong to agents that are built later: the description for the model
        stays the same.
        """
        return replace(self, registry=AgentSpecRegistry(self.registry.all()), parent=parent)

    @cached_property
    def subagents(self) -> Mapping[str, AgentDefinition]:
        """The agents that can be started, as subagents of this parent."""
        return {spec.name: self._definition(spec) for spec in self.registry.all() if not self._problem(spec)}

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        """The child to start, or an error text."""
        del context
        name, task = _argument_text(args["subagent"]).strip(), _argument_text(args["prompt"])
        if not self.registry.has(name):
            return unknown_agent_text(name, self.registry.names())
        spec = self.registry.get(name)
        problem = self._problem(spec) or ("" if task.strip() else BLANK)
        refusal = self.policy.refusal(name, self.depth)
        if refusal or problem:
            return refusal or failure_text(name, problem)
        return Spawn(
            name,
            tuple(self._initial_messages(spec, task)),
            max_steps=CHILD_MAX_STEPS,
            max_tokens=CHILD_MAX_TOKENS,
            timeout_seconds=CHILD_TIMEOUT_SECONDS,
        )

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        """The text for the parent about a child that has ended."""
        return outcome_text(_argument_text(args["subagent"]).strip(), end, self.policy)

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """Never called: the runner uses `spawn` and `report` instead."""
        raise InvalidInput(f"{TOOL} is run by starting a child execution, which this runner cannot do")

    def _problem(self, spec: AgentSpec) -> str:
        """The reason why such an agent cannot be started, for the parent's model; empty if it can."""
        skills = self._skills(spec)
        lacking = [name for name in spec.skills or () if name not in skills]
        if lacking:
            return f"It needs skills that are not there: {', '.join(lacking)}"
        problem = address_problem(spec.model)
        return f"Its 'model' must not hold {problem}" if problem else ""

    def _skills(self, spec: AgentSpec) -> dict[str, LoadableSkill]:
        """The skills of the spec that exist."""
        skills = {name: self.skills.get(name) for name in spec.skills or ()} if self.skills else {}
        return {name: skill for name, skill in skills.items() if skill}

    def _initial_messages(self, spec: AgentSpec, task: str) -> list[Message]:
        """Its prompt, its skills as if it had loaded them, and the task."""
        messages = [system(spec.system_prompt)]
        for number, (name, skill) in enumerate(self._skills(spec).items()):
            call_id = f"skill-{number}"
            messages.append(
                assistant("", tool_calls=[call_entry(call_id, LOAD_SKILL, FrozenDict(skill_name=name))])
            )
            messages.append(tool_message(skill.rendered(), call_id, LOAD_SKILL))
        return [*messages, user(task)]

    def _definition(self, spec: AgentSpec) -> AgentDefinition:
        """The subagent's definition: its spec, and what it inherits."""
        parent = self.parent
        if parent is None:
            raise InvalidInput(f"{TOOL} belongs to no agent yet; build the agent first")
        builder = DefinitionBuilder.base().with_name(spec.name, spec.description)
        builder.with_max_steps(CHILD_MAX_STEPS).with_max_tokens(CHILD_MAX_TOKENS)
        builder.with_timeout(CHILD_TIMEOUT_SECONDS).with_error_policy(parent.base_plan.error_policy)
        set_output(builder, spec)
        builder.with_parallel_tools(parent.base_plan.parallel_tools)
        names = inherited_tools(parent.tools.names, spec.tools)
        builder.with_tools([parent.tools.get(name) for name in names if name != TOOL])
        if TOOL in names:
            builder.with_tools([replace(self, depth=self.depth + 1, parent=None)])
        for toolset in parent.toolsets:
            builder.with_toolset(toolset if spec.tools is None else SelectedTools(toolset, tuple(spec.tools)))
        child = builder.definition()
        # Calls that need approval for the parent need it for the child as well.
        own = {name: parse_approval(value) for name, value in spec.approval.items()}
        approvals = {
            name: value
            for name, value in {**own, **parent.approvals}.items()
            if name in names or parent.toolsets
        }
        expire = any(approval.may_expire for approval in approvals.values())
        plan = child.base_plan.model_copy(update={"approvals_expire": expire})
        child = replace(child, approvals=FrozenDict(approvals), base_plan=plan)
        child = _with_model(child, parent, spec)
        child = replace(child, written=frozen_map({"agent": _spec_record(spec), "parent": parent.written}))
        # Last, so that its own subagents inherit all of this.
        return child.equipped()


def set_output(builder: DefinitionBuilder, spec: AgentSpec) -> None:
    """Set the structured result of an agent whose file has a schema for it."""
    if spec.output is not None:
        require_usable(spec.output, "'output'")
        builder.with_output(spec.output)


def _spec_record(spec: AgentSpec) -> Mapping[str, Any]:
    """The parts of a spec that apply to a subagent; the rest applies when the agent is started by itself."""
    return {
        "prompt": spec.system_prompt,
        "tools": spec.tools,
        "model": spec.model,
        "skills": spec.skills,
        "approval": spec.approval,
        **({} if spec.output is None else {"output": spec.output}),
    }


def _argument_text(value: object) -> str:
    """An argument as text: models also send numbers and objects."""
    return "" if value is None else result_text(value)


def _with_model(child: AgentDefinition, parent: AgentDefinition, spec: AgentSpec) -> AgentDefinition:
    """The child with the parent's model, or with the model of its spec."""
    if spec.model is None or spec.model == INHERIT:
        return replace(
            child, driver=parent.driver, llm_preset=parent.llm_preset, model_settings=parent.model_settings
        )
    # A driver that can use any model, such as ReAct, also uses the other model.
    driver = parent.driver if isinstance(parent.driver, StepDriver) and parent.driver.wants_model else None
    if isinstance(spec.model, str):
        return replace(child, driver=driver, llm_preset=spec.model)
    return replace(child, driver=driver, model_settings=frozen_map(spec.model))


@dataclass(frozen=True)
class SelectedTools:
    """A toolset reduced to some of its tools."""

    toolset: Toolset
    names: Sequence[str]

    @property
    def name(self) -> str:
        """The toolset's name."""
        return self.toolset.name

    async def list_tools(self, asker: Asker) -> Sequence[ListedTool]:
        """The tools of the toolset that may be used."""
        return [tool for tool in await self.toolset.list_tools(asker) if tool.name in self.names]

    def tool(self, listed: ListedTool) -> Tool:
        """The toolset's tool."""
        return self.toolset.tool(listed)


class UseSubagents:
    """Lets an agent start others."""

    name = "subagents"

    def __init__(
        self,
        registry: AgentSpecRegistry,
        policy: SubagentPolicy | None = None,
        skill_library: SkillSource | None = None,
    ) -> None:
        self.registry = registry
        self.policy = policy or SubagentPolicy()
        self.skill_library = skill_library

    @classmethod
    def with_depth(
        cls,
        depth: int,
        registry: AgentSpecRegistry,
        summary_max_chars: int = SubagentPolicy().summary_max_chars,
        skill_library: SkillSource | None = None,
    ) -> "UseSubagents":
        """Limit the nesting of subagents to a depth."""
        return cls(registry, SubagentPolicy(depth, summary_max_chars), skill_library)

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the tool."""
        return builder.with_tools([SpawnSubagentTool(self.registry, self.policy, self.skill_library)])
