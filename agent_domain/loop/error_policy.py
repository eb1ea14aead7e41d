"""The handling of failures: stop the run, retry with another step, or ignore the failure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Protocol

from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, thaw


class ErrorHandlingDecision(StrEnum):
    """What to do about a failure."""

    STOP = "stop"
    RETRY = "retry"
    IGNORE = "ignore"


STOP, RETRY, IGNORE = ErrorHandlingDecision


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """The latest failure, as an error policy sees it."""

    type: ErrorType
    consecutive_failures: int
    total_failures: int
    message: str | None = None
    tool_name: str | None = None
    metadata: FrozenDict = EMPTY

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", frozen_map(self.metadata, "the metadata of an error"))

    @classmethod
    def none(cls) -> "ErrorContext":
        """The context without a failure."""
        return cls(ErrorType.UNKNOWN, 0, 0)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "type": str(self.type),
            "consecutiveFailures": self.consecutive_failures,
            "totalFailures": self.total_failures,
            "message": self.message,
            "toolName": self.tool_name,
            "metadata": thaw(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """A decision for each type of error, and the number of failures in a row after which retries end."""

    on_tool_error: ErrorHandlingDecision = STOP
    on_model_error: ErrorHandlingDecision = STOP
    on_validation_error: ErrorHandlingDecision = STOP
    on_rate_limit_error: ErrorHandlingDecision = STOP
    on_timeout_error: ErrorHandlingDecision = STOP
    on_unknown_error: ErrorHandlingDecision = STOP
    max_retries: int = 0

    def __post_init__(self) -> None:
        for kind in ErrorType:
            name = f"on_{kind}_error"
            object.__setattr__(self, name, _decision(name, getattr(self, name)))
        if type(self.max_retries) is not int or self.max_retries < 0:
            raise InvalidInput(f"max_retries is {self.max_retries!r}; pass a whole number, 0 or more")

    @classmethod
    def stop_on_any_error(cls) -> "ErrorPolicy":
        """The default: any failure ends the run."""
        return cls()

    @classmethod
    def retry_tool_errors(cls, max_retries: int = 3) -> "ErrorPolicy":
        """Retry errors of tools and validation, rate limits and timeouts; stop on others."""
        return cls(RETRY, STOP, RETRY, RETRY, RETRY, STOP, max_retries)

    @classmethod
    def ignore_tool_errors(cls) -> "ErrorPolicy":
        """Ignore tool, validation and unknown errors, which the model reads, and continue."""
        return cls(IGNORE, STOP, IGNORE, RETRY, RETRY, IGNORE, 0)

    @classmethod
    def retry_all(cls, max_retries: int = 5) -> "ErrorPolicy":
        """Retry every error."""
        return cls(RETRY, RETRY, RETRY, RETRY, RETRY, RETRY, max_retries)

    @classmethod
    def named(cls, name: str) -> "ErrorPolicy":
        """The preset with that name, with its default number of retries.

        Raises:
            UnknownName: There is no such preset.
        """
        presets = {
            each.__name__: each
            for each in (cls.stop_on_any_error, cls.retry_tool_errors, cls.ignore_tool_errors, cls.retry_all)
        }
        if name not in presets:
            raise UnknownName("error policy", name, presets)
        return presets[name]()

    def with_max_retries(self, max_retries: int) -> "ErrorPolicy":
        """A copy with another `max_retries`."""
        return replace(self, max_retries=max_retries)

    def with_tool_error_handling(self, decision: ErrorHandlingDecision) -> "ErrorPolicy":
        """A copy with another decision for tool errors."""
        return replace(self, on_tool_error=decision)

    def decision_for(self, kind: ErrorType) -> ErrorHandlingDecision:
        """The decision for a type of error, before retries are counted."""
        return getattr(self, f"on_{kind}_error")

    def evaluate(self, context: ErrorContext) -> ErrorHandlingDecision:
        """Decide about a failure; once `max_retries` is reached, a retry becomes a stop."""
        if context.consecutive_failures == 0:
            return IGNORE
        decision = self.decision_for(context.type)
        exhausted = context.consecutive_failures >= self.max_retries
        return STOP if decision is RETRY and exhausted else decision

    def retries_for(self, kind: ErrorType) -> int:
        """The number of retries that applies to a type of error."""
        del kind
        return self.max_retries

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        decisions = {f"on_{kind}_error": str(self.decision_for(kind)) for kind in ErrorType}
        return decisions | {"max_retries": self.max_retries}


@dataclass(frozen=True, slots=True)
class CorrectingPolicy(ErrorPolicy):
    """A policy under which the model corrects a structured result before the decisions apply."""

    validation_retries: int = 0
    """How many errors of validation in a row are retried, whatever the decision about them is."""

    @classmethod
    def of(cls, policy: ErrorPolicy, validation_retries: int) -> "CorrectingPolicy":
        """This policy with corrections."""
        own = {field.name: getattr(policy, field.name) for field in fields(ErrorPolicy)}
        return cls(**own, validation_retries=validation_retries)

    def evaluate(self, context: ErrorContext) -> ErrorHandlingDecision:
        """Decide about a failure."""
        is_correctable = context.type is ErrorType.VALIDATION and context.consecutive_failures > 0
        if is_correctable and context.consecutive_failures <= self.validation_retries:
            return RETRY
        # Without arguments, `super` does not work in a dataclass with slots.
        return ErrorPolicy.evaluate(self, context)

    def retries_for(self, kind: ErrorType) -> int:
        """The number of retries that applies to a type of error."""
        return (
            max(self.max_retries, self.validation_retries)
            if kind is ErrorType.VALIDATION
            else self.max_retries
        )


def as_policy(given: object) -> ErrorPolicy:
    """Return the policy, given as such or in its JSON form, in which unknown keys are ignored."""
    if isinstance(given, ErrorPolicy):
        return given
    data = frozen_map(given, "an error policy")
    known = {field.name for field in fields(ErrorPolicy)}
    return ErrorPolicy(**{name: value for name, value in data.items() if name in known})


def _decision(name: str, given: str) -> ErrorHandlingDecision:
    try:
        return ErrorHandlingDecision(given)
    except ValueError:
        hint = did_you_mean(str(given), ErrorHandlingDecision)
        raise InvalidInput(f"{name} is {given!r}; use one of: stop, retry, ignore{hint}") from None


class FailingStep(Protocol):
    """The part of a step that determines its error context."""

    @property
    def errors(self) -> tuple[StepError, ...]:
        """The step's own errors, or those of its failing calls if it has none."""
        ...

    @property
    def tool_errors(self) -> tuple[StepError, ...]:
        """The errors of failing calls."""
        ...


