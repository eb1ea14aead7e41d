"""What viewers see of an execution while it works: envelopes and chunks, in the order in which they come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from temporalio.client import Client as TemporalClient

from activities.failpoints import Failpoint, Strike, inert
from agent_domain.builder import AgentBuilder
from agent_domain.errors import ModelUnavailable, RateLimited
from agent_domain.ports import ExecutionRef
from agent_domain.steps import InferenceResponse
from agent_domain.testing import MockTool, calls
from everstep.client.client import Execution
from tests.workflows.harness import Office, an_agent, at_work, finished
from tests.workflows.viewing import Speaker, Viewer, viewing

SPOKEN = ["Well, ", "let me ", "see"]


class Hangs:
    """The first attempt is given up once it has said something; what the model raises would be recorded."""

    def __init__(self) -> None:
        self.struck = False

    def __call__(self, point: Failpoint) -> None:
        if point is Failpoint.INFER_DURING_STREAM and not self.struck:
            self.struck = True
            raise asyncio.CancelledError


@asynccontextmanager
async def watched(
    temporal: TemporalClient, speaker: Speaker, agent: AgentBuilder, strike: Strike = inert
) -> AsyncGenerator[tuple[Office, Viewer, Execution]]:
    """An execution, and somebody who saw it from its beginning."""
    ref = ExecutionRef(uuid4())
    async with (
        at_work(temporal, agent, strike=strike) as office,
        viewing(office.bus, ref.stream_id) as viewer,
    ):
        speaker.viewer = viewer
        execution = await office.start(execution_id=ref.execution_id)
        await finished(execution)
        await viewer.until_over()
        stored = await office.store.envelopes(ref.tenant_id, ref.stream_id)
        assert tuple(viewer.envelopes) == stored
        assert [envelope.seq for envelope in stored] == list(range(1, len(stored) + 1))
        yield office, viewer, execution


def speaking(*script: Sequence[str] | InferenceResponse | Exception) -> tuple[Speaker, AgentBuilder]:
    speaker = Speaker(*script)
    return speaker, an_agent(model=speaker, tools=[MockTool("look")])


async def test_text_is_seen_while_it_is_written(temporal: TemporalClient) -> None:
    """7.1.1, 7.2, 7.6.1, 7.6.2: after the beginning of its step, counted in each, with one end each."""
    speaker, agent = speaking(calls(("look", {}), text="I look"), SPOKEN)
    async with watched(temporal, speaker, agent) as (office, viewer, execution):
        assert viewer.told == [
            "status processing",
            "step.started 1",
            "1.1#0 I look",
            "1.1#1 (end)",
            "tool.started",
            "tool.completed",
            "step.completed 1",
            "step.started 2",
            "2.1#0 Well, ",
            "2.1#1 let me ",
            "2.1#2 see",
            "2.1#3 (end)",
            "step.completed 2",
            "status completed",
        ]
        begun = {e.payload["step_number"]: e.seq for e in viewer.envelopes if e.type == "agent.step.started"}
        assert {(c.attempt.step_number, c.after_seq) for c in viewer.chunks} == set(begun.items())
        assert [c.offset for c in viewer.chunks] == [0, 6, 0, 6, 13, 16]
        assert (await office.said(execution))[-1] == "".join(SPOKEN)


async def test_what_a_lost_attempt_said_is_taken_back(temporal: TemporalClient) -> None:
    """7.6.3: before the next one says anything, and with its beginning."""
    speaker, agent = speaking(SPOKEN)
    async with watched(temporal, speaker, agent, Hangs()) as (office, viewer, execution):
        assert viewer.told == [
            "status processing",
            "step.started 1",
            "1.1#0 Well, ",
            "superseded 1.1 by 2",
            "1.2#0 Well, ",
            "1.2#1 let me ",
            "1.2#2 see",
            "1.2#3 (end)",
            "step.completed 1",
            "status completed",
        ]
        assert {chunk.after_seq for chunk in viewer.chunks if chunk.attempt.number == 2} == {3}
        assert (await office.said(execution))[-1] == "".join(SPOKEN)


async def test_late_words_of_an_attempt_that_was_given_up_are_not_told(temporal: TemporalClient) -> None:
    """7.6.3: whoever still speaks for it."""

    class Haunted(Speaker):
        async def _until_seen(self, seen: int) -> None:
            await super()._until_seen(seen)
            if self.asked > 1:
                self.ears[0]("Boo")

    haunted = Haunted(SPOKEN)
    async with watched(temporal, haunted, an_agent(model=haunted), Hangs()) as (_, viewer, _execution):
        text = [chunk.content for chunk in viewer.chunks if chunk.attempt.number == 2]
        assert text == [*SPOKEN, ""]
        assert [chunk.content for chunk in viewer.chunks if chunk.attempt.number == 1] == ["Well, "]


async def test_an_attempt_that_failed_in_the_middle_is_taken_back(temporal: TemporalClient) -> None:
    """7.6.2, 7.6.3: its text has no end."""
    speaker, agent = speaking(["Well, "], SPOKEN)
    speaker.fails[1] = ModelUnavailable("hung up")
    async with watched(temporal, speaker, agent) as (_, viewer, _execution):
        assert viewer.told[2:5] == ["1.1#0 Well, ", "superseded 1.1 by 2", "1.2#0 Well, "]


async def test_an_attempt_that_failed_before_it_said_anything_is_not_told_of(
    temporal: TemporalClient,
) -> None:
    """7.6.3: there is nothing to take back; attempts still count."""
    speaker, agent = speaking(RateLimited("busy"), ["Done"])
    async with watched(temporal, speaker, agent) as (_, viewer, _execution):
        assert viewer.told[1:4] == ["step.started 1", "1.2#0 Done", "1.2#1 (end)"]


async def test_what_is_over_at_once_is_not_streamed(temporal: TemporalClient) -> None:
    """Follows rule 7.6.2: an attempt that told nothing has no end. The first step is begun first."""
    ref, agent = ExecutionRef(uuid4()), an_agent(calls(("work", {})), "Done", tools=[MockTool("work")])
    async with (
        at_work(temporal, agent, moment=60) as office,
        viewing(office.bus, ref.stream_id) as viewer,
    ):
        await finished(await office.start(execution_id=ref.execution_id))
        await viewer.until_over()
        assert viewer.told[-3:] == ["step.started 2", "step.completed 2", "status completed"]
        assert viewer.chunks == []
