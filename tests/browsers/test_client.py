"""The client for browsers, in node, and gateways that follow a script."""

import base64
import json
from itertools import pairwise
from time import monotonic, time
from typing import Any
from uuid import UUID

import pytest

from everstep.agent_domain.stream.reader import MAX_DRAFTS
from tests.broadcast_gateway.writers import EXECUTION, SESSION
from tests.browsers.scripted_gateway import (
    CHANNEL,
    EPOCH,
    Frame,
    ScriptedGateway,
    attempt_end,
    chunk,
    execution_end,
    snapshot,
    step_end,
    stored_frame,
)
from tests.browsers.viewer import Viewer

START = {"seq": 0}
OTHER = "agent.execution.00000000-0000-0000-0000-000000000009"


def jwt(expires_in: float) -> str:
    """A token with an expiry."""

    def part(data: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'})}.{part({'exp': time() + expires_in, 'sub': '>>>???'})}.x"


def sub_ok(seq: int, *, recovered: bool = True) -> Frame:
    """The gateway's reply to a subscription."""
    return {"type": "sub_ok", "channel": CHANNEL, "epoch": EPOCH, "seq": seq, "recovered": recovered}


# Notifications.


@pytest.mark.parametrize("builtin", [False, True])
async def test_events_arrive_once_and_text_as_it_grows(
    gateway: ScriptedGateway, ann: Viewer, builtin: bool
) -> None:
    """7.8.1, 7.8.4"""
    ann.connect("ann's", builtin=builtin)
    ann.watch(START)
    connection = await gateway.next_connection()
    assert connection.socket.subprotocol == "everstep.v1"
    assert await connection.welcome() == "ann's"
    assert await connection.accept_subscription() == START | {"epoch": None}
    await connection.send(stored_frame(1), chunk(0, "One "), chunk(1, "two."), chunk(2, ""))
    await connection.send(stored_frame(1), chunk(1, "two."), step_end(2), chunk(3, "late"), execution_end(3))
    await ann.until("event", 3)
    assert ann.seqs == [1, 2, 3]
    assert ann.events_of("text") == [
        {"execution_id": str(EXECUTION), "step_number": 1, "attempt": 1} | changes
        for changes in (
            {"content": "One ", "is_complete": False},
            {"content": "One two.", "is_complete": False},
            {"content": "One two.", "is_complete": True},
        )
    ]
    assert ann.events_of("event")[2]["payload"]["last_response"] == "Done."
    assert ann.events_of("state") == ["live"]
    assert ann.events_of("state", None) == ["live"]
    assert ann.events_of("reload") == ann.events_of("error", None) == []


async def test_without_a_position_it_starts_now(gateway: ScriptedGateway, ann: Viewer) -> None:
    """7.8.1: the history up to then comes from the API."""
    ann.connect()
    ann.watch(None)
    connection = await gateway.next_client()
    assert await connection.accept_subscription(7, recovered=False) is None
    await connection.send(stored_frame(8))
    await ann.until("event")
    assert ann.events_of("reload") == [{"epoch": EPOCH, "seq": 7}]
    assert await ann.query("position") == {"epoch": EPOCH, "seq": 8}
    connection.cut()
    assert await (await gateway.next_client()).accept_subscription() == {"epoch": EPOCH, "seq": 8}


async def test_frames_before_the_reply_are_dropped(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect()
    ann.watch(None)
    connection = await gateway.next_client()
    await connection.receive("sub")
    await connection.send(stored_frame(1), sub_ok(1, recovered=False), stored_frame(2))
    await ann.until("event")
    assert ann.seqs == [2]


async def test_the_end_of_a_step_without_text_has_no_text(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send(step_end(1), stored_frame(2))
    await ann.until("event", 2)
    assert ann.texts == []


async def test_text_of_a_superseded_attempt_is_withdrawn(gateway: ScriptedGateway, ann: Viewer) -> None:
    """7.6.3"""
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send(chunk(0, "Wrong"), attempt_end(1), chunk(1, " words"))
    await connection.send(chunk(0, "Right", attempt=2))
    assert (await ann.until("text", 3))[1]["attempt"] == 2
    assert ann.texts == ["Wrong", "", "Right"]


async def test_an_exception_in_a_page_stops_nothing(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect()
    ann.watch(START, fails="event")
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send(stored_frame(1), stored_frame(2))
    await ann.until("event", 2)
    await ann.until("uncaught", 2, None)
    assert ann.events_of("error", None) == []


async def test_events_can_be_iterated_over(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect()
    ann.watch(START)
    ann.command("iterate", channel=CHANNEL)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send(stored_frame(1), stored_frame(2))
    await ann.until("iterated", 2)
    ann.command("unsubscribe", channel=CHANNEL)
    assert await ann.until("iterated", 3) == [1, 2, None]
    ann.command("iterate", channel=CHANNEL)
    await ann.until("iterated", 4)


# Cut connections.


async def test_a_cut_connection_reconnects_and_continues_from_its_position(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    """7.8.1, 7.8.4"""
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send(stored_frame(1), chunk(0, "One "))
    await ann.until("text")
    connection.cut()
    connection = await gateway.next_client()
    draft = {"execution_id": str(EXECUTION), "step_number": 1, "attempt": 1, "next_index": 1}
    assert await connection.accept_subscription() == {"epoch": EPOCH, "seq": 1, "drafts": [draft]}
    # The gateway sends again what the client has.
    await connection.send(stored_frame(1), chunk(0, "One "), chunk(1, "two."), stored_frame(2))
    await ann.until("event", 2)
    assert ann.seqs == [1, 2]
    assert ann.texts == ["One ", "One two."]
    assert ann.events_of("state") == ["live", "connecting", "live"]
    assert ann.events_of("state", None) == ["live", "connecting", "live"]
    assert len(ann.events_of("error", None)) == 1


async def test_a_connection_cut_before_the_first_reply_still_starts_now(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    ann.connect()
    ann.watch(None)
    connection = await gateway.next_client()
    assert "since" not in await connection.receive("sub")
    connection.cut()
    connection = await gateway.next_client()
    assert await connection.accept_subscription(3, recovered=False) is None


async def test_a_reloaded_page_continues_without_the_text_that_it_lost(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    """7.8.4: it has no text for the drafts of its position, so it does not show them."""
    ann.connect()
    draft = {"execution_id": str(EXECUTION), "step_number": 1, "attempt": 1, "next_index": 14}
    ann.watch({"epoch": EPOCH, "seq": 5, "drafts": [draft]})
    connection = await gateway.next_client()
    assert await connection.accept_subscription() == {"epoch": EPOCH, "seq": 5}
    await connection.send(snapshot(14, "All of it"), chunk(14, "."))
    await ann.until("text", 2)
    assert ann.texts == ["All of it", "All of it."]
    assert (await ann.query("position"))["drafts"] == [draft | {"next_index": 15}]


async def test_an_unrecovered_stream_is_void(gateway: ScriptedGateway, ann: Viewer) -> None:
    """7.8.4"""
    ann.connect()
    ann.watch({"epoch": "of-then", "seq": 5})
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send(chunk(0, "Some"))
    await ann.until("text")
    await connection.socket.close(3002)
    connection = await gateway.next_client()
    await connection.accept_subscription(2, recovered=False)
    await connection.send(stored_frame(6), chunk(0, "New"), stored_frame(3))
    await ann.until("event")
    assert ann.events_of("reload") == [{"epoch": EPOCH, "seq": 2}]
    assert ann.seqs == [3]
    assert ann.texts == ["Some", "New"]


@pytest.mark.parametrize("missed", [stored_frame(3), chunk(2, "three")], ids=["stored", "text"])
async def test_a_gap_is_requested_from_the_position(
    gateway: ScriptedGateway, ann: Viewer, missed: Frame
) -> None:
    """7.8.3, 7.8.4"""
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send(stored_frame(1), chunk(0, "one "), missed, missed, missed)
    since = (await connection.receive("sub"))["since"]
    assert (since["seq"], since["drafts"][0]["next_index"]) == (1, 1)
    # It does not ask again before the reply: the only task left is to ping.
    await connection.send(missed, stored_frame(2), missed)
    await ann.until("event", 2)
    assert await ann.query("timers", None) == 1
    await connection.send(sub_ok(1))
    await connection.send(stored_frame(2), chunk(1, "two "), stored_frame(3), chunk(2, "three"))
    await ann.until("event", 3)
    await ann.until("text", 3)
    assert ann.seqs == [1, 2, 3]
    assert ann.texts[-1] == "one two three"
    assert ann.events_of("state") == ["live"]


async def test_a_lasting_gap_is_requested_more_and_more_slowly(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    moments: list[float] = []
    for _ in range(4):
        await connection.send(stored_frame(2), stored_frame(2))
        await connection.accept_subscription()
        moments.append(monotonic())
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert all(pause > at_least for pause, at_least in zip(pauses, (0.2, 0.4, 0.8), strict=True))
    # A closed client does not ask at all.
    await connection.send(stored_frame(3), stored_frame(1))
    await ann.until("event")
    ann.command("unsubscribe", channel=CHANNEL)
    assert await ann.query("timers", None) == 1


async def test_the_number_of_drafts_is_limited_by_the_size_of_a_position(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    ids = [str(UUID(int=number)) for number in range(MAX_DRAFTS + 1)]
    await connection.send(*(chunk(0, "x") | {"execution_id": each} for each in ids))
    await ann.until("text", len(ids))
    connection.cut()
    drafts = (await (await gateway.next_client()).accept_subscription())["drafts"]
    assert [each["execution_id"] for each in drafts] == ids[1:]


# Ends of connections.


async def test_it_reconnects_at_the_requested_time(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect(retryMin=20)
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send({"type": "bye", "code": 3000, "reason": "restarted", "reconnect_in": 0.3})
    asked_at = monotonic()
    connection = await gateway.next_client()
    assert 0.2 < monotonic() - asked_at < 10
    await connection.accept_subscription()
    assert "restarted" in ann.events_of("error", None)[0]


async def test_frames_after_bye_are_ignored(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect()
    connection = await gateway.next_client()
    bye = {"type": "bye", "code": 3000, "reason": "restarted", "reconnect_in": 0}
    await connection.send(bye, {"type": "welcome", "ping_after": 60}, "no JSON")
    await gateway.next_client()
    await ann.until("state", 3, None)
    assert ann.events_of("state", None) == ["live", "connecting", "live"]
    assert len(ann.events_of("error", None)) == 1


async def test_a_client_sent_away_repeatedly_reconnects_more_and_more_slowly(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    """Also if the gateway asks it to reconnect at once."""
    ann.connect(retryMin=0.1)
    moments: list[float] = []
    for _ in range(4):
        connection = await gateway.next_client()
        moments.append(monotonic())
        await connection.send({"type": "bye", "code": 3000, "reason": "restarted", "reconnect_in": 0})
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert all(pause > at_least for pause, at_least in zip(pauses, (0, 0.08, 0.16), strict=True))


async def test_a_connection_that_lasted_a_while_is_no_failure(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect(retryMin=60, retryMax=60, patience=1)
    bye = {"type": "bye", "code": 3000, "reason": "restarted", "reconnect_in": 0}
    for _ in range(2):
        connection = await gateway.next_client(ping_after=0.3)
        for _ in range(4):
            await connection.receive("ping")
            await connection.send({"type": "pong"})
        await connection.send(bye)
    await gateway.next_client()


@pytest.mark.parametrize("code", [1000, 1006, 1011, 3000, 3003, 3005, 3499, 4000])
async def test_it_reconnects_after_other_ends(gateway: ScriptedGateway, ann: Viewer, code: int) -> None:
    ann.connect()
    connection = await gateway.next_client()
    if code == 1006:
        connection.cut()
    else:
        await connection.socket.close(code)
    await gateway.next_client()


@pytest.mark.parametrize("code", [3500, 3502, 3999])
@pytest.mark.parametrize("says_bye", [True, False])
async def test_it_does_not_reconnect_where_that_is_useless(
    gateway: ScriptedGateway, ann: Viewer, code: int, says_bye: bool
) -> None:
    ann.connect(["stale"])
    ann.watch(START)
    connection = await gateway.next_connection()
    await connection.receive("hello")
    if says_bye:
        await connection.send({"type": "bye", "code": code, "reason": "not you", "reconnect_in": None})
    await connection.socket.close(code, "not you")
    assert await ann.until("state", 1, None) == ["closed"]
    assert await ann.until("state") == ["closed"]
    assert ann.events_of("error", None) == [f"the connection is closed ({code}): not you"]
    await ann.is_idle()
    assert gateway.is_left_alone
    ann.watch(START)
    assert "closed" in (await ann.until("refused", 1, None))[0]


async def test_a_silent_gateway_is_left(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect(patience=1)
    ann.watch(START)
    silent = await gateway.next_client(ping_after=0.1)
    await silent.accept_subscription()
    connection = await gateway.next_client()
    assert (await connection.accept_subscription())["seq"] == 0
    assert "nothing was heard" in ann.events_of("error", None)[0]


async def test_a_gateway_without_a_welcome_is_left(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect(patience=1)
    await (await gateway.next_connection()).receive("hello")
    await gateway.next_client()


@pytest.mark.parametrize("channels", [[CHANNEL], []])
async def test_a_silent_client_pings(gateway: ScriptedGateway, ann: Viewer, channels: list[str]) -> None:
    ann.connect()
    for channel in channels:
        ann.watch(START, channel=channel)
    connection = await gateway.next_client(ping_after=0.1)
    for channel in channels:
        await connection.accept_subscription(channel=channel)
    for seq in range(1, 8):
        # Received frames do not show the gateway that the client is alive.
        await connection.send(stored_frame(seq))
        await connection.receive("ping")
        await connection.send({"type": "pong"})
    assert ann.events_of("state", None) == ["live"]


async def test_there_are_no_pings_unless_the_gateway_asks_for_them(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    ann.connect()
    connection = await gateway.next_connection()
    await connection.welcome(ping_after=0)
    await ann.until("state", 1, None)
    ann.watch(START)
    assert json.loads(await connection.socket.recv())["type"] == "sub"


async def test_closing_closes(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect([jwt(3600)])
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await ann.until("state")
    ann.command("close")
    await connection.close_code()
    assert await ann.until("state", 2) == ["live", "closed"]
    await ann.is_idle()
    ann.command("close")
    await ann.is_idle()
    assert ann.events_of("state", None) == ["live", "closed"]


async def test_closing_before_it_is_connected_closes(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect(["a-token"])
    ann.command("close")
    assert await ann.until("state", 1, None) == ["closed"]
    await ann.is_idle()
    assert gateway.is_left_alone


# Tokens.


async def test_each_connection_requests_a_token(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect(["first", "second"])
    connection = await gateway.next_connection()
    assert await connection.welcome() == "first"
    await connection.send({"type": "bye", "code": 3003, "reason": "expired", "reconnect_in": 0})
    assert await (await gateway.next_connection()).welcome() == "second"


async def test_a_failed_token_request_is_retried(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect([None, None, "third"])
    assert await (await gateway.next_connection()).welcome() == "third"
    assert all("nobody knows me" in each for each in ann.events_of("error", None))


async def test_a_token_is_refreshed_before_it_expires(gateway: ScriptedGateway, ann: Viewer) -> None:
    first, second, third = jwt(3), jwt(4), jwt(3600)
    ann.connect([first, second, third])
    connection = await gateway.next_connection()
    assert await connection.welcome() == first
    for newer in (second, third):
        assert (await connection.receive("refresh"))["token"] == newer
        await connection.send({"type": "refreshed"})
    # The next connection requests it again.
    connection.cut()
    assert await (await gateway.next_connection()).welcome() == third
    assert len(ann.events_of("asked", None)) == 4


async def test_a_token_that_gets_no_newer_is_requested_only_once_more(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    token = jwt(2)
    ann.connect([token])
    connection = await gateway.next_client()
    assert (await connection.receive("refresh"))["token"] == token
    # Only the ping is left.
    assert await ann.query("timers", None) == 1


# Invalid input.


async def test_unreadable_frames_are_reported_and_stop_nothing(gateway: ScriptedGateway, ann: Viewer) -> None:
    """0.6"""
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    unreadable = [
        "no JSON",
        "null",
        b"\x00\x01",
        '{"type": "sub_ok", "channel": "of others"}',
        json.dumps({"type": "sub_ok", "channel": CHANNEL}),
        stored_frame(1) | {"payload": "text"} | {"type": "agent.step.completed"},
        chunk(0, "x") | {"payload": {"content": 5}},
    ]
    unknown = [
        "[]",
        "5",
        '{"type": "news"}',
        '{"type": "sub_ok", "channel": "agent.00000000-0000-0000-0000-000000000009"}',
        stored_frame(1) | {"session_id": "another"},
        stored_frame(1) | {"session_id": None},
        stored_frame(1) | {"type": "agent.news", "seq": None},
        stored_frame(1) | {"type": "agent.news", "more": 1},
    ]
    await connection.send(*unreadable, *unknown, stored_frame(2))
    await ann.until("event", 2)
    assert ann.seqs == [1, 2]
    assert len(ann.events_of("error", None)) == len(unreadable)
    assert all("cannot be read" in each for each in ann.events_of("error", None))
    assert ann.events_of("state") == ["live"]


async def test_a_refused_channel_is_reported_and_not_requested_again(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    """7.8.1"""
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.receive("sub")
    await connection.send({"type": "sub_error", "channel": CHANNEL, "message": "Not yours"})
    assert await ann.until("state") == ["closed"]
    assert ann.events_of("error") == ["Not yours"]
    connection.cut()
    connection = await gateway.next_client()
    # Unless the page subscribes again.
    await ann.until("state", 3, None)
    ann.watch(START)
    await connection.accept_subscription()
    await ann.until("state", 2)


@pytest.mark.parametrize("channel", ["news", "agent.nobody", "private-" + CHANNEL, CHANNEL.upper()])
async def test_an_invalid_channel_is_refused(gateway: ScriptedGateway, ann: Viewer, channel: str) -> None:
    del gateway
    ann.connect()
    ann.watch(START, channel=channel)
    assert "no channel" in (await ann.until("refused", 1, None))[0]


@pytest.mark.parametrize("since", [{}, {"seq": -1}, {"seq": "1"}, {"seq": 1, "epoch": 7}])
async def test_an_invalid_position_is_refused(gateway: ScriptedGateway, ann: Viewer, since: Any) -> None:
    del gateway
    ann.connect()
    ann.watch(since)
    assert "TypeError" in (await ann.until("refused", 1, None))[0]


# Several channels.


async def test_two_channels_share_a_connection(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect()
    ann.watch(START)
    ann.watch({"seq": 4}, channel=OTHER)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.accept_subscription(channel=OTHER)
    alone = {"session_id": None, "execution_id": OTHER.removeprefix("agent.execution.")}
    await connection.send(stored_frame(1), stored_frame(5) | alone, stored_frame(2))
    await ann.until("event", 2)
    assert [each["seq"] for each in await ann.until("event", 1, OTHER)] == [5]
    assert ann.seqs == [1, 2]
    connection.cut()
    connection = await gateway.next_client()
    assert (await connection.accept_subscription())["seq"] == 2
    assert (await connection.accept_subscription(channel=OTHER))["seq"] == 5


async def test_a_stream_is_watched_once_under_any_of_its_names(gateway: ScriptedGateway, ann: Viewer) -> None:
    short = f"agent.{SESSION}"
    ann.connect()
    ann.watch(START, channel=short)
    ann.watch(START)
    assert "watched already" in (await ann.until("refused", 1, None))[0]
    connection = await gateway.next_client()
    await connection.accept_subscription(channel=short)
    await connection.send(stored_frame(1))
    assert len(await ann.until("event", 1, short)) == 1


async def test_an_unwatched_channel_sends_no_events(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connect()
    ann.watch(START)
    connection = await gateway.next_client()
    await connection.accept_subscription()
    await connection.send(stored_frame(1))
    await ann.until("event")
    ann.command("unsubscribe", channel=CHANNEL)
    assert (await connection.receive("unsub"))["channel"] == CHANNEL
    await connection.send(stored_frame(2), sub_ok(2))
    # A second call has no effect.
    ann.command("unsubscribe", channel=CHANNEL)
    ann.watch({"seq": 2})
    assert (await connection.accept_subscription())["seq"] == 2
    await connection.send(stored_frame(3))
    await ann.until("event", 2)
    assert ann.seqs == [1, 3]
    assert ann.events_of("state") == ["live", "closed", "live"]
