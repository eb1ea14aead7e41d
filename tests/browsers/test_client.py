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
    attempt_superseded,
    chunk,
    ended,
    snapshot,
    step_completed,
    stored,
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
    ann.connects("ann's", builtin=builtin)
    ann.watches(START)
    connection = await gateway.comes()
    assert connection.socket.subprotocol == "everstep.v1"
    assert await connection.welcomes() == "ann's"
    assert await connection.joins() == START | {"epoch": None}
    await connection.says(stored(1), chunk(0, "One "), chunk(1, "two."), chunk(2, ""))
    await connection.says(stored(1), chunk(1, "two."), step_completed(2), chunk(3, "late"), ended(3))
    await ann.until("event", 3)
    assert ann.seqs == [1, 2, 3]
    assert ann.told("text") == [
        {"execution_id": str(EXECUTION), "step_number": 1, "attempt": 1} | changes
        for changes in (
            {"content": "One ", "is_complete": False},
            {"content": "One two.", "is_complete": False},
            {"content": "One two.", "is_complete": True},
        )
    ]
    assert ann.told("event")[2]["payload"]["last_response"] == "Done."
    assert ann.told("state") == ["live"]
    assert ann.told("state", None) == ["live"]
    assert ann.told("reload") == ann.told("error", None) == []


async def test_without_a_position_it_starts_now(gateway: ScriptedGateway, ann: Viewer) -> None:
    """7.8.1: the history up to then comes from the API."""
    ann.connects()
    ann.watches(None)
    connection = await gateway.lets_in()
    assert await connection.joins(7, recovered=False) is None
    await connection.says(stored(8))
    await ann.until("event")
    assert ann.told("reload") == [{"epoch": EPOCH, "seq": 7}]
    assert await ann.answers("position") == {"epoch": EPOCH, "seq": 8}
    connection.cut()
    assert await (await gateway.lets_in()).joins() == {"epoch": EPOCH, "seq": 8}


