"""Error policies: the presets, the limit of retries, and the policy's input."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import (
    InvalidInput,
    InvalidModelOutput,
    ModelError,
    ModelTimeout,
    RateLimited,
    ToolFailed,
)
from everstep.agent_domain.loop.error_policy import (
    ErrorContext,
    ErrorHandlingDecision,
    ErrorPolicy,
    handling_context,
    handling_reason,
    resolve_error_context,
)
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.values import EMPTY
from tests.agent_domain.executions import a_failed_call, a_step, an_answered_call

STOP, RETRY, IGNORE = ErrorHandlingDecision
TOOL, MODEL, VALIDATION, RATE_LIMIT, TIMEOUT, UNKNOWN = ErrorType


def a_failure(kind: ErrorType = MODEL, consecutive: int = 1, total: int = 1) -> ErrorContext:
    return ErrorContext(kind, consecutive, total, "boom")


def a_type() -> st.SearchStrategy[ErrorType]:
    return st.sampled_from(list(ErrorType))


# --- Types ---


def test_there_are_six_types_of_error() -> None:
    """3.1.1: the literals."""
    assert [str(kind) for kind in ErrorType] == [
        "tool",
        "model",
        "validation",
        "rate_limit",
        "timeout",
        "unknown",
    ]


def test_there_are_three_ways_to_handle_an_error() -> None:
    """3.1.1: the literals."""
    assert [str(decision) for decision in ErrorHandlingDecision] == ["stop", "retry", "ignore"]


def test_the_context_of_no_error() -> None:
    """3.1.2: unknown, 0, 0, None, None, {}."""
    none = ErrorContext.none()

    assert [getattr(none, field.name) for field in fields(none)] == ["unknown", 0, 0, None, None, {}]
    assert [field.name for field in fields(none)] == [
        "type",
        "consecutive_failures",
        "total_failures",
        "message",
        "tool_name",
        "metadata",
    ]


def test_a_policy_has_one_decision_for_each_type() -> None:
    """3.1.3: on_{type}_error and max_retries."""
    assert {field.name for field in fields(ErrorPolicy)} == {
        "on_tool_error",
        "on_model_error",
        "on_validation_error",
        "on_rate_limit_error",
        "on_timeout_error",
        "on_unknown_error",
        "max_retries",
    }


@pytest.mark.parametrize("kind", ErrorType)
def test_each_field_of_a_policy_is_about_its_type(kind: ErrorType) -> None:
    """3.1.3, 3.3.1: on_{type}_error decides about that type alone."""
    policy = replace(ErrorPolicy(), **{f"on_{kind}_error": IGNORE})

    assert [other for other in ErrorType if policy.evaluate(a_failure(other)) is IGNORE] == [kind]


def test_a_policy_is_changed_into_another() -> None:
    """3.1.3: with_max_retries(n), with_tool_error_handling(decision); 0.8: the original does not change."""
    policy = ErrorPolicy()
    changed = policy.with_max_retries(4).with_tool_error_handling(RETRY)

    assert changed == ErrorPolicy(on_tool_error=RETRY, max_retries=4)
    assert policy == ErrorPolicy.stop_on_any_error()


@pytest.mark.parametrize("n", [-1, 1.5, "3", True])
def test_retries_are_counted_in_whole_numbers(n: int) -> None:
    """3.1.3: a number that cannot be compared is refused."""
    with pytest.raises(InvalidInput, match="pass a whole number, 0 or more"):
        ErrorPolicy().with_max_retries(n)


def test_an_invalid_decision_is_refused() -> None:
    """3.1.1: stop, retry or ignore, also as text."""
    untyped: dict[str, str] = {"on_tool_error": "explode"}

    with pytest.raises(InvalidInput, match="on_tool_error is 'explode'; use one of: stop, retry, ignore"):
        replace(ErrorPolicy(), **untyped)
    assert replace(ErrorPolicy(), on_tool_error="retry").on_tool_error is RETRY


# --- Presets ---


@pytest.mark.parametrize(
    ("policy", "decisions", "max_retries"),
    [
        (ErrorPolicy(), [STOP, STOP, STOP, STOP, STOP, STOP], 0),
        (ErrorPolicy.stop_on_any_error(), [STOP, STOP, STOP, STOP, STOP, STOP], 0),
        (ErrorPolicy.retry_tool_errors(), [RETRY, STOP, RETRY, RETRY, RETRY, STOP], 3),
        (ErrorPolicy.retry_tool_errors(7), [RETRY, STOP, RETRY, RETRY, RETRY, STOP], 7),
        (ErrorPolicy.ignore_tool_errors(), [IGNORE, STOP, IGNORE, RETRY, RETRY, IGNORE], 0),
        (ErrorPolicy.retry_all(), [RETRY, RETRY, RETRY, RETRY, RETRY, RETRY], 5),
        (ErrorPolicy.retry_all(2), [RETRY, RETRY, RETRY, RETRY, RETRY, RETRY], 2),
    ],
)
def test_the_presets(policy: ErrorPolicy, decisions: list[ErrorHandlingDecision], max_retries: int) -> None:
    """3.2: the table, in the order tool, model, validation, rate_limit, timeout, unknown."""
    kinds = (TOOL, MODEL, VALIDATION, RATE_LIMIT, TIMEOUT, UNKNOWN)

    assert [getattr(policy, f"on_{kind}_error") for kind in kinds] == decisions
    assert [policy.decision_for(kind) for kind in kinds] == decisions
    assert policy.max_retries == max_retries


def test_presets_have_names() -> None:
    """3.2."""
    for name in ("stop_on_any_error", "retry_tool_errors", "ignore_tool_errors", "retry_all"):
        assert ErrorPolicy.named(name) == getattr(ErrorPolicy, name)()
    with pytest.raises(InvalidInput, match="No error policy named 'with_max_retries'"):
        ErrorPolicy.named("with_max_retries")


def test_the_written_form_of_a_policy() -> None:
    """3.1.3: its fields by name."""
    assert ErrorPolicy.retry_tool_errors(2).to_dict() == {
        "on_tool_error": "retry",
        "on_model_error": "stop",
        "on_validation_error": "retry",
        "on_rate_limit_error": "retry",
        "on_timeout_error": "retry",
        "on_unknown_error": "stop",
        "max_retries": 2,
    }


# --- Evaluation ---


@pytest.mark.parametrize(
    ("max_retries", "consecutive", "handling"),
    [
        (2, 0, IGNORE),
        (2, 1, RETRY),
        (2, 2, STOP),
        (2, 3, STOP),
        (1, 1, STOP),
        (0, 0, IGNORE),
        (0, 1, STOP),
        (3, 2, RETRY),
        (3, 3, STOP),
    ],
)
def test_the_nth_failure_in_a_row_stops(
    max_retries: int, consecutive: int, handling: ErrorHandlingDecision
) -> None:
    """3.3.1: retry becomes stop when consecutive >= max_retries."""
    context = a_failure(consecutive=consecutive, total=9)

    assert ErrorPolicy.retry_all(max_retries).evaluate(context) is handling


@given(a_type(), st.integers(0, 9), st.integers(0, 9), st.sampled_from(list(ErrorHandlingDecision)))
def test_only_a_retry_is_counted(
    kind: ErrorType, consecutive: int, max_retries: int, decision: ErrorHandlingDecision
) -> None:
    """3.3.1: ignore stays ignore and stop stays stop, any number of times."""
    policy = replace(ErrorPolicy(max_retries=max_retries), **{f"on_{kind}_error": decision})
    handling = policy.evaluate(a_failure(kind, consecutive))

    if consecutive == 0:
        assert handling is IGNORE
    elif decision is RETRY:
        assert handling is (RETRY if consecutive < max_retries else STOP)
    else:
        assert handling is decision


@pytest.mark.parametrize(
    ("kind", "handling"),
    [
        (TOOL, IGNORE),
        (MODEL, STOP),
        (VALIDATION, IGNORE),
        (RATE_LIMIT, STOP),
        (TIMEOUT, STOP),
        (UNKNOWN, IGNORE),
    ],
)
def test_ignoring_tool_errors_still_stops_at_the_first_rate_limit_or_timeout(
    kind: ErrorType, handling: ErrorHandlingDecision
) -> None:
    """3.3.1: because its max_retries is 0."""
    assert ErrorPolicy.ignore_tool_errors().evaluate(a_failure(kind)) is handling


def test_retrying_tools_takes_retries() -> None:
    """3.3.1: stop_on_any_error().with_tool_error_handling(retry) stops until max_retries is raised."""
    policy = ErrorPolicy.stop_on_any_error().with_tool_error_handling(RETRY)

    assert policy.evaluate(a_failure(TOOL)) is STOP
    assert policy.with_max_retries(2).evaluate(a_failure(TOOL)) is RETRY


# --- Resolver ---


def test_without_a_failing_step_there_is_nothing_to_handle() -> None:
    """3.4.1: no current step, or one without errors."""
    assert resolve_error_context(None, 3, 4) == ErrorContext.none()
    assert resolve_error_context(a_step(), 0, 4) == ErrorContext.none()
    assert resolve_error_context(a_step(an_answered_call()), 0, 4) == ErrorContext.none()


def test_the_first_failing_tool_supplies_message_and_name() -> None:
    """3.4.1: although the step itself has an error, which comes first otherwise."""
    second = a_failed_call("c", message="second")
    step = a_step(
        an_answered_call("a"), a_failed_call("b", message="first"), second, own_errors=(StepError("own"),)
    )

    assert resolve_error_context(step, 2, 5) == ErrorContext(TOOL, 2, 5, "first", "search", EMPTY)


def test_without_a_failing_tool_the_first_error_of_the_step_counts() -> None:
    """3.4.1: and the tool name is None."""
    step = a_step(own_errors=(StepError("first", tool_name="search"), StepError("second")))

    assert resolve_error_context(step, 1, 1) == ErrorContext(MODEL, 1, 1, "first", None)


def test_a_failing_pseudo_execution_is_a_failing_tool() -> None:
    """3.4.1: it supplies message and name."""
    step = a_step(pseudo_errors=(StepError("no decision", VALIDATION, "decision_extraction"),))

    assert resolve_error_context(step, 1, 1) == ErrorContext(
        VALIDATION, 1, 1, "no decision", "decision_extraction"
    )


def own(*kinds: ErrorType | None) -> StepFacts:
    return a_step(own_errors=tuple(StepError("boom", kind) for kind in kinds))


def tools(*kinds: ErrorType | None) -> StepFacts:
    return a_step(*(a_failed_call(str(i), kind) for i, kind in enumerate(kinds)))


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (own(RATE_LIMIT), RATE_LIMIT),
        (own(TIMEOUT), TIMEOUT),
        (own(TOOL), TOOL),
        (own(VALIDATION), VALIDATION),
        (own(None), MODEL),
        (tools(RATE_LIMIT), RATE_LIMIT),
        (tools(TIMEOUT), TIMEOUT),
        (tools(VALIDATION), VALIDATION),
        (tools(None), TOOL),
        # First match, not first error.
        (own(None, VALIDATION, TIMEOUT, RATE_LIMIT), RATE_LIMIT),
        (own(None, VALIDATION, TIMEOUT), TIMEOUT),
        (own(None, VALIDATION), VALIDATION),
        (tools(None, VALIDATION, TIMEOUT, RATE_LIMIT), RATE_LIMIT),
        (tools(None, VALIDATION, TIMEOUT), TIMEOUT),
        (tools(None, VALIDATION), VALIDATION),
        (replace(tools(None), own_errors=(StepError("boom"),)), TOOL),
        (replace(tools(RATE_LIMIT), own_errors=(StepError("boom", TIMEOUT),)), RATE_LIMIT),
        (replace(tools(None), own_errors=(StepError("boom", TIMEOUT),)), TIMEOUT),
    ],
)
def test_the_type_of_a_failure_is_the_first_that_matches(step: StepFacts, kind: ErrorType) -> None:
    """3.4.2: rate limit, timeout, validation, a failing tool, any error."""
    assert resolve_error_context(step, 1, 1).type is kind


def test_an_unknown_effect_is_a_tool_error_for_every_policy() -> None:
    """3.4.4: and the context names it."""
    for kinds in ((UNKNOWN,), (UNKNOWN, UNKNOWN), (None, UNKNOWN)):
        context = resolve_error_context(tools(*kinds), 1, 1)
        assert (context.type, context.metadata) == (TOOL, {"effect": "unknown"})
    assert resolve_error_context(tools(None), 1, 1).metadata == {}
    assert resolve_error_context(tools(UNKNOWN, TIMEOUT), 1, 1).type is TIMEOUT
    assert resolve_error_context(tools(UNKNOWN, TIMEOUT), 1, 1).metadata == {"effect": "unknown"}


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (ErrorPolicy.stop_on_any_error(), STOP),
        (ErrorPolicy.retry_tool_errors(), RETRY),
        (ErrorPolicy.ignore_tool_errors(), IGNORE),
        (ErrorPolicy.retry_all(), RETRY),
    ],
    ids=["stop", "retry tools", "ignore", "retry all"],
)
def test_each_preset_treats_an_unknown_effect_like_a_tool_error(
    policy: ErrorPolicy, decision: ErrorHandlingDecision
) -> None:
    """3.4.4: retry means that the model may try another way; no policy runs the call again."""
    assert policy.evaluate(resolve_error_context(tools(UNKNOWN), 1, 1)) is decision


def test_an_execution_of_an_older_release_judges_unknown_effects_differently() -> None:
    """3.4.4: its decision under the older rule follows again when it is replayed."""
    assert resolve_error_context(tools(UNKNOWN), 1, 1, unknown_effects_apart=True).type is UNKNOWN
    assert resolve_error_context(tools(UNKNOWN, None), 1, 1, unknown_effects_apart=True).type is TOOL
    assert resolve_error_context(tools(None), 1, 1, unknown_effects_apart=True).type is TOOL


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (RateLimited("slow down", 3.5), RATE_LIMIT),
        (ModelTimeout("no answer"), TIMEOUT),
        (TimeoutError("no answer"), TIMEOUT),
        (ModelError("502 Bad Gateway"), MODEL),
        (ConnectionError("refused"), MODEL),
        (ModelError("no such model"), MODEL),
        (InvalidModelOutput("no decision"), VALIDATION),
        (ToolFailed("the executor gave up"), MODEL),
        (KeyError("bug"), MODEL),
    ],
)
def test_the_type_of_an_escaped_exception(raised: Exception, kind: ErrorType) -> None:
    """3.4.2, 3.5.1, 3.5.2: the type of a step's error follows from the exception."""
    assert resolve_error_context(a_step(own_errors=(StepError.of(raised),)), 1, 1).type is kind


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (RateLimited("slow down"), RATE_LIMIT),
        (TimeoutError("too slow"), TIMEOUT),
        (ToolFailed("not today"), TOOL),
        (ValueError("no number"), TOOL),
    ],
)
def test_the_type_of_an_exception_in_a_tool(raised: Exception, kind: ErrorType) -> None:
    """3.4.2: a tool's error is a tool error unless its type is more specific."""
    call = replace(a_failed_call(), error=StepError.of(raised, "search"))

    assert resolve_error_context(a_step(call), 1, 1).type is kind


