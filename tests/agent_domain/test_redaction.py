"""Redaction of error texts."""

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.redaction import REDACTED, Redaction


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("password=hunter2 at 10.0.0.3", "password=[redacted] at 10.0.0.3"),
        ("DB_PASSWORD: zzz, next", "DB_PASSWORD: [redacted], next"),
        ("{'api_key': 'abc def', 'x': 1}", "{'api_key': [redacted], 'x': 1}"),
        ('{"secret": "s3", "a": 1}', '{"secret": [redacted], "a": 1}'),
        ("postgresql://u:p%40ss@h/db refused", "postgresql://u:[redacted]@h/db refused"),
        ("redis://:pw@cache:6379", "redis://:[redacted]@cache:6379"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer [redacted]"),
        ("authorization=Basic YWJjOmRlZg==", "authorization=Basic [redacted]"),
        ("bearer abc123456789 refused", "bearer [redacted] refused"),
        ("key sk-proj-abcdefghijklmnop is wrong", "key [redacted] is wrong"),
        ("AKIAABCDEFGHIJKLMNOP denied", "[redacted] denied"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+1", "AWS_SECRET_ACCESS_KEY=[redacted]"),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "jwt [redacted]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- x", "[redacted] x"),
    ],
)
def test_text_like_a_secret_is_removed(text: str, redacted: str) -> None:
    """5.4.4"""
    assert Redaction()(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "token validation failed",
        "The token is invalid",
        "basic authentication failed",
        "max_tokens=500 is too much",
        "keyboard: qwerty",
        "https://example.com/a:b@c is no page",
        "the bearer of bad news",
        "no such file: /etc/passwd",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    """5.4.4"""
    assert Redaction()(text) == text


def test_the_values_of_known_secrets_are_removed_everywhere() -> None:
    """5.4.4: also in their URL-encoded form; the longest first, and no short words."""
    redaction = Redaction(("correct horse", "correct horse battery", "on", ""))

    assert redaction("I said correct horse battery on it") == "I said [redacted] on it"
    assert redaction("?q=correct%20horse&x") == "?q=[redacted]&x"
    assert "correct" not in repr(redaction)


@given(st.text(min_size=6, max_size=30), st.text(max_size=20), st.text(max_size=20))
def test_no_known_secret_survives(secret: str, before: str, after: str) -> None:
    """5.4.4"""
    redacted = Redaction((secret,))(before + secret + after)

    assert secret not in redacted.replace(REDACTED, "") or secret in REDACTED
