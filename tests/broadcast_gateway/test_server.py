"""The gateway over sockets, for viewers and writers."""

import asyncio
import gc
import json
import logging
import time
from contextlib import suppress
from uuid import UUID, uuid4

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.server import ServerProtocol

from everstep.agent_domain.hosts import AllowedHosts
from everstep.agent_domain.loop.status import WireStatus
from everstep.agent_domain.stream import envelopes
from everstep.agent_domain.stream.channels import channel_data
from everstep.agent_domain.stream.envelopes import Attempt
from everstep.agent_domain.stream.reader import Place, Position
from everstep.agent_domain.stream.records import EventRecord
from everstep.broadcast_gateway.connections import ViewerConnection
from everstep.broadcast_gateway.limits import GatewayLimits, StreamLimits
from everstep.broadcast_gateway.ports import RecordedText
from tests.broadcast_gateway.gateways import (
    joining,
    native_socket,
    open_gateway,
    open_viewer,
    open_writer,
    pusher_client,
    watching_pair,
)
from tests.broadcast_gateway.writers import AT, EXECUTION, SESSION, step_end

CHANNEL = f"agent.session.{SESSION}"
HANDSHAKE = (
    b"GET /app/app?protocol=7 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def words(index: int, content: str, after: int, attempt: int = 1) -> EventRecord:
    return envelopes.stream_chunk_record(
        Attempt(1, attempt), index, content, is_complete=not content, after_seq=after
    )


async def everything(reader: asyncio.StreamReader) -> bytes:
    """Read until the other side ends the connection."""
    data = b""
    with suppress(ConnectionResetError):
        while more := await reader.read(1000):
            data += more
    return data


async def piece(port: int, data: bytes) -> bytes:
    """The reply to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(20):
        answer = await everything(reader)
    writer.close()
    return answer


class TestReading:
    async def test_a_viewer_reads_stored_envelopes_and_then_pushed_ones(self) -> None:
        """7.8.1"""
        async with open_gateway() as gateway, open_writer(gateway) as writer, open_viewer(gateway) as viewer:
            gateway.table.store(3)
            answer = await viewer.sub(since={"seq": 1})
            expected = {"channel": CHANNEL, "epoch": "first", "seq": 1, "recovered": True}
            assert answer == {"type": "sub_ok", **expected}
            assert await viewer.seqs(2) == [2, 3]
            assert (await writer.interest()).want == {SESSION}
            await writer.push(*gateway.table.store(2))
            assert await viewer.seqs(2) == [4, 5]
            await writer.stream(words(0, "Once", 5))
            assert (await viewer.next())["payload"]["content"] == "Once"

    async def test_without_a_position_it_begins_where_the_stream_ends(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.table.store(3)
            answer = await viewer.sub()
            assert (answer["seq"], answer["recovered"]) == (3, False)
            gateway.table.store()
            assert await viewer.seqs(1) == [4]

    async def test_a_position_that_was_pruned_is_not_recovered(self) -> None:
        """7.8.1: then the client has to fetch the history."""
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.table.store(9)
            gateway.table.oldest = 6
            answer = await viewer.sub(since={"seq": 2})
            assert (answer["seq"], answer["recovered"]) == (9, False)
            answer = await viewer.sub(since={"seq": 5})
            assert (answer["seq"], answer["recovered"]) == (5, True)
            assert await viewer.seqs(4) == [6, 7, 8, 9]

    async def test_a_position_of_another_epoch_is_not_recovered(self) -> None:
        """7.8.4"""
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.table.store(2)
            answer = await viewer.sub(since={"seq": 1, "epoch": "another"})
            assert (answer["epoch"], answer["seq"], answer["recovered"]) == ("first", 2, False)

    async def test_long_histories_are_read_page_by_page(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.table.store(3210)
            assert (await viewer.sub(since={"seq": 10}))["recovered"]
            assert await viewer.seqs(3200) == [*range(11, 3211)]

    async def test_envelopes_that_a_writer_could_not_push_are_read_from_the_table(self) -> None:
        async with open_gateway() as gateway, open_writer(gateway) as writer, open_viewer(gateway) as viewer:
            await viewer.sub()
            await writer.interest()
            lost = gateway.table.store(3)
            await writer.push(lost[2])
            assert await viewer.seqs(3) == [1, 2, 3]
            gateway.table.store(2)
            assert await viewer.seqs(2) == [4, 5]

    async def test_a_viewer_who_joins_in_the_middle_gets_the_text_so_far(self) -> None:
        """7.8.4"""
        async with open_gateway() as gateway, open_writer(gateway) as writer, open_viewer(gateway) as viewer:
            gateway.table.store(2)
            gateway.table.noted[str(EXECUTION)] = RecordedText(Place(1, 1, 3), "Once upon a", 2, AT)
            await viewer.sub()
            payload = (await viewer.next())["payload"]
            assert (payload["content"], payload["next_index"]) == ("Once upon a", 3)
            await writer.stream(words(3, " time", 2))
            assert (await viewer.next())["payload"]["chunk_index"] == 3

    async def test_a_lost_chunk_is_replaced_by_the_text_so_far(self) -> None:
        """7.8.4"""
        async with open_gateway() as gateway, open_writer(gateway) as writer, open_viewer(gateway) as viewer:
            gateway.table.noted[str(EXECUTION)] = None
            await viewer.sub()
            await writer.interest()
            await writer.stream(words(0, "Once", 0))
            await writer.stream(words(2, "a", 0))
            assert (await viewer.next())["payload"]["content"] == "Once"
            gateway.table.noted[str(EXECUTION)] = RecordedText(Place(1, 1, 2), "Once upon ", 0, AT)
            assert (await viewer.next())["payload"]["content"] == "Once upon a"

    async def test_two_names_of_one_stream_are_one_subscription(self) -> None:
        async with open_gateway() as gateway, open_writer(gateway) as writer, open_viewer(gateway) as viewer:
            await viewer.sub()
            assert (await viewer.sub(f"agent.{SESSION}"))["type"] == "sub_ok"
            await writer.push(*gateway.table.store(2))
            assert await viewer.seqs(2) == [1, 2]
            await viewer.send(type="ping")
            assert await viewer.next() == {"type": "pong"}

    async def test_an_execution_inside_a_session_is_watched_over_the_sessions_stream(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.table.store(1)
            gateway.keys.inside = {EXECUTION: SESSION}
            answer = await viewer.sub(f"agent.execution.{EXECUTION}", since={"seq": 0})
            assert answer["channel"] == f"agent.execution.{EXECUTION}"
            assert (await viewer.next())["session_id"] == str(SESSION)

    async def test_a_viewer_who_unsubscribes_receives_nothing_more(self) -> None:
        async with open_gateway() as gateway, open_writer(gateway) as writer, open_viewer(gateway) as viewer:
            await viewer.sub()
            await viewer.send(type="unsub", channel=CHANNEL)
            await viewer.send(type="ping")
            assert await viewer.next() == {"type": "pong"}
            await writer.push(*gateway.table.store())
            assert (await writer.interest()).want == {SESSION}
            assert (await writer.interest()).unwant == {SESSION}
            await viewer.send(type="ping")
            assert await viewer.next() == {"type": "pong"}


class TestHistories:
    async def test_another_epoch_sends_every_viewer_back_to_the_beginning(self) -> None:
        """7.8.4"""
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.table.store(2)
            position = {"epoch": "first", "seq": (await viewer.sub())["seq"]}
            gateway.table.epoch = "second"
            code, frames = await viewer.end()
            assert code == 3002
            assert frames[-1]["type"] == "bye"
            assert frames[-1]["reconnect_in"] == 0
            async with open_viewer(gateway) as again:
                answer = await again.sub(since=position)
                assert (answer["epoch"], answer["recovered"]) == ("second", False)

    async def test_a_push_of_another_history_is_read_from_the_table(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            await viewer.sub()
            gateway.table.epoch = "stale"
            async with open_writer(gateway) as writer:
                gateway.table.epoch = "first"
                stored = gateway.table.store(2)
                await writer.push(*stored)
                assert await viewer.seqs(2) == [1, 2]

    async def test_nothing_of_a_deleted_session_remains(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.table.store(2)
            await viewer.sub()
            del gateway.table.streams[SESSION]
            gateway.keys.closed.add(SESSION)
            assert (await viewer.end())[0] == 3002
            async with open_viewer(gateway) as again:
                assert (await again.sub())["type"] == "sub_error"

    async def test_viewers_are_asked_to_reconnect_while_the_table_is_away(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as old, open_viewer(gateway) as new:
            gateway.table.store(1)
            await old.sub()
            gateway.table.is_away = True
            await new.send(type="sub", channel=f"agent.session.{UUID(int=77)}")
            code, frames = await new.end()
            assert (code, frames[-1]["reconnect_in"]) == (3006, 2.0)
            gateway.table.store(2)
            gateway.table.is_away = False
            assert await old.seqs(2) == [2, 3]


class TestAdmission:
    @pytest.mark.parametrize(
        ("frames", "code"),
        [
            (['{"type":"hello","token":"nobody"}'], 3502),
            (['{"type":"sub","channel":"agent.1"}'], 3502),
            (['{"type":"hello","token":"ann"}', '{"type":"hello","token":"ann"}'], 3500),
            (['{"type":"hello","token":"ann"}', '{"type":"refresh","token":"bob"}'], 3502),
            (['{"type":"dance"}'], 3500),
            (["{"], 3500),
            (["[]"], 3500),
            ([b"\x00"], 3500),
            (['{"type":"hello","token":"' + "x" * 20_000 + '"}'], 3501),
            (["x" * 70_000], 1009),
        ],
    )
    async def test_a_frame_outside_the_protocol_ends_the_connection(
        self, frames: list[str | bytes], code: int
    ) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as other:
            gateway.keys.banned.add("nobody")
            await other.sub()
            async with native_socket(gateway) as viewer:
                for frame in frames:
                    await viewer.socket.send(frame)
                assert (await viewer.end())[0] == code
            gateway.table.store()
            assert await other.seqs(1) == [1]

    @pytest.mark.parametrize("channel", ["agent.session.me", "news", "", f"agent.session.{UUID(int=66)}"])
    async def test_invalid_and_forbidden_channels_are_refused_and_the_connection_stays(
        self, channel: str
    ) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.keys.closed.add(UUID(int=66))
            answer = await viewer.sub(channel)
            assert (answer["type"], answer["channel"]) == ("sub_error", channel)
            assert (await viewer.sub())["type"] == "sub_ok"

    async def test_a_viewer_who_cannot_be_served_is_asked_to_reconnect(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with open_gateway() as gateway, native_socket(gateway) as viewer:
            await viewer.send(type="hello", token="ann for a while")  # noqa: S106
            assert (await viewer.end())[0] == 3006
        assert "a viewer cannot be answered" in caplog.text

    async def test_an_expired_token_ends_the_connection_unless_a_newer_one_is_sent(self) -> None:
        async with (
            open_gateway(bounds=GatewayLimits(sweep_seconds=0.01)) as gateway,
            open_viewer(gateway, "ann for 1") as viewer,
            open_viewer(gateway, "bob for 1") as other,
        ):
            await viewer.send(type="refresh", token="ann for 60")  # noqa: S106
            assert await viewer.next() == {"type": "refreshed"}
            assert (await other.end())[0] == 3003
            assert (await viewer.sub())["type"] == "sub_ok"

    async def test_a_revoked_key_ends_the_connection(self) -> None:
        bounds = GatewayLimits(sweep_seconds=0.01, recheck_seconds=0.02, hello_seconds=0.01, ping_after=0.02)
        async with open_gateway(bounds=bounds) as gateway, open_viewer(gateway) as viewer:
            await viewer.sub()
            gateway.keys.banned.add("ann")
            assert (await viewer.end())[0] == 3502

    async def test_a_key_in_place_of_a_token_does_not_expire(self) -> None:
        """8.10.1"""
        async with (
            open_gateway(bounds=GatewayLimits(sweep_seconds=0.01)) as gateway,
            open_viewer(gateway, "ann for 0.5") as viewer,
        ):
            await viewer.send(type="refresh", token="ann")  # noqa: S106
            assert await viewer.next() == {"type": "refreshed"}
            async with open_viewer(gateway, "bob for 0.6") as other:
                assert (await other.end())[0] == 3003
            assert (await viewer.sub())["type"] == "sub_ok"

    async def test_a_channel_whose_token_expires_ends_the_connection(self) -> None:
        """8.10.2"""
        channel = f"private-agent.session.{SESSION}"
        async with (
            open_gateway(bounds=GatewayLimits(sweep_seconds=0.01)) as gateway,
            pusher_client(gateway) as viewer,
        ):
            socket_id = json.loads((await viewer.next())["data"])["socket_id"]
            gone = joining(socket_id, channel, channel_data(None, time.time() - 1))
            await viewer.send(**gone)
            assert json.loads((await viewer.next())["data"])["status"] == 401
            # A later authorisation replaces the earlier one.
            await viewer.send(**joining(socket_id, channel, channel_data(None, time.time() + 1)))
            await viewer.until(event="pusher_internal:subscription_succeeded")
            ends = time.time() + 2
            await viewer.send(**joining(socket_id, channel, channel_data(None, ends)))
            await viewer.until(event="pusher_internal:subscription_succeeded")
            code, frames = await viewer.end()
            assert time.time() >= ends
            assert (code, frames[-1]["event"]) == (4200, "pusher:error")

    async def test_a_channel_of_a_revoked_key_ends_the_connection(self) -> None:
        """8.10.2"""
        channel, key = f"private-agent.session.{SESSION}", uuid4()
        bounds = GatewayLimits(sweep_seconds=0.01, recheck_seconds=0.02)
        async with open_gateway(bounds=bounds) as gateway, pusher_client(gateway) as viewer:
            socket_id = json.loads((await viewer.next())["data"])["socket_id"]
            await viewer.send(**joining(socket_id, channel, channel_data(None, None, key)))
            await viewer.until(event="pusher_internal:subscription_succeeded")
            gateway.keys.banned.add(str(key))
            assert (await viewer.end())[0] == 4009

    async def test_a_silent_client_is_disconnected(self) -> None:
        bounds = GatewayLimits(sweep_seconds=0.01, hello_seconds=0.05)
        async with open_gateway(bounds=bounds) as gateway, native_socket(gateway) as viewer:
            assert (await viewer.end())[0] == 3502

    async def test_a_client_without_a_handshake_is_disconnected(self) -> None:
        async with open_gateway(bounds=GatewayLimits(sweep_seconds=0.01, hello_seconds=0.05)) as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(b"GET /v1 HTTP/1.1\r\n")
            async with asyncio.timeout(20):
                assert await everything(reader) == b""
            writer.close()

    async def test_a_half_open_connection_is_detected(self) -> None:
        bounds = GatewayLimits(sweep_seconds=0.01, ping_after=0.05, silent_after=0.2, closing_seconds=0.1)
        async with open_gateway(bounds=bounds) as gateway, open_viewer(gateway) as lively:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(HANDSHAKE)
            async with asyncio.timeout(20):
                assert await everything(reader)
            writer.close()
            assert (await lively.sub())["type"] == "sub_ok"

    async def test_bytes_after_a_request_in_the_same_piece_are_not_an_error_of_the_gateway(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with open_gateway() as gateway:
            for request in (HANDSHAKE, HANDSHAKE.replace(b"Upgrade: websocket", b"Upgrade: other")):
                assert await piece(gateway.port, request + b"\xff\xff") == b""
        assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []

    async def test_a_bad_frame_and_a_bad_closing_in_one_piece_are_answered(self) -> None:
        async with open_gateway() as gateway:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(HANDSHAKE)
            await reader.readuntil(b"\r\n\r\n")
            no_mask = bytes(4)
            writer.write(b"\x81\x81" + no_mask + b"{" + b"\x88\x82" + no_mask + (1006).to_bytes(2))
            async with asyncio.timeout(20):
                answer = (await everything(reader)).rpartition(b"\x88")[2]
            assert int.from_bytes(answer[1:3]) == 1002
            writer.close()

    async def test_nothing_of_a_refused_handshake_remains(self) -> None:
        async with open_gateway() as gateway:
            gc.collect()
            gc.disable()
            try:
                for wrong in (b"Upgrade: other", b"Upgrade: websocket\r\nSec-WebSocket-Key: short"):
                    request = b"GET /v1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n" + wrong + b"\r\n\r\n"
                    assert b" 4" in await piece(gateway.port, request)
                left = [
                    each for each in gc.get_objects() if isinstance(each, ViewerConnection | ServerProtocol)
                ]
            finally:
                gc.enable()
        assert left == []

    async def test_connections_from_one_address_and_of_one_person_are_limited(self) -> None:
        async with open_gateway(bounds=GatewayLimits(per_address=2)) as gateway:
            async with open_viewer(gateway), open_viewer(gateway, "bob"):
                with pytest.raises(InvalidStatus) as refused:
                    await native_socket(gateway).__aenter__()
                assert refused.value.response.status_code == 503
                assert refused.value.response.headers["Retry-After"] == "5"
            async with open_viewer(gateway, "eve"):
                pass
        async with open_gateway(bounds=GatewayLimits(per_user=1)) as gateway, open_viewer(gateway):
            async with native_socket(gateway) as viewer:
                await viewer.send(type="hello", token="ann")  # noqa: S106
                assert (await viewer.end())[0] == 3005
            async with open_viewer(gateway, "bob"):
                pass

    async def test_a_rush_of_handshakes_is_slowed_down(self) -> None:
        async with open_gateway(bounds=GatewayLimits(handshakes=3)) as gateway:
            outcomes = await asyncio.gather(
                *(native_socket(gateway).__aenter__() for _ in range(8)), return_exceptions=True
            )
            refused = [each for each in outcomes if isinstance(each, InvalidStatus)]
            assert len(refused) >= 4
            assert {each.response.status_code for each in refused} == {503}
            for each in outcomes:
                if not isinstance(each, BaseException):
                    await each.socket.close()

    async def test_channels_and_frames_of_a_connection_are_limited(self) -> None:
        async with (
            open_gateway(bounds=GatewayLimits(channels=1, frames=50)) as gateway,
            open_viewer(gateway) as viewer,
        ):
            await viewer.sub()
            assert "100" not in (answer := await viewer.sub(f"agent.{UUID(int=5)}"))["message"]
            assert answer["type"] == "sub_error"
            assert (await viewer.sub())["type"] == "sub_ok"
            for _ in range(200):
                await viewer.send(type="ping")
            code, frames = await viewer.end()
            assert (code, frames[-1]["type"]) == (3007, "bye")

    @pytest.mark.parametrize(
        ("origin", "is_allowed"),
        [
            (None, True),
            ("http://127.0.0.1:9999", True),
            ("https://app.example", True),
            ("https://evil.example", False),
            ("https://[evil", False),
            ("null", False),
        ],
    )
    async def test_pages_of_other_origins_may_not_watch(self, origin: str | None, is_allowed: bool) -> None:
        async with open_gateway(origins=["https://app.example/"]) as gateway:
            if is_allowed:
                async with open_viewer(gateway, origin=origin):
                    return
            with pytest.raises(InvalidStatus) as refused:
                await native_socket(gateway, origin=origin).__aenter__()
            assert refused.value.response.status_code == 403

    async def test_other_paths_name_the_right_one(self) -> None:
        """Follows rule 13.3.6."""
        hosts = AllowedHosts.of(["*"], ["watch.example"])
        async with open_gateway(hosts=hosts) as gateway, httpx2.AsyncClient() as http, open_viewer(gateway):
            base = f"http://127.0.0.1:{gateway.port}"
            assert (await http.get(f"{base}/healthz")).json() == {"status": "ok"}
            metrics = (await http.get(f"{base}/metrics")).text
            # Including the connection of this request.
            assert "everstep_gateway_connections 2.0" in metrics
            # Under the name by which other machines reach the gateway, they are not shown.
            names = ("watch.example", "gateway")
            shown = [await http.get(f"{base}/metrics", headers={"Host": name}) for name in names]
            assert [page.status_code for page in shown] == [404, 200]
            missing = await http.get(f"{base}/nowhere")
            assert (missing.status_code, "/v1" in missing.text) == (404, True)
            assert (await http.get(f"{base}/v1")).status_code == 426
            assert (await http.post(f"{base}/v1")).status_code == 405

    async def test_a_connection_without_a_websocket_is_no_viewer(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            async with httpx2.AsyncClient() as http:
                metrics = (await http.get(f"http://127.0.0.1:{gateway.port}/metrics")).text
            assert "everstep_gateway_connections 3.0" in metrics
            assert gateway.gateway.viewer_count == 1
            writer.close()


class TestPusher:
    CHANNEL = f"private-{CHANNEL}"

    async def test_a_client_continues_from_its_signed_position(self) -> None:
        async with open_gateway() as gateway, pusher_client(gateway) as viewer:
            gateway.table.store(3)
            hello = await viewer.next()
            assert hello["event"] == "pusher:connection_established"
            socket_id = json.loads(hello["data"])["socket_id"]
            await viewer.send(**joining(socket_id, self.CHANNEL, channel_data(Position(1))))
            answer = await viewer.next()
            assert answer["event"] == "pusher_internal:subscription_succeeded"
            assert json.loads(answer["data"]) == {"epoch": "first", "seq": 1, "recovered": True}
            seqs = [json.loads((await viewer.next())["data"])["seq"] for _ in range(2)]
            assert seqs == [2, 3]

    async def test_a_wrong_signature_is_refused_and_the_connection_stays(self) -> None:
        async with open_gateway() as gateway, pusher_client(gateway) as viewer:
            socket_id = json.loads((await viewer.next())["data"])["socket_id"]
            for wrong in (
                joining("1.1", self.CHANNEL),
                joining(socket_id, self.CHANNEL, secret="guessed"),  # noqa: S106
                joining(socket_id, CHANNEL),
                joining(socket_id, "private-news"),
            ):
                await viewer.send(**wrong)
                answer = await viewer.next()
                assert answer["event"] == "pusher:subscription_error"
            right = joining(socket_id, self.CHANNEL)
            right["data"]["channel_data"] = channel_data(Position(0))
            await viewer.send(**right)
            assert json.loads((await viewer.next())["data"])["status"] == 401
            await viewer.send(**joining(socket_id, self.CHANNEL))
            assert (await viewer.next())["event"] == "pusher_internal:subscription_succeeded"

    async def test_clients_of_unknown_applications_and_versions_are_asked_not_to_reconnect(self) -> None:
        async with open_gateway() as gateway:
            async with pusher_client(gateway, "other") as viewer:
                code, frames = await viewer.end()
                assert (code, frames[0]["event"], frames[0]["data"]["code"]) == (4001, "pusher:error", 4001)
            async with pusher_client(gateway, protocol="3") as viewer:
                assert (await viewer.end())[0] == 4007

    async def test_client_events_are_refused(self) -> None:
        async with open_gateway() as gateway, pusher_client(gateway) as viewer:
            await viewer.next()
            await viewer.send(event="client-typing", channel=self.CHANNEL, data={})
            assert (await viewer.next())["data"]["code"] == 4301
            await viewer.send(event="pusher:ping", data={})
            assert (await viewer.next())["event"] == "pusher:pong"


class TestWriters:
    async def test_a_writer_with_another_secret_is_rejected(self) -> None:
        async with open_gateway() as gateway:
            with pytest.raises(InvalidStatus) as refused:
                await open_writer(gateway, "guessed").__aenter__()
            assert refused.value.response.status_code == 401

    async def test_an_unreadable_frame_does_not_end_the_link(self) -> None:
        async with open_gateway() as gateway, open_writer(gateway) as writer, open_viewer(gateway) as viewer:
            await viewer.sub()
            await writer.interest()
            for garbage in ("", "{", "nonsense", f"{SESSION} {{", f"{SESSION} []", '{"epoch": 3}'):
                await writer.socket.send(garbage)
            await writer.push(*gateway.table.store())
            assert await viewer.seqs(1) == [1]

    async def test_envelopes_that_a_lost_writer_did_not_deliver_are_read_from_the_table(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            await viewer.sub()
            async with open_writer(gateway) as writer:
                await writer.interest()
                gateway.table.store(2)
            assert await viewer.seqs(2) == [1, 2]

    async def test_a_writer_that_connects_later_learns_which_streams_are_watched(self) -> None:
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            await viewer.sub()
            async with open_writer(gateway) as writer, open_writer(gateway) as other:
                assert (await writer.interest()).want == {SESSION}
                assert (await other.interest()).want == {SESSION}


class TestSlowness:
    async def test_a_client_that_does_not_read_is_closed_and_others_do_not_wait(self) -> None:
        """7.8.2"""
        async with (
            open_gateway(
                limits=StreamLimits(ring=50), bounds=GatewayLimits(sweep_seconds=0.02, patience=0.5)
            ) as gateway,
            open_writer(gateway) as writer,
            open_viewer(gateway) as healthy,
            open_viewer(gateway, max_queue=1) as stuck,
        ):
            await healthy.sub()
            await stuck.sub()
            await writer.interest()
            seen = 0
            record = envelopes.status_changed_record(
                WireStatus.PROCESSING, WireStatus.IDLE, change=1, step_count=1, last_response="x" * 20_000
            )
            while gateway.gateway.house.metrics.close_count(3001) == 0:
                await writer.push(*(gateway.table.store_record(record) for _ in range(40)))
                assert await healthy.seqs(40) == [*range(seen + 1, seen + 41)]
                seen += 40
                assert seen < 40_000

    async def test_a_slow_viewer_who_reconnects_continues_from_its_position(self) -> None:
        """7.8.1"""
        async with open_gateway() as gateway, open_viewer(gateway) as viewer:
            gateway.table.store(300)
            await viewer.sub(since={"seq": 0})
            assert await viewer.seqs(100) == [*range(1, 101)]
            async with open_viewer(gateway) as again:
                await again.sub(since={"seq": 100})
                assert await again.seqs(200) == [*range(101, 301)]


class TestStopping:
    async def test_every_viewer_is_sent_to_another_gateway(self) -> None:
        async with watching_pair() as (gateway, viewer, other):
            await gateway.stop()
            code, frames = await viewer.end()
            assert (code, frames[-1]["type"]) == (3000, "bye")
            assert 0 <= frames[-1]["reconnect_in"] < 1
            assert (await other.end())[0] == 4200


async def test_a_finished_step_ends_its_text() -> None:
    """7.6.3"""
    async with open_gateway() as gateway, open_writer(gateway) as writer, open_viewer(gateway) as viewer:
        await viewer.sub()
        await writer.interest()
        await writer.stream(words(0, "Once", 0))
        assert (await viewer.next())["payload"]["content"] == "Once"
        await writer.push(gateway.table.store_record(step_end(1)))
        await writer.stream(words(1, "too late", 0))
        assert await viewer.seqs(1) == [1]
        await viewer.send(type="ping")
        assert await viewer.next() == {"type": "pong"}
