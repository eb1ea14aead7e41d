"""Providers' error messages, mapped to our errors."""

from datetime import UTC, datetime
from typing import Any

import pytest

from everstep.agent_domain.errors import RETRYABLE, ContextTooLong, ModelError, ModelUnavailable, RateLimited
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.inference.failures import MAX_MESSAGE, ProviderComplaint, causes, failure, retry_after
from everstep.inference.presets import Preset

PRESET = Preset.read("fast", {"driver": "openai", "model": "m"})
LOCAL = Preset.read("local", {"driver": "openai-chat", "model": "m", "base_url": "http://localhost:1/v1"})
NOW = datetime(2026, 1, 16, 10, 5, tzinfo=UTC)


def message_of(
    message: str = "Oops", preset: Preset = PRESET, key: str | None = None, **complaint: Any
) -> str:
    return str(failure(ProviderComplaint(message, **complaint), preset, key))


@pytest.mark.parametrize(
    ("status", "preset", "text"),
    [
        (401, PRESET, "m (401): Oops. Check the key in OPENAI_API_KEY."),
        (401, LOCAL, "m (401): Oops. Check the key in 'api_key_env' of preset 'local' (it has none)."),
        (403, PRESET, "m (403): Oops. The key in OPENAI_API_KEY may not use this model."),
        (
            404,
            PRESET,
            "m (404): Oops. Check 'model' and 'base_url' of preset 'fast': the provider does not know it.",
        ),
        (
            404,
            LOCAL,
            "m (404): Oops. Check 'model' and 'base_url' of preset 'local': "
            "http://localhost:1/v1 does not know it.",
        ),
        (400, PRESET, "m (400): Oops"),
        (503, PRESET, "m (503): Oops"),
    ],
)
def test_a_message_says_how_to_fix_it(status: int, preset: Preset, text: str) -> None:
    """3.5.2"""
    assert message_of(preset=preset, status=status) == text


def test_a_wrong_key_is_recognised_in_the_middle_of_a_stream_too() -> None:
    assert message_of(words="authentication_error") == "m: Oops. Check the key in OPENAI_API_KEY."


def test_an_account_without_credit_is_not_retryable() -> None:
    """3.5.2: although it comes with the status of a rate limit."""
    error = failure(ProviderComplaint("No quota.", 429, "insufficient_quota"), PRESET)

    assert type(error) is ModelError
    fix = "Raise the limit or the credit of the account behind OPENAI_API_KEY."
    assert str(error) == f"m (429): No quota. {fix}"
    assert fix in message_of("Your credit balance is too low", status=400)


def test_a_rate_limit_may_mention_billing() -> None:
    error = failure(ProviderComplaint("Too fast; see /account/billing", 429, "rate_limit_exceeded"), PRESET)

    assert type(error) is RateLimited


@pytest.mark.parametrize(
    "reason",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
        "prompt is too long: 208310 tokens > 200000 maximum",
        "the request exceeds the available context size, try increasing it",
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        "Input is too long for requested model.",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).",
        "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
        "`inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens",
    ],
)
def test_the_words_of_servers_for_a_conversation_that_is_too_long(reason: str) -> None:
    """14.7"""
    assert type(failure(ProviderComplaint(reason, 400), PRESET)) is ContextTooLong


@pytest.mark.parametrize("status", [None, 400, 413, 422])
def test_a_conversation_that_is_too_long_is_recognised(status: int | None) -> None:
    """3.5.2"""
    error = failure(ProviderComplaint("x", status, "context_length_exceeded"), PRESET)

    assert type(error) is ContextTooLong
    assert "start a new one, or use a larger model" in str(error)


def test_too_many_tokens_is_a_rate_limit_in_any_wording() -> None:
    assert type(failure(ProviderComplaint("exceeds the context window", 429), PRESET)) is RateLimited


