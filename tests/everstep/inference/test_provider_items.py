"""Items that a provider expects back unchanged."""

from typing import Any

import pytest

from everstep.agent_domain.messages.messages import assistant, call_entry
from everstep.inference.provider_items import bundle_items, matches_message, own_items

SEALED: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": "sealed"}


def test_items_are_returned_unchanged_to_their_origin() -> None:
    message = assistant("Hello", provider_items=bundle_items("here", [SEALED]))

    assert own_items("here", message) == [SEALED]
    assert own_items("there", message) == []


def test_returned_items_can_be_changed() -> None:
    (item,) = own_items("here", assistant("Hello", provider_items=bundle_items("here", [SEALED])))

    item["summary"].append("mine")

    assert SEALED["summary"] == []


@pytest.mark.parametrize(
    "items",
    [[], [{"text": "a\x00b"}], [{"text": "\ud83d"}], [{"x": float("nan")}]],
)
def test_empty_or_unstorable_items_are_dropped(items: list[dict[str, Any]]) -> None:
    assert list(bundle_items("here", items)) == []


@pytest.mark.parametrize("items", [None, [], ["x", {}, {"origin": "here"}]])
def test_a_message_may_have_none(items: Any) -> None:
    assert own_items("here", assistant("Hello", provider_items=items)) == []
    assert own_items("here", assistant("Hello")) == []


@pytest.mark.parametrize(
    ("text", "calls", "same"),
    [
        ("Hello there", ["c1", "c2"], True),
        ("Hello\n\n there ", ["c1", "c2"], True),
        ("Hello", ["c1", "c2"], False),
        ("Hello there", ["c1"], False),
        ("Hello there", ["c2", "c1"], False),
        ("", [], False),
    ],
)
def test_items_match_a_message_with_the_same_content(text: str, calls: list[str], same: bool) -> None:
    entries = [call_entry("c1", "x", {}), call_entry("c2", "x", {})]

    assert matches_message(assistant("Hello there", tool_calls=entries), text, calls) is same


def test_a_message_without_its_dropped_text_still_matches() -> None:
    """5.5.2"""
    assert matches_message(assistant("", tool_calls=[call_entry("c1", "x", {})]), '{"a":1}', ["c1"])
