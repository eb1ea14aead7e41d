"""Execution plans: the policy of one execution, as data.

A plan is resolved once, when an execution starts, and travels with it: a deploy with other
defaults does not change running executions. Criteria are named, not pickled, so a plan can
contain Everstep's own criteria and registered ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from everstep.agent_domain.agents.compaction_policy import CompactionPolicy
from everstep.agent_domain.capabilities.critique import SelfCriticContinuationCheck
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.budget import Budget, tightened_budgets
from everstep.agent_domain.loop.continuation import ContinuationCriteria, ContinuationDecision, Criterion
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
from everstep.agent_domain.loop.error_policy import CorrectingPolicy, ErrorPolicy
from everstep.agent_domain.loop.loop import Rules
from everstep.agent_domain.loop.repeated_calls import RepeatedCallLimit
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.stream.broadcast_config import STANDARD, BroadcastConfig
from everstep.agent_domain.tools.tools import Effect, ToolOptions
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map


class _Data(BaseModel):
    """Read from workflow history: fields that a later version added are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class CriterionRef(_Data):
    """A registered criterion and its parameters."""

    name: str
    params: Annotated[Mapping[str, Any], AfterValidator(frozen_map)] = EMPTY


class CumulativeTimeout(_Data):
    """How much working time an execution, or its whole session, may use."""

    seconds: float
    scope: Literal["execution", "session"] = "execution"


class DriverKind(StrEnum):
    """The driver of an execution's steps."""

    TOOL_CALLING = "tool_calling"
    REACT = "react"


class Profile(StrEnum):
    """Where the model calls of an execution are run."""

    REGULAR = "regular"
    """As activities of their own, by any worker."""
    BURST = "burst"
    """By the worker that runs the workflow, while they are short: for small and local models."""

    @classmethod
    def parse(cls, value: object, name: str) -> Self:
        """The profile with this name.

        Args:
            value: The name of the profile.
            name: What is parsed, for the error.

        Raises:
            InvalidInput: There is no such profile.
        """
        if value not in list(cls):
            raise InvalidInput(f"{name} was given {value!r}; pass {' or '.join(map(repr, map(str, cls)))}")
        return cls(value)


class PlannedTool(_Data):
    """The properties of a tool that the runtime needs before a call."""

    name: str
    quick: bool = False
    effect: Effect = Effect.IDEMPOTENT
    timeout_seconds: float | None = None
    need: CallNeed = CallNeed.RUN
    wait_seconds: float | None = None
    """How long to wait for a person, if the tool asks one."""

    @classmethod
    def of(cls, name: str, options: ToolOptions) -> "PlannedTool":
        """The tool with this name and these options."""
        return cls(
            name=name,
            quick=options.quick,
            effect=options.effect,
            timeout_seconds=options.timeout_seconds,
            need=options.need,
            wait_seconds=options.wait_seconds,
        )


