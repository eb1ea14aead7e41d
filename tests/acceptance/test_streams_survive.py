"""All faults happen at once, and every viewer ends with exactly the stored state.

Gateways and workers are killed and restarted, one gateway is drained, PostgreSQL is restarted, frames are
lost on their way, models break off, connections are cut, and some viewers do not read for a while. The
moments are random: `EVERSTEP_CHAOS_SEED` draws the same again, as far as processes do. `make chaos` runs the
same with more of everything. `EVERSTEP_CHAOS_BUS=nats` runs it over NATS, which is killed, too.

Asserted of each viewer, on every wire:

- It received all stored envelopes of its stream, in order, each once, and equal to the table.
- The last text that it had of a step when the step completed is the stored message, or a beginning of it that
  was never marked complete: a loss on the way may leave a draft unfinished, as text is only as reliable as
  the bus, and never garbled. Once the stored message is applied to the draft, it is the same.
- Text only grows, or belongs to a later attempt. No text arrives of an attempt that was superseded, of a step
  that has completed, or of an execution that has ended.
- The last envelope of each execution is its terminal status, once.
- No close code forbade it to reconnect, and nothing that it had read became void.

And of each execution: it is completed, each step once; each model reply was requested no more often than
there were attempts; each tool ran, no more often than there were attempts, and one that must not run twice
did not.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from everstep.agent_domain.stream.envelopes import EnvelopeType
from everstep.agent_domain.stream.reader import AFTER_ALL_ATTEMPTS, fence_from
from everstep.agent_domain.values import format_moment
from tests.acceptance.agents import JOURNAL
from tests.acceptance.chaos import Plot, Stage, Story, measure, open_stage
from tests.acceptance.harness import Entry, Nursery, read_journal
from tests.acceptance.onlookers import ManualViewer, SseViewer, StreamViewer, is_settled
from tests.acceptance.storytellers import STEPS, words

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(measure().limit)]

StepMessages = dict[tuple[UUID, int], str]
"""The stored messages, by execution and step."""


@pytest_asyncio.fixture(loop_scope="session")
async def stage(nursery: Nursery, tmp_path: Path) -> AsyncGenerator[Stage]:
    """The stage of the requested size."""
    async with open_stage(measure(), nursery, tmp_path) as stage:
        yield stage


async def test_every_viewer_ends_with_the_stored_state(stage: Stage) -> None:
    """Follows rules 0.5, 7.1.1, 7.4.2, 7.6.3, 7.7.1, 7.8.1, 7.8.2 and 7.8.4."""
    try:
        await stage.play()
        await examine(stage)
    finally:
        # Shown if it fails, or with `-s`.
        print(stage.report())  # noqa: T201
    assert stage.faults == []
    assert len(stage.viewers) == stage.measure.viewers
    # Otherwise there was no chaos.
    assert sum(each.connections - 1 for each in stage.viewers) > stage.measure.viewers / 2
    types = [each.type for plot in stage.plots for each in plot.envelopes]
    assert EnvelopeType.AGENT_ATTEMPT_SUPERSEDED in types


async def examine(stage: Stage) -> None:
    """Check the assertions above; each violation becomes a fault."""
    journal = read_journal(stage.folder / JOURNAL)
    said: StepMessages = {}
    for plot in stage.plots:
        stage.faults += [f"{plot}: {each}" for each in await wrong_announcements(stage, plot)]
        for story in plot.stories:
            stage.faults += [f"{story}: {each}" for each in await wrong_story(stage, story, journal, said)]
    for onlooker in stage.viewers:
        plot = next(each for each in stage.plots if each.stream_id == onlooker.stream_id)
        for fault in [*onlooker.received.faults, *wrong_view(onlooker, plot, said)]:
            stage.faults.append(f"viewer {onlooker.name} of {plot} at {onlooker.position}: {fault}")
    for role in (*stage.gateways, *stage.apis):
        if "Traceback" in role.log:
            stage.faults.append(f"{role.name} stumbled")


# Viewers.


def wrong_view(onlooker: StreamViewer, plot: Plot, said: StepMessages) -> Iterator[str]:
    """Stored envelopes that a viewer did not see as they are."""
    seen = onlooker.received
    for received, stored in zip(seen.stored, plot.envelopes, strict=False):
        if received.to_dict() != stored.to_dict():
            yield f"{received} instead of {stored}"
    if len(seen.stored) != len(plot.envelopes):
        yield f"{len(seen.stored)} of {len(plot.envelopes)} envelopes"
    for story in plot.stories:
        own = [each for each in seen.stored if each.execution_id == story.execution_id]
        ends = [fence_from(each.type, each.payload) == AFTER_ALL_ATTEMPTS for each in own]
        if ends.count(True) != 1 or not ends[-1]:
            yield f"{story} does not end by a terminal status"
    yield from wrong_texts(onlooker, said)
    if isinstance(onlooker, ManualViewer):
        yield from wrong_drafts(onlooker, said)
    if isinstance(onlooker, SseViewer) and onlooker.last.rpartition(":")[2] != str(len(seen.stored)):
        yield f"the last event was {onlooker.last}"


async def wrong_announcements(stage: Stage, plot: Plot) -> list[str]:
    """Announcements whose time is not that of their message."""
    stored = await stage.rows(
        "SELECT id, created_at FROM agent_session_messages WHERE session_id = :id", id=plot.stream_id
    )
    written = {row["id"]: format_moment(row["created_at"], 6) for row in stored}
    timestamps = {
        each.id: each.to_dict()["timestamp"] for each in plot.envelopes if not each.type.startswith("agent.")
    }
    return [] if timestamps == written else [f"announced at {timestamps}, stored at {written}"]


def wrong_texts(onlooker: StreamViewer, said: StepMessages) -> Iterator[str]:
    """Text read before a step completed is a beginning of its message."""
    for key, last in onlooker.received.texts.items():
        message = said.get(key, "")
        if last.content != message and (last.is_complete or not message.startswith(last.content)):
            yield f"step {key[1]} was read as {last}, and is {message[:60]!r}"


def wrong_drafts(onlooker: ManualViewer, said: StepMessages) -> Iterator[str]:
    """The reader's draft when a step completed is the text that the viewer saw; the message replaces it."""
    texts = onlooker.received.texts
    for key, draft in onlooker.received.drafts.items():
        if draft.content != (texts[key].content if key in texts else ""):
            yield f"the draft of step {key[1]} is not its text"
        if not is_settled(draft, said.get(key, "")):
            yield f"the draft of step {key[1]} is not its message, once that was applied: {draft.content!r}"


