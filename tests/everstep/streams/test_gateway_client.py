"""The events that a client gets when its connection is cut."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, strategies as st
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.stream.reader import Place, Position
from everstep.streams.backoff import MAX_REQUESTED_DELAY, Backoff, ClientTimings
from everstep.streams.client_events import Happened, Reload, StreamEvent, StreamRefused, Wrote
from everstep.streams.connection import socket_url
from everstep.streams.gateway_client import MAX_GARBLED, Stream, stream
from tests.everstep.streams.scripted import (
    QUICK,
    TOKEN,
    Fault,
    ScriptedExecution,
    ScriptedGateway,
    a_scripted_execution,
)

ALL = Position()
NOT_YET = 3
"""The parts of a tale: it has begun, and so has its first step, with a chunk of text."""


def stream_of(gateway: ScriptedGateway, since: Position | None = ALL, **given: Any) -> Stream:
    return Stream(gateway.url, gateway.tale.channel, TOKEN, since, **{"pace": QUICK, **given})


async def collect(news: Stream, tale: ScriptedExecution) -> list[StreamEvent]:
    heard = list[StreamEvent]()
    async with asyncio.timeout(30), aclosing(news):
        async for event in news.until_end(tale.execution_id):
            heard.append(event)
            if isinstance(event, Reload) and event.seq == tale.seq:
                # It has ended before, as a client finds that loads it.
                break
    return heard


def seqs_of(news: list[StreamEvent]) -> list[int | None]:
    return [event.envelope.seq for event in news if isinstance(event, Happened)]


def texts_of(news: list[StreamEvent]) -> list[tuple[str, str]]:
    return [(event.text, event.new) for event in news if isinstance(event, Wrote)]


async def test_all_events_arrive_in_order_and_text_as_it_is_written() -> None:
    """7.8.1"""
    async with ScriptedGateway(a_scripted_execution(["Let me", " see"], ["Done"])).open() as gateway:
        news = stream_of(gateway)
        heard = await collect(news, gateway.tale)

    assert [event.envelope for event in heard if isinstance(event, Happened)] == gateway.tale.stored_envelopes
    assert texts_of(heard) == [
        ("Let me", "Let me"),
        ("Let me see", " see"),
        ("Let me see", ""),
        ("Done", "Done"),
        ("Done", ""),
    ]
    assert [event.is_complete for event in heard if isinstance(event, Wrote)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert news.position == Position(gateway.tale.seq, "first")


async def test_without_a_position_events_arrive_from_now_on() -> None:
    async with ScriptedGateway(a_scripted_execution(["Hm"]), at=NOT_YET).open() as gateway:
        heard = await collect(stream_of(gateway, None), gateway.tale)

    assert seqs_of(heard) == [3, 4]
    # The current text is sent whole.
    assert texts_of(heard) == [("Hm", "Hm"), ("Hm", "")]
    assert "since" not in gateway.received[1]


async def test_another_client_continues_from_a_position() -> None:
    async with ScriptedGateway(a_scripted_execution(["a", "b", "c"], ["d"]), until=4).open() as gateway:
        async with aclosing(stream_of(gateway)) as first:
            async for event in first:
                if event == Wrote(gateway.tale.execution_id, 1, 1, "ab", "b"):
                    break
        position = Position.from_dict(json.loads(json.dumps(first.position and first.position.to_dict())))
        gateway.publish_until()
        heard = await collect(stream_of(gateway, position), gateway.tale)

    assert position == Position(2, "first", {gateway.tale.execution_id: Place(1, 1, 2)})
    assert seqs_of(heard) == [3, 4, 5, 6]
    assert texts_of(heard)[:2] == [("ab", "ab"), ("abc", "c")]


async def test_a_later_attempt_replaces_the_text() -> None:
    """7.8.4"""
    twice = ScriptedExecution()
    twice.append_step(1, ["I thi"], ["Perhaps", " so"])
    async with ScriptedGateway(twice.append_end()).open() as gateway:
        heard = await collect(stream_of(gateway), twice)

    assert texts_of(heard) == [("I thi", "I thi"), ("Perhaps", ""), ("Perhaps so", " so"), ("Perhaps so", "")]


# Network faults.


@given(
    faults=st.lists(st.sampled_from(list(Fault)), max_size=40).filter(
        lambda faults: faults.count(Fault.GARBAGE) < MAX_GARBLED
    ),
    texts=st.lists(
        st.lists(st.lists(st.text("ab é", min_size=1), max_size=4), min_size=1, max_size=3), max_size=3
    ),
)
def test_after_any_cut_the_log_is_complete_and_the_text_is_the_stored_one(
    faults: list[Fault], texts: list[list[list[str]]]
) -> None:
    """7.8.1, 7.8.4"""
    story = ScriptedExecution()
    story.append_status(WireStatus.PROCESSING, WireStatus.IDLE)
    for number, attempts in enumerate(texts, 1):
        story.append_step(number, *attempts)

    async def collect_all() -> list[StreamEvent]:
        async with ScriptedGateway(story.append_end(), iter(faults)).open() as gateway:
            return await collect(stream_of(gateway), story)

    known: list[int | None] = []
    shown = dict[tuple[int, int], str]()
    for event in asyncio.run(collect_all()):
        match event:
            case Happened(envelope):
                known.append(envelope.seq)
            case Reload(seq=seq):
                # As the API would return it.
                known = [*range(1, seq + 1)]
                shown.clear()
            case Wrote(step_number=step, attempt=attempt, text=text, new=new):
                before = shown.get((step, attempt), "")
                assert text == (before + new if new or text == before else text)
                shown[step, attempt] = text
                assert "".join(texts[step - 1][attempt - 1]).startswith(text)
                if event.is_complete:
                    assert text == story.texts[step]
    assert known == [envelope.seq for envelope in story.stored_envelopes]
    if not faults:
        assert {
            (step, len(texts[step - 1])): text for step, text in story.texts.items()
        }.items() <= shown.items()


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CRASH, Fault.BYE, Fault.CLOSE, Fault.GARBAGE])
async def test_a_lost_connection_is_reopened_from_the_position(fault: Fault) -> None:
    faults = iter([Fault.NONE, Fault.NONE, Fault.NONE, fault])
    async with ScriptedGateway(a_scripted_execution(["a", "b"]), faults).open() as gateway:
        heard = await collect(stream_of(gateway), gateway.tale)

    assert seqs_of(heard) == [1, 2, 3, 4]
    assert [text for text, new in texts_of(heard) if new][-1] == "ab"
    asked = [frame["since"] for frame in gateway.received if frame["type"] == "sub"]
    assert len(asked) == gateway.connections == 2
    assert asked[0] == {"epoch": None, "seq": 0}
    assert asked[1]["epoch"] == "first"
    assert asked[1]["seq"] == 2
    assert asked[1]["drafts"][0]["next_index"] in (1, 2)


async def test_a_gap_is_requested_over_the_same_connection() -> None:
    faults = iter([Fault.NONE, Fault.DROP])
    async with ScriptedGateway(a_scripted_execution(["a", "b"]), faults).open() as gateway:
        heard = await collect(stream_of(gateway), gateway.tale)

    assert seqs_of(heard) == [1, 2, 3, 4]
    assert gateway.connections == 1
    assert [frame["type"] for frame in gateway.received] == ["hello", "sub", "sub"]


async def test_a_permanent_gap_is_requested_with_backoff() -> None:
    pauses = Backoff(ClientTimings(first_delay=1.0, max_delay=4.0))

    drawn = [pauses.next_delay() for _ in range(6)]

    assert all(top / 2 <= pause <= top for top, pause in zip([1, 2, 4, 4, 4, 4], drawn, strict=True))
    pauses.reset()
    assert pauses.next_delay() <= 1


def test_an_invited_client_reconnects_at_once_but_not_repeatedly() -> None:
    pauses = Backoff(ClientTimings(first_delay=1.0, max_delay=4.0))

    assert pauses.next_delay(0.0) == 0.0
    assert pauses.next_delay(0.0) >= 1.0
    assert pauses.next_delay(1e9) == MAX_REQUESTED_DELAY


async def test_after_an_epoch_change_everything_is_loaded_again() -> None:
    """7.8.4"""
    faults = iter([*[Fault.NONE] * 4, Fault.FORGET])
    async with ScriptedGateway(a_scripted_execution(["a", "b"]), faults).open() as gateway:
        heard = await collect(stream_of(gateway), gateway.tale)

    at = heard.index(Reload("first'", 2))
    assert seqs_of(heard[:at]) == [1, 2]
    assert seqs_of(heard[at:]) == [3, 4]
    # The text as well.
    assert texts_of(heard[at:])[0] == ("ab", "ab")


async def test_silence_counts_as_a_lost_connection() -> None:
    class SilentGateway(ScriptedGateway):
        async def serve_connection(self, socket: ServerConnection) -> None:
            if self.connections > 1:
                await super().serve_connection(socket)
                return
            await socket.recv()
            await socket.send('{"type": "welcome", "ping_after": 0.01}')
            async for text in socket:
                self.received.append(json.loads(text))

    async with SilentGateway(a_scripted_execution(["a"])).open() as gateway:
        pace = ClientTimings(first_delay=0.001, max_delay=0.01, reply_timeout=0.3)
        heard = await collect(stream_of(gateway, pace=pace), gateway.tale)

    assert seqs_of(heard) == [1, 2, 3, 4]
    assert {"type": "ping"} in gateway.received


async def test_an_idle_client_sends_pings_and_stays_connected() -> None:
    pinged = asyncio.Event()

    class PatientGateway(ScriptedGateway):
        async def on_ping(self, socket: ServerConnection) -> None:
            await super().on_ping(socket)
            if self.received.count({"type": "ping"}) == 5:
                pinged.set()

    async with PatientGateway(a_scripted_execution(["a"]), until=NOT_YET, ping_after=0.01).open() as gateway:
        watcher = asyncio.create_task(collect(stream_of(gateway), gateway.tale))
        async with asyncio.timeout(10):
            await pinged.wait()
        gateway.publish_until()
        await watcher

    assert gateway.connections == 1


async def test_nothing_is_read_ahead_of_a_busy_consumer() -> None:
    """7.8.2"""
    long = a_scripted_execution(*[["x" * 100_000]] * 400)
    async with ScriptedGateway(long).open() as gateway, aclosing(stream_of(gateway)) as news:
        await anext(news)
        before = -1
        while gateway.at != before:
            # Until the buffers between the two are full.
            before = gateway.at
            await asyncio.sleep(0.1)
        assert gateway.at < len(long.told) / 2
        assert await collect(news, long)
    assert gateway.at == len(long.told)


# Refused connections.


async def test_a_new_token_is_requested_for_each_connection() -> None:
    tokens = ["first", "second"]

    class StrictGateway(ScriptedGateway):
        async def serve_connection(self, socket: ServerConnection) -> None:
            self.token = ("first", "second")[self.connections - 1]
            await super().serve_connection(socket)

    async def later() -> str:
        return tokens.pop(0)

    async with StrictGateway(a_scripted_execution(["a"]), iter([Fault.CUT])).open() as gateway:
        await collect(Stream(gateway.url, gateway.tale.channel, later, ALL, QUICK), gateway.tale)

    assert tokens == []


async def test_an_invalid_token_ends_the_stream() -> None:
    async with ScriptedGateway(a_scripted_execution(["a"])).open() as gateway:
        news = stream(gateway.url, gateway.tale.channel, token=lambda: "wrong")
        with pytest.raises(StreamRefused, match="pass a token or an API key") as raised:
            await collect(news, gateway.tale)

    assert raised.value.code == 3502
    assert gateway.connections == 1
    assert news.position is None
    assert not news.is_live


@pytest.mark.parametrize("code", [3500, 3501, 3999])
async def test_a_close_code_without_a_retry_ends_the_stream(code: int) -> None:
    class ClosingGateway(ScriptedGateway):
        async def serve_connection(self, socket: ServerConnection) -> None:
            await socket.close(code, "no")

    async with ClosingGateway(a_scripted_execution()).open() as gateway:
        with pytest.raises(StreamRefused, match="the gateway closed the stream: no; ") as raised:
            await collect(stream_of(gateway), gateway.tale)

    assert raised.value.code == code


async def test_a_forbidden_channel_ends_the_stream() -> None:
    async with ScriptedGateway(a_scripted_execution()).open() as gateway:
        news = Stream(gateway.url, f"agent.session.{uuid4()}", TOKEN, ALL, QUICK)
        with pytest.raises(StreamRefused, match="there is none; check the channel's id"):
            await collect(news, gateway.tale)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "[]",
        '{"type": "bye"}',
        '{"type": "pong"}',
        '{"type": "welcome"}',
        '{"type": "welcome", "ping_after": true}',
        b"\x00",
    ],
)
async def test_permanently_invalid_frames_end_the_stream(frame: str | bytes) -> None:
    class InvalidGateway(ScriptedGateway):
        async def serve_connection(self, socket: ServerConnection) -> None:
            await socket.send(frame)
            await socket.wait_closed()

    async with InvalidGateway(a_scripted_execution()).open() as gateway:
        with pytest.raises(StreamRefused, match="and update this program"):
            await collect(stream_of(gateway), gateway.tale)

    assert gateway.connections == MAX_GARBLED


@pytest.mark.parametrize(
    "answer",
    [
        '{"type": "sub_ok"}',
        '{"type": "sub_ok", "epoch": 1, "seq": 1, "recovered": true}',
        '{"payload": {}}',
    ],
)
async def test_an_unreadable_answer_is_ignored(answer: str) -> None:
    class PartlyInvalidGateway(ScriptedGateway):
        async def serve_connection(self, socket: ServerConnection) -> None:
            if self.connections > 1:
                await super().serve_connection(socket)
                return
            await socket.send('{"type": "welcome", "ping_after": 10}')
            # Of a later version.
            await socket.send('{"type": "news"}')
            await socket.send(answer)
            await socket.wait_closed()

    async with PartlyInvalidGateway(a_scripted_execution()).open() as gateway:
        assert seqs_of(await collect(stream_of(gateway), gateway.tale)) == [1, 2]


@asynccontextmanager
async def open_http_server(
    answer: Callable[[ServerConnection, Request], Response | None],
) -> AsyncGenerator[str]:
    async def never(socket: ServerConnection) -> None:
        await socket.close()

    async with serve(never, "127.0.0.1", 0, process_request=answer) as up:
        yield f"http://127.0.0.1:{up.sockets[0].getsockname()[1]}/"


async def test_an_address_without_a_gateway_ends_the_stream() -> None:
    def nothing(socket: ServerConnection, request: Request) -> Response:
        assert request.path == "/v1"
        return socket.respond(404, "nothing here")

    async with open_http_server(nothing) as url:
        with pytest.raises(StreamRefused, match="answers 404"):
            await anext(Stream(url, a_scripted_execution().channel, pace=QUICK))


async def test_an_unavailable_server_is_retried() -> None:
    asked = 0
    often = asyncio.Event()

    def busy(socket: ServerConnection, _request: Request) -> Response:
        nonlocal asked
        asked += 1
        if asked == 4:
            often.set()
        return socket.respond((503, 429)[asked % 2], "later")

    async with open_http_server(busy) as url:
        waiting = asyncio.ensure_future(anext(Stream(url, a_scripted_execution().channel, pace=QUICK)))
        async with asyncio.timeout(10):
            await often.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_gateway_may_start_later() -> None:
    async with ScriptedGateway(a_scripted_execution()).open() as gone:
        pass
    refused = asyncio.ensure_future(anext(stream_of(gone)))
    done, _ = await asyncio.wait([refused], timeout=0.1)

    assert not done
    refused.cancel()
    await asyncio.wait([refused])


@pytest.mark.parametrize(
    ("url", "socket"),
    [
        ("ws://h:1", "ws://h:1/v1"),
        ("http://h:1/", "ws://h:1/v1"),
        ("https://h/agents?a=b", "wss://h/agents/v1?a=b"),
        (" wss://h/v1 ", "wss://h/v1"),
    ],
)
def test_a_gateway_url_may_have_several_forms(url: str, socket: str) -> None:
    assert socket_url(url) == socket


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "ws://", "ws://h:x", "ws://[h"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="it looks like"):
        stream(url, a_scripted_execution().channel)


def test_an_invalid_channel_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a channel name"):
        stream("ws://h", "agent.nothing")