class ExecutionPlan(_Data):
    """The frozen policy of one execution."""

    agent: str = "agent"
    max_steps: int | None = None
    max_tokens: int | None = None
    timeout_seconds: float | None = None
    cumulative_timeout: CumulativeTimeout | None = None
    finish_reasons: tuple[str, ...] | None = None
    error_policy: ErrorPolicy = ErrorPolicy()
    criteria: tuple[CriterionRef, ...] = ()
    model_attempts: int | None = Field(default=None, ge=1)
    """Attempts of a model call, the first included; None: limited by time only."""
    retry_seconds: float | None = Field(default=None, ge=0, exclude_if=lambda seconds: seconds is None)
    """How long a model call is retried; None: the preset's value."""
    parallel_tools: bool = True
    driver: DriverKind = DriverKind.TOOL_CALLING
    tools: tuple[PlannedTool, ...] = ()
    # Excluded while it has its default, so that recorded histories do not change.
    broadcast: BroadcastConfig = Field(default=STANDARD, exclude_if=STANDARD.__eq__)
    debug: bool = Field(default=False, exclude_if=lambda debug: not debug)
    """Whether the full state is kept after each step; serialised only if true."""

    compaction: CompactionPolicy | None = Field(default=None, exclude_if=lambda policy: policy is None)
    """How requests are kept within the model's context window; None: not at all."""

    processes: bool = Field(default=False, exclude_if=lambda processes: not processes)
    """Whether processors run after each step."""
    last_turn_without_tools: bool = Field(default=False, exclude_if=lambda is_set: not is_set)
    """Whether the model has to answer in the last step that `max_steps` allows."""
    repeated_call_limit: int | None = Field(default=None, exclude_if=lambda limit: limit is None)
    """How often the same call with the same result may be made in a row."""
    output_retries: int | None = Field(default=None, exclude_if=lambda retries: retries is None)
    """How often the model may correct a structured result; None: there is none."""
    approvals_expire: bool = Field(default=False, exclude_if=lambda expire: not expire)
    """Whether a call that waits for approval may be denied after a time."""
    profile: Profile = Field(default=Profile.REGULAR, exclude_if=Profile.REGULAR.__eq__)
    """Where model calls are run."""
    throws_tool_failures: bool = Field(default=False, exclude_if=lambda throws: not throws)
    """Whether a failed call ends its step, as an exception of a hook does."""
    budgets: tuple[Budget, ...] = Field(default=(), exclude_if=lambda budgets: not budgets)
    """What its model calls may cost; those of its parents come first."""

    def debugged(self, debug: bool) -> Self:
        """A copy in debug mode if `debug` is true; a plan in debug mode stays in it."""
        return self.model_copy(update={"debug": True}) if debug else self

    def with_output(self, response_format: ResponseFormat | None) -> Self:
        """A copy for an execution with results of this format, unless it is None."""
        if response_format is None:
            return self
        return self.model_copy(update={"output_retries": response_format.max_retries})

    def told(self, broadcast: BroadcastConfig | None) -> Self:
        """A copy with this broadcast configuration, unless it is None."""
        return self if broadcast is None else self.model_copy(update={"broadcast": broadcast})

    def budgeted(self, budgets: tuple[Budget, ...]) -> Self:
        """A copy with the budgets of a request, which may lower a limit but not raise it."""
        if not budgets:
            return self
        named = (replace(budget, agent=self.agent) for budget in budgets)
        return self.model_copy(update={"budgets": tightened_budgets(self.budgets, named)})

    def rules(self, registry: "CriterionRegistry | None" = None) -> Rules:
        """The plan's criteria and policies, ready to evaluate.

        Args:
            registry: Resolves the criteria by name; `REGISTERED` by default.

        Raises:
            UnknownName: A criterion is not registered.
        """
        known = registry or REGISTERED
        criteria = self.criteria_with(*(known.build(ref) for ref in self.criteria))
        return Rules(criteria, self.error_policy, self.parallel_tools, self.processes, self.last_turn)

    @property
    def last_turn(self) -> int | None:
        """The step in which the model has to answer without tools; None if there is none."""
        return self.max_steps if self.last_turn_without_tools else None

    def criteria_with(self, *more: Criterion[Any]) -> ContinuationCriteria:
        """The base set, then these criteria, then the limit of repeated calls."""
        limit = self.repeated_call_limit
        guard = () if limit is None else (RepeatedCallLimit(limit),)
        return self.base_criteria().with_criteria(*more, *guard)

    def base_criteria(self) -> ContinuationCriteria:
        """The base set: limits, finish reasons, error policy, pending tool calls."""
        steps = () if self.max_steps is None else (StepsLimit(self.max_steps),)
        tokens = () if self.max_tokens is None else (TokenUsageLimit(self.max_tokens),)
        finish = () if self.finish_reasons is None else (FinishReasonCheck(frozenset(self.finish_reasons)),)
        retries, policy = self.output_retries, self.error_policy
        policy = policy if retries is None else CorrectingPolicy.of(policy, retries)
        work, errors = ToolCallPresenceCheck(policy), ErrorPolicyCriterion(policy)
        return ContinuationCriteria(*steps, *tokens, *self._time_limit(), *finish, errors, work)

    def _time_limit(self) -> tuple[Criterion[Any], ...]:
        """The active time limit: a cumulative one replaces the wall clock."""
        if self.cumulative_timeout:
            return (
                CumulativeExecutionTimeLimit(self.cumulative_timeout.seconds, self.cumulative_timeout.scope),
            )
        return () if self.timeout_seconds is None else (ExecutionTimeLimit(self.timeout_seconds),)


