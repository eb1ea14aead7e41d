"""The content of Temporal histories: few facts, and no text of people, models or tools."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client as TemporalClient

from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.agents.plan import REGISTERED
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.errors import InvalidInput, ModelError, RateLimited, ToolFailed
from everstep.agent_domain.ids import subagent_id
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.continuation import ContinuationDecision
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, calls, says
from everstep.agent_domain.tools.tools import ToolContext, ToolOptions
from everstep.client.client import Execution
from everstep.workflows import agent_execution
from tests.workflows.harness import Office, an_agent, at_work, final_result, of_type, runs_of

SECRET = "Xyzzy"  # noqa: S105 -- a word to search for
"""Every text below contains it, with the name of its place."""


def secret(place: str) -> str:
    return f"{SECRET}-{place}"


class Whisperer:
    """A model that waits at its first request, and whose every word is a secret."""

    def __init__(self, *script: InferenceResponse | Exception) -> None:
        self.script = list(script)
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        del request
        on_text(secret("streamed"))
        self.begun.set()
        await self.go_on.wait()
        entry = self.script.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry


@REGISTERED.function("tests.indiscreet")
def indiscreet(state: Any, limit: int) -> ContinuationDecision:
    """Raises once the steps are done."""
    if state.step_count >= limit:
        raise ValueError(secret("criterion"))
    return ContinuationDecision.ALLOW


def fails(**_args: object) -> None:
    raise ToolFailed(secret("tool-error"))


def tells(**_args: object) -> dict[str, str]:
    return {secret("result-key"): secret("result")}


def tools() -> list[MockTool]:
    schema = {"type": "object", "description": secret("schema")}
    return [
        MockTool("look", secret("description"), tells, schema),
        MockTool("quick", handler=tells, options=ToolOptions(quick=True)),
        MockTool("quick_bad", handler=fails, options=ToolOptions(quick=True)),
        MockTool("bad", handler=fails),
        MockTool("odd", handler=lambda: {1, object()}),
        MockTool("delete", handler=tells),
        MockTool("user_input", options=ToolOptions(need=CallNeed.INPUT)),
    ]


class Hire(MockTool):
    """Delegates a task; its result is a secret."""

    def __init__(self, name: str) -> None:
        super().__init__(name, options=ToolOptions(need=CallNeed.SUBAGENT))

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        del context
        if "broken" in args["task"]:
            raise ToolFailed(secret("spawn-error"))
        return secret("no") if "refused" in args["task"] else Spawn("hand", (user(args["task"]),))

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        return f"{args['task']}: {end.error}"


async def run_with_failures(office: Office, model: Whisperer) -> Execution:
    """An execution in which every part writes text, and each fails once."""
    execution = await office.start(
        [user(secret("prompt"))],
        session_id=uuid4(),
        # The only id of a person there, and only for agents with criteria of their own, which may read it.
        user_id="user-7",
        metadata={secret("metadata"): secret("metadata")},
    )
    await model.begun.wait()
    await execution.steer(secret("steered"), key="steered")
    for method in (
        "record_reply",
        "preview_call",
        "reserve_call",
        "record_call",
        "begin_step",
        "preview_step",
        "settle",
    ):
        office.store.fail_next(method, RuntimeError(secret(f"store-{method}")))
    model.go_on.set()
    await office.until_waiting(execution)
    with pytest.raises(InvalidInput):
        await execution.submit_input(secret("unfit"))
    await execution.submit_input(f" {secret('choice')} ")

    async def asked_to_delete() -> bool:
        return len(await execution.requests()) == 2

    await office.store.until(asked_to_delete)
    first, second = await execution.requests()
    await execution.edit({"path": secret("edited")}, first.id)
    await execution.deny(second.id, reason=secret("reason"))
    await final_result(execution)
    return execution


class TestPrivacy:
    async def test_no_text_is_stored_in_temporal(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """1.1.4: no prompt, argument, result, answer, reason or error message, in any run."""
        monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", 40)
        args = {"path": secret("argument")}
        everything = [(name, args) for name in ("look", "quick", "quick_bad", "bad")]
        model = Whisperer(
            says(secret("never-recorded")),
            RateLimited(secret("rate-limit"), 0.01),
            calls(*everything, text=secret("text")),
            ModelError(secret("model-error")),
            RuntimeError(secret("driver-error")),
            calls(("odd", args)),
            calls(("user_input", {"prompt": secret("question"), "choices": [secret("choice")]})),
            calls(("delete", args), ("delete", args)),
            says(secret("answer"), Usage(output=1)),
        )
        agent = an_agent(model=model, tools=tools()).with_error_policy(ErrorPolicy.retry_all(9))
        agent.with_system_prompt(secret("system")).with_approval("delete", "always")
        agent.add_continuation_criteria(REGISTERED.entries["tests.indiscreet"](limit=7))
        async with at_work(temporal, agent) as office:
            execution = await run_with_failures(office, model)
            row, said = await execution.get(), await office.conversation(execution)
            description = await execution.workflow.describe()
            workflow: Any = execution.workflow
            details = await workflow.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
            runs = await runs_of(execution)

        assert row.error_message == secret("criterion")
        assert sum(SECRET in text for text in said) > 10
        assert len(runs) > 1
        found = [leak(event) for run in runs for event in run if SECRET.encode() in event.SerializeToString()]
        assert found == []
        assert SECRET.encode() not in description.raw_description.SerializeToString()
        assert SECRET.encode() not in details.SerializeToString()

    async def test_no_text_of_a_child_is_stored_in_temporal(self, temporal: TemporalClient) -> None:
        """1.1.4, 9.6.2: neither in its own history nor in its parent's."""
        tasks = [secret("task"), secret("refused"), secret("broken")]
        boss = an_agent(
            calls(*(("hire", {"task": t}) for t in tasks)), secret("answer"), tools=[Hire("hire")]
        )
        hand = an_agent(calls(("bad", {"path": secret("argument")}), text=secret("text")), tools=tools())
        hand.with_name("hand").with_system_prompt(secret("system"))
        async with at_work(
            temporal, boss.with_error_policy(ErrorPolicy.ignore_tool_errors()), hand
        ) as office:
            execution = await office.start()
            for method in ("accept", "steps"):
                office.store.fail_next(method, *[RuntimeError(secret(f"store-{method}"))] * 2)
            await final_result(execution)
            (step, _) = await execution.steps()
            child = office.client.execution(subagent_id(execution.id, step.calls[0].call.id))
            said = [c.record.text for c in step.calls if c.record]
            runs = [*await runs_of(execution), *await runs_of(child)]

        assert sum(SECRET in text for text in said) == 3
        assert len(runs) == 2
        found = [leak(event) for run in runs for event in run if SECRET.encode() in event.SerializeToString()]
        assert found == []

    async def test_a_failing_attempt_reports_its_kind(self, temporal: TemporalClient) -> None:
        """1.1.3: for the operator; the worker's log has the rest."""
        agent = an_agent(calls(("look", {})), tools=tools()).with_max_steps(1)
        async with at_work(temporal, agent) as office:
            for method in ("record_reply", "record_call", "settle"):
                office.store.fail_next(method, RuntimeError(secret(method)))
            execution, _ = await office.run()
            (run,) = await runs_of(execution)

        began = [e.activity_task_started_event_attributes for e in of_type(run, "ACTIVITY_TASK_STARTED")]
        failures = [attempt.last_failure for attempt in began]
        assert [failure.application_failure_info.type for failure in failures] == ["RuntimeError"] * 2
        assert [failure.message for failure in failures] == ["the worker's log says why"] * 2
        assert [leak(event) for event in run if SECRET.encode() in event.SerializeToString()] == []


