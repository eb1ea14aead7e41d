"""Viewers of a working execution: envelopes and chunks, in order."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import ToolCallingDriver
from everstep.agent_domain.errors import ModelUnavailable, RateLimited
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.state.broadcast_adapter import BroadcastConfig
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.stream.bus import TextChunk
from everstep.agent_domain.stream.chunker import MAX_CHUNK_CHARACTERS
from everstep.agent_domain.stream.envelopes import Envelope
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.agent_domain.tools.tools import ToolOptions
from everstep.client.client import Execution
from everstep.local.broadcast import AgentEventEnvelopeAdapter
from everstep.runtime.builder import AgentBuilder as LocalAgentBuilder
from tests.workflows.harness import HeldModel, Office, an_agent, at_work, final_result
from tests.workflows.viewing import Speaker, Viewer, viewing

SPOKEN = ["Well, ", "let me ", "see"]


class Hangs:
    """The first attempt hangs after some text and is abandoned; a model's exception would be recorded."""

    def __init__(self) -> None:
        self.struck = False

    def __call__(self, point: Failpoint) -> None:
        if point is Failpoint.INFER_DURING_STREAM and not self.struck:
            self.struck = True
            if attempt := asyncio.current_task():
                attempt.cancel()


@asynccontextmanager
async def watch_execution(
    temporal: TemporalClient, speaker: Speaker, agent: DefinitionBuilder, strike: Strike = inert
) -> AsyncGenerator[tuple[Office, Viewer, Execution]]:
    """An execution, and a viewer who watched it from the beginning."""
    ref = ExecutionRef(uuid4())
    async with (
        at_work(temporal, agent, strike=strike) as office,
        viewing(office.bus, ref.stream_id) as viewer,
    ):
        speaker.viewer = viewer
        execution = await office.start(execution_id=ref.execution_id)
        await final_result(execution)
        await viewer.until_over()
        stored = await office.store.envelopes(ref.tenant_id, ref.stream_id)
        assert tuple(viewer.envelopes) == stored
        assert [envelope.seq for envelope in stored] == list(range(1, len(stored) + 1))
        yield office, viewer, execution


def tools() -> list[MockTool]:
    return [MockTool("look"), MockTool("glance", options=ToolOptions(quick=True))]


def speaking(*script: Sequence[str] | InferenceResponse | Exception) -> tuple[Speaker, DefinitionBuilder]:
    speaker = Speaker(*script)
    return speaker, an_agent(model=speaker, tools=tools()).with_parallel_tools(False)


