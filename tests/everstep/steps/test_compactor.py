"""Compaction of the requests of a step, in runs of this process."""

from itertools import pairwise
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from everstep import (
    AgentBuilder,
    AgentHook,
    AgentState,
    Attachment,
    Compaction,
    CompactionPolicy,
    ContextTooLong,
    ExecutionPlan,
    ReActDriver,
    ToolCallingDriver,
)
from everstep.agent_domain.agents.token_counting import ContextWindow
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.compaction_planning import OBSERVATION, transcript_of
from everstep.agent_domain.messages.messages import Message, Role, assistant, call_entry, tool_message, user
from everstep.agent_domain.state.events import ConversationCompacted, Event
from everstep.agent_domain.testing import MockTool, calls, says
from everstep.agent_domain.values import freeze, json_text
from everstep.local.clock import SystemClock
from everstep.local.inquiry import LocalInquiry, local_model_retry
from everstep.local.local_agent import Agent
from everstep.steps.compactor import Compactor
from tests.agent_domain.test_media_types import PNG
from tests.compaction import NarrowModel, is_for_summary, texts

WINDOW = ContextWindow(1000, 200)
WORDS = "some words to fill the window " * 10


def an_agent(model: Any, *tools: MockTool, **compaction: Any) -> Agent:
    builder = AgentBuilder.base().with_max_tokens(10**9).with_max_steps(200).with_model(model)
    return builder.with_system_prompt("Be brief").with_tools(tools).with_compaction(**compaction).build()


def seen(n: int) -> str:
    return f"{n} seen. " * 150


def talk(agent: Agent, *messages: str, state: AgentState | None = None) -> AgentState:
    state = state or AgentState.empty()
    for message in messages:
        state = agent.run(state.with_user_message(message))
    return state


def numbered(count: int) -> list[str]:
    return [f"Message {number}: {WORDS}" for number in range(count)]


def compactions(agent: Agent) -> list[ConversationCompacted]:
    found: list[ConversationCompacted] = []

    def listen(event: Event) -> None:
        if isinstance(event, ConversationCompacted):
            found.append(event)

    agent.wiretap(listen)
    return found


# The property.

