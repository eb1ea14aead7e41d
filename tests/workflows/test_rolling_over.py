"""A long execution cuts its history at step boundaries; nothing is lost or restarted."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import pytest
import pytest_asyncio
from temporalio.api.history.v1 import HistoryEvent

from everstep.agent_domain.loop.facts import ExecutionFacts
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.storage.steps import StepRow
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.testing import DeterministicAgentDriver, MockTool, ScenarioStep
from everstep.client.client import Execution
from everstep.workflows import agent_execution
from everstep.workflows.contracts import ExecutionResult
from tests.services import Servers
from tests.workflows.harness import (
    Office,
    an_agent,
    at_work,
    connect_temporal,
    eventually,
    json_of,
    of_type,
    progress,
    runs_of,
    scheduled_activities,
)

STEPS = 400
LONG = 120.0
"""Seconds for as many steps, on a busy machine."""
MOST_EVENTS = 400
"""Fewer than usual: as many runs in less time."""
SAYS = "word " * 40
"""The text of each step: 80 kB of conversation in the end."""

MESSAGES = [f"message {number}" for number in range(160)]
WORKS_ON = ScenarioStep.tool_call("work", response=SAYS, usage=Usage(output=1), execute_tools=False)


@dataclass(frozen=True)
class Rollover:
    """All results of an execution in many runs."""

    result: ExecutionResult
    runs: Sequence[Sequence[HistoryEvent]]
    facts: ExecutionFacts
    steps: Sequence[StepRow]
    said: Sequence[str]
    envelopes: Sequence[StoredEnvelope]


async def speak(execution: Execution, messages: Sequence[str]) -> None:
    for message in messages:
        await execution.steer(message)


async def pause_after(office: Office, execution: Execution, steps: int) -> None:
    async def has_come_there() -> bool:
        return (await execution.get()).step_count >= steps

    # Not `until`: so many checks over so long a time would slow down the execution.
    await eventually(has_come_there, LONG)
    await execution.pause()
    await office.until_status(execution, ExecutionStatus.PAUSED)
    await execution.resume()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rollover(services: Servers) -> AsyncGenerator[Rollover]:
    """Steps without an end, messages from four people at once, and two pauses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_execution, "ROLL_OVER_EVENTS", MOST_EVENTS)
        yield await roll_over(services)


async def roll_over(services: Servers) -> Rollover:
    driver = DeterministicAgentDriver.from_steps(WORKS_ON)
    agent = an_agent(tools=[MockTool("work")]).with_driver(driver).with_max_steps(STEPS)
    async with at_work(await connect_temporal(services), agent) as office:
        execution = await office.start()
        async with asyncio.TaskGroup() as people:
            for person in range(4):
                people.create_task(speak(execution, MESSAGES[person::4]))
            for steps in (20, 200):
                people.create_task(pause_after(office, execution, steps))
        async with asyncio.timeout(LONG):
            result = await execution.workflow.result()
        ref, envelopes = execution.ref, list[StoredEnvelope]()
        while more := await office.store.envelopes(ref.tenant_id, ref.stream_id, len(envelopes)):
            envelopes += more
        return Rollover(
            result,
            await runs_of(execution),
            (await progress(execution)).facts,
            await execution.steps(),
            await office.conversation(execution),
            envelopes,
        )


class TestRollingOver:
    def test_no_history_gets_long(self, rollover: Rollover) -> None:
        """1.1.4: one execution is one workflow id, in many runs."""
        assert len(rollover.runs) >= STEPS * 6 / MOST_EVENTS
        # Work under way at the limit still finishes: a step, and messages in the meantime.
        assert max(map(len, rollover.runs)) < MOST_EVENTS + 30

    def test_step_numbers_continue(self, rollover: Rollover) -> None:
        """1.1.4: and each is requested once."""
        asked = [given["number"] for run in rollover.runs for _, given in scheduled_activities(run, "infer")]

        assert asked == list(range(1, STEPS + 1))
        assert [step.number for step in rollover.steps] == asked
        assert (rollover.result.steps, rollover.result.usage) == (STEPS, Usage(output=STEPS))
        assert (rollover.result.status, rollover.result.stop_reason) == (
            AgentStatus.COMPLETED,
            StopReason.STEPS_LIMIT,
        )

    def test_every_message_is_received_once(self, rollover: Rollover) -> None:
        """1.1.4, 8.3.1: also those that arrived while the history was cut."""
        received = [text for text in rollover.said if text in MESSAGES]
        hearing = [run for run in rollover.runs if of_type(run, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")]

        assert sorted(received) == sorted(MESSAGES)
        assert [[text for text in received if text in MESSAGES[person::4]] for person in range(4)] == [
            MESSAGES[person::4] for person in range(4)
        ]
        assert rollover.result.unheard == 0
        assert len(hearing) > 2

    def test_positions_of_viewers_continue(self, rollover: Rollover) -> None:
        """1.1.4: `seq` has no gap, and time is monotonic."""
        assert [envelope.seq for envelope in rollover.envelopes] == list(
            range(1, len(rollover.envelopes) + 1)
        )
        assert all(a.created_at < b.created_at for a, b in pairwise(rollover.envelopes))

    def test_settlement_numbers_continue(self, rollover: Rollover) -> None:
        """1.1.4, 8.4.1: a later pause is not taken for an earlier one."""
        statuses = [e.payload["status"] for e in rollover.envelopes if e.type == "agent.status"]

        assert statuses == ["processing", "paused", "processing", "paused", "processing", "stopped"]

    def test_clocks_continue(self, rollover: Rollover) -> None:
        """1.1.4, 2.7.2: age and working time are those of the execution, not of its last run."""
        began = rollover.runs[0][0].event_time.ToDatetime(tzinfo=UTC)
        info = rollover.facts.state_info
        worked = sum(step.facts.seconds for step in rollover.steps if step.facts)

        assert info.started_at
        assert abs((info.started_at - began).total_seconds()) < 5
        assert info.cumulative_execution_seconds == pytest.approx(worked)

    def test_only_facts_are_carried(self, rollover: Rollover) -> None:
        """1.1.4: as much after three hundred steps as after ten."""
        sizes = [
            len(run[0].workflow_execution_started_event_attributes.input.payloads[0].data)
            for run in rollover.runs[1:]
        ]
        last = json_of(rollover.runs[-1][0].workflow_execution_started_event_attributes.input.payloads[0])

        assert max(sizes) - min(sizes) < 300
        assert set(last) >= {"ref", "plan", "facts"}
        assert datetime.fromisoformat(last["facts"]["state_info"]["started_at"]) == (
            rollover.facts.state_info.started_at
        )
