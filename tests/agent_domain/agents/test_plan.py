"""The data that govern an execution: written once and read by later versions."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.plan import (
    REGISTERED,
    CriterionRef,
    CriterionRegistry,
    CumulativeTimeout,
    DriverKind,
    ExecutionPlan,
    PlannedTool,
)
from everstep.agent_domain.capabilities.critique import SelfCriticContinuationCheck
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
    StopOnFinalDecision,
    TokenUsageLimit,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.tools.tools import Effect, ToolOptions
from everstep.agent_domain.values import FrozenDict
from tests.agent_domain.executions import NOON

FORBID, ALLOW, REQUEST, STOP = ContinuationDecision
NEW = ExecutionFacts()

OFFICE = CriterionRegistry()


@OFFICE.function("acme.office_hours")
def office_hours(state: ExecutionFacts, opens: int = 9, days: object = ()) -> ContinuationDecision:
    """Forbids work before hours."""
    now = state.state_info.updated_at
    return FORBID if now and now.hour < opens else ALLOW


@OFFICE.function("acme.broken")
def broken(state: ExecutionFacts) -> ContinuationDecision:
    """Always raises."""
    raise ZeroDivisionError("by zero")


FULL = ExecutionPlan(
    agent="librarian",
    max_steps=20,
    max_tokens=32768,
    timeout_seconds=300.5,
    cumulative_timeout=CumulativeTimeout(seconds=8.25, scope="session"),
    finish_reasons=("length", "content_filter"),
    error_policy=ErrorPolicy.retry_tool_errors(7),
    criteria=(CriterionRef(name="RetryLimit", params={"max_failures": 3}), CriterionRef(name="Mine")),
    model_attempts=5,
    parallel_tools=False,
    driver=DriverKind.REACT,
    tools=(
        PlannedTool(name="search"),
        PlannedTool(
            name="pay",
            quick=True,
            effect=Effect.AT_MOST_ONCE,
            timeout_seconds=2.5,
            need=CallNeed.APPROVAL,
        ),
    ),
    debug=True,
    broadcast=BroadcastConfig.debug(),
)


def criteria_of(plan: ExecutionPlan, registry: CriterionRegistry | None = None) -> list[object]:
    return list(plan.rules(registry).criteria.criteria)


# --- As data ---


@pytest.mark.parametrize("plan", [ExecutionPlan(), FULL])
def test_a_plan_reads_back_as_it_was_written(plan: ExecutionPlan) -> None:
    """1.1.1: it travels with the execution, as JSON."""
    assert ExecutionPlan.model_validate_json(plan.model_dump_json()) == plan


def numbers() -> st.SearchStrategy[float]:
    return st.floats(0.001, 1e6)


PLANS = st.builds(
    ExecutionPlan,
    max_steps=st.none() | st.integers(),
    max_tokens=st.none() | st.integers(),
    timeout_seconds=st.none() | numbers(),
    cumulative_timeout=st.none()
    | st.builds(CumulativeTimeout, seconds=numbers(), scope=st.sampled_from(["execution", "session"])),
    finish_reasons=st.none() | st.lists(st.sampled_from(["stop", "length", "Überlänge"])).map(tuple),
    error_policy=st.builds(ErrorPolicy.retry_all, st.integers(0, 9)),
    criteria=st.lists(
        st.builds(CriterionRef, name=st.just("RetryLimit"), params=st.just({"max_failures": 3}))
    ).map(tuple),
    parallel_tools=st.booleans(),
)


@given(PLANS)
def test_a_plan_that_was_read_decides_the_same(plan: ExecutionPlan) -> None:
    """1.1.2: the same criteria in the same order for every reader."""
    read = ExecutionPlan.model_validate_json(plan.model_dump_json())

    assert read == plan
    assert criteria_of(read) == criteria_of(plan)
    assert (read.rules().error_policy, read.rules().parallel_tools) == (
        plan.error_policy,
        plan.parallel_tools,
    )


def test_additions_of_a_later_version_are_ignored() -> None:
    """0.6: readers ignore unknown fields, at every level."""
    written = json.loads(FULL.model_dump_json())
    written["since"] = 2
    written["error_policy"]["on_moon_error"] = "retry"
    written["cumulative_timeout"]["unit"] = "s"
    for each in (*written["criteria"], *written["tools"], written["broadcast"]):
        each["since"] = 2

    assert ExecutionPlan.model_validate_json(json.dumps(written)) == FULL


def test_fields_that_an_earlier_version_did_not_write_have_defaults() -> None:
    """0.6: a new field has a default."""
    assert ExecutionPlan.model_validate_json("{}") == ExecutionPlan()
    assert PlannedTool.model_validate_json('{"name": "search"}') == PlannedTool.of("search", ToolOptions())
    assert CumulativeTimeout.model_validate_json('{"seconds": 5}') == CumulativeTimeout(seconds=5.0)


def test_debug_mode_is_written_only_where_it_is_on() -> None:
    """8.1.3: other histories and rows do not grow by it."""
    assert "debug" not in ExecutionPlan().model_dump(mode="json")
    assert FULL.model_dump(mode="json")["debug"] is True


def test_debug_mode_can_be_switched_on_and_not_off() -> None:
    """8.1.4: by the caller that starts an execution, and by its agent."""
    plan = ExecutionPlan(max_steps=3)

    assert plan.debugged(True) == ExecutionPlan(max_steps=3, debug=True)
    assert plan.debugged(False) == plan
    assert plan.debugged(True).debugged(False).debug


def test_a_plan_names_its_preset_only_where_it_is_not_the_default() -> None:
    """7.5: every history begins with a plan."""
    assert "broadcast" not in ExecutionPlan().model_dump(mode="json")
    assert "broadcast" not in json.loads(
        ExecutionPlan(broadcast=BroadcastConfig.standard()).model_dump_json()
    )
    written = FULL.model_dump(mode="json")["broadcast"]
    assert BroadcastConfig.from_dict({**written, "since": 2}) == BroadcastConfig.debug()
    assert BroadcastConfig.from_dict({}) == BroadcastConfig.standard()
    assert BroadcastConfig.from_dict({"include_stream_chunks": False}) == BroadcastConfig.minimal()


def test_a_plan_cannot_be_changed() -> None:
    """0.8: neither a deployment with other defaults nor other code changes it."""
    with pytest.raises(ValidationError, match="frozen"):
        setattr(FULL, next(iter(ExecutionPlan.model_fields)), "other")


def test_a_plan_knows_the_declarations_of_its_tools() -> None:
    """8.6.2: such as that a call needs approval."""
    options = ToolOptions(True, Effect.AT_MOST_ONCE, 2.5, CallNeed.APPROVAL)

    assert PlannedTool.of("pay", options) == FULL.tools[1]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"cumulative_timeout": {"seconds": 5, "scope": "day"}}, "execution"),
        ({"model_attempts": 0}, "greater than or equal to 1"),
        ({"error_policy": {"on_tool_error": "explode"}}, "on_tool_error"),
        ({"error_policy": {"max_retries": -1}}, "max_retries"),
        ({"driver": "telepathy"}, "tool_calling"),
    ],
)
def test_an_invalid_plan_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    """3.1.1, 2.7: with the place of the error."""
    with pytest.raises(ValidationError, match=complaint):
        ExecutionPlan.model_validate_json(json.dumps(wrong))


# --- The base set ---


def test_without_limits_errors_and_work_decide() -> None:
    """2.6.3, 11: new() has ErrorPolicyCriterion and ToolCallPresenceCheck only."""
    rules = ExecutionPlan().rules()

    assert list(rules.criteria.criteria) == [ErrorPolicyCriterion(), ToolCallPresenceCheck()]
    assert (rules.error_policy, rules.parallel_tools) == (ErrorPolicy(), True)


def test_the_base_set_in_order() -> None:
    """2.6.3: steps, tokens, the active time limit, finish reasons, error policy, work, then the user's."""
    policy = ErrorPolicy.retry_all(2)
    plan = ExecutionPlan(
        criteria=(
            CriterionRef(name="StopOnFinalDecision"),
            CriterionRef(name="RetryLimit", params={"max_failures": 3}),
        ),
        error_policy=policy,
        finish_reasons=("length",),
        timeout_seconds=300,
        max_tokens=100,
        max_steps=5,
    )

    assert criteria_of(plan) == [
        StepsLimit(5),
        TokenUsageLimit(100),
        ExecutionTimeLimit(300),
        FinishReasonCheck(frozenset({"length"})),
        ErrorPolicyCriterion(policy),
        ToolCallPresenceCheck(policy),
        StopOnFinalDecision(),
        RetryLimit(3),
    ]


