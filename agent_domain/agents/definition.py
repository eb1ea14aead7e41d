"""Agent definitions: what `AgentBuilder` builds, as a value without anything that runs."""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from everstep.agent_domain.agents.contracts import AgentDescriptor
from everstep.agent_domain.agents.drivers import CanUseTools, StepDriver
from everstep.agent_domain.agents.plan import REGISTERED, CriterionRegistry, ExecutionPlan
from everstep.agent_domain.agents.processors import AgentHook, Processor
from everstep.agent_domain.capabilities.approvals import (
    NO_APPROVAL,
    Approval,
    ApprovalRule,
)
from everstep.agent_domain.capabilities.rights import DecisionPolicy
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import Criterion
from everstep.agent_domain.loop.loop import Rules
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.state.events import EventBus
from everstep.agent_domain.storage.executions import ExecutionSpec
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.resources import Resource
from everstep.agent_domain.tools.tools import Tool, Toolbox, ToolCall, options_of
from everstep.agent_domain.tools.toolsets import ListedTool, Toolset
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map


@runtime_checkable
class BindsToAgent(Protocol):
    """A tool that depends on its agent, such as one whose subagents inherit from the agent."""

    def of(self, parent: "AgentDefinition") -> Tool:
        """A copy of the tool for this agent."""
        ...


@runtime_checkable
class DeclaresSettings(Protocol):
    """A tool with settings beyond its schema, such as the prompts of other agents."""

    @property
    def declared_settings(self) -> FrozenDict:
        """The settings that affect an execution and are not in the tool's schema, as JSON."""
        ...


