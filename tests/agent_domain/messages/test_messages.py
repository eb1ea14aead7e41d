"""Messages, and their input and written forms."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import (
    Message,
    MessageStore,
    Role,
    as_message,
    as_messages,
    assistant,
    call_entry,
    export,
    system,
    tool_message,
    user,
)
from everstep.agent_domain.values import FrozenDict, FrozenList, frozen_map

ROLES = ["system", "developer", "user", "assistant", "tool"]
IMAGE = {"type": "image", "url": "https://example.com/cat.png"}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
messages = st.builds(
    Message,
    st.sampled_from(Role),
    texts | st.lists(st.dictionaries(texts, texts), max_size=3),
    st.dictionaries(texts, texts | st.booleans(), max_size=3),
)


# Roles.


def test_there_are_five_roles() -> None:
    """5.1.1"""
    assert [str(role) for role in Role] == ROLES


@pytest.mark.parametrize("role", ROLES)
def test_a_message_has_a_role(role: str) -> None:
    """5.1.1: exact, except that developers count as the system."""
    message = Message.from_string("Hi", role)

    assert message.is_user is (role == "user")
    assert message.is_assistant is (role == "assistant")
    assert message.is_tool is (role == "tool")
    assert message.is_developer is (role == "developer")
    assert message.is_system is (role in {"system", "developer"})


@pytest.mark.parametrize("role", ["User", "SYSTEM", "function", "", " assistant", None, 7, ["tool"]])
def test_an_unknown_role_becomes_the_user(role: Any) -> None:
    """5.1.1"""
    assert Message.from_dict({"role": role, "content": "Hi"}).role is Role.USER


def test_text_of_an_unknown_role_becomes_the_user_too() -> None:
    """5.1.1"""
    assert Message.from_string("Hi", "narrator") == user("Hi")
    assert Message.from_string("Hi") == user("Hi")
    assert Message.from_dict({"content": "Hi"}) == user("Hi")


def test_having_a_role_means_any_of_those_given() -> None:
    """5.1.1: an empty list matches no message."""
    assert user("Hi").has_role("user")
    assert user("Hi").has_role("tool", Role.USER)
    assert not user("Hi").has_role("tool", "assistant")
    assert not user("Hi").has_role()


# Content.


@given(messages)
def test_a_message_reads_back_as_it_was_written(message: Message) -> None:
    """5.1.2"""
    assert Message.from_dict(message.to_dict()) == message


def test_a_message_cannot_be_changed() -> None:
    """0.8"""
    parts: list[Any] = [{"type": "text", "text": "Look"}]
    message = Message(Role.USER, parts, frozen_map({"tags": ["a"]}))  # pyright: ignore[reportArgumentType] -- what users write
    parts.append(IMAGE)

    assert message.content == [{"type": "text", "text": "Look"}]
    assert isinstance(message.content, FrozenList)
    assert isinstance(message.metadata["tags"], FrozenList)
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.role = Role.TOOL  # pyright: ignore[reportAttributeAccessIssue] -- the point of the test


def test_metadata_are_written_and_also_read_with_an_underscore() -> None:
    """5.1.2: written once, under its own name, which takes precedence."""
    message = assistant("Hi", mood="calm")

    assert message.to_dict() == {"role": "assistant", "content": "Hi", "metadata": {"mood": "calm"}}
    assert user("Hi").to_dict() == {"role": "user", "content": "Hi"}
    for key in ("metadata", "_metadata"):
        assert Message.from_dict({"role": "assistant", "content": "Hi", key: {"mood": "calm"}}) == message
    both = {"content": "Hi", "metadata": {"a": 1}, "_metadata": {"b": 2}}
    assert Message.from_dict(both).metadata == {"a": 1}
    assert Message.from_dict({"content": "Hi", "metadata": None, "_metadata": None}) == user("Hi")


def test_the_written_form_can_be_changed_without_harm() -> None:
    """0.8"""
    message = Message.from_dict({"role": "user", "content": [IMAGE], "metadata": {"tags": ["a"]}})
    written = message.to_dict()
    written["content"].append("more")
    written["metadata"]["tags"].append("b")

    assert message.content == [IMAGE]
    assert message.metadata == {"tags": ["a"]}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hi", "Hi"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "one"}, IMAGE, {"type": "text", "text": "two"}], "one\ntwo"),
        ([{"text": 5}, "loose", 7, None, {"text": "said"}], "said"),
    ],
)
def test_the_text_of_a_message_leaves_out_other_parts(content: Any, text: str) -> None:
    assert Message.from_dict({"role": "user", "content": content}).text == text


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"content": 5}, "message content must be text or a list of parts, not int"),
        ({"content": {"text": "Hi"}}, "message content must be text or a list of parts"),
        ({"content": "a\x00b"}, "message.content contains a NUL character"),
        ({"content": ["\ud800"]}, r"message.content\[0\] contains half of a surrogate pair"),
        ({"content": "Hi", "metadata": ["a"]}, "message metadata must be a map, not list"),
        ({"content": "Hi", "metadata": {"at": object()}}, "message.metadata.at is of type object"),
        ("Hi", "message must be a map, not str"),
        (None, "message must be a map, not NoneType"),
    ],
)
def test_an_invalid_message_is_refused(data: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Message.from_dict(data)


def test_plain_text_must_be_text() -> None:
    with pytest.raises(InvalidInput, match="message text must be text, not int"):
        Message.from_string(5)  # pyright: ignore[reportArgumentType] -- the point of the test
    with pytest.raises(InvalidInput, match="message content contains a NUL character"):
        Message(Role.USER, "a\x00")


# Export.


def test_an_export_drops_empty_messages() -> None:
    """5.1.2: neither content nor metadata; empty content beside metadata stays, with its key."""
    said = [
        user("Hi"),
        assistant(""),
        Message.from_dict({"content": []}),
        assistant("", note=1),
        tool_message("", "c1", "f"),
    ]

    assert export(said) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "metadata": {"note": 1}},
        {"role": "tool", "content": "", "metadata": {"tool_call_id": "c1", "tool_name": "f"}},
    ]
    assert [message.is_empty for message in said] == [False, True, True, False, False]


@given(st.lists(messages, max_size=5))
def test_an_export_reads_back_with_all_messages(conversation: list[Message]) -> None:
    """5.1.2"""
    assert as_messages(export(conversation)) == tuple(m for m in conversation if not m.is_empty)


# Input.


@pytest.mark.parametrize(
    "given_messages",
    [
        "Hi",
        user("Hi"),
        ["Hi"],
        [user("Hi")],
        [{"role": "user", "content": "Hi"}],
        (m for m in ["Hi"]),
    ],
)
def test_a_conversation_is_text_a_message_or_several(given_messages: Any) -> None:
    assert as_messages(given_messages) == (user("Hi"),)


def test_one_message_is_text_a_map_or_a_message() -> None:
    assert as_message("Hi") == as_message({"content": "Hi"}) == as_message(user("Hi")) == user("Hi")
    assert as_messages([]) == ()


def test_a_map_alone_is_no_conversation() -> None:
    with pytest.raises(InvalidInput, match="wrap the map in a list"):
        as_messages({"role": "user", "content": "Hi"})  # pyright: ignore[reportArgumentType] -- the point of the test


# Calls and results.


def test_a_result_names_its_call() -> None:
    """5.4.1: metadata tool_call_id and tool_name, and no raw result."""
    message = tool_message("sunny", "c1", "weather")

    assert message.to_dict() == {
        "role": "tool",
        "content": "sunny",
        "metadata": {"tool_call_id": "c1", "tool_name": "weather"},
    }
    assert message.answers == "c1"
    assert assistant("sunny", tool_call_id="c1").answers is None


def test_a_call_is_stored_in_a_message_with_its_arguments_as_json_text() -> None:
    """5.4.1"""
    entry = call_entry("c1", "weather", {"city": "Zürich", "days": [1, 2]})

    assert entry == {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Zürich","days":[1,2]}'},
    }
    assert call_entry("c1", "weather", "[1,")["function"]["arguments"] == "[1,"
    assert assistant("", tool_calls=[entry]).calls == (entry,)


@pytest.mark.parametrize("calls", [None, "c1", {"id": "c1"}, 5, [], ["c1", None]])
def test_invalid_calls_are_not_taken_for_calls(calls: Any) -> None:
    assert assistant("Hi", tool_calls=calls).calls == ()
    assert assistant("Hi").calls == ()


# Stores.


def test_a_store_keeps_conversations_under_names() -> None:
    """4.1.1: the default section is `messages`; any other is empty until it is written."""
    store = MessageStore().with_section("messages", [user("Hi")]).with_section("notes", [system("A")])
    changed = store.with_section("notes", [system("B")])

    assert store.section() == store.section("messages") == (user("Hi"),)
    assert store.section("notes") == (system("A"),)
    assert store.section("nowhere") == ()
    assert changed.section("notes") == (system("B"),)
    assert [name for name, _ in changed.sections] == ["messages", "notes"]


def test_a_store_is_written_section_by_section() -> None:
    """4.1.7"""
    store = MessageStore().with_section("messages", [user("Hi"), assistant("")])

    assert store.to_dict() == {
        "sections": [{"name": "messages", "messages": [{"role": "user", "content": "Hi"}]}]
    }


@pytest.mark.parametrize(
    "data",
    [
        {"sections": [{"name": "messages", "messages": [{"role": "user", "content": "Hi"}]}]},
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"messages": ["Hi"], "sections": []},
    ],
)
def test_a_store_is_read_from_sections_or_a_flat_list(data: Any) -> None:
    """4.1.7: a flat list is the default section."""
    assert MessageStore.from_dict(data) == MessageStore().with_section("messages", [user("Hi")])


def test_a_store_without_messages_is_empty() -> None:
    """0.6"""
    assert MessageStore.from_dict({}) == MessageStore()
    assert MessageStore.from_dict({"sections": [{"name": "notes"}]}).section("notes") == ()
    assert isinstance(
        MessageStore.from_dict({"messages": [{"content": "a", "x": 1}]}).section()[0].metadata, FrozenDict
    )
