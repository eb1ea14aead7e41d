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
from everstep.streams.backoff import LONGEST_ASKED, Pace, Pauses
from everstep.streams.client import GARBLED, Stream, stream
from everstep.streams.client_events import Happened, News, Reload, StreamRefused, Wrote
from everstep.streams.connection import socket_url
from tests.everstep.streams.scripted import QUICK, TOKEN, Fault, Gateway, Tale, tale

ALL = Position()
NOT_YET = 3
"""The parts of a tale: it has begun, and so has its first step, with a chunk of text."""


def watching(gateway: Gateway, since: Position | None = ALL, **given: Any) -> Stream:
    return Stream(gateway.url, gateway.tale.channel, TOKEN, since, **{"pace": QUICK, **given})


async def told(news: Stream, tale: Tale) -> list[News]:
    heard = list[News]()
    async with asyncio.timeout(30), aclosing(news):
        async for event in news.until_ended(tale.execution_id):
            heard.append(event)
            if isinstance(event, Reload) and event.seq == tale.seq:
                # It has ended before, as a client finds that loads it.
                break
    return heard


def log(news: list[News]) -> list[int | None]:
    return [event.envelope.seq for event in news if isinstance(event, Happened)]


def words(news: list[News]) -> list[tuple[str, str]]:
    return [(event.text, event.new) for event in news if isinstance(event, Wrote)]


async def test_all_events_arrive_in_order_and_text_as_it_is_written() -> None:
    """7.8.1"""
    async with Gateway(tale(["Let me", " see"], ["Done"])).open() as gateway:
        news = watching(gateway)
        heard = await told(news, gateway.tale)

    assert [event.envelope for event in heard if isinstance(event, Happened)] == gateway.tale.stored
    assert words(heard) == [
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
    async with Gateway(tale(["Hm"]), at=NOT_YET).open() as gateway:
        heard = await told(watching(gateway, None), gateway.tale)

    assert log(heard) == [3, 4]
    # The current text is sent whole.
    assert words(heard) == [("Hm", "Hm"), ("Hm", "")]
    assert "since" not in gateway.heard[1]


async def test_another_client_continues_from_a_position() -> None:
    async with Gateway(tale(["a", "b", "c"], ["d"]), until=4).open() as gateway:
        async with aclosing(watching(gateway)) as first:
            async for event in first:
                if event == Wrote(gateway.tale.execution_id, 1, 1, "ab", "b"):
                    break
        position = Position.from_dict(json.loads(json.dumps(first.position and first.position.to_dict())))
        gateway.tell()
        heard = await told(watching(gateway, position), gateway.tale)

    assert position == Position(2, "first", {gateway.tale.execution_id: Place(1, 1, 2)})
    assert log(heard) == [3, 4, 5, 6]
    assert words(heard)[:2] == [("ab", "ab"), ("abc", "c")]


async def test_a_later_attempt_replaces_the_text() -> None:
    """7.8.4"""
    twice = Tale()
    twice.step(1, ["I thi"], ["Perhaps", " so"])
    async with Gateway(twice.end()).open() as gateway:
        heard = await told(watching(gateway), twice)

    assert words(heard) == [("I thi", "I thi"), ("Perhaps", ""), ("Perhaps so", " so"), ("Perhaps so", "")]


# Network faults.


@given(
    faults=st.lists(st.sampled_from(list(Fault)), max_size=40).filter(
        lambda faults: faults.count(Fault.GARBAGE) < GARBLED
    ),
    texts=st.lists(
        st.lists(st.lists(st.text("ab é", min_size=1), max_size=4), min_size=1, max_size=3), max_size=3
    ),
)
def test_after_any_cut_the_log_is_complete_and_the_text_is_the_stored_one(
    faults: list[Fault], texts: list[list[list[str]]]
) -> None:
    """7.8.1, 7.8.4"""
    story = Tale()
    story.status(WireStatus.PROCESSING, WireStatus.IDLE)
    for number, attempts in enumerate(texts, 1):
        story.step(number, *attempts)

    async def watched() -> list[News]:
        async with Gateway(story.end(), iter(faults)).open() as gateway:
            return await told(watching(gateway), story)

    known: list[int | None] = []
    shown = dict[tuple[int, int], str]()
    for event in asyncio.run(watched()):
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
    assert known == [envelope.seq for envelope in story.stored]
    if not faults:
        assert {
            (step, len(texts[step - 1])): text for step, text in story.texts.items()
        }.items() <= shown.items()


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CRASH, Fault.BYE, Fault.CLOSE, Fault.GARBAGE])
async def test_a_lost_connection_is_reopened_from_the_position(fault: Fault) -> None:
    faults = iter([Fault.NONE, Fault.NONE, Fault.NONE, fault])
    async with Gateway(tale(["a", "b"]), faults).open() as gateway:
        heard = await told(watching(gateway), gateway.tale)

    assert log(heard) == [1, 2, 3, 4]
    assert [text for text, new in words(heard) if new][-1] == "ab"
    asked = [frame["since"] for frame in gateway.heard if frame["type"] == "sub"]
    assert len(asked) == gateway.connections == 2
    assert asked[0] == {"epoch": None, "seq": 0}
    assert asked[1]["epoch"] == "first"
    assert asked[1]["seq"] == 2
    assert asked[1]["drafts"][0]["next_index"] in (1, 2)


