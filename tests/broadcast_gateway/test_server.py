"""The gateway as viewers and writers meet it: over sockets."""

import json

from agent_domain import envelopes
from agent_domain.channels import channel_data
from agent_domain.envelopes import Attempt
from agent_domain.reader import Position
from tests.broadcast_gateway.gateways import joining, pusher_client, running, watching, writing
from tests.broadcast_gateway.writers import SESSION

CHANNEL = f"agent.session.{SESSION}"


async def test_a_viewer_reads_what_was_stored_and_then_what_is_pushed() -> None:
    """7.8.1"""
    async with running() as gateway, writing(gateway) as writer:
        gateway.table.store(3)
        async with watching(gateway) as viewer:
            answer = await viewer.sub(since={"seq": 1})
            assert answer == {
                "type": "sub_ok",
                "channel": CHANNEL,
                "epoch": "first",
                "seq": 1,
                "recovered": True,
            }
            assert await viewer.seqs(2) == [2, 3]
            assert (await writer.interest()).want == {SESSION}
            await writer.push(*gateway.table.store(2))
            assert await viewer.seqs(2) == [4, 5]
            record = envelopes.stream_chunk(Attempt(1, 1), 0, "Once", is_complete=False, after_seq=5)
            await writer.stream(record)
            assert (await viewer.next())["payload"]["content"] == "Once"


async def test_a_client_of_pusher_goes_on_from_the_position_that_was_signed_along() -> None:
    async with running() as gateway, pusher_client(gateway) as viewer:
        gateway.table.store(3)
        hello = await viewer.next()
        assert hello["event"] == "pusher:connection_established"
        socket_id = json.loads(hello["data"])["socket_id"]
        channel = f"private-{CHANNEL}"
        await viewer.send(**joining(socket_id, channel, channel_data(Position(1))))
        answer = await viewer.next()
        assert answer["event"] == "pusher_internal:subscription_succeeded"
        assert json.loads(answer["data"]) == {"epoch": "first", "seq": 1, "recovered": True}
        told = [json.loads((await viewer.next())["data"])["seq"] for _ in range(2)]
        assert told == [2, 3]
