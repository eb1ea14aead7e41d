"""The contract of every model: with our server, a third-party server, or a script."""

import pytest

from everstep.agent_domain.errors import RETRYABLE, ModelError, ModelTimeout, ModelUnavailable, RateLimited
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map
from tests.everstep.inference.asking import CLOCK, WEATHER, ChunkRecorder, a_request, ask, with_results
from tests.everstep.inference.counterparts import ModelServer, ReceivedMessage
from tests.everstep.inference.dialects import Answer, Call, answer_with_calls

GREETING = Answer(("Hello ", "there, ", "how are ", "you?"))
PARIS = Call("call_1", "weather", ('{"ci', 'ty":"Par', 'is"}'))
TIME = Call("call_2", "clock", ("{}",))


async def test_the_text_is_streamed_in_chunks_and_returned_whole(counterpart: ModelServer) -> None:
    await counterpart.script_answers(GREETING)
    heard = ChunkRecorder()

    response = await counterpart.model().respond(a_request("Hello"), heard)

    assert response.text == heard.text == "Hello there, how are you?"
    assert len(heard) > 1
    assert response.tool_calls == ()


async def test_calls_arrive_with_their_arguments_and_the_text_beside_them(counterpart: ModelServer) -> None:
    """5.5.1: only text is streamed, never arguments."""
    await counterpart.script_answers(answer_with_calls(PARIS, TIME, text=("Let me ", "look.")))
    heard = ChunkRecorder()

    response = await counterpart.model().respond(a_request("Paris?", tools=(WEATHER, CLOCK)), heard)

    assert response.tool_calls == (
        ToolCall("call_1", "weather", frozen_map({"city": "Paris"})),
        ToolCall("call_2", "clock"),
    )
    assert response.finish_reason == "tool_calls"
    assert response.text == heard.text == "Let me look."


async def test_a_call_needs_no_text(counterpart: ModelServer) -> None:
    """5.5.1: without content there is empty text."""
    await counterpart.script_answers(answer_with_calls(PARIS))
    heard = ChunkRecorder()

    response = await counterpart.model().respond(a_request("Paris?", tools=(WEATHER,)), heard)

    assert [call.name for call in response.tool_calls] == ["weather"]
    assert response.text == ""
    assert heard == []


async def test_usage_is_counted(counterpart: ModelServer) -> None:
    """4.2.1"""
    await counterpart.script_answers(Answer(("Hello",), usage=Usage(input=31, output=17)))

    response = await ask(counterpart.model(), "Hello")

    assert response.usage == Usage(input=31, output=17)


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
async def test_the_stop_reason_is_mapped_to_ours(counterpart: ModelServer, finish: str) -> None:
    """5.3.1"""
    if not counterpart.supports_finish(finish):
        finish = "stop"
    await counterpart.script_answers(Answer(("Hel",), finish=finish))

    response = await ask(counterpart.model(), "Hello")

    assert response.finish_reason == finish


async def test_the_server_receives_the_conversation(counterpart: ModelServer) -> None:
    """5.2.3: cached messages, then the conversation with its calls and their results."""
    await counterpart.script_answers(
        answer_with_calls(PARIS, TIME, text=("Let me look.",)), Answer(("Sunny",))
    )
    model = counterpart.model()
    question = user("How is Paris?")

    first = await ask(model, question, system="Be brief", tools=(WEATHER, CLOCK))
    results = with_results(first, "sunny", "noon")
    second = await ask(model, question, *results, system="Be brief", tools=(WEATHER, CLOCK))

    assert second.text == "Sunny"
    assert (await counterpart.received_conversations())[-1] == [
        ReceivedMessage("system", "Be brief"),
        ReceivedMessage("user", "How is Paris?"),
        ReceivedMessage(
            "assistant",
            "Let me look.",
            (("call_1", "weather", '{"city":"Paris"}'), ("call_2", "clock", "{}")),
        ),
        ReceivedMessage("tool", "sunny", answers="call_1"),
        ReceivedMessage("tool", "noon", answers="call_2"),
    ]


async def test_a_rate_limit_has_its_delay(counterpart: ModelServer) -> None:
    """3.5.1: and the client does not retry by itself."""
    await counterpart.script_error(429, "Too fast", retry_after=7)
    model, heard = counterpart.model(), ChunkRecorder()

    with pytest.raises(RateLimited, match="Too fast") as refused:
        await model.respond(a_request("Hello"), heard)

    assert refused.value.retry_after == 7
    assert heard == []
    assert len(await counterpart.received_conversations()) == 1


async def test_an_outage_is_retryable(counterpart: ModelServer) -> None:
    """3.5.1: and the client does not retry by itself."""
    await counterpart.script_error(503, "Down")
    model = counterpart.model()

    with pytest.raises(ModelUnavailable, match="Down"):
        await ask(model, "Hello")

    assert len(await counterpart.received_conversations()) == 1


async def test_a_refused_request_is_not_retryable(counterpart: ModelServer) -> None:
    """3.5.2"""
    await counterpart.script_error(400, "No such parameter")

    with pytest.raises(ModelError, match="No such parameter") as refused:
        await ask(counterpart.model(), "Hello")

    assert not isinstance(refused.value, RETRYABLE)


async def test_a_response_that_breaks_off_is_not_used(counterpart: ModelServer) -> None:
    """3.5.1"""
    await counterpart.script_break(GREETING)
    heard = ChunkRecorder()

    with pytest.raises(ModelUnavailable):
        await counterpart.model().respond(a_request("Hello"), heard)

    assert "Hello there, how are you?".startswith(heard.text)


async def test_silence_is_a_timeout(counterpart: ModelServer) -> None:
    """3.5.1"""
    await counterpart.script_delay(GREETING)

    with pytest.raises(ModelTimeout):
        await ask(counterpart.model(timeout_seconds=0.2), "Hello")
