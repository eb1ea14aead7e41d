"""The agent builder: one method per setting, in any order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, runtime_checkable

from pydantic import ValidationError

from everstep.agent_domain.agents.builder_arguments import require_type
from everstep.agent_domain.agents.contracts import AgentDescriptor
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import CanUseTools, Model, StepDriver, ToolCallingDriver
from everstep.agent_domain.agents.limits_builder import LimitsBuilder
from everstep.agent_domain.agents.model_name import EXAMPLE, ModelName
from everstep.agent_domain.agents.plan import ExecutionPlan, PlannedTool
from everstep.agent_domain.agents.processors import AgentHook, Processor, ProcessorWithModel, overrides
from everstep.agent_domain.capabilities.approvals import Approval, parse_approval
from everstep.agent_domain.capabilities.rights import APPROVE
from everstep.agent_domain.checks import faults
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.continuation import ContinuationCriteria, Criterion
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.response_format import (
    ResponseFormat,
    as_response_format,
    output_format,
)
from everstep.agent_domain.state.events import EventBus
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.tools.resources import Resource, require_resources
from everstep.agent_domain.tools.tools import Tool, Toolbox, options_of
from everstep.agent_domain.tools.toolsets import Toolset, current_toolset
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, valid_text

DEFAULT_MAX_STEPS = 20
DEFAULT_MAX_TOKENS = 32768
DEFAULT_TIMEOUT_SECONDS = 300.0
DEFAULT_REPEATED_CALLS = 30


@runtime_checkable
class AgentCapability(Protocol):
    """Something an agent can do: installs tools, processors, criteria, hooks or a callback."""

    def install(self, builder: "DefinitionBuilder") -> object:
        """Add the capability's parts to the builder."""
        ...


