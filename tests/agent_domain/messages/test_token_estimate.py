"""The estimate of input tokens, compared with counts of real tokenizers."""

import pytest

from everstep.agent_domain.messages.cached_context import InferenceRequest, ResponseFormat
from everstep.agent_domain.messages.messages import Message, Role, assistant, call_entry, tool_message, user
from everstep.agent_domain.messages.token_estimate import (
    IMAGE_TOKENS,
    MESSAGE_OVERHEAD,
    REQUEST_OVERHEAD,
    TOOLS_OVERHEAD,
    estimate_message,
    estimate_request,
    estimate_text,
    is_surely_within,
)
from everstep.agent_domain.values import EMPTY, freeze, frozen_map

ENGLISH = "The quick brown fox jumps over the lazy dog, and nobody in the village has ever seen it return."
PYTHON = "def total(prices: list[float]) -> float:\n    return sum(price * 1.19 for price in prices)\n"


@pytest.mark.parametrize(
    ("text", "largest_count"),
    [
        # The largest count of cl100k, o200k, and the tokenizers of Claude 2, Llama 2 and Llama 3.
        (ENGLISH, 23),
        (PYTHON, 31),
        ('{"city":"Paris","days":[1,2,3],"unit":"celsius"}', 22),
        ("a" * 300, 75),
        ("3.14159265358979323846", 22),
        ("550e8400-e29b-41d4-a716-446655440000", 36),
        ("dGhlIHF1aWNrIGJyb3duIGZveCBqdW1wcyBvdmVyIHRoZSBsYXp5IGRvZw==", 47),
        ("https://example.org/a/b?c=d&e=%20f#g", 21),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", 20),
        ('   \t\t\n \n  {\n    "x": [\n      1,\n      2\n    ]\n  }\n', 28),
        ("Größe und Gefühl über alles", 10),
        ("Zażółć gęślą jaźń, proszę państwa", 21),
        ("Tôi đang học tiếng Việt ở Hà Nội", 26),
        ("Москва - столица России, крупнейший город", 24),
        ("Ελλάδα είναι μια όμορφη χώρα", 33),
        ("今日は天気がいいですね。", 13),
        ("我们今天去公园散步。", 16),
        ("안녕하세요, 만나서 반갑습니다", 24),
        ("שלום, מה שלומך היום?", 20),
        ("مرحبا كيف حالك اليوم", 17),
        ("नमस्ते, आप कैसे हैं?", 20),
        ("สวัสดีครับ วันนี้อากาศดีมาก", 44),
        ("👩‍👩‍👧 🎉", 19),
    ],
)
def test_the_estimate_is_not_below_the_counts_of_tokenizers(text: str, largest_count: int) -> None:
    """14.1"""
    assert largest_count <= estimate_text(text) <= 2.4 * largest_count


def test_english_is_estimated_at_less_than_twice_its_tokens() -> None:
    assert estimate_text(ENGLISH) <= 45


@pytest.mark.parametrize("text", ["", " ", "a b", "é", "😀", "ก", "\ud800"])
def test_no_text_is_estimated_above_its_bytes(text: str) -> None:
    assert estimate_text(text) <= len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "message",
    [
        user(ENGLISH),
        user("é😀" * 50),
        tool_message(PYTHON, "c1", "look"),
        assistant(ENGLISH, tool_calls=[call_entry("c1", "weather", {"city": "Köln" * 30})]),
        assistant("", provider_items={"origin": "m", "items": [{"encrypted_content": "Zm9v" * 1000}]}),
        Message(Role.USER, freeze([{"type": "image_url", "image_url": {"url": "https://x"}}])),
    ],
)
def test_a_request_is_surely_within_what_its_estimate_never_exceeds(message: Message) -> None:
    """14.1"""
    request = InferenceRequest((message,))
    estimate = estimate_request(request)
    assert not is_surely_within(request, estimate - 1)
    assert is_surely_within(request, 8 * estimate)


def test_a_message_counts_with_its_calls_and_parts() -> None:
    plain = estimate_message(user(ENGLISH))
    assert plain == estimate_text(ENGLISH) + MESSAGE_OVERHEAD
    called = assistant("", tool_calls=[call_entry("c1", "weather", {"city": "Paris"})])
    assert estimate_message(called) > MESSAGE_OVERHEAD + estimate_text('weather {"city":"Paris"}')
    parts = [
        {"type": "text", "text": ENGLISH},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 100_000}"}},
    ]
    assert estimate_message(Message(Role.USER, freeze(parts))) == plain + IMAGE_TOKENS
    document = [{"type": "file", "file": {"file_data": f"data:application/pdf;base64,{'A' * 100_000}"}}]
    assert 25_000 <= estimate_message(Message(Role.USER, freeze(document))) < 26_000


def test_what_a_provider_requires_back_counts_instead_of_the_text_it_repeats() -> None:
    def reply(*items: object) -> Message:
        return assistant(ENGLISH, provider_items={"origin": "m", "items": list(items)})

    plain = estimate_message(assistant(ENGLISH))
    assert estimate_message(reply()) == plain
    sealed = estimate_message(reply({"type": "reasoning", "encrypted_content": "Zm9v" * 1000}))
    assert 1000 <= sealed < 1100


def test_a_request_counts_with_its_tools_and_its_format() -> None:
    messages = (user(ENGLISH), tool_message("sunny", "c1", "weather"))
    bare = estimate_request(InferenceRequest(messages))
    assert bare == sum(map(estimate_message, messages)) + REQUEST_OVERHEAD
    function: dict[str, object] = {"name": "weather", "description": ENGLISH, "parameters": {}}
    schema: dict[str, object] = {"type": "function", "function": function}
    tooled = estimate_request(InferenceRequest(messages, tools=freeze([schema])))
    assert tooled > bare + TOOLS_OVERHEAD + estimate_text(ENGLISH)
    formatted = ResponseFormat(frozen_map({"type": "object", "description": ENGLISH}))
    assert estimate_request(InferenceRequest(messages, response_format=formatted)) > bare + estimate_text(
        ENGLISH
    )
    assert estimate_request(InferenceRequest((), response_format=ResponseFormat(EMPTY))) > REQUEST_OVERHEAD
