"""Payloads in Temporal, and what its SDK logs."""

import asyncio
import base64
import os
from uuid import UUID

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, CancelledError

from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.ids import ExecutionRef
from everstep.runtime.codec import REFUSED_ENCODING, AesGcmCodec, PlainPayload, WrongPayloadKey
from everstep.runtime.temporal import MAX_PAYLOAD_BYTES, PayloadTooLarge, data_converter
from everstep.runtime.temporal_threads import temporal_runtime
from everstep.workflows.contracts import ExecutionInput
from tests.browsers.relay import open_relay
from tests.services import Servers

START = ExecutionInput(ExecutionRef(UUID(int=7), "acme"), ExecutionPlan(agent="travel", max_steps=3))


def a_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


async def test_an_execution_is_encoded_and_decoded() -> None:
    converter = data_converter()

    payloads = await converter.encode([START])

    assert await converter.decode(payloads, [ExecutionInput]) == [START]
    assert b"travel" in payloads[0].data


async def test_input_larger_than_the_limit_is_refused() -> None:
    converter = data_converter()

    assert await converter.encode(["x" * (MAX_PAYLOAD_BYTES - 2)])
    with pytest.raises(PayloadTooLarge, match="keep bodies in the store") as raised:
        await converter.encode(["x" * (MAX_PAYLOAD_BYTES - 1)])
    assert raised.value.non_retryable
    assert isinstance(raised.value, EverstepError)


async def test_with_a_key_temporal_cannot_read_the_payloads() -> None:
    converter = data_converter(a_key())

    payloads = await converter.encode([START])

    assert b"travel" not in payloads[0].SerializeToString()
    assert await converter.decode(payloads, [ExecutionInput]) == [START]


async def test_with_a_key_failure_messages_are_encrypted_too() -> None:
    converter, failure = data_converter(a_key()), Failure()

    await converter.encode_failure(ApplicationError("the secret is forty-two", type="Secret"), failure)

    assert b"forty-two" not in failure.SerializeToString()
    assert str(await converter.decode_failure(failure)) == "Secret: the secret is forty-two"


async def test_two_encryptions_of_the_same_value_differ() -> None:
    codec = AesGcmCodec.of(a_key())

    one, other = await codec.encode([Payload(data=b"x"), Payload(data=b"x")])

    assert one.data != other.data


async def test_with_a_key_unencrypted_payloads_are_refused() -> None:
    """8.9.4"""
    plain = await data_converter().encode([START])

    with pytest.raises(PlainPayload, match="EVERSTEP_ACCEPT_PLAIN_PAYLOADS=true"):
        await data_converter(a_key()).decode(plain, [ExecutionInput])
    forged = [Payload(metadata={"encoding": REFUSED_ENCODING}, data=plain[0].data)]
    for converter in (data_converter(a_key()), data_converter(a_key(), accepts_plain=True)):
        with pytest.raises(PlainPayload):
            await converter.decode(forged, [ExecutionInput])


async def test_with_a_key_failures_of_the_server_are_read_without_their_details() -> None:
    """8.9.4: the server says so of a cancelled activity that waited for its next attempt."""
    converter = data_converter(a_key())
    written = Failure(message="activity failed")
    written.activity_failure_info.activity_id = "5"
    written.cause.message = "canceled"
    written.cause.canceled_failure_info.details.payloads.add(
        metadata={"encoding": b"json/plain"}, data=b'"ACTIVITY_ID_NOT_STARTED"'
    )

    read = await converter.decode_failure(written)
    assert isinstance(read.__cause__, CancelledError)
    assert not read.__cause__.details

    own = Failure()
    await converter.encode_failure(ApplicationError("no", "its result"), own)
    decoded = await converter.decode_failure(own)
    assert isinstance(decoded, ApplicationError)
    assert list(decoded.details) == ["its result"]


async def test_payloads_from_before_the_key_are_read_while_that_is_allowed() -> None:
    """8.9.4"""
    payloads = await data_converter().encode([START])

    migrating = data_converter(a_key(), accepts_plain=True)
    assert await migrating.decode(payloads, [ExecutionInput]) == [START]
    assert b"travel" not in (await migrating.encode([START]))[0].SerializeToString()


async def test_another_key_is_named_as_the_cause() -> None:
    payloads = await data_converter(a_key()).encode([START])

    with pytest.raises(WrongPayloadKey, match="is payload_key the same in all processes"):
        await data_converter(a_key()).decode(payloads, [ExecutionInput])


@pytest.mark.parametrize("text", ["", "abc", "no base64!", base64.b64encode(b"x" * 31).decode()])
def test_an_invalid_key_is_refused_with_a_way_to_create_one(text: str) -> None:
    with pytest.raises(InvalidInput, match="32 random bytes in base64; make one with"):
        AesGcmCodec.of(text)


async def test_lines_of_the_sdk_are_written_to_the_log_and_not_to_standard_output(
    services: Servers, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """18.3.10: standard output has the results of commands."""
    async with open_relay(int(services.temporal_address.rpartition(":")[2])) as relay:
        client = await Client.connect(f"127.0.0.1:{relay.port}", runtime=temporal_runtime())
        relay.refused = 0
        relay.cut()
        asking = asyncio.create_task(
            client.workflow_service.get_system_info(GetSystemInfoRequest(), retry=True)
        )
        while "temporalio.core" not in {record.name for record in caplog.records}:  # noqa: ASYNC110 -- a thread of the SDK logs
            await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.wait([asking])

    assert capfd.readouterr().out == ""
