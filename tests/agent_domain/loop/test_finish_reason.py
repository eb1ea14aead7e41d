"""The providers' finish reasons in one vocabulary."""

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.loop.finish_reason import FinishReason

WORDS = {
    "stop": ["stop", "complete", "stop_sequence"],
    "length": ["length", "max_tokens", "model_length"],
    "tool_calls": ["tool_calls", "tool_call", "tool_use"],
    "content_filter": [
        "content_filter",
        "safety",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "language",
    ],
    "error": ["error", "malformed_function_call"],
    "other": ["other", "end_turn", "pause_turn", "refusal", "", "stopped", "tool"],
}
KNOWN = {word for reason, words in WORDS.items() if reason != "other" for word in words}


def test_there_are_six_reasons() -> None:
    """5.3.1"""
    assert [str(reason) for reason in FinishReason] == list(WORDS)


@pytest.mark.parametrize(("reason", "word"), [(reason, word) for reason in WORDS for word in WORDS[reason]])
def test_the_word_of_a_provider_is_read_in_any_case(reason: str, word: str) -> None:
    """5.3.1"""
    for written in (word, word.upper(), word.title()):
        assert FinishReason.parse(written) == reason


@given(st.text())
def test_any_other_word_is_other(word: str) -> None:
    """5.3.1"""
    if word.strip().lower() not in KNOWN:
        assert FinishReason.parse(word) is FinishReason.OTHER