def test_a_message_is_short_and_contains_no_key() -> None:
    long = message_of("x" * 1000, status=400)
    quoted = message_of("You sent sk-secret and\x00", key="sk-secret", status=400)

    assert len(long) == len("m (400): ") + MAX_MESSAGE + 3
    assert quoted == "m (400): You sent [key] and"


def test_an_error_without_a_message_says_so() -> None:
    assert message_of("  ", status=500) == "m (500): no reason given"


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        (ProviderComplaint("x", 429), ErrorType.RATE_LIMIT),
        (ProviderComplaint("x", 503), None),
        (ProviderComplaint("x", 400), None),
    ],
)
def test_the_error_policy_gets_the_kind_of_the_error(
    complaint: ProviderComplaint, kind: ErrorType | None
) -> None:
    """3.5.1: 5xx and connection errors are `model`, the default when nothing else matches."""
    assert StepError.of(failure(complaint, PRESET)).type is kind


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ("", True),
        ("something_new", True),
        ("server_error", True),
        ("overloaded_error", True),
        ("invalid_request_error", False),
        ("permission_error", False),
        ("unsupported_value", False),
        # Both match: the retryable kind wins, because a retry costs little.
        ("invalid_response server_error", True),
    ],
)
def test_without_a_status_the_text_decides(words: str, passes: bool) -> None:
    assert isinstance(failure(ProviderComplaint("x", words=words), PRESET), RETRYABLE) is passes


@pytest.mark.parametrize(
    ("body", "message", "words", "status"),
    [
        ({"type": "server_error", "code": "oops", "message": "Hi"}, "Hi", "oops server_error", None),
        ({"error": {"type": "x", "message": "Hi"}}, "Hi", "x", None),
        (
            {"type": "error", "error": {"type": "x", "message": "Hi", "details": {"error_code": "y"}}},
            "Hi",
            "error x y",
            None,
        ),
        ({"error": {"code": 502, "message": "Hi"}}, "Hi", "502", 502),
        ({"error": "Hi"}, "Hi", "", None),
        ({"detail": "Hi"}, "Hi", "", None),
        ({"detail": [{"msg": "x"}]}, "fallback", "", None),
        ("Hi", "Hi", "", None),
        ("", "fallback", "", None),
        (None, "fallback", "", None),
        ([], "fallback", "", None),
        ({}, "fallback", "", None),
    ],
)
def test_an_error_body_is_read_in_any_shape(
    body: object, message: str, words: str, status: int | None
) -> None:
    assert ProviderComplaint.parse(body, "fallback") == ProviderComplaint(message, status, words)


def test_the_status_of_the_response_takes_precedence() -> None:
    assert ProviderComplaint.parse({"code": 502}, status=400).status == 400


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "Fri, 16 Jan 2026 10:06:00 GMT"}, 60),
        ({"retry-after": "Fri, 16 Jan 2026 11:06:00 +0100"}, 60),
        ({"retry-after": "Fri, 16 Jan 2026 10:06:00 -0000"}, 60),
        ({"retry-after": "Fri, 16 Jan 2026 10:00:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
    ],
)
def test_the_delay_is_a_number_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    """3.5.1"""
    assert retry_after(headers, lambda: NOW) == seconds


def test_the_requested_delay_is_kept() -> None:
    """3.5.1"""
    limited = failure(ProviderComplaint("x", 429, retry_after=3), PRESET)
    down = failure(ProviderComplaint("x", 503, retry_after=4), PRESET)

    assert isinstance(limited, RateLimited)
    assert isinstance(down, ModelUnavailable)
    assert (limited.retry_after, down.retry_after) == (3, 4)


def test_causes_are_followed_to_the_first_one() -> None:
    sdk, connection, refused = ValueError("sdk"), ValueError("connection"), OSError("refused")
    sdk.__context__ = connection
    connection.__cause__ = refused

    assert list(causes(sdk)) == [sdk, connection, refused]
