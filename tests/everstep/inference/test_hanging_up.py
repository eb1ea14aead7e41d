"""A durable execution is cancelled while a provider streams its response through the provider's own SDK."""

import asyncio
from datetime import UTC, datetime

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.client.client import Execution
from tests.everstep.inference.counterparts import WireModelServer
from tests.everstep.inference.dialects import Answer
from tests.everstep.inference.wire_server import StreamBreak, WireServer
from tests.services import Servers
from tests.workflows.harness import (
    an_agent,
    at_work,
    connect_temporal,
    events_of,
    eventually,
    final_result,
    of_type,
    seconds_between,
)


async def time_of_disconnect(server: WireServer) -> datetime:
    """The time at which the server saw its connection close."""
    await server.hung_up.wait()
    return datetime.now(UTC)


async def has_received_text(execution: Execution) -> bool:
    """Whether the worker is in the middle of the stream, and not before its request."""
    return any(step.partial_text for step in await execution.steps())


async def test_a_cancel_closes_the_providers_connection_within_a_second(
    wire: WireModelServer, services: Servers
) -> None:
    """8.2.1: and the status is stored within a second, too."""
    events = wire.dialect.events(Answer(("Well, ", "let me ", "think.")))
    wire.server.answers((*events[: wire.dialect.closing(events)], StreamBreak.STALL))
    hanging_up = asyncio.create_task(time_of_disconnect(wire.server))
    async with at_work(await connect_temporal(services), an_agent(model=wire.model())) as office:
        execution = await office.start()
        await eventually(lambda: has_received_text(execution))
        assert not wire.server.hung_up.is_set()

        called = datetime.now(UTC)
        await execution.cancel()
        await final_result(execution)
        async with asyncio.timeout(10):
            closed = await hanging_up
        row, history = await execution.get(), await events_of(execution)

        assert row.status is ExecutionStatus.CANCELLED
        assert row.completed_at
        assert (closed - called).total_seconds() < 1
        assert (row.completed_at - called).total_seconds() < 1
        (heard,) = of_type(history, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
        assert seconds_between(heard, history[-1]) < 1
        # There was no second request.
        assert len(wire.server.requests) == 1
        assert await office.conversation(execution) == ["Go"]