def test_a_limit_of_zero_is_a_limit() -> None:
    """2.6.1, 2.5: zero is not the same as none; an empty set of finish reasons allows."""
    plan = ExecutionPlan(max_steps=0, max_tokens=0, finish_reasons=())

    assert criteria_of(plan)[:3] == [StepsLimit(0), TokenUsageLimit(0), FinishReasonCheck()]


@pytest.mark.parametrize("scope", ["execution", "session"])
def test_a_cumulative_timeout_replaces_the_wall_clock(scope: Any) -> None:
    """2.7.3: exactly one limit is active."""
    plan = ExecutionPlan(timeout_seconds=300, cumulative_timeout=CumulativeTimeout(seconds=8, scope=scope))

    assert criteria_of(plan)[0] == CumulativeExecutionTimeLimit(8, scope)
    assert [c for c in criteria_of(plan) if isinstance(c, ExecutionTimeLimit)] == []


def test_the_order_in_which_timeouts_are_set_does_not_matter() -> None:
    """2.7.3: in any order of calls."""
    first = DefinitionBuilder.new().with_cumulative_timeout(8, "session").with_timeout(300).definition()
    second = DefinitionBuilder.new().with_timeout(300).with_cumulative_timeout(8, "session").definition()

    assert first.plan() == second.plan()
    assert criteria_of(first.plan())[0] == CumulativeExecutionTimeLimit(8, "session")