# --- Reasons and context ---


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (TOOL, "Tool"),
        (MODEL, "Model"),
        (VALIDATION, "Validation"),
        (RATE_LIMIT, "Rate_limit"),
        (TIMEOUT, "Timeout"),
        (UNKNOWN, "Unknown"),
    ],
)
def test_the_handling_in_a_sentence(kind: ErrorType, shown: str) -> None:
    """3.6.1: the type with its first letter upper-cased, the counts, the policy's max_retries."""
    context = a_failure(kind, consecutive=2, total=7)

    assert handling_reason(context, STOP, 3) == (
        f"{shown} error stops the run (failures in a row: 2, max_retries: 3)"
    )
    assert handling_reason(context, RETRY, 3) == (
        f"{shown} error leads to a retry (failures in a row: 2, max_retries: 3)"
    )
    assert handling_reason(context, IGNORE, 3) == f"{shown} error does not stop the run under this policy"


def test_the_sentence_without_a_failure() -> None:
    """3.6.1: No failure to handle."""
    assert handling_reason(ErrorContext.none(), IGNORE, 3) == "No failure to handle"


def test_the_handling_as_data() -> None:
    """3.6.1: the keys of the context."""
    context = ErrorContext(RATE_LIMIT, 2, 7, "slow down", "search")

    assert handling_context(context, RETRY, 3) == {
        "errorType": "rate_limit",
        "consecutiveFailures": 2,
        "totalFailures": 7,
        "maxRetries": 3,
        "handling": "retry",
        "toolName": "search",
    }
    assert handling_context(ErrorContext.none(), IGNORE, 0) == {
        "errorType": "unknown",
        "consecutiveFailures": 0,
        "totalFailures": 0,
        "maxRetries": 0,
        "handling": "ignore",
        "toolName": None,
    }
