"""NATS may be shared: others on the same server read nothing, and cannot write."""

from pathlib import Path
from uuid import uuid4

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.stream.bus_messages import (
    STREAMS_PER_PART,
    GatewayInterest,
    PushedLines,
    all_interests,
    changed_interests,
    parse_interest,
    parse_lines,
)
from everstep.streams.bus_seal import BusKeys, Sealer
from everstep.streams.nats_connection import NatsServers, NatsUnavailable, connect
from everstep.telemetry.metrics import BUS_REFUSED
from tests.everstep.streams.test_bus_contract import RecordingHub, Ways, wait_for_interest
from tests.everstep.streams.test_publisher import SECRET, STREAM, a_chunk, an_envelope, wait_until
from tests.nats_server import open_nats


class TestSealing:
    keys = BusKeys(SECRET)

    def test_a_message_is_opened_with_the_same_secret(self) -> None:
        sealer, subject = Sealer(self.keys), self.keys.stream_subject(STREAM)
        one, two = sealer.seal(subject, b"text"), sealer.seal(subject, b"text")
        assert one != two
        first, second = (BusKeys(SECRET).open(subject, each) for each in (one, two))
        assert (first.content, second.content) == (b"text", b"text")
        assert (first.number, second.number, first.sender == second.sender) == (1, 2, True)

    def test_a_message_belongs_to_its_subject_and_its_secret(self) -> None:
        """7.8.5"""
        subject = self.keys.stream_subject(STREAM)
        message = Sealer(self.keys).seal(subject, b"text")
        wrong = [
            (self.keys, self.keys.stream_subject(uuid4()), message),
            (BusKeys("other" * 10), subject, message),
            (self.keys, subject, message[:-1] + bytes([message[-1] ^ 1])),
            (self.keys, subject, b"\x02" + message[1:]),
            (self.keys, subject, message[:20]),
            (self.keys, subject, b""),
        ]
        for keys, where, data in wrong:
            with pytest.raises(InvalidInput):
                keys.open(where, data)

    def test_subjects_are_opaque_and_those_of_one_installation(self) -> None:
        subject = self.keys.stream_subject(STREAM)
        assert str(STREAM) not in subject
        assert STREAM.hex not in subject
        assert subject == BusKeys(SECRET).stream_subject(STREAM)
        assert subject != BusKeys("other" * 10).stream_subject(STREAM)


class TestMessages:
    def test_all_streams_of_a_gateway_come_in_parts(self) -> None:
        """What it no longer wants is missing in the next round, whichever part it was in."""
        own, streams = uuid4(), {uuid4() for _ in range(2 * STREAMS_PER_PART + 1)}
        first = all_interests(own, streams)
        assert len(first) == 3
        wanted = frozenset[object]()
        for each in map(parse_interest, (each.encode() for each in first)):
            wanted = each.apply(wanted)  # pyright: ignore[reportArgumentType] -- empty at first
        assert wanted == streams
        fewer = frozenset([*streams][:3])
        (only,) = all_interests(own, fewer)
        assert only.apply(frozenset(streams)) == fewer
        assert GatewayInterest(own, part=0).apply(frozenset(streams)) == frozenset()

    def test_changes_are_added_and_removed(self) -> None:
        one, two, three = uuid4(), uuid4(), uuid4()
        (change,) = changed_interests(uuid4(), [three], [one])
        assert parse_interest(change.encode()).apply(frozenset([one, two])) == {two, three}
        assert changed_interests(uuid4(), [], []) == []

    @pytest.mark.parametrize("content", [b"", b"nonsense", b"[]", b'{"gateway": 1}'])
    def test_malformed_messages_are_refused(self, content: bytes) -> None:
        with pytest.raises(InvalidInput):
            parse_interest(content)

    def test_a_part_beyond_all_parts_is_refused(self) -> None:
        with pytest.raises(InvalidInput):
            parse_interest(GatewayInterest(uuid4(), part=1, parts=1).encode())

    def test_lines_keep_their_epoch(self) -> None:
        assert parse_lines(PushedLines("e", [b"1", b"2"]).encode()) == PushedLines("e", [b"1", b"2"])
        assert parse_lines(PushedLines("e").encode()) == PushedLines("e", [])
        with pytest.raises(InvalidInput):
            parse_lines(b"\nline")