TEXTS = st.text('ab c\n1"é世', max_size=600) | st.integers(0, 900).map(lambda count: "word " * count)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Messages of users and answers with any number of calls; some as ReAct writes them."""
    said: list[Message] = []
    for number in range(draw(st.integers(1, 25))):
        said.append(user(f"{number} {draw(TEXTS)}"))
        for turn in range(draw(st.integers(0, 3))):
            ids = [f"call-{number}-{turn}-{each}" for each in range(draw(st.integers(1, 3)))]
            entries = [call_entry(each, "look", {"what": draw(TEXTS)[:300]}) for each in ids]
            said.append(assistant(draw(TEXTS)[:100], tool_calls=entries))
            said.extend(tool_message(draw(TEXTS), each, "look") for each in ids)
        if draw(st.booleans()):
            said.extend([assistant("Thought: look\nAction: look"), user(f"{OBSERVATION}{draw(TEXTS)}")])
        said.append(assistant(draw(TEXTS)))
    return said


@given(
    conversations(),
    st.integers(1000, 4000),
    st.lists(st.integers(0, 600), min_size=1, max_size=4),
    st.text("summary ", max_size=900),
)
def test_no_request_of_a_long_conversation_exceeds_the_window(
    said: list[Message], window: int, lengths: list[int], summary: str
) -> None:
    """14.4, 14.5: each call is followed by its result, the order is kept, and the log is unchanged."""
    model = NarrowModel(window=ContextWindow(window, 200), summary=summary)
    agent = an_agent(model)
    state = AgentState.empty().with_messages(said)
    for number, length in enumerate(lengths):
        before = state.messages
        state = agent.run(state.with_user_message(f"Next {number} {'a' * length}"))
        # The model itself checks the size and the calls of each request.
        assert state.status is AgentStatus.COMPLETED
        assert state.messages[: len(before)] == before
        sent = texts(model.requests[-1].messages)
        assert sent[0] == "Be brief"
        assert sent[-1] == f"Next {number} {'a' * length}"
        whole = [message.text for message in state.messages[:-1]]
        kept = [text for text in sent if text in whole]
        places = [whole.index(text) for text in dict.fromkeys(kept) if whole.count(text) == 1]
        assert places == sorted(places)


# What is removed.


def test_a_long_conversation_is_summarized_and_stays_whole() -> None:
    """14.4"""
    model = NarrowModel(window=WINDOW)
    agent = an_agent(model)
    found = compactions(agent)
    state = talk(agent, *numbered(10))
    assert len(state.messages) == 20
    assert [message.text for message in state.messages if message.is_user] == numbered(10)
    first = found[0]
    assert (first.step_number, first.results) == (1, 0)
    assert first.tokens_after <= WINDOW.input_tokens // 2 < first.tokens_before
    sent = model.requests[-1].messages
    assert "They talked." in sent[1].text
    assert sent[1].text.startswith("<conversation-summary>")
    assert "Message 0" in model.summaries[0].messages[1].text


def test_old_results_are_cut_before_anything_is_summarized() -> None:
    """14.4"""
    look = MockTool("look", handler=seen)
    script = [calls(("look", {"n": n})) for n in range(4)]
    model = NarrowModel(*script, "done", window=ContextWindow(4200, 200))
    agent = an_agent(model, look)
    found = compactions(agent)
    state = talk(agent, "Look four times")
    assert state.final_response == "done"
    assert not model.summaries
    assert (found[0].messages, found[0].results) == (0, 3)
    results = [message.text for message in model.requests[-1].messages if message.is_tool]
    assert results[0] == "[This old result of 1200 characters was removed]"
    assert results[-1].startswith("3 seen.")
    assert all(len(message.text) == 1200 for message in state.messages if message.is_tool)


def test_a_result_that_fits_nowhere_loses_its_middle() -> None:
    """14.4"""
    read = MockTool("read", handler=lambda: "begin " + "x" * 60_000 + " end")
    model = NarrowModel(calls(("read", {})), "done", window=ContextWindow(3000, 200))
    state = talk(an_agent(model, read), "Read it")
    assert state.final_response == "done"
    sent = model.requests[-1].messages[-1].text
    assert sent.startswith("begin x")
    assert sent.endswith("x end")
    assert "characters were removed here" in sent
    assert len(state.messages[2].text) == 60_010


def test_a_compacted_conversation_is_not_summarized_again() -> None:
    """14.6: later requests begin with the same bytes, and a further summary follows the first."""
    model = NarrowModel(window=WINDOW)
    agent = an_agent(model)
    state = talk(agent, *numbered(6))
    count = len(model.summaries)
    state = talk(agent, "And now?", state=state)
    assert len(model.summaries) == count > 0
    earlier = model.requests[-1].messages
    model.summary = "They talked more."
    state = talk(agent, *numbered(4), state=state)
    assert model.requests[-1].messages[:2] == earlier[:2]
    assert "They talked more." in model.requests[-1].messages[2].text
    assert "Message 0" not in model.summaries[-1].messages[1].text.partition("The messages after it")[0]
    restored = AgentState.from_dict(state.to_dict())
    count = len(model.summaries)
    talk(agent, "Hello again", state=restored)
    assert len(model.summaries) == count
    assert model.requests[-1].messages[:3] == model.requests[-2].messages[:3]


def test_summaries_are_joined_when_they_become_too_long() -> None:
    """14.6"""
    model = NarrowModel(window=WINDOW, summary="a fact of some length " * 40)
    state = talk(an_agent(model), *numbered(30))
    assert state.message_store.compaction is not None
    assert len(state.message_store.compaction.summaries) <= 3
    assert any("a fact of" in request.messages[1].text for request in model.summaries)


def test_the_summary_is_written_by_the_named_model_in_pieces_that_fit_it() -> None:
    """14.5"""
    own, small = NarrowModel(window=WINDOW), NarrowModel(window=ContextWindow(900, 100), summary="Short.")
    builder = AgentBuilder.base().with_max_tokens(10**9).with_model("large")
    presets = {"large": own, "small": small}
    agent = builder.with_compaction(model="small").build(models=lambda choice: presets[str(choice)])
    talk(agent, *numbered(6))
    assert not own.summaries
    assert len(small.summaries) > 1
    assert "Short." in small.summaries[1].messages[1].text
    assert "Short." in own.requests[-1].messages[0].text


@pytest.mark.parametrize(("hidden", "is_written"), [(600, True), (100, False)])
def test_a_summary_is_asked_in_smaller_pieces_if_one_is_refused(hidden: int, is_written: bool) -> None:
    """14.5"""
    own, small = NarrowModel(window=ContextWindow(2000, 200)), NarrowModel(hidden=hidden, summary="Short.")
    presets = {"large": own, "small": small}
    builder = AgentBuilder.base().with_max_tokens(10**9).with_model("large")
    agent = builder.with_compaction(model="small").build(models=lambda choice: presets[str(choice)])
    talk(agent, *numbered(12))
    assert small.refused > 0
    assert bool(small.summaries) is is_written
    sent = own.requests[-1].messages[0].text
    assert ("Short." in sent) is is_written
    assert ("The user wrote:" in sent) is not is_written


def test_secrets_do_not_reach_a_summary_and_an_empty_one_is_replaced() -> None:
    """14.5"""
    model = NarrowModel(window=WINDOW, summary="The key is sk-abcdefghijklmnop1234.")
    talk(an_agent(model), *numbered(6))
    assert "The key is [redacted]." in model.requests[-1].messages[1].text
    model = NarrowModel(window=WINDOW, summary=" ")
    talk(an_agent(model), *numbered(6))
    assert "(The model gave no summary. The user wrote:)\nMessage 0" in model.requests[-1].messages[1].text


def test_the_usage_of_a_summary_counts_and_steps_do_not() -> None:
    """14.5"""
    model = NarrowModel(window=WINDOW)
    state = talk(an_agent(model), *numbered(6))
    assert (state.usage, state.step_count) == (Usage(80, 4), 1)


# When.


def test_usage_that_a_provider_reported_replaces_the_estimate() -> None:
    """14.4: the estimate of English is high, and a counted conversation is not compacted early."""

    def answer(request: InferenceRequest) -> Any:
        return calls(("look", {}), usage=Usage(sum(len(m.text) for m in request.messages) // 5, 1))

    model = NarrowModel(*[answer] * 4, "done", window=ContextWindow(5600, 200))
    talk(an_agent(model, MockTool("look", handler=lambda: "plain English words " * 120)), "Go")
    assert len(model.requests) == 5
    assert not any(m.is_tool and "removed" in m.text for m in model.requests[-1].messages)


def test_a_provider_that_refuses_a_request_as_too_long_receives_a_shorter_one() -> None:
    """14.7"""
    model = NarrowModel(hidden=1200)
    state = talk(an_agent(model), *numbered(12))
    assert model.refused == 1
    assert state.status is AgentStatus.COMPLETED
    assert model.summaries


@pytest.mark.parametrize("enabled", [True, False])
def test_a_message_that_is_too_long_ends_its_execution_and_no_other(enabled: bool) -> None:
    """14.8"""
    model = NarrowModel(window=WINDOW if enabled else None, hidden=None if enabled else 1400)
    agent = an_agent(model, enabled=enabled)
    state = talk(agent, "word " * 5000)
    assert state.status is AgentStatus.FAILED
    assert not model.requests
    message = state.error_context.message or ""
    if enabled:
        assert message.startswith("The message is too long for the model: it has about 10008 tokens")
        assert "Send a shorter one" in message
        state = talk(agent, "And now?", state=state)
        assert state.final_response == "ok"


def test_too_many_tools_are_named_as_the_reason() -> None:
    """14.8"""
    tools = [MockTool(f"tool{number}", "What it does, in many words " * 10) for number in range(20)]
    state = talk(an_agent(NarrowModel(window=WINDOW), *tools), "Hello")
    assert "The agent's prompt and tools have about" in (state.error_context.message or "")


def test_without_compaction_or_window_nothing_is_removed() -> None:
    """14.4"""
    for model, enabled in ((NarrowModel(window=WINDOW), False), (NarrowModel(), True)):
        model.window = None if enabled else model.window
        state = AgentState.empty()
        agent = an_agent(model, enabled=enabled)
        if not enabled:
            model.window = None
        state = talk(agent, *numbered(8))
        assert len(model.requests[-1].messages) == 1 + 15
        assert state.message_store.compaction is None
    assert AgentBuilder.new().with_model(NarrowModel()).definition().base_plan.compaction is None


def test_an_agent_without_compaction_reads_all_that_another_compacted() -> None:
    """14.4"""
    state = talk(an_agent(NarrowModel(window=WINDOW)), *numbered(6))
    assert state.message_store.compaction
    model = NarrowModel()
    talk(an_agent(model, enabled=False), "And now?", state=state)
    assert len(model.requests[-1].messages) == 1 + 13


def test_images_are_named_and_not_quoted_in_what_is_summarized() -> None:
    """14.5"""
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 500}"}}
    message = Message(Role.USER, freeze([{"type": "text", "text": "Look at this"}, picture]))
    assert transcript_of([message]) == ["[user] Look at this\n(here was a part of type image_url)"]


def test_models_without_tool_calls_are_compacted_too() -> None:
    """14.4: with the instructions of the driver, and each action before its observation."""
    looks = json_text({"thought": "I look", "type": "call_tool", "tool": "look", "args": {}})
    done = json_text({"thought": "Done", "type": "final_answer", "answer": "All seen"})
    model = NarrowModel(*[looks] * 6, done, window=ContextWindow(4000, 200))
    builder = (
        AgentBuilder.base().with_max_tokens(10**9).with_tools([MockTool("look", handler=lambda: seen(1))])
    )
    agent = builder.with_driver(ReActDriver(model)).build()
    found = compactions(agent)
    state = talk(agent, "Look six times")
    assert state.final_response == "All seen"
    assert found
    sent = texts(model.requests[-1].messages)
    assert f"{OBSERVATION}[This old result of 1215 characters was removed]" in sent
    assert all(
        later.startswith(OBSERVATION) for text, later in pairwise(sent) if text.startswith("Thought: I look")
    )


async def test_attached_files_are_measured_by_their_content() -> None:
    """14.4: a reference alone says how many bytes the file has."""
    attachment = Attachment.from_bytes("notes.txt", b"plain words " * 100)
    sent = Message.from_dict(Message.user("Read this", attachments=[attachment]).to_dict())
    state = AgentState.empty().with_messages([sent]).identified(UUID(int=1), UUID(int=2))
    driver = ToolCallingDriver(NarrowModel(window=ContextWindow(1000, 200)))
    plain = LocalInquiry(lambda _choice: NarrowModel(), local_model_retry(ExecutionPlan(), SystemClock()))

    async def record(compaction: Compaction) -> Compaction:
        return compaction

    compactor = Compactor(
        CompactionPolicy(), plain, lambda _choice: None, record, redact=str, seconds=monotonic
    )
    with pytest.raises(ContextTooLong, match="it has about 1362 tokens"):
        await compactor.fit(state, driver)
    compactor.files = {str(attachment.id): b"plain words " * 100}
    assert await compactor.fit(state, driver) is state
    assert transcript_of([sent]) == ["[user] Read this\n(attached: notes.txt (text/plain, 1.2 KB))"]


def test_a_failing_summary_is_the_failure_of_the_step() -> None:
    """14.5"""

    def refuse(request: InferenceRequest) -> Any:
        assert not is_for_summary(request)
        return says("ok")

    class Refusing(NarrowModel):
        async def respond(self, request: InferenceRequest, on_text: Any) -> Any:
            if is_for_summary(request):
                raise ModelError("no summary today")
            return await super().respond(request, on_text)

    state = talk(an_agent(Refusing(refuse, window=WINDOW)), *numbered(6))
    assert (state.status, state.error_context.message) == (AgentStatus.FAILED, "no summary today")


# Conversations that change.


def test_messages_that_a_hook_puts_before_the_conversation_are_sent() -> None:
    """14.6"""

    class Dated(AgentHook):
        count = 0

        def before_step(self, state: AgentState) -> AgentState:
            self.count += 1
            return state.with_messages((user(f"It is day {self.count}"), *state.messages))

    model = NarrowModel(window=WINDOW)
    builder = AgentBuilder.base().with_max_tokens(10**9).with_model(model).add_hook(Dated())
    talk(builder.build(), *numbered(9))
    assert model.summaries
    assert model.requests[-1].messages[0].text == "It is day 9"


def test_instructions_at_the_beginning_of_the_conversation_stay() -> None:
    """14.6"""
    model = NarrowModel(window=WINDOW)
    agent = AgentBuilder.base().with_max_tokens(10**9).with_model(model).build()
    rules = [Message(Role.SYSTEM, "You are a clerk"), Message(Role.DEVELOPER, "Be brief")]
    state = talk(agent, *numbered(12), state=AgentState.empty().with_messages(rules))
    assert state.message_store.compaction
    assert len(model.summaries) > 1
    sent = texts(model.requests[-1].messages)
    assert sent[:2] == ["You are a clerk", "Be brief"]
    assert sent[2].startswith("<conversation-summary>")
    assert all("You are a clerk" not in request.messages[1].text for request in model.summaries)


def test_a_conversation_that_is_replaced_is_sent_as_it_is() -> None:
    """14.6"""
    model = NarrowModel(window=WINDOW)
    agent = an_agent(model)
    state = talk(agent, *numbered(6))
    talk(agent, "Hello", state=state.with_messages([user("Another conversation")]))
    assert texts(model.requests[-1].messages) == ["Be brief", "Another conversation", "Hello"]


def test_images_that_the_model_does_not_read_do_not_fill_its_window() -> None:
    """14.1, 14.4: five images in words are short, as images they would not fit."""
    images = [Attachment.from_bytes(f"{number}.png", PNG) for number in range(5)]
    blind, seeing = NarrowModel(window=WINDOW), NarrowModel(window=WINDOW)
    blind.readable_files = ()

    seen = an_agent(blind).run(Message.user("Look", attachments=images))
    unseen = an_agent(seeing).run(Message.user("Look", attachments=images))

    assert (seen.status, len(blind.requests)) == (AgentStatus.COMPLETED, 1)
    assert seen.message_store.compaction is None
    assert unseen.status is AgentStatus.FAILED