async def test_a_gap_is_requested_over_the_same_connection() -> None:
    faults = iter([Fault.NONE, Fault.DROP])
    async with Gateway(tale(["a", "b"]), faults).open() as gateway:
        heard = await told(watching(gateway), gateway.tale)

    assert log(heard) == [1, 2, 3, 4]
    assert gateway.connections == 1
    assert [frame["type"] for frame in gateway.heard] == ["hello", "sub", "sub"]


async def test_a_permanent_gap_is_requested_with_backoff() -> None:
    pauses = Pauses(Pace(pause=1.0, longest=4.0))

    drawn = [pauses.next() for _ in range(6)]

    assert all(top / 2 <= pause <= top for top, pause in zip([1, 2, 4, 4, 4, 4], drawn, strict=True))
    pauses.reset()
    assert pauses.next() <= 1


def test_an_invited_client_reconnects_at_once_but_not_repeatedly() -> None:
    pauses = Pauses(Pace(pause=1.0, longest=4.0))

    assert pauses.next(0.0) == 0.0
    assert pauses.next(0.0) >= 1.0
    assert pauses.next(1e9) == LONGEST_ASKED


async def test_after_an_epoch_change_everything_is_loaded_again() -> None:
    """7.8.4"""
    faults = iter([*[Fault.NONE] * 4, Fault.FORGET])
    async with Gateway(tale(["a", "b"]), faults).open() as gateway:
        heard = await told(watching(gateway), gateway.tale)

    at = heard.index(Reload("first'", 2))
    assert log(heard[:at]) == [1, 2]
    assert log(heard[at:]) == [3, 4]
    # The text as well.
    assert words(heard[at:])[0] == ("ab", "ab")


async def test_silence_counts_as_a_lost_connection() -> None:
    class Mute(Gateway):
        async def meet(self, socket: ServerConnection) -> None:
            if self.connections > 1:
                await super().meet(socket)
                return
            await socket.recv()
            await socket.send('{"type": "welcome", "ping_after": 0.01}')
            async for text in socket:
                self.heard.append(json.loads(text))

    async with Mute(tale(["a"])).open() as gateway:
        pace = Pace(pause=0.001, longest=0.01, patience=0.3)
        heard = await told(watching(gateway, pace=pace), gateway.tale)

    assert log(heard) == [1, 2, 3, 4]
    assert {"type": "ping"} in gateway.heard


async def test_an_idle_client_sends_pings_and_stays_connected() -> None:
    pinged = asyncio.Event()

    class Patient(Gateway):
        async def pong(self, socket: ServerConnection) -> None:
            await super().pong(socket)
            if self.heard.count({"type": "ping"}) == 5:
                pinged.set()

    async with Patient(tale(["a"]), until=NOT_YET, ping_after=0.01).open() as gateway:
        watcher = asyncio.create_task(told(watching(gateway), gateway.tale))
        async with asyncio.timeout(10):
            await pinged.wait()
        gateway.tell()
        await watcher

    assert gateway.connections == 1


async def test_nothing_is_read_ahead_of_a_busy_consumer() -> None:
    """7.8.2"""
    long = tale(*[["x" * 100_000]] * 400)
    async with Gateway(long).open() as gateway, aclosing(watching(gateway)) as news:
        await anext(news)
        before = -1
        while gateway.at != before:
            # Until the buffers between the two are full.
            before = gateway.at
            await asyncio.sleep(0.1)
        assert gateway.at < len(long.told) / 2
        assert await told(news, long)
    assert gateway.at == len(long.told)


# Refused connections.


