"""Snapshots: the slim form and the one to continue from."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.criteria import TokenUsageLimit
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.step_error import StepError
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext
from everstep.agent_domain.messages.messages import (
    Message,
    MessageStore,
    Role,
    assistant,
    call_entry,
    system,
    tool_message,
    user,
)
from everstep.agent_domain.state.snapshots import (
    ContinuationAgentStateSerializer,
    SlimAgentStateSerializer,
    SlimSerializationConfig,
    slim_step,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.values import MAX_DEPTH, freeze, frozen_map, json_text, truncate
from tests.agent_domain.state_words import (
    AGENT,
    AT,
    PARENT,
    STOPS,
    a_call,
    a_failure,
    a_state,
    a_step,
    a_success,
    after_steps,
    conversations,
    later,
    messages,
    states,
)

MINIMAL = SlimSerializationConfig.minimal()
STANDARD = SlimSerializationConfig.standard()
FULL = SlimSerializationConfig.full()
UNLIMITED = SlimSerializationConfig.unlimited()


def slim(state: AgentState, config: SlimSerializationConfig = STANDARD, **changes: Any) -> dict[str, Any]:
    """The slim snapshot, through JSON."""
    serializer = SlimAgentStateSerializer(replace(config, **changes))
    return json.loads(json.dumps(serializer.serialize(state)))


def slim_message(message: Message, config: SlimSerializationConfig = STANDARD, **changes: Any) -> Any:
    (written,) = slim(a_state(message), config, **changes)["messages"]
    return written


def restore(snapshot: dict[str, Any]) -> AgentState:
    return SlimAgentStateSerializer().deserialize(snapshot)


# Presets and limits.


@pytest.mark.parametrize(
    ("field", "minimal", "standard", "full", "unlimited"),
    [
        ("max_messages", 20, 50, 100, None),
        ("max_content_length", 500, 2000, 5000, None),
        ("max_steps", 0, 20, 50, None),
        ("include_steps", False, True, True, True),
        ("include_tool_results", False, True, True, True),
        ("include_continuation_trace", False, False, True, True),
        ("redact_tool_args", True, False, False, False),
        ("include_metadata", False, True, True, True),
    ],
)
def test_the_presets(field: str, minimal: Any, standard: Any, full: Any, unlimited: Any) -> None:
    """6.1: four of them, and the standard is the default."""
    presets = [getattr(preset, field) for preset in (MINIMAL, STANDARD, FULL, UNLIMITED)]
    assert presets == [minimal, standard, full, unlimited]
    assert getattr(SlimSerializationConfig(), field) == standard
    assert getattr(SlimAgentStateSerializer().config, field) == standard


@pytest.mark.parametrize("field", ["max_messages", "max_content_length", "max_steps"])
@pytest.mark.parametrize("value", ["5", 1.5, True])
def test_a_limit_is_a_whole_number(field: str, value: Any) -> None:
    """6.1."""
    limit: dict[str, Any] = {field: value}
    with pytest.raises(InvalidInput, match=f"{field} is .*; pass a whole number"):
        SlimSerializationConfig(**limit)


# Content.


def test_the_slim_form() -> None:
    """6.2, 0.5: every key; times without fractions."""
    asked = replace(a_state("Hello"), parent_agent_id=PARENT).with_metadata("tasks", [1]).at(AT)
    step = a_step("Hi", a_success(a_call("look", "c1", at="x")), tokens=100, seconds=1.5)
    response = step.inference_response and replace(step.inference_response, finish_reason="stop")
    step = replace(step, inference_response=response)
    state = after_steps(step, state=asked).ended(STOPS, ErrorPolicy(), later(1)).at(later(2))
    entry = {
        "step_number": 1,
        "type": "tool_execution",
        "has_tool_calls": True,
        "finish_reason": "stop",
        "errors": 0,
        "usage": {"total": 100},
        "duration_ms": 1000.0,
        "tool_calls": [{"id": "c1", "name": "look"}],
    }
    assert slim(state, FULL) == {
        "schema_version": 1,
        "agent_id": str(AGENT),
        "parent_agent_id": str(PARENT),
        "status": "completed",
        "step_count": 1,
        "usage": {"prompt": 100, "completion": 0, "total": 100, "cached": 0, "reasoning": 0},
        "execution": {
            "started_at": "2026-01-16T10:05:00Z",
            "updated_at": "2026-01-16T10:05:02Z",
            "cumulative_seconds": 1.5,
            "session_seconds": 1.5,
            "step_count": 1,
        },
        "messages": [
            {"role": "user", "content": "Hello", "metadata": {}},
            {"role": "assistant", "content": "Hi", "metadata": {}},
        ],
        "steps": [entry],
        "current_step": entry,
        "last_continuation": {"should_continue": False, "stop_reason": "completed", "resolved_by": "Worker"},
        "metadata": {"tasks": [1]},
    }


def test_keys_are_present_even_when_they_are_empty() -> None:
    """6.2: an omitted value is [] or null."""
    empty = slim(AgentState.empty(), MINIMAL)
    assert set(empty) == set(slim(after_steps(a_step("Hi")), FULL))
    assert empty | {"schema_version": 1} == {
        "schema_version": 1,
        "agent_id": None,
        "parent_agent_id": None,
        "status": "in_progress",
        "step_count": 0,
        "usage": Usage().to_wire(),
        "execution": {
            "started_at": None,
            "updated_at": None,
            "cumulative_seconds": 0.0,
            "session_seconds": 0.0,
            "step_count": 0,
        },
        "messages": [],
        "steps": [],
        "current_step": None,
        "last_continuation": None,
        "metadata": {},
    }


@pytest.mark.parametrize(
    ("config", "is_included"), [(MINIMAL, False), (STANDARD, False), (FULL, True), (UNLIMITED, True)]
)
def test_the_last_continuation_is_included_where_traces_are(
    config: SlimSerializationConfig, is_included: bool
) -> None:
    """6.1, 6.2."""
    state = a_state().with_continuation_outcome(STOPS)
    assert (slim(state, config)["last_continuation"] is not None) == is_included
    assert slim(a_state(), config)["last_continuation"] is None


def test_the_current_step_is_included_while_it_is_under_way() -> None:
    """6.2: under its number; its duration is not known yet."""
    step = a_step("", a_failure(a_call()), calls=(a_call("find", "c2"),), number=2)
    state = after_steps(a_step("one")).with_step_started(later(1)).with_current_step(step)
    current = slim(state)["current_step"]
    assert (current["step_number"], current["duration_ms"], current["errors"]) == (2, None, 1)
    assert [entry["step_number"] for entry in slim(state)["steps"]] == [1]


def test_an_entry_of_steps_counts_errors() -> None:
    """6.2."""
    record = after_steps(a_step("", own_errors=(StepError("a"), StepError("b")))).execution.step_executions[0]
    assert slim_step(record)["errors"] == 2


# Messages.


@pytest.mark.parametrize(
    ("limit", "kept"), [(None, ["1", "2", "3"]), (5, ["1", "2", "3"]), (2, ["2", "3"]), (0, []), (-1, [])]
)
def test_the_most_recent_messages_are_kept(limit: int | None, kept: list[str]) -> None:
    """6.3.1."""
    written = slim(a_state("1", "2", "3"), max_messages=limit)["messages"]
    assert [message["content"] for message in written] == kept


def test_missing_fields_of_a_message_are_empty_text_or_the_user() -> None:
    """6.3.1: written and read."""
    assert slim(AgentState.empty().with_messages([{}]))["messages"] == [
        {"role": "user", "content": "", "metadata": {}}
    ]
    assert restore({"messages": [{}]}).messages == (user(""),)


PICTURE = {"type": "image", "url": "x" * 30}


@pytest.mark.parametrize(
    ("content", "limit", "cut_content"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcdef..."),
        ("äöü検索🙂é", 6, "äöü検索🙂..."),
        ("abcdefg", 1, "a..."),
        ("abcdefg", 0, "abcdefg"),
        ("abcdefg", -1, "abcdefg"),
        ("abcdefg", None, "abcdefg"),
        (
            [{"type": "text", "text": "abcdefg"}, PICTURE, "abcdefg", {"text": 5}],
            6,
            [{"type": "text", "text": "abcdef..."}, PICTURE, "abcdefg", {"text": 5}],
        ),
        (
            [{"type": "text", "text": "abc", "cache": True}],
            2,
            [{"type": "text", "text": "ab...", "cache": True}],
        ),
    ],
)
def test_text_is_cut(content: Any, limit: int | None, cut_content: Any) -> None:
    """6.3.2, 0.3: characters, not bytes; of parts the text."""
    message = Message(Role.USER, freeze(content))
    assert slim_message(message, max_content_length=limit)["content"] == cut_content


def test_without_tool_results_their_place_is_marked() -> None:
    """6.3.3: after the cut, so the mark is never cut; ids stay."""
    result = tool_message("secret", "c1", "look")
    left_out = slim_message(result, include_tool_results=False, max_content_length=3)
    assert left_out == {
        "role": "tool",
        "content": "[tool result omitted]",
        "metadata": {"tool_call_id": "c1", "tool_name": "look"},
    }
    assert slim_message(result)["content"] == "secret"
    assert slim_message(assistant("said"), include_tool_results=False)["content"] == "said"


@pytest.mark.parametrize("config", [MINIMAL, STANDARD, FULL, UNLIMITED])
@pytest.mark.parametrize("role", Role)
def test_a_raw_result_is_never_written(config: SlimSerializationConfig, role: Role) -> None:
    """6.3.3."""
    message = Message(role, "text", frozen_map({"result": {"secret": 1}, "tool_name": "look"}))
    assert slim_message(message, config)["metadata"] == {"tool_name": "look"}


@pytest.mark.parametrize("config", [MINIMAL, STANDARD, FULL, UNLIMITED])
def test_data_that_only_a_provider_can_read_are_never_written(config: SlimSerializationConfig) -> None:
    """6.3.6: snapshots are for people; sealed reasoning means nothing to them."""
    message = assistant("said", provider_items=[{"origin": "a model", "items": [{"sealed": "x"}]}])
    assert slim_message(message, config)["metadata"] == {}


@pytest.mark.parametrize(
    ("call", "redacted"),
    [
        (call_entry("c1", "look", {"secret": 1}), {"id": "c1", "name": "look"}),
        ({"id": "c1", "name": "a", "function": {"name": "b"}}, {"id": "c1", "name": "a"}),
        ({"name": "", "function": {"name": "b"}}, {"id": None, "name": "b"}),
        ({"id": None, "function": {}}, {"id": None, "name": "unknown"}),
        ({"id": "c1", "function": None, "args": {"secret": 1}}, {"id": "c1", "name": "unknown"}),
        ({"id": "c1", "function": "secret"}, {"id": "c1", "name": "unknown"}),
        ("secret", {"id": None, "name": "unknown"}),
    ],
)
def test_redacted_calls_show_id_and_name(call: Any, redacted: dict[str, Any]) -> None:
    """6.3.4."""
    message = assistant("", tool_calls=[call])
    assert slim_message(message, MINIMAL)["metadata"] == {"tool_calls": [redacted]}
    assert slim_message(message)["metadata"] == {"tool_calls": [call]}


@pytest.mark.parametrize("odd", ["secret", {"id": "secret"}, 5, None])
def test_calls_that_are_no_list_are_redacted_away(odd: Any) -> None:
    """6.3.4: nothing of them is shown."""
    assert slim_message(assistant("", tool_calls=odd), MINIMAL)["metadata"] == {"tool_calls": []}


def test_without_metadata_a_message_keeps_the_link_between_calls_and_results() -> None:
    """6.3.6."""
    ties = {"tool_calls": [{"id": "c1", "name": "look"}], "tool_call_id": "c1", "tool_name": "look"}
    message = Message(Role.ASSISTANT, "", frozen_map({**ties, "note": "secret"}))
    assert slim_message(message, include_metadata=False)["metadata"] == ties
    assert slim_message(message)["metadata"] == {**ties, "note": "secret"}
    assert slim(a_state().with_metadata("a", 1), include_metadata=False)["metadata"] == {}


# Steps.


@pytest.mark.parametrize(("limit", "numbers"), [(None, [1, 2]), (5, [1, 2]), (1, [2]), (0, []), (-1, [])])
def test_the_last_steps_keep_their_numbers(limit: int | None, numbers: list[int]) -> None:
    """6.3.5: two steps, max_steps 1: one entry with `step_number` 2."""
    state = after_steps(a_step("one"), a_step("two", number=2))
    assert [entry["step_number"] for entry in slim(state, max_steps=limit)["steps"]] == numbers
    assert slim(state, max_steps=limit, include_steps=False)["steps"] == []


# Reading.


def test_a_snapshot_restores_all_but_steps_starts_and_cached_context() -> None:
    """6.3.7."""
    state = replace(a_state("Hello"), parent_agent_id=PARENT).with_metadata("tasks", [1]).entered(AT)
    state = state.with_cached_context(CachedContext((system("Be brief"),)))
    state = after_steps(a_step("Hi", tokens=7, seconds=1.5), state=state)
    state = state.ended(STOPS, ErrorPolicy(), later(1))
    read = restore(slim(state, UNLIMITED))
    assert (read.agent_id, read.parent_agent_id) == (AGENT, PARENT)
    assert (read.status, read.usage, read.metadata) == (AgentStatus.COMPLETED, Usage(input=7), {"tasks": [1]})
    start, end = AT.replace(microsecond=0), later(1).replace(microsecond=0)
    assert read.state_info == StateInfo(AGENT, start, end, 1.5, 1.5)
    assert read.messages == state.messages
    assert (read.step_count, read.steps, read.current_step) == (0, (), None)
    assert read.execution == AgentState.empty().execution
    assert read.execution_started_at is None
    assert read.cached_context.is_empty
    assert read.last_continuation_outcome is None


@pytest.mark.parametrize("execution", [{}, None, {"cumulative_seconds": None}])
def test_seconds_that_are_missing_in_a_snapshot_are_zero(execution: Any) -> None:
    """6.3.7."""
    assert restore({"execution": execution}).state_info == StateInfo()


def test_restored_usage_counts_until_a_new_execution_begins() -> None:
    """6.3.7."""
    limit = TokenUsageLimit(7)
    read = restore(slim(after_steps(a_step("Hi", tokens=7))))
    assert limit.decide(read) == "forbid"
    assert limit.decide(read.with_user_message("Go on")) == "allow"


def test_an_empty_snapshot_is_an_empty_state() -> None:
    """0.6, 6.3.7: and unknown keys are ignored."""
    assert restore({}) == AgentState.empty()
    snapshot = slim(a_state("Hello"))
    later_version = {
        **snapshot,
        "new": [1],
        "execution": {**snapshot["execution"], "new": 1},
        "usage": {**snapshot["usage"], "new": 1},
        "messages": [{**message, "new": 1} for message in snapshot["messages"]],
    }
    assert restore(later_version) == restore(snapshot)


def keeping(state: AgentState) -> AgentState:
    """The part of a state that an unlimited snapshot restores."""
    info = replace(
        state.state_info.add_execution_time(state.facts.seconds_under_way),
        id=state.agent_id,
        started_at=state.state_info.started_at and state.state_info.started_at.replace(microsecond=0),
        updated_at=state.state_info.updated_at and state.state_info.updated_at.replace(microsecond=0),
    )
    said = [replace(m, metadata=frozen_map(without_result(m.metadata))) for m in state.messages]
    kept = replace(AgentState.empty(), agent_id=state.agent_id, parent_agent_id=state.parent_agent_id)
    usage = Usage.from_dict(state.usage.to_wire())
    facts = replace(kept.facts, status=state.status, state_info=info, usage=usage)
    return replace(kept, facts=facts, metadata=state.metadata).with_messages(said)


def without_result(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != "result"}


@given(states())
def test_any_state_fits_into_any_snapshot(state: AgentState) -> None:
    """6.1, 6.2, 6.3.7: and is restored within its limits."""
    for config in (MINIMAL, STANDARD, FULL):
        snapshot = slim(state, config)
        assert len(snapshot["messages"]) <= (config.max_messages or 0)
        assert len(snapshot["steps"]) <= (config.max_steps or 0)
        assert restore(snapshot).agent_id == state.agent_id
    whole = restore(slim(state, UNLIMITED))
    assert whole == keeping(state)
    assert whole.usage.total == state.usage.total


@given(st.lists(messages, max_size=60), st.integers(-1, 5), st.integers(-1, 60))
def test_a_cut_conversation_is_made_of_the_last_messages(
    conversation: list[Message], length: int, count: int
) -> None:
    """6.3.1, 6.3.2: in any script."""
    state = AgentState.empty().with_messages(conversation)
    written = slim(state, max_messages=count, max_content_length=length)["messages"]
    texts = [
        m.content if length <= 0 else truncate(m.content, length)
        for m in conversation
        if isinstance(m.content, str)
    ]
    kept = [entry["content"] for entry in written if isinstance(entry["content"], str)]
    assert kept == texts[len(texts) - len(kept) :]
    assert len(written) == min(len(conversation), max(count, 0))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("text", "must be a map, not str"),
        ({"agent_id": "x"}, "agent_id is 'x'; pass a UUID"),
        ({"agent_id": 5}, "agent_id is 5"),
        ({"status": "asleep"}, "asleep"),
        ({"usage": {"prompt": "many"}}, "prompt is 'many'"),
        ({"usage": 5}, "usage must be a map"),
        ({"execution": [1]}, "execution must be a map"),
        ({"execution": {"started_at": "noon"}}, "started_at is not an ISO 8601 date"),
        ({"execution": {"cumulative_seconds": "x"}}, "could not convert"),
        ({"messages": 5}, "int"),
        ({"metadata": [1]}, "metadata must be a map"),
        ({"metadata": {"a": "\ud800"}}, "half of a surrogate pair"),
        ({"messages": [{"content": "\udfff"}]}, "half of a surrogate pair"),
    ],
)
def test_an_invalid_snapshot_is_refused_in_one_way(data: Any, complaint: str) -> None:
    """6.3.7: with the reason."""
    with pytest.raises(InvalidInput, match=complaint) as refused:
        restore(data)
    assert str(refused.value).startswith("the snapshot cannot be read: ")


# The form to continue from.


def continue_state(state: AgentState) -> AgentState:
    serializer = ContinuationAgentStateSerializer()
    return serializer.deserialize(json.loads(json_text(serializer.serialize(state))))


def test_the_form_to_continue_from() -> None:
    """6.3.8: version, ids, sections and metadata; no usage, no steps."""
    store = MessageStore().with_section("notes", [user("later")]).with_section("messages", [user("Hello")])
    state = replace(a_state(), parent_agent_id=PARENT).with_message_store(store).with_metadata("a", 1)
    state = after_steps(a_step("", tokens=7), state=state)
    assert ContinuationAgentStateSerializer().serialize(state) == {
        "version": 1,
        "agent_id": str(AGENT),
        "parent_agent_id": str(PARENT),
        "message_store": {
            "sections": [
                {"name": "messages", "messages": [{"role": "user", "content": "Hello"}]},
                {"name": "notes", "messages": [{"role": "user", "content": "later"}]},
            ]
        },
        "metadata": {"a": 1},
    }


def test_a_continued_state_is_in_progress_with_nothing_done() -> None:
    """6.3.8."""
    call = a_call("look", "c1", at="x")
    spoken = [
        user("Hello"),
        assistant("", tool_calls=[call_entry("c1", "look", call.args)]),
        Message(
            Role.TOOL, "found", frozen_map({"tool_call_id": "c1", "tool_name": "look", "result": {"n": 1}})
        ),
    ]
    state = after_steps(a_step("", a_success(call), tokens=7), state=a_state(*spoken))
    state = state.ended(STOPS, ErrorPolicy(), later(1))
    read = continue_state(state)
    assert (read.status, read.usage) == (AgentStatus.IN_PROGRESS, Usage())
    assert (read.step_count, read.steps, read.execution_started_at) == (0, (), None)
    assert read.messages == tuple(spoken)
    assert (read.agent_id, read.metadata) == (AGENT, {})


def test_every_section_keeps_fifty_messages_of_two_thousand_characters() -> None:
    """6.3.8, 6.3.2."""
    long = [user(f"{number:02}" + "é" * 1999) for number in range(51)]
    parts = Message(Role.TOOL, freeze([{"type": "text", "text": "é" * 2001}]))
    store = MessageStore().with_section("messages", long).with_section("notes", [*long, parts])
    read = continue_state(a_state().with_message_store(store))
    kept = read.messages
    assert len(kept) == len(read.message_store.section("notes")) == 50
    assert kept[0].content == "01" + "é" * 1998 + "..."
    assert read.message_store.section("notes")[-1].text == "é" * 2000 + "..."


def test_empty_messages_take_no_place() -> None:
    """5.1.2, 6.3.8."""
    read = continue_state(a_state(user("first"), *[user("")] * 50))
    assert read.messages == (user("first"),)


def test_flat_messages_are_continued_from() -> None:
    """6.3.8, 0.6: unknown keys are ignored."""
    read = ContinuationAgentStateSerializer().deserialize(
        {"messages": [{"role": "user", "content": "Hi", "new": 1}], "new": 1}
    )
    assert read == AgentState.empty().with_messages("Hi")


@given(states())
def test_any_state_is_continued_from(state: AgentState) -> None:
    """6.3.8: with its conversations, metadata and ids."""
    read = continue_state(state)
    assert (read.agent_id, read.parent_agent_id) == (state.agent_id, state.parent_agent_id)
    assert read.metadata == state.metadata
    assert [name for name, _ in read.message_store.sections] == [n for n, _ in state.message_store.sections]
    for name, spoken in state.message_store.sections:
        assert read.message_store.section(name) == tuple(m for m in spoken if not m.is_empty)


@given(conversations)
def test_continuing_twice_is_continuing_once(conversation: list[Message]) -> None:
    """6.3.8."""
    once = continue_state(AgentState.empty().with_messages(conversation))
    assert continue_state(once) == once


NOT_TO_CONTINUE_FROM: list[tuple[Any, str]] = [
    (None, "must be a map, not NoneType"),
    ({"version": 2}, "its version is 2; this one reads 1"),
    ({"agent_id": "x"}, "agent_id is 'x'; pass a UUID"),
    ({"message_store": {"sections": [{}]}}, "name"),
    ({"messages": [{"content": 5}]}, "message content must be text or a list of parts"),
    ({"metadata": {"a": "\ud800"}}, "half of a surrogate pair"),
]


@pytest.mark.parametrize(("data", "complaint"), NOT_TO_CONTINUE_FROM)
def test_invalid_input_is_refused_in_one_way(data: Any, complaint: str) -> None:
    """6.3.8: with the reason."""
    with pytest.raises(InvalidInput, match=complaint) as refused:
        ContinuationAgentStateSerializer().deserialize(data)
    assert str(refused.value).startswith("the continuation state cannot be read: ")


def test_snapshots_can_hold_any_content_of_a_state() -> None:
    """6.3.7, 6.3.8: also the deepest permitted nesting."""
    deep: Any = []
    for _ in range(MAX_DEPTH - 2):
        deep = [deep]
    state = a_state(Message(Role.USER, "Hi", frozen_map({"deep": deep}))).with_metadata("deep", deep)
    assert restore(slim(state, UNLIMITED)).metadata == state.metadata
    assert continue_state(state).messages == state.messages