@pytest.mark.parametrize(
    "plan",
    [
        ExecutionPlan(timeout_seconds=0),
        ExecutionPlan(timeout_seconds=-1),
        ExecutionPlan(cumulative_timeout=CumulativeTimeout(seconds=0)),
    ],
)
def test_a_timeout_must_be_positive(plan: ExecutionPlan) -> None:
    """2.5.2: ValueError."""
    with pytest.raises(ValueError, match=r"^Max seconds must be greater than zero\.$"):
        plan.rules()


@pytest.mark.parametrize(("given", "attempts"), [(None, None), (5, 5), (2, 2), (1, 1), (0, 1), (-4, 1)])
def test_the_number_of_attempts_of_a_model_call(given: int | None, attempts: int | None) -> None:
    """3.5.1: attempts in all; by default no bound by number, n <= 1: one."""
    builder = DefinitionBuilder.new()
    builder = builder if given is None else builder.with_max_retries(given)

    assert builder.definition().plan().model_attempts == attempts
    assert ExecutionPlan().model_attempts is None


@pytest.mark.parametrize("seconds", [0, 0.5, 600])
def test_the_retry_budget_of_a_model_call(seconds: float) -> None:
    """3.5.4: by the agent's setting; a plan without one is written as before."""
    builder = DefinitionBuilder.new()

    assert "retry_seconds" not in builder.definition().plan().model_dump(mode="json")
    plan = builder.with_retry_budget(seconds).definition().plan()
    assert ExecutionPlan.model_validate_json(plan.model_dump_json()).retry_seconds == seconds


# --- Criteria by name ---


@pytest.mark.parametrize(
    ("criterion", "ref"),
    [
        (ErrorPresenceCheck(), CriterionRef(name="ErrorPresenceCheck")),
        (RetryLimit(3), CriterionRef(name="RetryLimit", params={"max_failures": 3})),
        (
            SelfCriticContinuationCheck(4),
            CriterionRef(name="SelfCriticContinuationCheck", params={"max_iterations": 4}),
        ),
        (StopOnFinalDecision(), CriterionRef(name="StopOnFinalDecision")),
    ],
)
def test_our_own_criteria_can_be_planned(criterion: Any, ref: CriterionRef) -> None:
    """2.5, 2.6.3: the opt-in criteria that are data."""
    assert REGISTERED.ref(criterion) == ref
    assert REGISTERED.build(ref) == criterion


@dataclass(frozen=True)
class Budget:
    """Allows so many euros, apart from some projects."""

    euros: float
    exempt: tuple[str, ...] = ()
    limits: FrozenDict = field(default_factory=FrozenDict)

    def decide(self, state: ExecutionFacts) -> ContinuationDecision:
        return FORBID if self.euros < 1 else ALLOW


def with_budget() -> CriterionRegistry:
    registry = CriterionRegistry()
    registry.register("acme.budget", Budget)
    return registry


def test_a_custom_dataclass_can_be_planned() -> None:
    """2.6.3: user criteria as added, through JSON and back."""
    registry = with_budget()
    ref = registry.ref(Budget(0.5, limits=FrozenDict(cents=50)))
    plan = ExecutionPlan.model_validate_json(ExecutionPlan(criteria=(ref,)).model_dump_json())

    assert ref == CriterionRef(
        name="acme.budget", params={"euros": 0.5, "exempt": [], "limits": {"cents": 50}}
    )
    outcome = plan.rules(registry).criteria.evaluate(NEW)
    assert (outcome.resolved_by, outcome.stop_reason) == ("Budget", StopReason.GUARD)


def test_a_custom_function_can_be_planned() -> None:
    """2.6.3, 2.1.3: its votes have its registered name."""
    criterion = office_hours(opens=13, days=["mo", "tu"])
    ref = OFFICE.ref(criterion)
    plan = ExecutionPlan.model_validate_json(ExecutionPlan(criteria=(ref,)).model_dump_json())
    outcome = plan.rules(OFFICE).criteria.evaluate(NEW.at(NOON))

    assert ref == CriterionRef(name="acme.office_hours", params={"opens": 13, "days": ["mo", "tu"]})
    assert (outcome.resolved_by, outcome.stop_reason) == ("office_hours", StopReason.GUARD)
    assert outcome.evaluations[-1].criterion_class == "acme.office_hours"
    assert outcome.evaluations[-1].reason == "office_hours forbids another step"
    assert office_hours().decide(NEW.at(NOON)) is ALLOW