async def test_a_new_token_is_requested_for_each_connection() -> None:
    tokens = ["first", "second"]

    class Strict(Gateway):
        async def meet(self, socket: ServerConnection) -> None:
            self.token = ("first", "second")[self.connections - 1]
            await super().meet(socket)

    async def later() -> str:
        return tokens.pop(0)

    async with Strict(tale(["a"]), iter([Fault.CUT])).open() as gateway:
        await told(Stream(gateway.url, gateway.tale.channel, later, ALL, QUICK), gateway.tale)

    assert tokens == []


async def test_an_invalid_token_ends_the_stream() -> None:
    async with Gateway(tale(["a"])).open() as gateway:
        news = stream(gateway.url, gateway.tale.channel, token=lambda: "wrong")
        with pytest.raises(StreamRefused, match="pass a token or an API key") as raised:
            await told(news, gateway.tale)

    assert raised.value.code == 3502
    assert gateway.connections == 1
    assert news.position is None
    assert not news.is_live


@pytest.mark.parametrize("code", [3500, 3501, 3999])
async def test_a_close_code_without_a_retry_ends_the_stream(code: int) -> None:
    class Rude(Gateway):
        async def meet(self, socket: ServerConnection) -> None:
            await socket.close(code, "no")

    async with Rude(tale()).open() as gateway:
        with pytest.raises(StreamRefused, match="the gateway closed the stream: no; ") as raised:
            await told(watching(gateway), gateway.tale)

    assert raised.value.code == code


async def test_a_forbidden_channel_ends_the_stream() -> None:
    async with Gateway(tale()).open() as gateway:
        news = Stream(gateway.url, f"agent.session.{uuid4()}", TOKEN, ALL, QUICK)
        with pytest.raises(StreamRefused, match="there is none; check the channel's id"):
            await told(news, gateway.tale)


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
    class Babbling(Gateway):
        async def meet(self, socket: ServerConnection) -> None:
            await socket.send(frame)
            await socket.wait_closed()

    async with Babbling(tale()).open() as gateway:
        with pytest.raises(StreamRefused, match="and update this program"):
            await told(watching(gateway), gateway.tale)

    assert gateway.connections == GARBLED


@pytest.mark.parametrize(
    "answer",
    [
        '{"type": "sub_ok"}',
        '{"type": "sub_ok", "epoch": 1, "seq": 1, "recovered": true}',
        '{"payload": {}}',
    ],
)
async def test_an_unreadable_answer_is_ignored(answer: str) -> None:
    class Babbling(Gateway):
        async def meet(self, socket: ServerConnection) -> None:
            if self.connections > 1:
                await super().meet(socket)
                return
            await socket.send('{"type": "welcome", "ping_after": 10}')
            # Of a later version.
            await socket.send('{"type": "news"}')
            await socket.send(answer)
            await socket.wait_closed()

    async with Babbling(tale()).open() as gateway:
        assert log(await told(watching(gateway), gateway.tale)) == [1, 2]


@asynccontextmanager
async def answering(answer: Callable[[ServerConnection, Request], Response | None]) -> AsyncGenerator[str]:
    async def never(socket: ServerConnection) -> None:
        await socket.close()

    async with serve(never, "127.0.0.1", 0, process_request=answer) as up:
        yield f"http://127.0.0.1:{up.sockets[0].getsockname()[1]}/"


async def test_an_address_without_a_gateway_ends_the_stream() -> None:
    def nothing(socket: ServerConnection, request: Request) -> Response:
        assert request.path == "/v1"
        return socket.respond(404, "nothing here")

    async with answering(nothing) as url:
        with pytest.raises(StreamRefused, match="answers 404"):
            await anext(Stream(url, tale().channel, pace=QUICK))


async def test_an_unavailable_server_is_retried() -> None:
    asked = 0
    often = asyncio.Event()

    def busy(socket: ServerConnection, _request: Request) -> Response:
        nonlocal asked
        asked += 1
        if asked == 4:
            often.set()
        return socket.respond((503, 429)[asked % 2], "later")

    async with answering(busy) as url:
        waiting = asyncio.ensure_future(anext(Stream(url, tale().channel, pace=QUICK)))
        async with asyncio.timeout(10):
            await often.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_gateway_may_start_later() -> None:
    async with Gateway(tale()).open() as gone:
        pass
    refused = asyncio.ensure_future(anext(watching(gone)))
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
        stream(url, tale().channel)


def test_an_invalid_channel_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not a channel name"):
        stream("ws://h", "agent.nothing")