# Executions.


async def wrong_story(stage: Stage, story: Story, journal: list[Entry], said: StepMessages) -> list[str]:
    """Violations of an execution; adds its messages to `said`."""
    of = {"id": story.execution_id}
    (execution,) = await stage.rows("SELECT status FROM agent_executions WHERE id = :id", **of)
    steps = await stage.rows("SELECT * FROM agent_steps WHERE execution_id = :id ORDER BY number", **of)
    messages = await stage.rows(
        "SELECT step, content #>> '{}' AS text FROM agent_transcript"
        " WHERE execution_id = :id AND role = 'assistant' ORDER BY step, idx",
        **of,
    )
    calls = await stage.rows("SELECT * FROM agent_tool_calls WHERE execution_id = :id", **of)
    found, numbers = list[str](), [*range(1, STEPS + 1)]
    if execution["status"] != "completed":
        found.append(f"it is {execution['status']}")
    if [row["number"] for row in steps] != numbers or [row["step"] for row in messages] != numbers:
        found.append(f"its steps are {steps}, its messages are of {[row['step'] for row in messages]}")
    events = Counter((entry.event, entry.where) for entry in journal)
    for step, message in zip(steps, messages, strict=False):
        said[step["execution_id"], step["number"]] = message["text"]
        found += wrong_step(story, step, message["text"], events)
    ran = Counter(entry.data["key"] for entry in journal if entry.event == "ran")
    return found + [each for call in calls for each in wrong_call(call, ran[call["call_id"]])]


def wrong_step(
    story: Story, step: Mapping[str, Any], message: str, events: Counter[tuple[str, str]]
) -> Iterator[str]:
    """Its message is that of one attempt, and the stored number of attempts is an upper bound."""
    number, tried = step["number"], step["attempt"]
    if message != words(story.about, number, message.partition("·")[0]):
        yield f"the message of step {number} is garbled: {message[:60]!r}"
    where = f"{story.about}, turn {number}"
    asked, answered = events["asked", where], events["answered", where]
    if not 1 <= answered <= asked <= tried:
        yield f"step {number} was asked for {asked} times, answered {answered} times, and tried {tried} times"


def wrong_call(call: Mapping[str, Any], ran: int) -> Iterator[str]:
    """The tool ran, and no more often than permitted."""
    name, is_good = call["name"], call["success"]
    limit = 1 if name == "pay" else call["attempts"]
    if call["state"] != "done" or not is_good <= ran <= max(1, limit):
        yield f"{name} is {call['state']}, ran {ran} times and was tried {call['attempts']} times"
    # It may be unknown whether it was paid; then the model learns so.
    if not is_good and name != "pay":
        yield f"{name} failed: {call['error']}"