@dataclass(frozen=True)
class AgentDefinition:
    """All settings of an agent, as an `AgentBuilder` collected them."""

    descriptor: AgentDescriptor
    base_plan: ExecutionPlan
    """The plan without the additional criteria."""
    driver: StepDriver | CanUseTools | None = None
    llm_preset: str | None = None
    model_settings: FrozenDict = EMPTY
    """Model settings that are used instead of a preset."""
    tools: Toolbox = field(default_factory=Toolbox)
    criteria: tuple[Criterion[Any], ...] = ()
    processors: tuple[Processor, ...] = ()
    hooks: tuple[AgentHook, ...] = ()
    toolsets: tuple[Toolset, ...] = ()
    """Sources of tools that are queried when an execution begins."""
    resources: tuple[Resource[Any], ...] = ()
    """Declared by `with_resources`; those that tools name in their parameters come on top."""
    cached_context: CachedContext = field(default_factory=CachedContext)
    approvals: FrozenDict = EMPTY
    throw_on_tool_failure: bool = False
    events: EventBus = field(default_factory=EventBus)
    output_type: Any = None
    """The Python type of its results; None if they are JSON, or if it has none."""
    source: str = ""
    """Where the definition comes from: a file, or `module:attribute`."""
    written: FrozenDict = EMPTY
    """Settings from the agent's file that no other field shows, such as the options of its capabilities."""

    @property
    def wants_model(self) -> bool:
        """Whether the agent uses the model of a preset; false if its driver has a model of its own."""
        return self.driver is None or (isinstance(self.driver, StepDriver) and self.driver.wants_model)

    @property
    def model_choice(self) -> ModelChoice:
        """The model that the agent names: its settings, else its preset; None for the default one."""
        return self.model_settings or self.llm_preset

    @property
    def rules(self) -> Rules:
        """The rules of executions in this process; their criteria need not be registered."""
        plan = self.base_plan
        criteria = plan.criteria_with(*self.criteria)
        return Rules(criteria, plan.error_policy, plan.parallel_tools, plan.processes, plan.last_turn)

    def plan(self, registry: CriterionRegistry = REGISTERED) -> ExecutionPlan:
        """The plan of durable executions.

        Raises:
            InvalidInput: A criterion is not registered.
        """
        refs = tuple(registry.ref(criterion) for criterion in self.criteria)
        return self.base_plan.model_copy(update={"criteria": refs})

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the declared settings that govern executions.

        It covers prompts and tool schemas, capabilities with their options, subagents, the model's preset
        or settings, limits, policies and approvals. It does not cover the code of tools, hooks and
        processors, nor the arguments of that code.
        """
        content = {
            "plan": self.base_plan.model_dump(mode="json"),
            "criteria": [_criterion_data(criterion) for criterion in self.criteria],
            "context": self._context_data(),
            "approvals": self._approval_data(),
            "preset": self.llm_preset,
            "model": self.model_settings,
            "toolsets": [toolset.name for toolset in self.toolsets],
            "written": self.written,
            "brought": {
                tool.name: tool.declared_settings for tool in self.tools if isinstance(tool, DeclaresSettings)
            },
        }
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def spec(self, model: str | None = None, output: ResponseFormat | None = None) -> ExecutionSpec:
        """The part of the definition that is stored in the row of each execution.

        Args:
            model: The preset or the model of this execution, instead of the agent's.
            output: The format of its result, instead of the agent's.

        Raises:
            InvalidInput: The agent's driver has a model of its own.
        """
        if model is not None and not self.wants_model:
            raise InvalidInput(
                f"the agent '{self.descriptor.name}' has a model of its own; leave 'model' out"
            )
        return ExecutionSpec(
            agent=self.descriptor.name,
            # Settings are no name; each shell reads them from the definition.
            llm_preset=model or (None if self.model_settings else self.llm_preset),
            cached_context=self._context_data(output),
            approvals=self._approval_data(),
            definition_hash=self.digest,
        )

    def with_listed(self, listed: Mapping[str, Any]) -> "AgentDefinition":
        """A copy with the tools that the toolsets listed; the agent's own tools win over those."""
        toolsets = {toolset.name: toolset for toolset in self.toolsets}
        tools = [
            toolsets[name].tool(ListedTool.from_dict(entry))
            for name, entries in listed.items()
            if name in toolsets
            for entry in entries
        ]
        return replace(self, tools=Toolbox.of(tools).merged(self.tools)) if tools else self

    @property
    def output(self) -> ResponseFormat | None:
        """The format of its results, which are validated; None if its answers are any text."""
        return self.cached_context.output

    def _context_data(self, output: ResponseFormat | None = None) -> FrozenDict:
        context = self.cached_context.with_tools(self.tools.schemas)
        return frozen_map((context.with_response_format(output) if output else context).to_dict())

    def _approval_data(self) -> FrozenDict:
        return frozen_map({name: approval.to_json() for name, approval in self.approvals.items()})

    def equipped(self) -> "AgentDefinition":
        """A copy whose tools and driver are bound to this agent."""
        bound = [tool.of(self) for tool in self.tools if isinstance(tool, BindsToAgent)]
        agent = replace(self, tools=self.tools.merged(bound))
        driver = agent.driver
        return (
            replace(agent, driver=agent.equipped_driver(driver)) if isinstance(driver, StepDriver) else agent
        )

    def equipped_driver(self, driver: StepDriver) -> StepDriver:
        """A copy of a driver with this agent's tools."""
        # A copy, so that two agents never share a driver's position or tools.
        driver = copy.copy(driver)
        driver.equip(self.tools, parallel_tools=self.base_plan.parallel_tools)
        return driver

    def need_of(self, call: ToolCall, allowed: Sequence[ApprovalRule] = ()) -> CallNeed:
        """What a call waits for before it has a result.

        A call that cannot run at all needs nothing: it fails without a question to a person. Approval comes
        before anything that the tool itself waits for.
        """
        if self.tools.refusal(call) is not None:
            return CallNeed.RUN
        own = options_of(self.tools.get(call.name)).need
        return own if self.approval_policy(call, allowed) is None else CallNeed.APPROVAL

    def approval_policy(self, call: ToolCall, allowed: Sequence[ApprovalRule] = ()) -> DecisionPolicy | None:
        """Who may decide about this call before it runs; None if it needs no approval.

        Args:
            call: The call.
            allowed: Rules of calls that a person has already approved for the execution.
        """
        approval: Approval = self.approvals.get(call.name, NO_APPROVAL)
        policy = approval.policy_of(call.name, call.args)
        if policy is None or any(rule.covers(call.name, call.args, policy) for rule in allowed):
            return None
        return policy


def _criterion_data(criterion: Criterion[Any]) -> Any:
    """The criterion with its parameters; one that is not registered, so in-process only, by its class."""
    try:
        return REGISTERED.ref(criterion).model_dump(mode="json")
    except InvalidInput:
        return type(criterion).__qualname__