@dataclass(frozen=True)
class RegisteredCriterion:
    """A registered function with its parameters."""

    name: str
    params: FrozenDict
    fn: Callable[..., ContinuationDecision]

    def decide(self, state: Any) -> ContinuationDecision:
        """Call the function with the state and the parameters."""
        return ContinuationDecision(self.fn(state, **self.params))

    @property
    def criterion_class(self) -> str:
        """The registered name, for traces."""
        return self.name


@dataclass
class CriterionRegistry:
    """Criteria by name: frozen dataclasses whose fields are JSON, and pure functions of a state."""

    entries: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])

    def register(self, name: str, criterion: Callable[..., Any]) -> None:
        """Register a criterion, so that plans can name it.

        Raises:
            InvalidInput: Another criterion has this name.
        """
        if name in self.entries and self.entries[name] is not criterion:
            raise InvalidInput(f"a criterion named '{name}' is registered already; choose another name")
        self.entries[name] = criterion

    def function(
        self, name: str
    ) -> Callable[[Callable[..., ContinuationDecision]], Callable[..., RegisteredCriterion]]:
        """Register the decorated function; calling it with parameters creates the criterion."""

        def decorate(fn: Callable[..., ContinuationDecision]) -> Callable[..., RegisteredCriterion]:
            def criterion(**params: Any) -> RegisteredCriterion:
                return RegisteredCriterion(name, frozen_map(params, f"the parameters of {name}"), fn)

            self.register(name, criterion)
            return criterion

        return decorate

    def build(self, ref: CriterionRef) -> Criterion[Any]:
        """Create the criterion that a plan names.

        Raises:
            UnknownName: The name is not registered.
            InvalidInput: The parameters do not fit.
        """
        if ref.name not in self.entries:
            raise UnknownName("criterion", ref.name, self.entries)
        try:
            return self.entries[ref.name](**ref.params)
        except TypeError as error:
            raise InvalidInput(f"the parameters of the criterion '{ref.name}' do not fit: {error}") from None

    def ref(self, criterion: Criterion[Any]) -> CriterionRef:
        """The reference by which a plan names this criterion.

        Raises:
            InvalidInput: The criterion is not registered, or has parameters that are not JSON.
        """
        if isinstance(criterion, RegisteredCriterion):
            return CriterionRef(name=criterion.name, params=criterion.params)
        name = next((n for n, entry in self.entries.items() if entry is type(criterion)), None)
        if name is None or not is_dataclass(criterion):
            raise InvalidInput(
                f"the criterion {type(criterion).__name__} is not registered, so it can run in-process only; "
                "for a durable execution register it (REGISTERED.register, @REGISTERED.function)"
            )
        given = _parameters(criterion)
        return CriterionRef(name=name, params=frozen_map(given, f"the parameters of {name}"))


def _parameters(criterion: Criterion[Any]) -> dict[str, Any]:
    values = {f.name: (getattr(criterion, f.name), f.default) for f in fields(cast("Any", criterion))}
    # An optional field that was left out is no parameter: its default None may stand for a function.
    params = {
        name: value for name, (value, default) in values.items() if value is not None or default is not None
    }
    # Everstep's own criteria have two kinds of values that are not JSON; their classes accept the JSON form.
    match criterion:
        case FinishReasonCheck(reasons):
            return params | {"reasons": sorted(reasons)}
        case ErrorPolicyCriterion(context_resolver=resolver) if resolver is not None:
            raise InvalidInput(
                "an ErrorPolicyCriterion with a context_resolver runs in-process only; for a durable "
                "execution register a criterion that resolves the context itself (@REGISTERED.function)"
            )
        case ErrorPolicyCriterion(policy) | ToolCallPresenceCheck(policy):
            return params | {"policy": policy.to_dict()}
        case _:
            return params


REGISTERED = CriterionRegistry(
    {
        kind.__name__: kind
        for kind in (
            CumulativeExecutionTimeLimit,
            ErrorPolicyCriterion,
            ErrorPresenceCheck,
            ExecutionTimeLimit,
            FinishReasonCheck,
            RepeatedCallLimit,
            RetryLimit,
            SelfCriticContinuationCheck,
            StepsLimit,
            StopOnFinalDecision,
            TokenUsageLimit,
            ToolCallPresenceCheck,
        )
    }
)
"""The criteria that plans can name; register your own at import time, in every process."""