class DefinitionBuilder(LimitsBuilder):
    """Collects the settings of an agent; every method returns the builder."""

    def __init__(self) -> None:
        super().__init__()
        self._name = "agent"
        self._description = "An agent"
        self._parallel_tools = True
        self._debug = False
        self._broadcast = BroadcastConfig.standard()
        self._tools = Toolbox()
        self._toolsets: dict[str, Toolset] = {}
        self._resources: tuple[Resource[Any], ...] = ()
        self._approvals: dict[str, Approval] = {}
        self._capabilities: list[str] = []
        self._processors: list[Processor] = []
        self._hooks: list[AgentHook] = []
        self._criteria: list[Criterion[Any]] = []
        self._driver: StepDriver | CanUseTools | None = None
        self._model: Model | None = None
        self._llm_preset: str | None = None
        self._model_settings = EMPTY
        self._cached = CachedContext()
        self._system_prompt = ""
        self._response_format: ResponseFormat | None = None
        self._output_type: Any = None
        self._events = EventBus()
        self._throws = False
        self._built: list[Callable[[Any], Any]] = []

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} '{self._name}': tools {_names(self._tools.names)}, "
            f"capabilities {_names(self._capabilities)}>"
        )

    @classmethod
    def new(cls) -> Self:
        """A builder without limits: only the error policy and the model's tool calls end an execution."""
        return cls()

    @classmethod
    def base(cls) -> Self:
        """A builder with the default limits, which compacts requests.

        The limits are 20 steps, 32768 tokens, 300 seconds and 30 repeated calls.
        """
        limited = cls().with_max_steps(DEFAULT_MAX_STEPS).with_max_tokens(DEFAULT_MAX_TOKENS)
        limited.with_compaction().with_repeated_call_limit(DEFAULT_REPEATED_CALLS)
        return limited.with_timeout(DEFAULT_TIMEOUT_SECONDS).with_finish_reasons()

    def with_name(self, name: str, description: str = "") -> Self:
        """Set the agent's name, and the description that callers and other agents read."""
        description = valid_text(description, "the agent's description")
        self._name = valid_text(name, "the agent's name")
        self._description = description or self._description
        return self

    # Tools and capabilities.

    def with_tools(self, tools: Iterable[Tool] | Tool) -> Self:
        """Add tools; a tool replaces an earlier one of the same name."""
        added = list(tools) if isinstance(tools, Iterable) else [tools]
        self._tools = self._tools.merged(_require_tool(each) for each in added)
        return self

    def with_toolset(self, toolset: Toolset) -> Self:
        """Add a source of tools that is queried when an execution begins.

        Raises:
            InvalidInput: A toolset with this name was added before.
        """
        how = "a toolset has a name, list_tools(asker) and tool(listed)"
        toolset = require_type("with_toolset", current_toolset(toolset), Toolset, how)
        if toolset.name in self._toolsets:
            raise InvalidInput(f"two toolsets are named '{toolset.name}'; rename one of them")
        self._toolsets[toolset.name] = toolset
        return self

    def with_resources(self, *resources: Resource[Any]) -> Self:
        """Declare objects that tools, hooks and processors share, such as a database pool.

        A worker starts them before its first execution, and stops them after its last one. Resources that
        parameters of tools name (`Annotated[Orders, orders]`) need not be declared.

        Raises:
            InvalidInput: One of them is not made with `@resource`.
        """
        self._resources = require_resources((*self._resources, *resources), "with_resources")
        return self

    def with_capability(self, capability: AgentCapability) -> Self:
        """Install a capability; the descriptor lists it by its `name`, or by the name of its class."""
        how = "a capability has a method install(builder)"
        require_type("with_capability", capability, AgentCapability, how).install(self)
        self._capabilities.append(getattr(capability, "name", type(capability).__name__))
        return self

    def with_approval(
        self,
        tool: str,
        approval: str | Sequence[Mapping[str, Any]] | Mapping[str, Any],
        *,
        approver: str | Sequence[str] = APPROVE,
        four_eyes: bool = False,
        expires_after: float | None = None,
    ) -> Self:
        """Set whether calls of a tool wait for a person's approval, and who may decide.

        The tool may be added later. If the agent has no such tool when it is defined, that raises.

        Args:
            tool: The tool's name.
            approval: `never`, `always`, or a list of rules. A map has these under `approval`, and may have
                the arguments below; so may each rule.
            approver: Who may decide: `approve` for callers with that scope, `owner` for the user of the
                execution, `scope:NAME` and `role:NAME` for those of the caller's token, or a list of them.
            four_eyes: Whether the user for whom a call was made may not decide about it.
            expires_after: Seconds after which a call without a decision is denied.
        """
        policy = {"approver": approver, "four_eyes": four_eyes, "expires_after": expires_after}
        self._approvals[valid_text(tool, "the tool's name")] = parse_approval(approval, policy)
        return self

    def with_parallel_tools(self, flag: bool) -> Self:
        """Set whether the calls of one response run at the same time."""
        self._parallel_tools = require_type("with_parallel_tools", flag, bool)
        return self

    def with_throw_on_tool_failure(self, flag: bool = True) -> Self:
        """Set whether a failing tool ends its step as an exception that the error policy handles.

        By default the failure is a result, which the model reads and can react to.
        """
        self._throws = require_type("with_throw_on_tool_failure", flag, bool)
        return self

    # Execution.

    def with_debug(self, flag: bool = True) -> Self:
        """Keep the full state after each step of a durable execution."""
        self._debug = require_type("with_debug", flag, bool)
        return self

    def add_processor(self, processor: Processor) -> Self:
        """Add a processor, which receives the state after each step and may change it."""
        if not isinstance(processor, ProcessorWithModel) and not callable(processor):
            raise InvalidInput(
                f"a processor must be a function that takes and returns a state, not {processor!r}"
            )
        self._processors.append(processor)
        return self

    def add_hook(self, hook: AgentHook) -> Self:
        """Add a hook that is called around steps and tool calls."""
        self._hooks.append(require_type("add_hook", hook, AgentHook, "derive it from AgentHook"))
        return self

    def add_continuation_criteria(self, *criteria: Criterion[Any]) -> Self:
        """Add criteria that are evaluated after the base set."""
        self._criteria.extend(ContinuationCriteria(*criteria).criteria)
        return self

    def with_model(self, model: str | Model, **settings: Any) -> Self:
        """Set the model, unless the driver has one of its own.

        Args:
            model: A model in one line (`openai:gpt-5.5`, `anthropic:claude-opus-5-5`,
                `openai-chat:qwen3@http://127.0.0.1:11434/v1`), the name of a preset, or a model object.
            settings: Changes to the settings of the named model, such as `temperature=0.2`; the same as in a
                preset.

        Raises:
            InvalidInput: It is none of these, or settings were given for a model object.
        """
        if isinstance(model, str):
            name = valid_text(model, "the model's name").strip()
            if not name:
                raise InvalidInput(f"with_model was given a blank name; pass one, as in {EXAMPLE}")
            ModelName.parse(name)
            return self._choose_model(name, frozen_map(settings, "the model's settings"))
        how = f"pass a name, as in {EXAMPLE}, or an object with a coroutine method respond(request, on_text)"
        own = require_type("with_model", model, Model, how)
        if settings:
            raise InvalidInput(f"with_model takes settings for a named model only; set them on {own!r}")
        self._choose_model(None, EMPTY)
        self._model = own
        return self

    def with_llm_preset(self, name: str) -> Self:
        """Use the model of this preset, unless the driver has one; the same as `with_model(name)`."""
        return self._choose_model(valid_text(name, "the preset's name"), EMPTY)

    def _choose_model(self, name: str | None, settings: FrozenDict) -> Self:
        """Replace the choice of a model."""
        self._model, self._llm_preset = None, None if settings else name
        self._model_settings = frozen_map({"preset": name, **settings}) if settings else EMPTY
        return self

    def with_driver(self, driver: StepDriver | CanUseTools) -> Self:
        """Set the driver, which exchanges messages with the model."""
        self._driver = require_type("with_driver", driver, CanUseTools, _driver_hint(driver))
        return self

    def with_events(self, bus: EventBus) -> Self:
        """Set the bus that receives the events of the loop and of its tools."""
        self._events = require_type("with_events", bus, EventBus)
        return self

    def with_broadcast(self, config: BroadcastConfig) -> Self:
        """Set how much viewers of the agent's durable executions receive.

        In-process adapters have their own configuration. Status changes are always sent:
        `auto_status_tracking` affects adapters only.
        """
        self._broadcast = require_type("with_broadcast", config, BroadcastConfig)
        return self

    # Prompts and messages.

    def with_cached_context(self, context: CachedContext) -> Self:
        """Set the messages and tool schemas that precede every request."""
        self._cached = require_type("with_cached_context", context, CachedContext)
        return self

    def with_system_prompt(self, prompt: str) -> Self:
        """Set the system prompt, which comes before all other messages."""
        self._system_prompt = valid_text(prompt, "the system prompt")
        return self

    def with_response_format(self, given: ResponseFormat | Mapping[str, Any] | type) -> Self:
        """Request answers of this schema from the provider, without checking them.

        Args:
            given: The schema as a response format, as a map, or as a type such as a pydantic model.
        """
        self._response_format, self._output_type = as_response_format(given), None
        return self

    def with_output(self, output: Any, *, max_retries: int | None = None) -> "DefinitionBuilder":
        """Let executions end with a result of this type, which is validated.

        The model is asked for it in the provider's own way, or else by a tool. A result that does not fit is
        an error of type `validation`, which the model reads and corrects.

        Args:
            output: A pydantic model or another type that pydantic reads, or a JSON schema.
            max_retries: How often the model may correct the result; by default three times, at most ten.

        Raises:
            InvalidInput: There is no usable schema.
        """
        self._response_format = output_format(output, max_retries)
        self._output_type = None if isinstance(output, Mapping | ResponseFormat) else output
        return self

    def on_build(self, fn: Callable[[Any], Any]) -> Self:
        """Register a function that receives the built agent and returns the agent to use."""
        if not callable(fn):
            raise InvalidInput(f"on_build needs a function that takes and returns an agent, not {fn!r}")
        self._built.append(fn)
        return self

    def definition(self) -> AgentDefinition:
        """The settings so far as a value; later calls to the builder do not change it.

        Raises:
            InvalidInput: The settings do not fit together.
            UnknownName: An approval names a tool that the agent does not have.
        """
        for name in () if self._toolsets else self._approvals:
            # A misspelt name would leave the intended tool without approval.
            self._tools.get(name)
        return AgentDefinition(
            descriptor=AgentDescriptor(self._name, self._description, self._tools.names, self._capabilities),
            base_plan=self._plan(),
            driver=self._driver_with_model(),
            llm_preset=self._llm_preset,
            model_settings=self._model_settings,
            tools=self._tools,
            criteria=tuple(self._criteria),
            processors=tuple(self._processors),
            hooks=tuple(self._hooks),
            toolsets=tuple(self._toolsets.values()),
            resources=self._resources,
            cached_context=self._context(),
            approvals=FrozenDict(self._approvals),
            throw_on_tool_failure=self._throws,
            events=self._events,
            output_type=self._output_type,
        ).equipped()

    def _driver_with_model(self) -> StepDriver | CanUseTools | None:
        """The driver, with the model object if it has no model of its own."""
        if self._model is None:
            return self._driver
        if self._driver is None:
            return ToolCallingDriver(self._model)
        if isinstance(self._driver, StepDriver) and self._driver.wants_model:
            return self._driver.with_model(self._model)
        return self._driver

    def _plan(self) -> ExecutionPlan:
        try:
            return ExecutionPlan(
                agent=self._name,
                max_steps=self._max_steps,
                max_tokens=self._max_tokens,
                timeout_seconds=self._timeout,
                cumulative_timeout=self._cumulative,
                finish_reasons=self._finish_reasons,
                error_policy=self._error_policy,
                last_turn_without_tools=self._last_turn_without_tools,
                repeated_call_limit=self._repeated_calls,
                output_retries=self._response_format.max_retries if self._response_format else None,
                model_attempts=self._model_attempts,
                retry_seconds=self._retry_seconds,
                compaction=self._compaction,
                parallel_tools=self._parallel_tools,
                broadcast=self._broadcast,
                tools=tuple(PlannedTool.of(tool.name, options_of(tool)) for tool in self._tools),
                debug=self._debug,
                processes=bool(self._processors)
                or any(overrides(each, "after_step") for each in self._hooks),
                approvals_expire=any(each.may_expire for each in self._approvals.values()),
                budgets=tuple(replace(each, agent=self._name) for each in self._budgets.values()),
                throws_tool_failures=self._throws,
                profile=self._profile,
            )
        except ValidationError as error:
            raise InvalidInput(f"the agent cannot be planned: {faults(error)}") from None

    def _context(self) -> CachedContext:
        context = self._cached.with_system_prompt(self._system_prompt)
        return context.with_response_format(self._response_format) if self._response_format else context

    def _apply_on_build(self, agent: Any) -> Any:
        for transform in self._built:
            agent = transform(agent)
            if agent is None:
                raise InvalidInput(
                    f"the on_build function {transform!r} returned None; return the agent to use"
                )
        return agent


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _driver_hint(given: object) -> str:
    if isinstance(given, type):
        return "create a driver with a model, as in ToolCallingDriver(model)"
    if isinstance(given, Model):
        return f"a {type(given).__name__} is a model; pass it to with_model, or pass ReActDriver(model)"
    return "a driver has a coroutine method use_tools(state)"


_TOOL_HINT = "make one with @tool, FunctionTool.from_function or BaseTool"


def _require_tool(tool: object) -> Tool:
    # Reading a broken property here fails early, and not in the middle of a run.
    checked = require_type("with_tools", tool, Tool, _TOOL_HINT)
    for part in ("name", "description", "schema"):
        getattr(checked, part)
    return checked