async def test_others_on_the_server_read_nothing_and_change_nothing() -> None:
    """Follows rule 7.8.5: they see random bytes; what they send, repeat or move is refused."""
    hub, seen = RecordingHub(STREAM), list[Msg]()
    async with open_nats() as nats:
        ways, other = Ways(nats), Client()
        await other.connect(nats.url)

        async def note(message: Msg) -> None:
            seen.append(message)

        await other.subscribe(">", cb=note)  # pyright: ignore[reportUnknownMemberType] -- its `future`
        await other.flush()
        async with ways.gateway(hub), ways.writer() as bus:
            await wait_for_interest(bus)
            bus.publish(STREAM, [an_envelope(1)])
            bus.publish_chunk(STREAM, a_chunk(0))
            await wait_until(lambda: len(hub.pushed) == 2)
            await other.flush()
            for each in seen:
                sent = each.subject.encode() + each.data
                assert str(STREAM).encode() not in sent
                assert b"agent.status" not in sent

            refused = BUS_REFUSED.values[()]
            subject = BusKeys(SECRET).stream_subject(STREAM)
            (pushed,) = [each.data for each in seen if each.subject == subject][:1]
            await other.publish(subject, b"forged")
            await other.publish(BusKeys(SECRET).interest_subject, pushed)
            await other.publish(BusKeys(SECRET).request_subject, b"")
            # A gateway that has left the stream since, whose first message is repeated.
            hub.unwant(STREAM)
            await wait_until(lambda: not bus.has_subscribers(STREAM))
            for each in [*seen]:
                if each.subject == BusKeys(SECRET).interest_subject:
                    await other.publish(each.subject, each.data)
            await other.flush()
            await wait_until(lambda: BUS_REFUSED.values[()] >= refused + 3)
            assert not bus.has_subscribers(STREAM)
        await other.close()
    assert len(hub.pushed) == 2


class TestServers:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "localhost:4222",
            "http://host:4222",
            "nats://",
            "nats://host:0",
            "nats://host:x",
            "nats://a,tls://b",
        ],
    )
    def test_a_url_that_cannot_be_used_is_refused(self, url: str) -> None:
        """Follows rule 7.8.7: in one sentence."""
        with pytest.raises(InvalidInput, match="EVERSTEP_NATS_URL cannot be used"):
            NatsServers.of(url)

    def test_passwords_are_not_shown(self) -> None:
        servers = NatsServers.of("nats://ann:p%40ss@one:4222, nats://two:4222")
        assert str(servers) == "one:4222, two:4222"
        assert (servers.user, servers.password) == ("ann", "p@ss")

    def test_a_file_without_credentials_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "user.creds"
        with pytest.raises(InvalidInput, match="cannot be read"):
            NatsServers.of("nats://host", file)
        file.write_text("-----BEGIN NATS USER JWT-----\n")
        with pytest.raises(InvalidInput, match="is no file of credentials"):
            NatsServers.of("nats://host", file)

    async def test_wrong_credentials_are_named(self) -> None:
        """Follows rule 7.8.7: in one sentence, without the password."""
        async with open_nats("--user", "ann", "--pass", "p@ss/word") as nats:
            host = f"127.0.0.1:{nats.port}"
            client = await connect(NatsServers.of(f"nats://ann:p%40ss%2Fword@{host}"), "test")
            await client.close()
            for login in ("ann:wrong@", "bob:p@", ""):
                with pytest.raises(NatsUnavailable, match="refuses the credentials") as refused:
                    await connect(NatsServers.of(f"nats://{login}{host}"), "test")
                assert "wrong" not in str(refused.value)

    async def test_a_token_is_a_user_without_a_password(self) -> None:
        async with open_nats("--auth", "s3cret") as nats:
            client = await connect(NatsServers.of(f"nats://s3cret@127.0.0.1:{nats.port}"), "test")
            await client.close()

    async def test_a_server_without_tls_gets_no_password(self) -> None:
        """7.8.7"""
        async with open_nats() as nats:
            with pytest.raises(NatsUnavailable, match="does not require TLS"):
                await connect(NatsServers.of(f"tls://ann:secret@127.0.0.1:{nats.port}"), "test")

    async def test_an_unreachable_server_is_named(self) -> None:
        with pytest.raises(NatsUnavailable, match="cannot be reached"):
            await connect(NatsServers.of("nats://127.0.0.1:1"), "test")
