"""A tool says how far it is: durably to viewers and readers, in this process to listeners."""

import asyncio
import threading
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities import progress_reports
from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.state.broadcast_adapter import EventEnvelopeAdapter
from everstep.agent_domain.state.events import EventBus, ToolCallProgressed
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.testing import ScriptedModel, calls
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.progress import Progress
from everstep.agent_domain.tools.tools import ToolContext
from everstep.cli.output import call_line
from everstep.runtime.builder import AgentBuilder
from tests.scenarios import START
from tests.workflows.harness import an_agent, at_work, final_result

READS = calls(("read", {})), "Done"


def progress_of(envelopes: Any) -> list[tuple[str, Any]]:
    return [
        (each.payload["detail"], each.payload["fraction"]) for each in envelopes if "fraction" in each.payload
    ]


async def test_viewers_and_readers_see_how_far_a_call_is(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.9.6: the first report at once, then the latest, and none after the result."""
    monkeypatch.setattr(progress_reports, "PROGRESS_SECONDS", 0.05)
    go_on = asyncio.Event()

    @tool
    async def read(context: ToolContext) -> str:
        """Read pages."""
        context.progress("Page 1\nof 3", 0)
        await asyncio.sleep(0)
        for page in (2, 3):
            context.progress(f"Page {page} of 3", page / 4)
        await go_on.wait()
        return "read"

    async with at_work(temporal, an_agent(*READS, tools=[read])) as office:
        execution = await office.start()
        ref = execution.ref

        async def is_at_page_3() -> bool:
            steps = await execution.steps()
            row = steps[0].calls[0] if steps and steps[0].calls else None
            return row is not None and row.progress == Progress("Page 3 of 3", 0.75)

        await office.store.until(is_at_page_3)
        (row,) = (await execution.steps())[0].calls
        assert call_line(row).endswith("-> runs: 75 %: Page 3 of 3")
        go_on.set()
        await final_result(execution)

        seen = progress_of(await office.store.envelopes(ref.tenant_id, ref.stream_id))
        assert (seen[0], seen[-1]) == (("0 %: Page 1 of 3", 0.0), ("75 %: Page 3 of 3", 0.75))
        assert (await execution.steps())[0].calls[0].progress is None


async def test_a_report_fails_no_call_and_a_meaningless_one_is_an_error(temporal: TemporalClient) -> None:
    """9.9.6: whether the store is available or not; from a thread, too."""

    @tool
    def read(context: ToolContext) -> str:
        """Read pages."""
        context.progress("Page 1", 0.5)
        reported.wait(10)
        context.progress("Page 2", 1.5)
        return "read"

    reported = threading.Event()
    builder = an_agent(*READS, tools=[read]).with_error_policy(ErrorPolicy.ignore_tool_errors())
    async with at_work(temporal, builder) as office:
        office.store.fail_next("note_progress", StoreUnavailable("gone"))
        execution = await office.start()
        reported.set()
        result = await final_result(execution)

        assert result.status is AgentStatus.COMPLETED
        record = (await execution.steps())[0].calls[0].record
        assert record is not None
        assert record.text == "Error: the fraction is 1.5; pass a number from 0 to 1"


async def test_listeners_in_this_process_receive_each_report() -> None:
    """9.9.6: in order, before the result; viewers of an adapter about one a second."""
    seen, sent, bus = list[ToolCallProgressed](), list[Envelope](), EventBus()

    class Broadcaster:
        def broadcast(self, channel: str, envelope: Envelope) -> None:
            del channel
            sent.append(envelope)

    adapter = EventEnvelopeAdapter(Broadcaster(), None, "e", clock=lambda: START)
    bus.on_event(ToolCallProgressed, seen.append)
    bus.wiretap(adapter.wiretap())

    @tool
    def read(context: ToolContext) -> str:
        """Read pages."""
        for page in (1, 2, 3):
            context.progress(f"Page {page}", page / 4)
        return "read"

    agent = AgentBuilder.new().with_model(ScriptedModel(*READS)).with_tools([read])
    await agent.with_events(bus).build().arun("Go")

    assert [(each.text, each.fraction, each.step_number) for each in seen] == [
        ("Page 1", 0.25, 1),
        ("Page 2", 0.5, 1),
        ("Page 3", 0.75, 1),
    ]
    assert progress_of(sent) == [("25 %: Page 1", 0.25)]