def test_a_function_that_raises_appears_under_its_registered_name() -> None:
    """2.2.7: resolved by that criterion."""
    outcome = ContinuationCriteria(broken()).evaluate(NEW)

    assert (outcome.resolved_by, outcome.stop_reason) == ("broken", StopReason.ERROR)


def test_parameters_that_json_cannot_hold_are_refused() -> None:
    """1.1.1: a plan is JSON."""
    with pytest.raises(InvalidInput, match=r"the parameters of acme\.office_hours\.opens is of type object"):
        office_hours(opens=object())
    euros: Any = object()
    with pytest.raises(InvalidInput, match=r"the parameters of acme\.budget\.euros is of type object"):
        with_budget().ref(Budget(euros))


def test_an_unregistered_name_is_refused_at_the_start() -> None:
    """2.6.3: with the known names."""
    plan = ExecutionPlan(criteria=(CriterionRef(name="Mystery"),))

    with pytest.raises(UnknownName, match=r"No criterion named 'Mystery'\. Choose from: acme\.budget$"):
        plan.rules(with_budget())
    with pytest.raises(UnknownName, match=r"Choose from: CumulativeExecutionTimeLimit, .*RetryLimit, "):
        plan.rules()


@pytest.mark.parametrize(
    "criterion",
    [
        CumulativeExecutionTimeLimit(8.5, "session"),
        ErrorPolicyCriterion(ErrorPolicy.retry_all(2)),
        ErrorPresenceCheck(),
        ExecutionTimeLimit(300),
        FinishReasonCheck(frozenset({"length", "stop"})),
        RetryLimit(3),
        SelfCriticContinuationCheck(1),
        StepsLimit(3),
        StopOnFinalDecision(),
        TokenUsageLimit(9),
        ToolCallPresenceCheck(ErrorPolicy.ignore_tool_errors()),
    ],
)
def test_every_criterion_without_a_function_inside_can_be_planned(criterion: Any) -> None:
    """2.6.3: it comes back unchanged, through JSON."""
    ref = CriterionRef.model_validate_json(REGISTERED.ref(criterion).model_dump_json())

    assert REGISTERED.build(ref) == criterion
    assert "resolver" not in ref.params


def test_a_criterion_with_a_function_inside_cannot_be_planned() -> None:
    """2.6.3: a function cannot be stored in a history."""
    with pytest.raises(InvalidInput, match=r"the parameters of StepsLimit\.resolver is of type function"):
        REGISTERED.ref(StepsLimit(3, lambda _state: 1))


def test_the_parameters_of_a_planned_criterion_cannot_be_changed() -> None:
    """0.8."""
    given = {"limits": [1, 2]}
    ref = CriterionRef(name="Mine", params=given)
    given["limits"].append(3)

    assert ref.params == FrozenDict({"limits": [1, 2]})
    with pytest.raises(TypeError, match="frozen"):
        ref.params["limits"].append(3)


@pytest.mark.parametrize("params", [{}, {"max_failures": 3, "colour": "red"}])
def test_invalid_parameters_are_refused_at_the_start(params: dict[str, Any]) -> None:
    """2.6.3: with the name of their criterion."""
    plan = ExecutionPlan(criteria=(CriterionRef(name="RetryLimit", params=params),))

    with pytest.raises(InvalidInput, match="the parameters of the criterion 'RetryLimit' do not fit: "):
        plan.rules()


class Undeclared:
    """Registered, but no dataclass: its parameters are unknown."""

    def decide(self, state: object) -> ContinuationDecision:
        return ALLOW


@pytest.mark.parametrize(
    "criterion",
    [
        StepsLimit(3),
        ContinuationCriteria.when(lambda _state: ALLOW),
        Budget(1),
        ContinuationCriteria(),
        Undeclared(),
    ],
)
def test_a_criterion_that_is_not_registered_runs_in_process_only(criterion: Any) -> None:
    """2.6.3: and the refusal says how to register it."""
    registry = CriterionRegistry()
    registry.register("undeclared", Undeclared)

    with pytest.raises(
        InvalidInput, match=f"^the criterion {type(criterion).__name__} is not registered, so "
    ):
        registry.ref(criterion)


def test_a_name_means_one_criterion() -> None:
    """2.6.3: registering another under it is refused, the same again is not."""
    registry = with_budget()
    registry.register("acme.budget", Budget)

    with pytest.raises(InvalidInput, match=r"a criterion named 'acme\.budget' is registered already; choose"):
        registry.register("acme.budget", RetryLimit)
