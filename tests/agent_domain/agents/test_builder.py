"""The builder: one method per decision, in any order."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.agents.builder import AgentCapability, DefinitionBuilder
from everstep.agent_domain.agents.contracts import AgentDescriptor
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.agents.plan import PlannedTool
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.capabilities.approvals import Approval, ApprovalMode
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.continuation import ContinuationCriteria, ContinuationDecision
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion,
    ErrorPresenceCheck,
    ExecutionTimeLimit,
    FinishReasonCheck,
    RetryLimit,
    StepsLimit,
    TokenUsageLimit,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.finish_reason import FinishReason
from everstep.agent_domain.loop.repeated_calls import RepeatedCallLimit
from everstep.agent_domain.messages.cached_context import CachedContext, ResponseFormat
from everstep.agent_domain.messages.messages import system, user
from everstep.agent_domain.state.events import EventBus
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.testing import DeterministicAgentDriver, MockTool, ScriptedModel
from everstep.agent_domain.tools.function_tool import BaseTool
from everstep.agent_domain.tools.resources import resource
from everstep.agent_domain.tools.tools import Effect, Tool, ToolContext, ToolOptions
from everstep.agent_domain.tools.toolsets import Asker, ListedTool
from everstep.agent_domain.values import EMPTY
from tests.toolsets import FakeToolset

LOOK, FIND = MockTool("look"), MockTool("find")
POLICY = ErrorPolicy.retry_all()
DRIVER = DeterministicAgentDriver.from_responses("Hi")


class Installed:
    """A capability that installs one of each kind."""

    def install(self, builder: DefinitionBuilder) -> None:
        builder.with_tools([LOOK]).add_processor(same_state).add_continuation_criteria(RetryLimit(2))


class OwnDriver:
    async def use_tools(self, state: AgentState) -> AgentState:
        return state


def same_state(state: AgentState) -> AgentState:
    return state


def other(state: AgentState) -> AgentState:
    return state


def criteria_of(definition: AgentDefinition) -> list[Any]:
    return list(definition.rules.criteria.criteria)


# Defaults.


def test_the_base_has_all_defaults() -> None:
    """11, 2.6.3: in the order of the base set."""
    definition = DefinitionBuilder.base().definition()
    assert criteria_of(definition) == [
        StepsLimit(20),
        TokenUsageLimit(32768),
        ExecutionTimeLimit(300),
        FinishReasonCheck(),
        ErrorPolicyCriterion(ErrorPolicy.stop_on_any_error()),
        ToolCallPresenceCheck(ErrorPolicy.stop_on_any_error()),
        RepeatedCallLimit(30),
    ]
    assert definition.base_plan.model_attempts is None
    assert definition.rules.error_policy == ErrorPolicy.stop_on_any_error()
    assert definition.rules.parallel_tools
    assert (definition.tools.names, definition.processors, definition.hooks) == ((), (), ())
    assert (definition.driver, definition.llm_preset) == (None, None)
    assert definition.cached_context.is_empty
    assert not definition.throw_on_tool_failure


def test_a_new_builder_has_no_limits() -> None:
    """11: only the error policy and tool calls decide."""
    definition = DefinitionBuilder.new().definition()
    assert criteria_of(definition) == [ErrorPolicyCriterion(), ToolCallPresenceCheck()]
    assert definition.base_plan.model_attempts is None
    assert definition.rules.parallel_tools


def test_limits_set_later_replace_earlier_ones() -> None:
    """11, 2.6.3: in any order of calls; added criteria come last, as added."""
    builder = DefinitionBuilder.new().add_continuation_criteria(RetryLimit(2)).with_finish_reasons("length")
    builder = builder.with_timeout(5).with_max_tokens(9).with_max_steps(3).with_error_policy(POLICY)
    assert criteria_of(builder.add_continuation_criteria(ErrorPresenceCheck()).definition()) == [
        StepsLimit(3),
        TokenUsageLimit(9),
        ExecutionTimeLimit(5),
        FinishReasonCheck(frozenset({"length"})),
        ErrorPolicyCriterion(POLICY),
        ToolCallPresenceCheck(POLICY),
        RetryLimit(2),
        ErrorPresenceCheck(),
    ]


ORDERS: list[Callable[[DefinitionBuilder], DefinitionBuilder]] = [
    lambda b: b.with_cumulative_timeout(7, scope="session").with_timeout(5),
    lambda b: b.with_timeout(5).with_cumulative_timeout(7, scope="session"),
]


@pytest.mark.parametrize("build", ORDERS)
def test_a_cumulative_timeout_replaces_the_wall_clock(
    build: Callable[[DefinitionBuilder], DefinitionBuilder],
) -> None:
    """11, 2.7.3: in any order of calls."""
    assert criteria_of(build(DefinitionBuilder.new()).definition())[0] == CumulativeExecutionTimeLimit(
        7, "session"
    )
    base = criteria_of(build(DefinitionBuilder.base()).definition())
    assert not [criterion for criterion in base if isinstance(criterion, ExecutionTimeLimit)]


def test_a_cumulative_timeout_covers_the_execution_by_default() -> None:
    """11."""
    definition = DefinitionBuilder.new().with_cumulative_timeout(7.5).definition()
    assert criteria_of(definition)[0] == CumulativeExecutionTimeLimit(7.5, "execution")


@pytest.mark.parametrize(("retries", "attempts"), [(5, 5), (1, 1), (0, 1), (-3, 1)])
def test_the_attempts_of_a_model_call(retries: int, attempts: int) -> None:
    """11, 3.5.1: 1 or less is one; the error policy does not change."""
    definition = DefinitionBuilder.base().with_max_retries(retries).definition()
    assert definition.base_plan.model_attempts == attempts
    assert definition.rules.error_policy.max_retries == 0


@pytest.mark.parametrize("seconds", [-1, -0.1, float("inf"), float("nan"), "5", True, None])
def test_a_retry_budget_is_a_time(seconds: Any) -> None:
    """11, 3.5.4"""
    with pytest.raises(InvalidInput, match="with_retry_budget was given"):
        DefinitionBuilder.base().with_retry_budget(seconds)


# Capabilities.


def test_tools_are_merged_by_name() -> None:
    """11: later ones replace earlier ones."""
    better = MockTool("look", "Better")
    definition = DefinitionBuilder.base().with_tools([LOOK, FIND]).with_tools(better).definition()
    assert list(definition.tools) == [better, FIND]


def test_declarations_of_tools_go_into_the_plan() -> None:
    """11: facts that the runtime needs before it runs them."""
    options = ToolOptions(quick=True, effect=Effect.AT_MOST_ONCE, timeout_seconds=2.5)
    definition = DefinitionBuilder.base().with_tools([MockTool("pay", options=options)]).definition()
    assert definition.base_plan.tools == (
        PlannedTool(name="pay", quick=True, effect=Effect.AT_MOST_ONCE, timeout_seconds=2.5),
    )


def test_a_capability_installs_itself() -> None:
    """11: it appends to the existing settings."""
    assert isinstance(Installed(), AgentCapability)
    builder = DefinitionBuilder.new().with_tools([FIND]).with_capability(Installed())
    definition = builder.definition()
    assert definition.tools.names == ("find", "look")
    assert definition.processors == (same_state,)
    assert definition.criteria == (RetryLimit(2),)
    assert definition.descriptor.capabilities == ["Installed"]


def test_processors_and_hooks_keep_their_order() -> None:
    """11."""
    hooks = AgentHook(), AgentHook()
    builder = DefinitionBuilder.new().add_processor(same_state).add_processor(other).add_hook(hooks[0])
    definition = builder.add_hook(hooks[1]).definition()
    assert definition.processors == (same_state, other)
    assert definition.hooks == hooks


def test_approvals_are_kept_by_tool() -> None:
    """11, 8.6.1: `never` by default; the last setting counts."""
    builder = DefinitionBuilder.base().with_approval("look", "never").with_approval("look", "always")
    assert builder.with_tools([LOOK]).definition().approvals == {"look": Approval(ApprovalMode.ALWAYS)}


def test_an_approval_of_a_tool_that_the_agent_lacks_is_refused() -> None:
    """8.6.1: a misspelt name would let calls run without approval."""
    builder = DefinitionBuilder.base().with_tools([LOOK, FIND]).with_approval("looks", "always")
    with pytest.raises(UnknownName, match=r"No tool named 'looks'\. Choose from: look, find"):
        builder.definition()


def test_tools_may_run_one_after_the_other() -> None:
    """11, 5.4.1."""
    builder = DefinitionBuilder.base().with_driver(DRIVER).with_parallel_tools(False)
    definition = builder.definition()
    assert not definition.rules.parallel_tools
    assert not definition.base_plan.parallel_tools
    assert isinstance(definition.driver, DeterministicAgentDriver)
    assert not definition.driver.parallel_tools


def test_an_agent_sets_how_much_of_its_executions_is_published() -> None:
    """11, 7.5: the default is the standard preset."""
    builder = DefinitionBuilder.base().with_driver(DRIVER)
    assert builder.definition().plan().broadcast == BroadcastConfig.standard()
    config = BroadcastConfig(include_tool_args=True, max_arg_length=7)
    assert builder.with_broadcast(config).definition().plan().broadcast == config


# Execution.


def test_the_full_state_can_be_kept_after_each_step() -> None:
    """11, 8.1.3."""
    assert not DefinitionBuilder.base().definition().base_plan.debug
    assert DefinitionBuilder.base().with_debug().definition().base_plan.debug
    assert not DefinitionBuilder.base().with_debug().with_debug(False).definition().base_plan.debug


def test_a_driver_is_equipped_with_the_tools() -> None:
    """11, 4.4.4: its own copy."""
    driver = ToolCallingDriver(ScriptedModel("Hi"))
    definition = DefinitionBuilder.base().with_driver(driver).with_tools([LOOK]).definition()
    assert isinstance(definition.driver, ToolCallingDriver)
    assert definition.driver.tools.names == ("look",)
    assert definition.driver.model is driver.model
    assert (definition.driver is driver, driver.tools.names) == (False, ())


def test_a_driver_that_answers_for_whole_steps_is_used_unchanged() -> None:
    """11, 4.4.4."""
    driver = OwnDriver()
    assert DefinitionBuilder.base().with_driver(driver).definition().driver is driver


def test_a_preset_is_kept_beside_the_driver() -> None:
    """11: code that resolves a driver uses the preset."""
    definition = DefinitionBuilder.base().with_llm_preset("fast").with_driver(DRIVER).definition()
    assert definition.llm_preset == "fast"
    assert definition.driver is not None


def test_a_model_is_named_in_one_line_or_by_its_preset() -> None:
    """11.2: the last choice counts; with settings it is a change to the named one."""
    builder = DefinitionBuilder.base()
    for name in ("openai:gpt-5.5", " fast "):
        definition = builder.with_model(name).definition()
        assert (definition.llm_preset, definition.model_settings) == (name.strip(), {})
    changed = builder.with_model("openai:gpt-5.5", temperature=0.2).definition()
    assert changed.model_settings == {"preset": "openai:gpt-5.5", "temperature": 0.2}
    # An execution's own preset would replace the settings on a worker.
    assert changed.spec().llm_preset is None
    again = builder.with_llm_preset("fast").definition()
    assert (again.llm_preset, again.model_settings, again.driver) == ("fast", {}, None)


def test_a_model_object_answers_through_native_tool_calls() -> None:
    """11.2: or through a driver that has no model."""
    model = ScriptedModel("Hi")
    driver = DefinitionBuilder.base().with_model(model).with_tools([LOOK]).definition().driver
    assert isinstance(driver, ToolCallingDriver)
    assert (driver.model, driver.tools.names) == (model, ("look",))
    react = DefinitionBuilder.base().with_model(model).with_driver(ReActDriver()).definition().driver
    assert isinstance(react, ReActDriver)
    assert react.model is model
    assert DefinitionBuilder.base().with_model(model).with_model("fast").definition().driver is None


def test_a_driver_with_its_own_model_keeps_it() -> None:
    """11.2"""
    own = ScriptedModel("Hi")
    driver = (
        DefinitionBuilder.base().with_driver(ToolCallingDriver(own)).with_model(ScriptedModel()).definition()
    )
    assert isinstance(driver.driver, ToolCallingDriver)
    assert driver.driver.model is own


def test_the_builder_keeps_the_given_bus() -> None:
    """11."""
    bus = EventBus()
    assert DefinitionBuilder.base().with_events(bus).definition().events is bus


def test_failing_tools_can_be_made_to_throw() -> None:
    """5.4.3."""
    assert DefinitionBuilder.base().with_throw_on_tool_failure().definition().throw_on_tool_failure
    assert not DefinitionBuilder.base().with_throw_on_tool_failure(False).definition().throw_on_tool_failure


# Texts.


def test_prompt_and_format_are_put_into_the_cached_context() -> None:
    """11, 5.2.1: in any order of calls."""
    context = CachedContext((user("Context"),), tool_choice="auto")
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    expected = CachedContext(
        (system("Be brief"), user("Context")), (), "auto", ResponseFormat.from_dict(schema)
    )
    one = DefinitionBuilder.base().with_system_prompt(" Be brief ").with_response_format(schema)
    other = DefinitionBuilder.base().with_cached_context(context).with_response_format(schema)
    assert one.with_cached_context(context).definition().cached_context == expected
    assert other.with_system_prompt("Be brief").definition().cached_context == expected


def test_without_a_format_the_context_keeps_its_own() -> None:
    """5.2.1."""
    context = CachedContext(response_format=ResponseFormat.from_dict({"schema": {"type": "object"}}))
    builder = DefinitionBuilder.base().with_cached_context(context)
    assert builder.definition().cached_context == context
    assert builder.with_response_format({}).definition().cached_context == context


def test_a_name_and_a_description_are_available_to_others() -> None:
    """10.3.3."""
    definition = DefinitionBuilder.base().with_name("helper", "Helps").with_tools([LOOK]).definition()
    assert definition.descriptor == AgentDescriptor("helper", "Helps", ["look"])
    assert definition.base_plan.agent == "helper"
    assert DefinitionBuilder.base().with_name("helper").definition().descriptor.description == "An agent"


def test_two_toolsets_have_two_names() -> None:
    builder = DefinitionBuilder.base().with_toolset(SHELF)
    with pytest.raises(InvalidInput, match="two toolsets are named 'shelf'; rename one of them"):
        builder.with_toolset(FakeToolset({}))


# Every method.

SHELF = FakeToolset({})


@resource
async def pool() -> int:
    return 7


METHODS: dict[str, Callable[[DefinitionBuilder], object]] = {
    "with_name": lambda b: b.with_name("helper"),
    "with_max_steps": lambda b: b.with_max_steps(5),
    "with_max_tokens": lambda b: b.with_max_tokens(5),
    "with_last_turn_without_tools": lambda b: b.with_last_turn_without_tools(),
    "with_repeated_call_limit": lambda b: b.with_repeated_call_limit(5),
    "with_profile": lambda b: b.with_profile("burst"),
    "with_timeout": lambda b: b.with_timeout(5),
    "with_cumulative_timeout": lambda b: b.with_cumulative_timeout(5),
    "with_max_retries": lambda b: b.with_max_retries(5),
    "with_retry_budget": lambda builder: builder.with_retry_budget(60),
    "with_compaction": lambda b: b.with_compaction(at=0.9, to=0.3, model="small"),
    "with_budget": lambda b: b.with_budget(usd=5),
    "with_error_policy": lambda b: b.with_error_policy(POLICY),
    "with_finish_reasons": lambda b: b.with_finish_reasons("stop", FinishReason.LENGTH),
    "with_tools": lambda b: b.with_tools([LOOK]),
    "with_toolset": lambda b: b.with_toolset(SHELF),
    "with_resources": lambda b: b.with_resources(pool),
    "with_capability": lambda b: b.with_capability(Installed()),
    "with_approval": lambda b: b.with_approval("look", "always"),
    "with_parallel_tools": lambda b: b.with_parallel_tools(False),
    "with_throw_on_tool_failure": lambda b: b.with_throw_on_tool_failure(),
    "with_debug": lambda b: b.with_debug(),
    "add_processor": lambda b: b.add_processor(same_state),
    "add_hook": lambda b: b.add_hook(AgentHook()),
    "add_continuation_criteria": lambda b: b.add_continuation_criteria(RetryLimit(2)),
    "with_model": lambda b: b.with_model("openai:gpt-5.5"),
    "with_llm_preset": lambda b: b.with_llm_preset("fast"),
    "with_driver": lambda b: b.with_driver(DRIVER),
    "with_broadcast": lambda b: b.with_broadcast(BroadcastConfig.debug()),
    "with_events": lambda b: b.with_events(EventBus()),
    "with_cached_context": lambda b: b.with_cached_context(CachedContext()),
    "with_system_prompt": lambda b: b.with_system_prompt("Be brief"),
    "with_response_format": lambda b: b.with_response_format({"schema": {}}),
    "with_output": lambda b: b.with_output({"type": "object"}),
    "on_build": lambda b: b.on_build(same_state),
}


def test_every_method_is_covered_here() -> None:
    """11.1."""
    public = {name for name in dir(DefinitionBuilder) if not name.startswith("_")}
    assert set(METHODS) == public - {"new", "base", "definition"}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_returns_the_builder(method: str) -> None:
    """11.1."""
    builder = DefinitionBuilder.base()
    assert METHODS[method](builder) is builder


def test_classes_derived_from_the_builder_build_themselves() -> None:
    """11.1."""

    class Mine(DefinitionBuilder):
        """A builder with an additional method."""

    assert isinstance(Mine.base(), Mine)
    assert isinstance(Mine.new().with_max_steps(1), Mine)


def test_defining_leaves_the_builder_as_it_is() -> None:
    """11: the definition does not change with it, and it can be built again."""
    builder = DefinitionBuilder.base().with_tools([LOOK])
    first = builder.definition()
    again = builder.definition()
    assert first == again
    builder.with_tools([FIND]).with_max_steps(1).with_capability(Installed()).with_approval("find", "always")
    builder.add_hook(AgentHook()).with_system_prompt("Be brief")
    assert first == again
    assert builder.definition() != first


class Tokens(BaseTool):
    """A tool class in place of an object."""

    name = "tokens"

    def __call__(self) -> int:
        return 1


BAD_INPUT: list[tuple[str, Callable[[Any], object], str]] = [
    ("with_name", lambda b: b.with_name(5), "the agent's name must be text, not int"),
    ("with_name", lambda b: b.with_name("a", None), "the agent's description must be text"),
    ("with_max_steps", lambda b: b.with_max_steps("5"), "with_max_steps was given '5'; pass a whole number"),
    ("with_max_steps", lambda b: b.with_max_steps(2.5), "pass a whole number"),
    ("with_max_steps", lambda b: b.with_max_steps(True), "pass a whole number"),
    (
        "with_max_tokens",
        lambda b: b.with_max_tokens(None),
        "with_max_tokens was given None; pass a whole number",
    ),
    (
        "with_timeout",
        lambda b: b.with_timeout("5"),
        "with_timeout was given '5'; pass a finite number of seconds",
    ),
    ("with_timeout", lambda b: b.with_timeout(True), "pass a finite number of seconds"),
    ("with_timeout", lambda b: b.with_timeout(0), "Max seconds must be greater than zero."),
    ("with_timeout", lambda b: b.with_timeout(float("nan")), "pass a finite number of seconds"),
    ("with_cumulative_timeout", lambda b: b.with_cumulative_timeout(-1), "greater than zero"),
    ("with_cumulative_timeout", lambda b: b.with_cumulative_timeout("x"), "pass a finite number of seconds"),
    (
        "with_cumulative_timeout",
        lambda b: b.with_cumulative_timeout(float("inf")),
        "pass a finite number of seconds",
    ),
    (
        "with_cumulative_timeout",
        lambda b: b.with_cumulative_timeout(10**400),
        "pass a finite number of seconds",
    ),
    ("with_cumulative_timeout", lambda b: b.with_cumulative_timeout(5, "day"), "use execution or session"),
    ("with_cumulative_timeout", lambda b: b.with_cumulative_timeout(5, ["a"]), "use execution or session"),
    ("with_max_retries", lambda b: b.with_max_retries("5"), "pass a whole number"),
    ("with_compaction", lambda b: b.with_compaction("off"), "with_compaction was given 'off'; pass bool"),
    ("with_compaction", lambda b: b.with_compaction(at=1.5), "with_compaction: at: "),
    ("with_compaction", lambda b: b.with_compaction(at=0.4), "'to' must be smaller than 'at'"),
    ("with_retry_budget", lambda b: b.with_retry_budget("60"), "pass a finite number of seconds"),
    ("with_retry_budget", lambda b: b.with_retry_budget(-1), "pass 0 or more seconds"),
    ("with_budget", lambda b: b.with_budget(tokens=1.5), "pass a whole number of tokens"),
    ("with_error_policy", lambda b: b.with_error_policy("stop"), "pass ErrorPolicy"),
    ("with_finish_reasons", lambda b: b.with_finish_reasons(5), "a finish reason must be text, not int"),
    ("with_finish_reasons", lambda b: b.with_finish_reasons(["stop"]), "must be text, not list"),
    ("with_tools", lambda b: b.with_tools(5), "with_tools was given 5; make one with @tool"),
    ("with_tools", lambda b: b.with_tools(None), "with_tools was given None; make one with @tool"),
    ("with_tools", lambda b: b.with_tools([5]), "with_tools was given 5; make one with @tool"),
    ("with_tools", lambda b: b.with_tools([same_state]), "make one with @tool"),
    ("with_tools", lambda b: b.with_tools([Tokens]), "make one with @tool"),
    ("with_tools", lambda b: b.with_tools(Tokens), "make one with @tool"),
    ("with_toolset", lambda b: b.with_toolset(LOOK), "a toolset has a name"),
    ("with_resources", lambda b: b.with_resources(7), "with_resources holds 7, which is no resource"),  # type: ignore[arg-type]
    ("with_capability", lambda b: b.with_capability("bash"), r"a capability has a method install\(builder\)"),
    ("with_capability", lambda b: b.with_capability(Installed), "an instance, not the class"),
    ("with_approval", lambda b: b.with_approval(5, "always"), "the tool's name must be text"),
    (
        "with_approval",
        lambda b: b.with_approval("look", "sometimes"),
        "use 'never', 'always' or a list of rules",
    ),
    (
        "with_parallel_tools",
        lambda b: b.with_parallel_tools("no"),
        "with_parallel_tools was given 'no'; pass bool",
    ),
    ("with_throw_on_tool_failure", lambda b: b.with_throw_on_tool_failure(1), "pass bool"),
    ("with_debug", lambda b: b.with_debug(1), "with_debug was given 1; pass bool"),
    (
        "add_processor",
        lambda b: b.add_processor(5),
        "a processor must be a function that takes and returns a state, not 5",
    ),
    ("add_hook", lambda b: b.add_hook(same_state), "derive it from AgentHook"),
    ("add_hook", lambda b: b.add_hook(AgentHook), "derive it from AgentHook"),
    ("add_continuation_criteria", lambda b: b.add_continuation_criteria(same_state), "is not a criterion"),
    ("with_model", lambda b: b.with_model(None), "pass a name, as in openai:gpt-5.5, or an object with"),
    ("with_model", lambda b: b.with_model(ScriptedModel), "an instance, not the class"),
    ("with_model", lambda b: b.with_model(" "), "with_model was given a blank name"),
    ("with_model", lambda b: b.with_model("openai:"), "'openai:' names no model"),
    ("with_model", lambda b: b.with_model(ScriptedModel(), seed=1), "settings for a named model only"),
    ("with_model", lambda b: b.with_model("fast", seed=object()), "the model's settings"),
    ("with_llm_preset", lambda b: b.with_llm_preset(None), "the preset's name must be text"),
    ("with_driver", lambda b: b.with_driver("gpt"), r"a driver has a coroutine method use_tools\(state\)"),
    ("with_driver", lambda b: b.with_driver(OwnDriver), "an instance, not the class"),
    ("with_broadcast", lambda b: b.with_broadcast({}), "pass BroadcastConfig"),
    ("with_events", lambda b: b.with_events(print), "pass EventBus"),
    ("with_cached_context", lambda b: b.with_cached_context("Be brief"), "pass CachedContext"),
    (
        "with_system_prompt",
        lambda b: b.with_system_prompt(None),
        "the system prompt must be text, not NoneType",
    ),
    ("with_system_prompt", lambda b: b.with_system_prompt("\ud800"), "half of a surrogate pair"),
    (
        "with_response_format",
        lambda b: b.with_response_format("json"),
        "response format must be a map, not str",
    ),
    ("with_response_format", lambda b: b.with_response_format({"type": "json_schema"}), "needs a 'schema'"),
    ("with_last_turn_without_tools", lambda b: b.with_last_turn_without_tools(3), "pass bool"),
    ("with_profile", lambda b: b.with_profile("fast"), "was given 'fast'; pass 'regular' or 'burst'"),
    ("with_profile", lambda b: b.with_profile([]), r"was given \[\]; pass 'regular' or 'burst'"),
    ("with_repeated_call_limit", lambda b: b.with_repeated_call_limit(0), "was given 0; pass 1 or more"),
    ("with_repeated_call_limit", lambda b: b.with_repeated_call_limit(-1), "was given -1; pass 0 or more"),
    ("with_output", lambda b: b.with_output("Trip"), "'Trip' cannot be a schema; pass a pydantic model"),
    ("with_output", lambda b: b.with_output({"type": "object"}, max_retries=99), "pass at most 10"),
    ("on_build", lambda b: b.on_build(5), "on_build needs a function that takes and returns an agent, not 5"),
]


@pytest.mark.parametrize(
    ("call", "complaint"), [row[1:] for row in BAD_INPUT], ids=[row[0] for row in BAD_INPUT]
)
def test_invalid_input_is_refused(call: Callable[[Any], object], complaint: str) -> None:
    """11: at once, with advice, and without a trace in the builder."""
    builder = DefinitionBuilder.base()
    before = builder.definition()
    with pytest.raises(InvalidInput, match=complaint):
        call(builder)
    assert builder.definition() == before


def test_every_method_refuses_invalid_input() -> None:
    """11."""
    assert {row[0] for row in BAD_INPUT} == set(METHODS)


def test_a_tool_whose_options_make_no_plan_is_refused_when_it_is_built() -> None:
    """11: with the reason."""
    odd: Any = "perhaps"
    builder = DefinitionBuilder.base().with_tools([MockTool("look", options=ToolOptions(quick=odd))])
    with pytest.raises(InvalidInput, match="the agent cannot be planned: quick: "):
        builder.definition()


def test_a_definition_passes_every_callback() -> None:
    """11: `on_build`, in their order."""

    class Building(DefinitionBuilder):
        def build(self) -> Any:
            return self._apply_on_build(self.definition())

    seen: list[Any] = []

    def second(given: Any) -> Any:
        seen.append(given)
        return ("second", given)

    builder = Building.base().on_build(lambda agent: ("first", agent)).on_build(second)
    expected = ("first", builder.definition())
    assert builder.build() == ("second", expected)
    assert seen == [expected]
    with pytest.raises(InvalidInput, match="returned None; return the agent to use"):
        builder.on_build(lambda _agent: None).build()


class Undescribed:
    """A tool whose schema cannot be read and raises."""

    name = "undescribed"
    description = "Does nothing"

    @property
    def schema(self) -> Any:
        raise InvalidInput("the schema cannot be read")

    def call(self, args: dict[str, Any], context: ToolContext) -> None: ...


def test_a_tool_that_cannot_be_described_is_refused_by_the_builder() -> None:
    """11: from Python 3.12 on, `isinstance` with a protocol no longer reads its properties."""
    with pytest.raises(InvalidInput, match="the schema cannot be read"):
        DefinitionBuilder.base().with_tools([Undescribed()])


def test_a_single_criterion_may_be_a_function() -> None:
    """2.1.5, 11."""
    criterion = ContinuationCriteria.when(lambda _state: ContinuationDecision.ALLOW)
    assert DefinitionBuilder.new().add_continuation_criteria(criterion).definition().criteria == (criterion,)


def test_a_toolset_of_the_first_release_works_with_a_warning() -> None:
    """`list_tools` was called `listed`."""

    class OldToolset:
        name = "old"

        async def listed(self, asker: Asker) -> list[ListedTool]:
            del asker
            return [ListedTool("look", "Looks", EMPTY)]

        def tool(self, listed: ListedTool) -> Tool:
            return MockTool(listed.name)

    old: Any = OldToolset()
    with pytest.warns(DeprecationWarning, match=r"rename OldToolset\.listed to list_tools"):
        (toolset,) = DefinitionBuilder.base().with_toolset(old).definition().toolsets

    tools = asyncio.run(toolset.list_tools(Asker(uuid4(), "default")))
    assert [tool.name for tool in tools] == ["look"]
    assert toolset.tool(tools[0]).name == "look"