async def test_frames_before_the_reply_are_dropped(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects()
    ann.watches(None)
    connection = await gateway.lets_in()
    await connection.hears("sub")
    await connection.says(stored(1), sub_ok(1, recovered=False), stored(2))
    await ann.until("event")
    assert ann.seqs == [2]


async def test_the_end_of_a_step_without_text_has_no_text(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says(step_completed(1), stored(2))
    await ann.until("event", 2)
    assert ann.texts == []


async def test_text_of_a_superseded_attempt_is_withdrawn(gateway: ScriptedGateway, ann: Viewer) -> None:
    """7.6.3"""
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says(chunk(0, "Wrong"), attempt_superseded(1), chunk(1, " words"))
    await connection.says(chunk(0, "Right", attempt=2))
    assert (await ann.until("text", 3))[1]["attempt"] == 2
    assert ann.texts == ["Wrong", "", "Right"]


async def test_an_exception_in_a_page_stops_nothing(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects()
    ann.watches(START, fails="event")
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says(stored(1), stored(2))
    await ann.until("event", 2)
    await ann.until("uncaught", 2, None)
    assert ann.told("error", None) == []


async def test_events_can_be_iterated_over(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects()
    ann.watches(START)
    ann.does("iterate", channel=CHANNEL)
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says(stored(1), stored(2))
    await ann.until("iterated", 2)
    ann.does("unsubscribe", channel=CHANNEL)
    assert await ann.until("iterated", 3) == [1, 2, None]
    ann.does("iterate", channel=CHANNEL)
    await ann.until("iterated", 4)


# Cut connections.


async def test_a_cut_connection_reconnects_and_continues_from_its_position(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    """7.8.1, 7.8.4"""
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says(stored(1), chunk(0, "One "))
    await ann.until("text")
    connection.cut()
    connection = await gateway.lets_in()
    draft = {"execution_id": str(EXECUTION), "step_number": 1, "attempt": 1, "next_index": 1}
    assert await connection.joins() == {"epoch": EPOCH, "seq": 1, "drafts": [draft]}
    # The gateway sends again what the client has.
    await connection.says(stored(1), chunk(0, "One "), chunk(1, "two."), stored(2))
    await ann.until("event", 2)
    assert ann.seqs == [1, 2]
    assert ann.texts == ["One ", "One two."]
    assert ann.told("state") == ["live", "connecting", "live"]
    assert ann.told("state", None) == ["live", "connecting", "live"]
    assert len(ann.told("error", None)) == 1


async def test_a_connection_cut_before_the_first_reply_still_starts_now(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    ann.connects()
    ann.watches(None)
    connection = await gateway.lets_in()
    assert "since" not in await connection.hears("sub")
    connection.cut()
    connection = await gateway.lets_in()
    assert await connection.joins(3, recovered=False) is None


async def test_a_reloaded_page_continues_without_the_text_that_it_lost(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    """7.8.4: it has no text for the drafts of its position, so it does not show them."""
    ann.connects()
    draft = {"execution_id": str(EXECUTION), "step_number": 1, "attempt": 1, "next_index": 14}
    ann.watches({"epoch": EPOCH, "seq": 5, "drafts": [draft]})
    connection = await gateway.lets_in()
    assert await connection.joins() == {"epoch": EPOCH, "seq": 5}
    await connection.says(snapshot(14, "All of it"), chunk(14, "."))
    await ann.until("text", 2)
    assert ann.texts == ["All of it", "All of it."]
    assert (await ann.answers("position"))["drafts"] == [draft | {"next_index": 15}]


async def test_an_unrecovered_stream_is_void(gateway: ScriptedGateway, ann: Viewer) -> None:
    """7.8.4"""
    ann.connects()
    ann.watches({"epoch": "of-then", "seq": 5})
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says(chunk(0, "Some"))
    await ann.until("text")
    await connection.socket.close(3002)
    connection = await gateway.lets_in()
    await connection.joins(2, recovered=False)
    await connection.says(stored(6), chunk(0, "New"), stored(3))
    await ann.until("event")
    assert ann.told("reload") == [{"epoch": EPOCH, "seq": 2}]
    assert ann.seqs == [3]
    assert ann.texts == ["Some", "New"]


@pytest.mark.parametrize("missed", [stored(3), chunk(2, "three")], ids=["stored", "text"])
async def test_a_gap_is_requested_from_the_position(
    gateway: ScriptedGateway, ann: Viewer, missed: Frame
) -> None:
    """7.8.3, 7.8.4"""
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says(stored(1), chunk(0, "one "), missed, missed, missed)
    since = (await connection.hears("sub"))["since"]
    assert (since["seq"], since["drafts"][0]["next_index"]) == (1, 1)
    # It does not ask again before the reply: the only task left is to ping.
    await connection.says(missed, stored(2), missed)
    await ann.until("event", 2)
    assert await ann.answers("timers", None) == 1
    await connection.says(sub_ok(1))
    await connection.says(stored(2), chunk(1, "two "), stored(3), chunk(2, "three"))
    await ann.until("event", 3)
    await ann.until("text", 3)
    assert ann.seqs == [1, 2, 3]
    assert ann.texts[-1] == "one two three"
    assert ann.told("state") == ["live"]


async def test_a_lasting_gap_is_requested_more_and_more_slowly(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    moments: list[float] = []
    for _ in range(4):
        await connection.says(stored(2), stored(2))
        await connection.joins()
        moments.append(monotonic())
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert all(pause > at_least for pause, at_least in zip(pauses, (0.2, 0.4, 0.8), strict=True))
    # A closed client does not ask at all.
    await connection.says(stored(3), stored(1))
    await ann.until("event")
    ann.does("unsubscribe", channel=CHANNEL)
    assert await ann.answers("timers", None) == 1


async def test_the_number_of_drafts_is_limited_by_the_size_of_a_position(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    ids = [str(UUID(int=number)) for number in range(MAX_DRAFTS + 1)]
    await connection.says(*(chunk(0, "x") | {"execution_id": each} for each in ids))
    await ann.until("text", len(ids))
    connection.cut()
    drafts = (await (await gateway.lets_in()).joins())["drafts"]
    assert [each["execution_id"] for each in drafts] == ids[1:]


# Ends of connections.


async def test_it_reconnects_at_the_requested_time(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects(retryMin=20)
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says({"type": "bye", "code": 3000, "reason": "restarted", "reconnect_in": 0.3})
    asked_at = monotonic()
    connection = await gateway.lets_in()
    assert 0.2 < monotonic() - asked_at < 10
    await connection.joins()
    assert "restarted" in ann.told("error", None)[0]


async def test_frames_after_bye_are_ignored(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects()
    connection = await gateway.lets_in()
    bye = {"type": "bye", "code": 3000, "reason": "restarted", "reconnect_in": 0}
    await connection.says(bye, {"type": "welcome", "ping_after": 60}, "no JSON")
    await gateway.lets_in()
    await ann.until("state", 3, None)
    assert ann.told("state", None) == ["live", "connecting", "live"]
    assert len(ann.told("error", None)) == 1


async def test_a_client_sent_away_repeatedly_reconnects_more_and_more_slowly(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    """Also if the gateway asks it to reconnect at once."""
    ann.connects(retryMin=0.1)
    moments: list[float] = []
    for _ in range(4):
        connection = await gateway.lets_in()
        moments.append(monotonic())
        await connection.says({"type": "bye", "code": 3000, "reason": "restarted", "reconnect_in": 0})
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert all(pause > at_least for pause, at_least in zip(pauses, (0, 0.08, 0.16), strict=True))


async def test_a_connection_that_lasted_a_while_is_no_failure(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects(retryMin=60, retryMax=60, patience=1)
    bye = {"type": "bye", "code": 3000, "reason": "restarted", "reconnect_in": 0}
    for _ in range(2):
        connection = await gateway.lets_in(ping_after=0.3)
        for _ in range(4):
            await connection.hears("ping")
            await connection.says({"type": "pong"})
        await connection.says(bye)
    await gateway.lets_in()


@pytest.mark.parametrize("code", [1000, 1006, 1011, 3000, 3003, 3005, 3499, 4000])
async def test_it_reconnects_after_other_ends(gateway: ScriptedGateway, ann: Viewer, code: int) -> None:
    ann.connects()
    connection = await gateway.lets_in()
    if code == 1006:
        connection.cut()
    else:
        await connection.socket.close(code)
    await gateway.lets_in()


@pytest.mark.parametrize("code", [3500, 3502, 3999])
@pytest.mark.parametrize("says_bye", [True, False])
async def test_it_does_not_reconnect_where_that_is_useless(
    gateway: ScriptedGateway, ann: Viewer, code: int, says_bye: bool
) -> None:
    ann.connects(["stale"])
    ann.watches(START)
    connection = await gateway.comes()
    await connection.hears("hello")
    if says_bye:
        await connection.says({"type": "bye", "code": code, "reason": "not you", "reconnect_in": None})
    await connection.socket.close(code, "not you")
    assert await ann.until("state", 1, None) == ["closed"]
    assert await ann.until("state") == ["closed"]
    assert ann.told("error", None) == [f"the connection is closed ({code}): not you"]
    await ann.is_idle()
    assert gateway.is_left_alone
    ann.watches(START)
    assert "closed" in (await ann.until("refused", 1, None))[0]


async def test_a_silent_gateway_is_left(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects(patience=1)
    ann.watches(START)
    silent = await gateway.lets_in(ping_after=0.1)
    await silent.joins()
    connection = await gateway.lets_in()
    assert (await connection.joins())["seq"] == 0
    assert "nothing was heard" in ann.told("error", None)[0]


async def test_a_gateway_without_a_welcome_is_left(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects(patience=1)
    await (await gateway.comes()).hears("hello")
    await gateway.lets_in()


@pytest.mark.parametrize("channels", [[CHANNEL], []])
async def test_a_silent_client_pings(gateway: ScriptedGateway, ann: Viewer, channels: list[str]) -> None:
    ann.connects()
    for channel in channels:
        ann.watches(START, channel=channel)
    connection = await gateway.lets_in(ping_after=0.1)
    for channel in channels:
        await connection.joins(channel=channel)
    for seq in range(1, 8):
        # Received frames do not show the gateway that the client is alive.
        await connection.says(stored(seq))
        await connection.hears("ping")
        await connection.says({"type": "pong"})
    assert ann.told("state", None) == ["live"]


async def test_there_are_no_pings_unless_the_gateway_asks_for_them(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    ann.connects()
    connection = await gateway.comes()
    await connection.welcomes(ping_after=0)
    await ann.until("state", 1, None)
    ann.watches(START)
    assert json.loads(await connection.socket.recv())["type"] == "sub"


async def test_closing_closes(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects([jwt(3600)])
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    await ann.until("state")
    ann.does("close")
    await connection.gone()
    assert await ann.until("state", 2) == ["live", "closed"]
    await ann.is_idle()
    ann.does("close")
    await ann.is_idle()
    assert ann.told("state", None) == ["live", "closed"]


async def test_closing_before_it_is_connected_closes(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects(["a-token"])
    ann.does("close")
    assert await ann.until("state", 1, None) == ["closed"]
    await ann.is_idle()
    assert gateway.is_left_alone


# Tokens.


async def test_each_connection_requests_a_token(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects(["first", "second"])
    connection = await gateway.comes()
    assert await connection.welcomes() == "first"
    await connection.says({"type": "bye", "code": 3003, "reason": "expired", "reconnect_in": 0})
    assert await (await gateway.comes()).welcomes() == "second"


async def test_a_failed_token_request_is_retried(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects([None, None, "third"])
    assert await (await gateway.comes()).welcomes() == "third"
    assert all("nobody knows me" in each for each in ann.told("error", None))


async def test_a_token_is_refreshed_before_it_expires(gateway: ScriptedGateway, ann: Viewer) -> None:
    first, second, third = jwt(3), jwt(4), jwt(3600)
    ann.connects([first, second, third])
    connection = await gateway.comes()
    assert await connection.welcomes() == first
    for newer in (second, third):
        assert (await connection.hears("refresh"))["token"] == newer
        await connection.says({"type": "refreshed"})
    # The next connection requests it again.
    connection.cut()
    assert await (await gateway.comes()).welcomes() == third
    assert len(ann.told("asked", None)) == 4


async def test_a_token_that_gets_no_newer_is_requested_only_once_more(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    token = jwt(2)
    ann.connects([token])
    connection = await gateway.lets_in()
    assert (await connection.hears("refresh"))["token"] == token
    # Only the ping is left.
    assert await ann.answers("timers", None) == 1


# Invalid input.


async def test_unreadable_frames_are_reported_and_stop_nothing(gateway: ScriptedGateway, ann: Viewer) -> None:
    """0.6"""
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    unreadable = [
        "no JSON",
        "null",
        b"\x00\x01",
        '{"type": "sub_ok", "channel": "of others"}',
        json.dumps({"type": "sub_ok", "channel": CHANNEL}),
        stored(1) | {"payload": "text"} | {"type": "agent.step.completed"},
        chunk(0, "x") | {"payload": {"content": 5}},
    ]
    unknown = [
        "[]",
        "5",
        '{"type": "news"}',
        '{"type": "sub_ok", "channel": "agent.00000000-0000-0000-0000-000000000009"}',
        stored(1) | {"session_id": "another"},
        stored(1) | {"session_id": None},
        stored(1) | {"type": "agent.news", "seq": None},
        stored(1) | {"type": "agent.news", "more": 1},
    ]
    await connection.says(*unreadable, *unknown, stored(2))
    await ann.until("event", 2)
    assert ann.seqs == [1, 2]
    assert len(ann.told("error", None)) == len(unreadable)
    assert all("cannot be read" in each for each in ann.told("error", None))
    assert ann.told("state") == ["live"]


async def test_a_refused_channel_is_reported_and_not_requested_again(
    gateway: ScriptedGateway, ann: Viewer
) -> None:
    """7.8.1"""
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.hears("sub")
    await connection.says({"type": "sub_error", "channel": CHANNEL, "message": "Not yours"})
    assert await ann.until("state") == ["closed"]
    assert ann.told("error") == ["Not yours"]
    connection.cut()
    connection = await gateway.lets_in()
    # Unless the page subscribes again.
    await ann.until("state", 3, None)
    ann.watches(START)
    await connection.joins()
    await ann.until("state", 2)


@pytest.mark.parametrize("channel", ["news", "agent.nobody", "private-" + CHANNEL, CHANNEL.upper()])
async def test_an_invalid_channel_is_refused(gateway: ScriptedGateway, ann: Viewer, channel: str) -> None:
    del gateway
    ann.connects()
    ann.watches(START, channel=channel)
    assert "no channel" in (await ann.until("refused", 1, None))[0]


@pytest.mark.parametrize("since", [{}, {"seq": -1}, {"seq": "1"}, {"seq": 1, "epoch": 7}])
async def test_an_invalid_position_is_refused(gateway: ScriptedGateway, ann: Viewer, since: Any) -> None:
    del gateway
    ann.connects()
    ann.watches(since)
    assert "TypeError" in (await ann.until("refused", 1, None))[0]


# Several channels.


async def test_two_channels_share_a_connection(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects()
    ann.watches(START)
    ann.watches({"seq": 4}, channel=OTHER)
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.joins(channel=OTHER)
    alone = {"session_id": None, "execution_id": OTHER.removeprefix("agent.execution.")}
    await connection.says(stored(1), stored(5) | alone, stored(2))
    await ann.until("event", 2)
    assert [each["seq"] for each in await ann.until("event", 1, OTHER)] == [5]
    assert ann.seqs == [1, 2]
    connection.cut()
    connection = await gateway.lets_in()
    assert (await connection.joins())["seq"] == 2
    assert (await connection.joins(channel=OTHER))["seq"] == 5


async def test_a_stream_is_watched_once_under_any_of_its_names(gateway: ScriptedGateway, ann: Viewer) -> None:
    short = f"agent.{SESSION}"
    ann.connects()
    ann.watches(START, channel=short)
    ann.watches(START)
    assert "watched already" in (await ann.until("refused", 1, None))[0]
    connection = await gateway.lets_in()
    await connection.joins(channel=short)
    await connection.says(stored(1))
    assert len(await ann.until("event", 1, short)) == 1


async def test_an_unwatched_channel_sends_no_events(gateway: ScriptedGateway, ann: Viewer) -> None:
    ann.connects()
    ann.watches(START)
    connection = await gateway.lets_in()
    await connection.joins()
    await connection.says(stored(1))
    await ann.until("event")
    ann.does("unsubscribe", channel=CHANNEL)
    assert (await connection.hears("unsub"))["channel"] == CHANNEL
    await connection.says(stored(2), sub_ok(2))
    # A second call has no effect.
    ann.does("unsubscribe", channel=CHANNEL)
    ann.watches({"seq": 2})
    assert (await connection.joins())["seq"] == 2
    await connection.says(stored(3))
    await ann.until("event", 2)
    assert ann.seqs == [1, 3]
    assert ann.told("state") == ["live", "closed", "live"]
