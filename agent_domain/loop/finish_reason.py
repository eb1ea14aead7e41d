"""The reasons why a model stopped, in one vocabulary for all providers."""

from enum import StrEnum


class FinishReason(StrEnum):
    """Why the model stopped."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    OTHER = "other"

    @classmethod
    def parse(cls, word: str) -> "FinishReason":
        """Translate a provider's finish reason; an unknown one is `other`."""
        return _WORDS.get(word.strip().lower(), cls.OTHER)


_SYNONYMS = {
    FinishReason.STOP: ("complete", "stop_sequence"),
    FinishReason.LENGTH: ("max_tokens", "model_length"),
    FinishReason.TOOL_CALLS: ("tool_call", "tool_use"),
    FinishReason.CONTENT_FILTER: (
        "safety",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "language",
    ),
    FinishReason.ERROR: ("malformed_function_call",),
}
_WORDS = {word: reason for reason, words in _SYNONYMS.items() for word in words} | {
    reason.value: reason for reason in FinishReason
}
