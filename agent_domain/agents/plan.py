"""What governs an execution, as data.

A plan is resolved once, when an execution starts, and travels with it: a deploy with other
defaults never touches what is already running. Criteria are named, not pickled: those of
Everstep and those that were registered can be planned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.continuation import ContinuationCriteria, ContinuationDecision, Criterion
from everstep.agent_domain.loop.criteria import (
    CumulativeExecutionTimeLimit,
    ErrorPolicyCriterion,
    ErrorPresenceCheck,
    ExecutionTimeLimit,
    FinishReasonCheck,
    RetryLimit,
    SelfCriticContinuationCheck,
    StepsLimit,
    StopOnFinalDecision,
    TokenUsageLimit,
    ToolCallPresenceCheck,
)
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.loop import Rules
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.stream.broadcast_config import STANDARD, BroadcastConfig
from everstep.agent_domain.tools.tools import Effect, ToolOptions
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map


class _Data(BaseModel):
    """Read from workflow history: what a later version added is ignored."""

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
    """How steps talk to the model."""

    TOOL_CALLING = "tool_calling"
    REACT = "react"


class PlannedTool(_Data):
    """What the runtime has to know of a tool before it runs it."""

    name: str
    quick: bool = False
    effect: Effect = Effect.IDEMPOTENT
    timeout_seconds: float | None = None
    need: CallNeed = CallNeed.RUN
    wait_seconds: float | None = None
    """How long a person may take, where one is asked."""

    @classmethod
    def of(cls, name: str, options: ToolOptions) -> "PlannedTool":
        """The tool of that name with what it declares."""
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
    """Tries of a model call in all; None: as many as fit into the time."""
    retry_seconds: float | None = Field(default=None, ge=0, exclude_if=lambda seconds: seconds is None)
    """How long a model call is tried again; None: as the preset says."""
    parallel_tools: bool = True
    driver: DriverKind = DriverKind.TOOL_CALLING
    tools: tuple[PlannedTool, ...] = ()
    # Left out of every history, as long as it says nothing.
    broadcast: BroadcastConfig = Field(default=STANDARD, exclude_if=STANDARD.__eq__)
    debug: bool = Field(default=False, exclude_if=lambda debug: not debug)
    """Whether the full state is kept after each step. Written only where it is."""

    processes: bool = Field(default=False, exclude_if=lambda processes: not processes)
    """Whether processors look at each step."""

    def debugged(self, debug: bool) -> Self:
        """The same in debug mode, if that is wanted; what is in it already stays there."""
        return self.model_copy(update={"debug": True}) if debug else self

    def told(self, broadcast: BroadcastConfig | None) -> Self:
        """The same with viewers told so much, if that is said."""
        return self if broadcast is None else self.model_copy(update={"broadcast": broadcast})

    def rules(self, registry: "CriterionRegistry | None" = None) -> Rules:
        """The plan as criteria that can be asked; unknown names are refused."""
        known = registry or REGISTERED
        more = tuple(known.build(ref) for ref in self.criteria)
        criteria = self.base_criteria().with_criteria(*more)
        return Rules(criteria, self.error_policy, self.parallel_tools, self.processes)

    def base_criteria(self) -> ContinuationCriteria:
        """The base set: limits, finish reasons, error policy, work."""
        steps = () if self.max_steps is None else (StepsLimit(self.max_steps),)
        tokens = () if self.max_tokens is None else (TokenUsageLimit(self.max_tokens),)
        finish = () if self.finish_reasons is None else (FinishReasonCheck(frozenset(self.finish_reasons)),)
        work = ToolCallPresenceCheck(self.error_policy)
        errors = ErrorPolicyCriterion(self.error_policy)
        return ContinuationCriteria(*steps, *tokens, *self._time_limit(), *finish, errors, work)

    def _time_limit(self) -> tuple[Criterion[Any], ...]:
        """The one time limit that is active: a cumulative one replaces the wall clock."""
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
        """What the function says."""
        return ContinuationDecision(self.fn(state, **self.params))

    @property
    def criterion_class(self) -> str:
        """Traces show the registered name."""
        return self.name


@dataclass
class CriterionRegistry:
    """Criteria by name: frozen dataclasses whose fields are JSON, and pure functions of a state."""

    entries: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])

    def register(self, name: str, criterion: Callable[..., Any]) -> None:
        """Make a criterion plannable under a name; a name that is taken is refused."""
        if name in self.entries and self.entries[name] is not criterion:
            raise InvalidInput(f"a criterion named '{name}' is registered already; choose another name")
        self.entries[name] = criterion

    def function(
        self, name: str
    ) -> Callable[[Callable[..., ContinuationDecision]], Callable[..., RegisteredCriterion]]:
        """Register the decorated function; calling the result with parameters gives the criterion."""

        def registered(fn: Callable[..., ContinuationDecision]) -> Callable[..., RegisteredCriterion]:
            def criterion(**params: Any) -> RegisteredCriterion:
                return RegisteredCriterion(name, frozen_map(params, f"the parameters of {name}"), fn)

            self.register(name, criterion)
            return criterion

        return registered

    def build(self, ref: CriterionRef) -> Criterion[Any]:
        """The criterion that a plan names."""
        if ref.name not in self.entries:
            raise UnknownName("criterion", ref.name, self.entries)
        try:
            return self.entries[ref.name](**ref.params)
        except TypeError as error:
            raise InvalidInput(f"the parameters of the criterion '{ref.name}' do not fit: {error}") from None

    def ref(self, criterion: Criterion[Any]) -> CriterionRef:
        """How a plan names this criterion."""
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
    """The fields; a function that was not given is no parameter."""
    given = {f.name: (getattr(criterion, f.name), f.default) for f in fields(cast("Any", criterion))}
    params = {name: value for name, (value, default) in given.items() if not value is default is None}
    # Two kinds of values of our own criteria that are no JSON; both read it back.
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
            RetryLimit,
            SelfCriticContinuationCheck,
            StepsLimit,
            StopOnFinalDecision,
            TokenUsageLimit,
            ToolCallPresenceCheck,
        )
    }
)
"""The criteria that every process of an installation knows; register your own at import time."""