def leak(event: HistoryEvent) -> str:
    """The place of a secret that should not be there."""
    text = str(event)
    place = text.index(SECRET)
    return f"event {event.event_id}: {text[max(0, place - 200) : place + 60]}"


async def bytes_per_activity(office: Office, said: str) -> tuple[float, int]:
    """The size of a history, divided by its activities, local ones included."""
    execution, _ = await office.run([user(said)], session_id=uuid4())
    (run,) = await runs_of(execution)
    activities = len(of_type(run, "ACTIVITY_TASK_SCHEDULED")) + len(of_type(run, "MARKER_RECORDED"))
    return sum(len(event.SerializeToString()) for event in run) / activities, activities


def looks(**_args: object) -> str:
    return "x" * 2000


class TestSize:
    @pytest.mark.parametrize("quick", [False, True], ids=["regular", "quick"])
    async def test_the_size_of_a_history_does_not_depend_on_the_texts(
        self, temporal: TemporalClient, quick: bool, record_property: Any
    ) -> None:
        """1.1.4: for 1 kB and for 1 MB of conversation, and less than 1.2 kB for an activity."""
        look = MockTool("look", handler=looks, options=ToolOptions(quick=quick))
        script = [calls(("look", {"where": "there"}), usage=Usage(1200, 340, 0, 900, 20))] * 15
        agents = [
            an_agent(*script, "Done", tools=[look])
            .with_name(name)
            .with_max_steps(100)
            .with_max_tokens(1_000_000)
            .with_timeout(300)
            for name in ("little", "plenty")
        ]
        async with at_work(temporal, *agents) as office:
            office.agents, (little, plenty) = office.agents[:1], office.agents
            small, count = await bytes_per_activity(office, "x" * 1000)
            office.agents = (plenty,)
            large, _ = await bytes_per_activity(office, "x" * 1_000_000)
            del little

        record_property("bytes_per_activity", small)
        # A quick call is no separate activity.
        assert count == (17 if quick else 32)
        assert abs(large - small) < 10
        assert max(small, large) < 1250