EFFECT_UNKNOWN = frozen_map({"effect": "unknown"}, "the metadata of an error")
"""Metadata for a failing call that may have had its effect: no policy runs such a call again."""


def resolve_error_context(
    step: FailingStep | None, consecutive: int, total: int, *, unknown_effects_apart: bool = False
) -> ErrorContext:
    """Build the context of a step's failure.

    Args:
        step: The step that failed, if one did.
        consecutive: Failed steps in a row, including this one.
        total: Failed steps of the execution, including this one.
        unknown_effects_apart: Apply the rule of executions that had an unknown effect in an older release:
            its type is `unknown` instead of `tool`.
    """
    if step is None or not (step.errors or step.tool_errors):
        return ErrorContext.none()
    first = next(iter(_tool_errors(step)), None)
    message = (first or step.errors[0]).message
    kind, effects = _failure_type(step), [error.is_effect_unknown for error in step.tool_errors]
    if unknown_effects_apart and kind is ErrorType.TOOL and all(effects):
        kind = ErrorType.UNKNOWN
    metadata = EFFECT_UNKNOWN if any(effects) else EMPTY
    return ErrorContext(kind, consecutive, total, message, first.tool_name if first else None, metadata)


def _failure_type(step: FailingStep) -> ErrorType:
    types = {error.type for error in (*step.errors, *step.tool_errors)}
    for kind in (ErrorType.RATE_LIMIT, ErrorType.TIMEOUT, ErrorType.VALIDATION):
        if kind in types:
            return kind
    return ErrorType.TOOL if _tool_errors(step) else ErrorType.MODEL


def _tool_errors(step: FailingStep) -> tuple[StepError, ...]:
    """The errors of failing calls, and the step's own if it is that of a call without a result."""
    return (*step.tool_errors, *(error for error in step.errors if error.type is ErrorType.TOOL))


NO_FAILURE = "No failure to handle"
"""The reason of a policy's vote after nearly every step."""


def handling_reason(context: ErrorContext, handling: ErrorHandlingDecision, max_retries: int) -> str:
    """Describe the handling in a sentence, for traces."""
    if context.consecutive_failures == 0:
        return NO_FAILURE
    kind = context.type[0].upper() + context.type[1:]
    counts = f"(failures in a row: {context.consecutive_failures}, max_retries: {max_retries})"
    if handling is IGNORE:
        return f"{kind} error does not stop the run under this policy"
    if handling is RETRY:
        return f"{kind} error leads to a retry {counts}"
    return f"{kind} error stops the run {counts}"


def handling_context(
    context: ErrorContext, handling: ErrorHandlingDecision, max_retries: int
) -> Mapping[str, Any]:
    """Describe the handling as data, for traces."""
    return {
        "errorType": context.type,
        "consecutiveFailures": context.consecutive_failures,
        "totalFailures": context.total_failures,
        "maxRetries": max_retries,
        "handling": handling,
        "toolName": context.tool_name,
    }