async def test_text_is_visible_while_it_is_written(temporal: TemporalClient) -> None:
    """7.1.1, 7.2, 7.6.1, 7.6.2: after the beginning of its step, counted in each, with one end each."""
    speaker, agent = speaking(calls(("look", {}), text="I look"), SPOKEN)
    async with watch_execution(temporal, speaker, agent) as (office, viewer, execution):
        assert viewer.in_words == [
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
        assert (await office.conversation(execution))[-1] == "".join(SPOKEN)


async def test_the_text_of_a_lost_attempt_is_withdrawn(temporal: TemporalClient) -> None:
    """7.6.3: before the next one writes, and with its beginning."""
    speaker, agent = speaking(SPOKEN)
    async with watch_execution(temporal, speaker, agent, Hangs()) as (office, viewer, execution):
        assert viewer.in_words == [
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
        assert (await office.conversation(execution))[-1] == "".join(SPOKEN)


async def test_late_text_of_a_superseded_attempt_is_not_published(temporal: TemporalClient) -> None:
    """7.6.3: from any process that still writes it."""

    class Haunted(Speaker):
        async def _until_seen(self, seen: int) -> None:
            await super()._until_seen(seen)
            if self.asked > 1:
                self.ears[0]("Boo")

    haunted = Haunted(SPOKEN)
    async with watch_execution(temporal, haunted, an_agent(model=haunted), Hangs()) as (
        _,
        viewer,
        _execution,
    ):
        text = [chunk.content for chunk in viewer.chunks if chunk.attempt.number == 2]
        assert text == [*SPOKEN, ""]
        assert [chunk.content for chunk in viewer.chunks if chunk.attempt.number == 1] == ["Well, "]


async def test_an_attempt_that_failed_in_the_middle_is_withdrawn(temporal: TemporalClient) -> None:
    """7.6.2, 7.6.3: its text has no end, and viewers learn why nothing follows (3.5.5)."""
    speaker, agent = speaking(["Well, "], SPOKEN)
    speaker.fails[1] = ModelUnavailable("hung up")
    async with watch_execution(temporal, speaker, agent) as (_, viewer, _execution):
        assert viewer.in_words[2:6] == [
            "1.1#0 Well, ",
            "status processing: provider unavailable, next attempt in 1 s",
            "superseded 1.1 by 2",
            "1.2#0 Well, ",
        ]


async def test_text_that_arrives_after_a_failure_is_not_published(
    temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7.6.3: once the failure is recorded, it is settled whether viewers saw any of the attempt."""
    speaker, agent = speaking(["Well, "], ["Done"])
    speaker.fails[1] = ModelUnavailable("hung up")
    ref = ExecutionRef(uuid4())
    async with (
        at_work(temporal, agent) as office,
        viewing(office.bus, ref.stream_id) as viewer,
    ):
        speaker.viewer = viewer
        note_failure = office.store.note_failure

        async def while_text_arrives(ref: ExecutionRef, number: int, attempt: int) -> int:
            speaker.ears[0]("!" * MAX_CHUNK_CHARACTERS)
            return await note_failure(ref, number, attempt)

        monkeypatch.setattr(office.store, "note_failure", while_text_arrives)
        await final_result(await office.start(execution_id=ref.execution_id))
        await viewer.until_over()
        assert [chunk.content for chunk in viewer.chunks if chunk.attempt.number == 1] == ["Well, "]


async def test_an_attempt_that_failed_before_any_text_withdraws_nothing(
    temporal: TemporalClient,
) -> None:
    """7.6.3: there is nothing to withdraw; attempts still count, and viewers see the wait (3.5.5)."""
    speaker, agent = speaking(RateLimited("busy"), ["Done"])
    async with watch_execution(temporal, speaker, agent) as (_, viewer, _execution):
        assert viewer.in_words[1:5] == [
            "step.started 1",
            "status processing: provider asks to slow down, next attempt in 1 s",
            "1.2#0 Done",
            "1.2#1 (end)",
        ]


async def test_an_immediate_reply_is_not_streamed(temporal: TemporalClient) -> None:
    """Follows rule 7.6.2: an attempt that published nothing has no end. The first step is begun first."""
    ref, agent = ExecutionRef(uuid4()), an_agent(calls(("work", {})), "Done", tools=[MockTool("work")])
    async with (
        at_work(temporal, agent, moment=60) as office,
        viewing(office.bus, ref.stream_id) as viewer,
    ):
        await final_result(await office.start(execution_id=ref.execution_id))
        await viewer.until_over()
        assert viewer.in_words[-3:] == ["step.started 2", "step.completed 2", "status completed"]
        assert viewer.chunks == []


class Recorder:
    """Keeps the adapter's envelopes."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []

    def broadcast(self, channel: str, envelope: Envelope) -> None:
        del channel
        self.sent.append(envelope)


Said: TypeAlias = tuple[str, dict[str, Any]]
DIFFERS = {"duration_ms", "tool_call_id", "after_seq", "chunk_index"}
"""Values that differ in each run; chunk boundaries depend on timing."""


def plain(envelopes: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Said]:
    """The envelopes, with the chunks of an attempt joined."""
    said = list[Said]()
    for kind, payload in envelopes:
        fields = {key: value for key, value in payload.items() if key not in DIFFERS}
        before = said[-1] if said else None
        if before and before[0] == kind == "agent.stream.chunk":
            content = before[1]["content"] + fields["content"]
            said[-1] = (kind, fields | {"content": content})
        else:
            said.append((kind, fields))
    return said


LOOKS = calls(("look", {"at": "x" * 200}), text="I look")
SCENARIOS: dict[str, tuple[Sequence[str] | InferenceResponse, ...]] = {
    "an answer": (SPOKEN,),
    "calls, then an answer": (LOOKS, SPOKEN),
    "calls one after the other": (LOOKS, calls(("look", {}), ("glance", {})), ["Done"]),
    "a quick call": (calls(("glance", {"at": "x" * 200})), ["Done"]),
}


@pytest.mark.parametrize(
    "config", [BroadcastConfig.standard(), BroadcastConfig.debug(), BroadcastConfig.minimal()]
)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_durable_and_in_process_executions_publish_the_same(
    temporal: TemporalClient, scenario: str, config: BroadcastConfig
) -> None:
    """7.2, 7.4.2, 7.5: the presets select the envelopes."""
    script = SCENARIOS[scenario]
    texts = [says("".join(entry)) if not isinstance(entry, InferenceResponse) else entry for entry in script]
    agent = LocalAgentBuilder.new().with_driver(ToolCallingDriver(ScriptedModel(*texts)))
    recorder = Recorder()
    adapter = AgentEventEnvelopeAdapter(recorder, None, uuid4(), config)
    built = agent.with_tools(tools()).with_parallel_tools(False).build()
    await built.wiretap(adapter.wiretap()).arun("Go")

    speaker, durable = speaking(*script)
    speaker.is_seen = config.include_stream_chunks
    async with watch_execution(temporal, speaker, durable.with_broadcast(config)) as (_, viewer, _execution):
        frames = [frame.envelope if isinstance(frame, TextChunk) else frame for frame in viewer.frames]
        assert plain((f.type, f.payload) for f in frames) == plain((e.type, e.payload) for e in recorder.sent)


async def test_without_chunks_there_is_nothing_to_withdraw(temporal: TemporalClient) -> None:
    """7.5, 7.6.3."""
    speaker, agent = speaking(SPOKEN)
    speaker.is_seen = False
    async with watch_execution(
        temporal, speaker, agent.with_broadcast(BroadcastConfig.minimal()), Hangs()
    ) as (
        _,
        viewer,
        _execution,
    ):
        assert speaker.asked == 2
        assert viewer.in_words == [
            "status processing",
            "step.started 1",
            "step.completed 1",
            "status completed",
        ]


async def test_the_preset_may_be_chosen_for_one_execution(temporal: TemporalClient) -> None:
    """7.5"""
    async with at_work(temporal, an_agent("Done")) as office:
        runs = [await office.run(broadcast=config) for config in (None, BroadcastConfig.debug())]
        kinds = [
            {e.type for e in await office.store.envelopes(run.ref.tenant_id, run.ref.stream_id)}
            for run, _ in runs
        ]
    assert ["agent.continuation" in each for each in kinds] == [False, True]


async def test_a_cancel_shows_why_the_execution_ended(temporal: TemporalClient) -> None:
    """7.4.2, 15.1.1: the trace comes before the last status, also where another step had been decided on."""
    model = HeldModel(calls(("look", {})), "Done", holds=2)
    agent = an_agent(model=model, tools=[MockTool("look")]).with_broadcast(BroadcastConfig.debug())
    async with at_work(temporal, agent) as office:
        execution = await office.start()
        await model.begun.wait()
        await execution.cancel()
        await final_result(execution)
        stored = await office.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)

    *_, trace, status = stored
    assert (trace.type, trace.payload["stop_reason"]) == ("agent.continuation", "user_requested")
    assert (status.type, status.payload["status"]) == ("agent.status", "cancelled")
    traces = [each.payload for each in stored if each.type == trace.type]
    assert [each["should_continue"] for each in traces] == [True, False]
    assert [each["because"] for each in traces] == [
        "went on: the model called 1 tool: look",
        "cancelled: on request, after 1 step",
    ]
