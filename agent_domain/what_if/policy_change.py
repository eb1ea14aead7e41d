"""The policies under which past executions are repeated: what is changed of the plan that each one had."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from everstep.agent_domain.agents.plan import (
    REGISTERED,
    CriterionRef,
    CriterionRegistry,
    CumulativeTimeout,
    ExecutionPlan,
)
from everstep.agent_domain.checks import require_finite, require_integer_at_least
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.budget import Budget
from everstep.agent_domain.loop.continuation import short_name
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.pricing.prices import Prices
from everstep.agent_domain.values import frozen_map, parse_json

_LIMITS: Final[Mapping[str, Mapping[str, None]]] = {
    "StepsLimit": {"max_steps": None},
    "TokenUsageLimit": {"max_tokens": None},
    "ExecutionTimeLimit": {"timeout_seconds": None},
    "CumulativeExecutionTimeLimit": {"cumulative_timeout": None},
    "FinishReasonCheck": {"finish_reasons": None},
    "RepeatedCallLimit": {"repeated_call_limit": None},
}
"""The criteria of a plan's base set that can be left out, with the fields from which they are made."""

_NEEDED: Final = frozenset({"ErrorPolicyCriterion", "ToolCallPresenceCheck"})


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What differs from the recorded policy; a field that is None or empty changes nothing."""

    max_steps: int | None = None
    max_tokens: int | None = None
    timeout_seconds: float | None = None
    cumulative_timeout_seconds: float | None = None
    error_policy: str | None = None
    """The name of a preset, such as `retry_tool_errors`."""
    max_retries: int | None = None
    criteria: tuple[CriterionRef, ...] = ()
    """Further criteria; one replaces that of the same name."""
    without_criteria: tuple[str, ...] = ()
    repeated_call_limit: int | None = None
    budgets: tuple[Budget, ...] = ()
    """Budgets of each execution; one replaces that of the same unit."""
    prices: Mapping[str, Prices] = field(default_factory=dict[str, Prices])
    """Prices by preset or model."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tokens", "repeated_call_limit"):
            if (value := getattr(self, name)) is not None:
                require_integer_at_least(name, value, 1)
        for name in ("timeout_seconds", "cumulative_timeout_seconds"):
            if (seconds := getattr(self, name)) is not None:
                require_finite(name, seconds)
                if seconds <= 0:
                    raise InvalidInput(f"{name} is {seconds!r}; pass a number of seconds above 0")
        if self.max_retries is not None:
            require_integer_at_least("max_retries", self.max_retries, 0)
        if self.error_policy is not None:
            ErrorPolicy.named(self.error_policy)
        for budget in self.budgets:
            if budget.limit <= 0:
                raise InvalidInput(f"the budget in {budget.unit} is {budget.limit}; pass an amount above 0")

    def require_known_criteria(self, registry: CriterionRegistry = REGISTERED) -> None:
        """Refuse criteria that are not registered, or whose parameters do not fit.

        Raises:
            UnknownName: A name is not registered; the message suggests the nearest one.
            InvalidInput: The parameters do not fit, or a criterion cannot be left out.
        """
        for ref in self.criteria:
            registry.build(ref)
        for name in self.without_criteria:
            if name in _NEEDED:
                raise InvalidInput(
                    f"every plan needs the criterion '{name}'; change the error policy instead"
                )
            known = sorted({*registry.entries, *_LIMITS} - _NEEDED)
            if name not in known and name not in map(short_name, known):
                raise UnknownName("criterion", name, known)

    @property
    def changes_decisions(self) -> bool:
        """Whether any decision can differ; prices alone change only costs."""
        return replace(self, prices={}) != _NO_CHANGE

    def changed(self, plan: ExecutionPlan) -> ExecutionPlan:
        """The plan with these policies."""
        update: dict[str, Any] = {}
        for name in self.without_criteria:
            update |= _LIMITS.get(name, {})
        for name in ("max_steps", "max_tokens", "repeated_call_limit"):
            if (value := getattr(self, name)) is not None:
                update[name] = value
        update |= self._time_limits(plan)
        policy = plan.error_policy if self.error_policy is None else ErrorPolicy.named(self.error_policy)
        if self.max_retries is not None:
            policy = policy.with_max_retries(self.max_retries)
        replaced = {*self.without_criteria, *(ref.name for ref in self.criteria)}
        kept = (ref for ref in plan.criteria if not {ref.name, short_name(ref.name)} & replaced)
        update |= {"error_policy": policy, "criteria": (*kept, *self.criteria)}
        return plan.model_copy(update=update)

    def _time_limits(self, plan: ExecutionPlan) -> dict[str, Any]:
        """A plan has one time limit: the one that was given replaces the other."""
        update: dict[str, Any] = {}
        if self.timeout_seconds is not None:
            update = {"timeout_seconds": self.timeout_seconds, "cumulative_timeout": None}
        if self.cumulative_timeout_seconds is not None:
            scope = plan.cumulative_timeout.scope if plan.cumulative_timeout else "execution"
            seconds = self.cumulative_timeout_seconds
            update["cumulative_timeout"] = CumulativeTimeout(seconds=seconds, scope=scope)
        return update


_NO_CHANGE = PolicyChange()


def parse_criterion(text: str) -> CriterionRef:
    """Read a criterion: `NAME`, `NAME:parameter=value,...` or `NAME:{JSON}`.

    Raises:
        InvalidInput: It has another form.
    """
    name, separator, given = text.partition(":")
    if not name.strip():
        raise InvalidInput(f"the criterion is {text!r}; pass NAME or NAME:parameter=value")
    if not separator:
        return CriterionRef(name=name.strip())
    if given.lstrip().startswith("{"):
        params: object = parse_json(given, f"the parameters of {name}")
    else:
        params = dict(_pairs(given, f"the criterion {name}"))
    return CriterionRef(name=name.strip(), params=frozen_map(params, f"the parameters of {name}"))


def parse_price(text: str) -> tuple[str, Prices]:
    """Read the prices of a preset or a model: `NAME:input=2.50,output=15`, in US dollars per million tokens.

    Raises:
        InvalidInput: It has another form.
    """
    # Names of models may contain a colon, such as `openai:gpt-5.5`.
    name, separator, given = text.rpartition(":")
    if not separator or not name.strip() or not given.strip():
        raise InvalidInput(f"the price is {text!r}; pass PRESET_OR_MODEL:input=2.50,output=15")
    return name.strip(), prices_of(name.strip(), dict(_pairs(given, f"the price of {name}")))


def prices_of(name: str, given: Mapping[str, Any]) -> Prices:
    """The prices of a preset or a model, by kind of token.

    Raises:
        InvalidInput: A kind is unknown, or input and output are not both given.
    """
    kinds = tuple(Prices.__dataclass_fields__)
    for kind in given:
        if kind not in kinds:
            raise UnknownName(f"price of {name}", kind, kinds)
    prices = Prices(**given)
    if not prices.is_known:
        raise InvalidInput(f"the price of {name} needs input and output")
    return prices


def _pairs(text: str, what: str) -> Iterable[tuple[str, Any]]:
    for part in text.split(","):
        key, separator, value = part.partition("=")
        if not separator or not key.strip():
            raise InvalidInput(f"{what} has {part.strip()!r}; pass parameter=value, separated by commas")
        yield key.strip(), _value(value.strip())


def _value(text: str) -> Any:
    """A JSON value; other text as it is."""
    try:
        return parse_json(text)
    except InvalidInput:
        return text
