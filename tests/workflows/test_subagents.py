"""Calls that are executions: children, their ends, and their parent in the meantime."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.call_records import NOT_ALLOWED
from everstep.activities.failpoints import Failpoint
from everstep.activities.subagents import FROM_OUTSIDE
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.spawning import Spawn
from everstep.agent_domain.capabilities.subagents import SubagentPolicy, outcome_text
from everstep.agent_domain.errors import InvalidInput, ModelError, StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef, subagent_id
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import CANCELLED_CALL
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.tools.function_tool import tool
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.client.client import Execution
from everstep.steps.subagents import CANNOT_SPAWN
from everstep.workflows import agent_execution
from everstep.workflows.contracts import CallReply
from tests.workflows.failpoints import FailpointStrike
from tests.workflows.harness import (
    DEADLINE,
    HeldModel,
    Office,
    an_agent,
    at_work,
    events_of,
    eventually,
    fail_activity,
    final_result,
    of_type,
    progress,
    runs_of,
)
from tests.workflows.test_people import asks, user_input

FORGIVING = ErrorPolicy.ignore_tool_errors()


def quits() -> Any:
    raise SystemExit("I quit")


def waits_for_the_loop() -> Any:
    """Would never return in the event loop's own thread."""
    turned = threading.Event()
    LOOPS[-1].call_soon_threadsafe(turned.set)
    return f"The loop goes on: {turned.wait(DEADLINE)}"


LOOPS: list[asyncio.AbstractEventLoop] = []
SAYS: dict[str, Callable[[], Any]] = {"quits": quits, "blocks": waits_for_the_loop, "nothing": lambda: None}


class Hire(MockTool):
    """Delegates a task to an agent, and reads its answer."""

    def __init__(self, name: str = "hire", effect: Effect = Effect.IDEMPOTENT, **limits: Any) -> None:
        options = ToolOptions(need=CallNeed.SUBAGENT, effect=effect)
        super().__init__(name, schema={"type": "object", "required": ["who"]}, options=options)
        self.limits = limits
        self.asked: list[dict[str, Any]] = []
        self.ends: list[ChildEnd] = []

    def spawn(self, args: dict[str, Any], context: ToolContext) -> Spawn | str:
        del context
        self.asked.append(args)
        if args["who"] == "nobody":
            return "There is nobody to hire"
        if args["who"] == "broken":
            raise InvalidInput("I do not know how")
        if args["who"] in SAYS:
            return SAYS[args["who"]]()
        return Spawn(args["who"], (user(args.get("task", "Work")),), **self.limits)

    def report(self, args: dict[str, Any], end: ChildEnd) -> str:
        self.ends.append(end)
        return outcome_text(args["who"], end, SubagentPolicy())


def hires(*whom: str, **more: Any) -> InferenceResponse:
    """A response that delegates to these."""
    return calls(*(("hire", {"who": who, **more}) for who in whom))


def a_boss(*script: InferenceResponse | str, hire: Any = None) -> DefinitionBuilder:
    """An agent that delegates."""
    return an_agent(*script, tools=[hire or Hire()]).with_name("boss")


def a_hand(
    *script: InferenceResponse | str | Exception, name: str = "hand", **more: Any
) -> DefinitionBuilder:
    """An agent that is delegated to."""
    return an_agent(*script, **more).with_name(name)


async def results(execution: Execution) -> list[str]:
    """The results of each call."""
    return [c.record.text for step in await execution.steps() for c in step.calls if c.record]


async def child_of(office: Office, parent: Execution, index: int = 0) -> Execution:
    """Wait for the child of a call of its latest step."""

    async def has_calls() -> bool:
        return any(len(step.calls) > index for step in await parent.steps())

    await office.store.until(has_calls)
    step = next(step for step in reversed(await parent.steps()) if step.calls)
    child = office.client.execution(subagent_id(parent.id, step.calls[index].call.id), parent.ref.session_id)

    async def is_accepted() -> bool:
        return await office.store.execution(child.ref) is not None

    await office.store.until(is_accepted)
    return child


async def statuses_of(*executions: Execution) -> list[ExecutionStatus]:
    """The statuses of executions."""
    return [(await execution.get()).status for execution in executions]


class TestChildren:
    async def test_a_call_is_a_separate_execution(self, temporal: TemporalClient) -> None:
        """8.1.2, 9.6.2, 9.6.3: in the parent's session, with its own id; each knows only its own
        conversation.
        """
        hire = Hire(max_steps=3, max_tokens=500, timeout_seconds=30)
        boss = a_boss(hires("hand", task="Count"), "Thanks", hire=hire)
        async with at_work(temporal, boss, a_hand("Three")) as office:
            session = uuid4()
            execution, result = await office.run(session_id=session, user_id="ada")
            child = await child_of(office, execution)
            row, parent = await child.get(), await execution.get()
            plan = (await progress(child)).facts

            assert await office.conversation(execution) == ["Go", "", "[Subagent: hand] Three", "Thanks"]
            assert await office.conversation(child) == ["Count", "Three"]
            envelopes = await office.store.envelopes(execution.ref.tenant_id, session)
            material = await office.store.material(child.ref)
            parent_material = await office.store.material(execution.ref)
        assert (row.status, row.parent_execution_id) == (ExecutionStatus.COMPLETED, execution.id)
        assert row.metadata["parent_execution_id"] == str(execution.id)
        assert row.ref == ExecutionRef(child.id, parent.ref.tenant_id, session)
        assert material.parent_agent_id == parent_material.agent_id
        assert {e.execution_id for e in envelopes} == {execution.id, child.id}
        of_parent = [e.type for e in envelopes if e.execution_id == execution.id]
        assert of_parent.count("agent.tool.started") == of_parent.count("agent.tool.completed") == 1
        assert (result.steps, plan.step_count) == (2, 1)
        assert hire.calls == []
        assert hire.ends == [ChildEnd(ExecutionStatus.COMPLETED, "Three", None, StopReason.COMPLETED)]

    async def test_children_have_the_limits_that_the_tool_sets(self, temporal: TemporalClient) -> None:
        """9.6.2: the others are the agent's own."""
        look = MockTool("look")
        boss = a_boss(hires("hand"), "Thanks", hire=Hire(max_steps=2))
        async with at_work(temporal, boss, a_hand(calls(("look", {})), tools=[look])) as office:
            execution, _ = await office.run()
            row = await (await child_of(office, execution)).get()

            assert (row.step_count, row.stop_reason) == (2, StopReason.STEPS_LIMIT)
            assert await results(execution) == ["[Subagent: hand] (no response)"]

    async def test_children_of_one_response_run_in_parallel(self, temporal: TemporalClient) -> None:
        """5.4.1: their results are in response order, beside those of tools."""
        meeting, order = asyncio.Barrier(2), asyncio.Event()

        @tool
        async def first() -> None:
            "Ends last."
            await meeting.wait()
            await order.wait()

        @tool
        async def second() -> None:
            "Ends first."
            await meeting.wait()
            order.set()

        script = calls(
            ("hire", {"who": "a"}), ("look", {}), ("hire", {"who": "nobody"}), ("hire", {"who": "b"})
        )
        boss = a_boss(script, "Thanks").with_tools([MockTool.returning("look", "", "seen")])
        a = a_hand(calls(("first", {})), "One", name="a", tools=[first])
        b = a_hand(calls(("second", {})), "Two", name="b", tools=[second])
        async with at_work(temporal, boss, a, b) as office:
            execution, _ = await office.run()

            assert await results(execution) == [
                "[Subagent: a] One",
                "seen",
                "There is nobody to hire",
                "[Subagent: b] Two",
            ]

    async def test_without_parallel_tools_one_child_follows_the_other(self, temporal: TemporalClient) -> None:
        """5.4.1: in response order."""
        boss = a_boss(hires("a", "b"), "Thanks").with_parallel_tools(False)
        async with at_work(temporal, boss, a_hand("One", name="a"), a_hand("Two", name="b")) as office:
            execution, _ = await office.run()
            first, second = await child_of(office, execution), await child_of(office, execution, 1)
            one, two = await first.get(), await second.get()

        assert one.completed_at
        assert one.completed_at < two.created_at

    async def test_a_child_has_children(self, temporal: TemporalClient) -> None:
        """9.6.2: each reads the text of its own child."""
        boss, lead = a_boss(hires("lead"), "Thanks"), a_boss(hires("hand"), "Led").with_name("lead")
        async with at_work(temporal, boss, lead, a_hand("Three")) as office:
            execution, _ = await office.run(session_id=uuid4())
            child = await child_of(office, execution)
            grandchild = await child_of(office, child)

            assert await results(execution) == ["[Subagent: lead] Led"]
            assert await results(child) == ["[Subagent: hand] Three"]
            assert (await grandchild.get()).parent_execution_id == child.id
            streams = {grandchild.ref.stream_id, child.ref.stream_id, execution.ref.stream_id}
        assert len(streams) == 1

    async def test_a_tool_brings_agents_along(self, temporal: TemporalClient) -> None:
        """9.6.2, 9.6.4: only their parent can start them; they have tools that bring others."""

        class Crew(Hire):
            subagents: dict[str, AgentDefinition]

        inner, outer = Crew(), Crew()
        inner.subagents = {"hand": a_hand("Three").definition()}
        outer.subagents = {"lead": a_boss(hires("hand"), "Led", hire=inner).definition()}
        async with at_work(temporal, a_boss(hires("lead"), "Thanks", hire=outer)) as office:
            execution, _ = await office.run()
            child = await child_of(office, execution)

            assert await results(execution) == ["[Subagent: lead] Led"]
            assert (await child.get()).agent == "boss/lead"
            assert (await (await child_of(office, child)).get()).agent == "boss/lead/hand"

    async def test_a_child_that_rolls_over_is_waited_for(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """1.1.4: the parent waits for the execution, not for one of its runs."""
        monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", 20)
        hand = a_hand(*[calls(("look", {}))] * 5, "Three", tools=[MockTool("look")])
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), hand) as office:
            execution, _ = await office.run()
            runs = await runs_of(await child_of(office, execution))

            assert await results(execution) == ["[Subagent: hand] Three"]
        assert len(runs) > 1

    async def test_a_tool_that_refuses_or_raises_starts_no_child(self, temporal: TemporalClient) -> None:
        """9.6.3, 5.4.3: a text is the result of the call, an exception its failure."""
        odd = MockTool("odd", options=ToolOptions(need=CallNeed.SUBAGENT))
        script = calls(("hire", {"who": "nobody"}), ("hire", {"who": "broken"}), ("hire", {}), ("odd", {}))
        boss = a_boss(script, "Thanks").with_tools([odd]).with_error_policy(FORGIVING)
        async with at_work(temporal, boss) as office:
            execution, _ = await office.run()

            assert await results(execution) == [
                "There is nobody to hire",
                "Error: I do not know how",
                "Error: Required arguments are missing: who",
                f"Error: {CANNOT_SPAWN}",
            ]
            assert len((await office.client.list()).rows) == 1
        assert of_type(await events_of(execution), "START_CHILD_WORKFLOW_EXECUTION_INITIATED") == []

    async def test_a_tool_that_starts_children_may_block_and_raise_any_exception(
        self, temporal: TemporalClient
    ) -> None:
        """4.5.4, 9.6.3: no other execution waits, no worker ends, and nothing is retried without end."""
        LOOPS.append(asyncio.get_running_loop())
        boss = a_boss(hires("quits", "blocks", "nothing"), "Thanks").with_error_policy(FORGIVING)
        async with at_work(temporal, boss) as office:
            execution, _ = await office.run()

            assert await results(execution) == [
                "Error: I quit",
                "The loop goes on: True",
                "Error: the method spawn returned None; return a Spawn, or a text if none starts",
            ]

    async def test_an_agent_that_no_worker_knows_waits_visibly(self, temporal: TemporalClient) -> None:
        """1.1.1: like an execution whose own agent no worker knows."""
        async with at_work(temporal, a_boss(hires("stranger"), "Thanks")) as office:
            execution = await office.start()

            async def tells() -> bool:
                pending = (await execution.workflow.describe()).raw_description.pending_activities
                return any("No agent named 'stranger'" in p.last_failure.message for p in pending)

            await eventually(tells)
            await execution.cancel()
            await final_result(execution)


async def terminate_execution(execution: Execution) -> None:
    await execution.workflow.terminate("an operator")


async def cancel_execution(execution: Execution) -> None:
    await execution.cancel()


class TestEnds:
    """9.6.3: results, never failures."""

    @pytest.mark.parametrize(
        ("hand", "text"),
        [
            (a_hand(" "), "[Subagent: hand] (no response)"),
            (a_hand(ModelError("too long")), "Error: Subagent 'hand' failed: ModelError (ref {ref})"),
            (a_hand(ModelError("401", advice="Set a key")), "Error: Subagent 'hand' failed: Set a key"),
            (a_hand("Late").with_max_steps(0), "[Subagent: hand] (no response)"),
        ],
        ids=["silent", "failed", "advised", "no step"],
    )
    async def test_a_child_that_ends_badly(
        self, temporal: TemporalClient, hand: DefinitionBuilder, text: str
    ) -> None:
        """9.6.3, 5.4.4: its parent reads that, without the details, and continues."""
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), hand) as office:
            execution, result = await office.run()
            child = await child_of(office, execution)
            refs = [error.ref for step in await child.steps() for error in step.errors]

            assert await results(execution) == [text.format(ref=refs and refs[0])]
        assert (result.steps, result.stop_reason) == (2, StopReason.COMPLETED)

    @pytest.mark.parametrize(
        ("end", "status", "text"),
        [
            (terminate_execution, ExecutionStatus.FAILED, f"Error: Subagent 'hand' failed: {FROM_OUTSIDE}"),
            (cancel_execution, ExecutionStatus.CANCELLED, "Error: Subagent 'hand' failed: It was cancelled"),
        ],
    )
    async def test_a_child_that_is_ended_from_outside(
        self,
        temporal: TemporalClient,
        end: Callable[[Execution], Awaitable[None]],
        status: ExecutionStatus,
        text: str,
    ) -> None:
        """8.2.3, 9.6.3: its end is stored, also where it had no time to do so; its parent continues."""
        model = HeldModel()
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), a_hand(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            child = await child_of(office, execution)
            await end(child)
            result = await final_result(execution)
            row = await child.get()

            assert await results(execution) == [text]
            assert (await office.statuses(child))[-1] == status
        assert (row.status, row.completed_at is None) == (status, False)
        assert (result.steps, result.stop_reason) == (2, StopReason.COMPLETED)

    async def test_the_failed_activity_of_a_subagent_is_the_error_of_its_tool(
        self, temporal: TemporalClient
    ) -> None:
        """1.1.7"""
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), a_hand("Three")) as office:
            execution = await office.start()
            async with office.store.hold("accept") as accepting:
                await accepting.wait()
                await fail_activity(execution, "2")
                await final_result(execution)
            sentence = (await execution.because()).sentence

        assert sentence.startswith("failed: tool error in hire: ")

    async def test_a_child_that_waits_for_people_outlives_no_parent(self, temporal: TemporalClient) -> None:
        """8.2.3: also where there is no parent left to notify."""
        hand = a_hand(asks("?"), tools=[user_input()])
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), hand) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            child = await child_of(office, execution)
            await terminate_execution(execution)
            await final_result(child)

            assert (await child.get()).status is ExecutionStatus.CANCELLED

    async def test_a_parent_that_an_operator_ends_takes_its_children_along(
        self, temporal: TemporalClient
    ) -> None:
        """8.2.3: the child stores its own end."""
        model = HeldModel()
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), a_hand(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            child = await child_of(office, execution)
            await terminate_execution(execution)
            await final_result(child)

            assert (await child.get()).status is ExecutionStatus.CANCELLED
        assert model.was_closed

    async def test_the_parent_works_as_long_as_its_child(self, temporal: TemporalClient) -> None:
        """2.7.1: the child's working seconds are the call's, and no other time."""
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), a_hand("Three")) as office:
            execution, _ = await office.run()
            child = await final_result(await child_of(office, execution))
            (step, _) = await execution.steps()
            (call,) = step.calls

        assert child.seconds > 0
        assert call.record
        assert call.record.seconds == child.seconds
        assert call.attempts == 1


async def by_update(execution: Execution) -> None:
    await execution.cancel()


async def by_temporal(execution: Execution) -> None:
    await execution.workflow.cancel()


async def twice(execution: Execution) -> None:
    await asyncio.gather(execution.cancel(), execution.workflow.cancel())


def a_family(*hand: InferenceResponse | str, **more: Any) -> Sequence[DefinitionBuilder]:
    lead = a_boss(hires("hand"), "Led").with_name("lead")
    return a_boss(hires("lead"), "Thanks"), lead, a_hand(*hand, **more)


@pytest.mark.parametrize("cancel", [by_update, by_temporal, twice])
class TestCancelling:
    """8.2.1: a cancel reaches every descendant, and the execution ends last."""

    async def test_while_a_grandchild_asks_its_model(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """8.2.1, 1.1.5: all rows end as cancelled, the parent's last; no call stays without a result."""
        model = HeldModel()
        async with at_work(temporal, *a_family(model=model)) as office:
            execution = await office.start()
            await model.begun.wait()
            child = await child_of(office, execution)
            grandchild = await child_of(office, child)
            await cancel(execution)
            result = await final_result(execution)

            rows = [await each.get() for each in (grandchild, child, execution)]
            assert await office.conversation(execution) == ["Go", "", CANCELLED_CALL]
            assert await office.conversation(child) == ["Work", "", CANCELLED_CALL]
        assert [row.status for row in rows] == [ExecutionStatus.CANCELLED] * 3
        ends = [row.completed_at for row in rows]
        assert ends == sorted(ends, key=str)
        assert result.stop_reason is StopReason.USER_REQUESTED
        assert model.was_closed

    async def test_while_a_grandchild_waits_for_people(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """8.2.1, 8.4.1: its question needs no answer any more."""
        async with at_work(temporal, *a_family(asks("?"), tools=[user_input()])) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            child = await child_of(office, execution)
            grandchild = await child_of(office, child)
            await cancel(execution)
            await final_result(execution)

            assert await statuses_of(grandchild, child, execution) == [ExecutionStatus.CANCELLED] * 3
            assert await grandchild.requests() == ()

    async def test_before_the_child_has_begun(
        self, temporal: TemporalClient, cancel: Callable[[Execution], Awaitable[None]]
    ) -> None:
        """8.2.1: a pending execution that is cancelled never starts."""
        hand = a_hand("Never")
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), hand) as office:
            execution = await office.start()
            async with office.store.hold("reserve_call") as accepting:
                await accepting.wait()
                await cancel(execution)
            await final_result(execution)
            child = await child_of(office, execution)

            assert await statuses_of(child, execution) == [ExecutionStatus.CANCELLED] * 2
            assert await child.steps() == ()
            assert await office.statuses(child) == ["cancelled"]
        assert of_type(await events_of(execution), "START_CHILD_WORKFLOW_EXECUTION_INITIATED") == []


class TestPeople:
    """8.4.1: a paused subagent pauses its ancestors."""

    async def test_a_question_of_a_grandchild_pauses_all_and_its_answer_resumes_all(
        self, temporal: TemporalClient
    ) -> None:
        """8.4.1, 2.7.3: it is asked and answered under the grandchild's own id."""
        async with at_work(temporal, *a_family(asks("?"), "Three", tools=[user_input()])) as office:
            execution = await office.start(session_id=uuid4())
            await office.until_waiting(execution)
            child = await child_of(office, execution)
            grandchild = await child_of(office, child)
            paused = await statuses_of(execution, child, grandchild)
            entered = (await progress(execution)).facts.execution_started_at
            assert await execution.requests() == ()
            assert len(await grandchild.requests()) == 1
            described = (await execution.workflow.describe()).raw_description
            await grandchild.submit_input("Blue")
            await final_result(execution)

            assert await results(execution) == ["[Subagent: lead] Led"]
            assert await results(grandchild) == [
                "Blue",
            ]
            envelopes = await office.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)
            resumed = (await progress(execution)).facts.execution_started_at
        assert paused == [ExecutionStatus.PAUSED] * 3
        assert list(described.pending_activities) == []
        for each in (execution, child, grandchild):
            standings = [
                e.payload["status"]
                for e in envelopes
                if e.execution_id == each.id and e.type == "agent.status"
            ]
            assert standings == ["processing", "paused", "processing", "completed"]
        assert entered
        assert resumed
        assert entered < resumed

    async def test_a_parent_is_not_paused_while_another_child_works(self, temporal: TemporalClient) -> None:
        """8.4.1: only once nothing else can continue."""
        model = HeldModel("Done")
        asking = a_hand(asks("?"), "Asked", name="asking", tools=[user_input()])
        working = a_hand(model=model, name="working")
        async with at_work(temporal, a_boss(hires("asking", "working"), "Thanks"), asking, working) as office:
            execution = await office.start()
            await model.begun.wait()
            child = await child_of(office, execution)
            await office.until_waiting(child)
            # Its parent has received it by then: the child's next report comes after that signal.
            await eventually(lambda: has_reported(execution, 1))
            assert await statuses_of(execution) == [ExecutionStatus.RUNNING]
            model.go_on.set()
            await office.until_waiting(execution)
            await child.submit_input("Blue")
            await final_result(execution)

            assert await results(execution) == ["[Subagent: asking] Asked", "[Subagent: working] Done"]
            assert await office.statuses(execution) == ["processing", "paused", "processing", "completed"]

    async def test_a_child_that_has_rolled_over_still_reports_to_its_parent(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """1.1.4, 8.4.1: in whichever run it waits."""
        monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", 20)
        looks = [calls(("look", {}))] * 5
        hand = a_hand(*looks, asks("?"), "Three", tools=[MockTool("look"), user_input()])
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), hand) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            child = await child_of(office, execution)
            assert len(await runs_of(child)) > 1
            await child.submit_input("Blue")
            await final_result(execution)

            assert await results(execution) == ["[Subagent: hand] Three"]

    async def test_a_child_that_is_paused_and_resumed(self, temporal: TemporalClient) -> None:
        """8.4.1: by any person."""
        model = HeldModel(calls(("look", {})), "Done")
        hand = a_hand(model=model, tools=[MockTool("look")])
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), hand) as office:
            execution = await office.start()
            await model.begun.wait()
            child = await child_of(office, execution)
            await child.pause()
            model.go_on.set()
            await office.until_waiting(execution)
            await child.resume()
            await final_result(execution)

            assert await office.statuses(execution) == ["processing", "paused", "processing", "completed"]


async def has_reported(execution: Execution, count: int) -> bool:
    """Whether this many children have reported their status."""
    return len(of_type(await events_of(execution), "WORKFLOW_EXECUTION_SIGNALED")) == count


def default(**_args: object) -> str:
    return "Blue"


class TestApprovals:
    """8.6.2: an approved call still needs what its tool needs."""

    async def test_an_approved_call_starts_its_child(self, temporal: TemporalClient) -> None:
        """8.6.2: with the arguments that people left."""
        boss = a_boss(hires("hand", "hand", "hand", task="Count"), "Thanks").with_approval("hire", "always")
        async with at_work(temporal, boss, a_hand("Three")) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            approved, denied, edited = await execution.requests()
            await execution.approve(approved.id)
            await execution.deny(denied.id)
            await execution.edit({"who": "hand", "task": "Sing"}, edited.id)
            await final_result(execution)

            assert await results(execution) == [
                "[Subagent: hand] Three",
                "Denied by user",
                '[Arguments edited by user: {"who":"hand","task":"Sing"}]\n[Subagent: hand] Three',
            ]
            assert await office.conversation(await child_of(office, execution, 2)) == ["Sing", "Three"]
            assert len((await office.client.list()).rows) == 3

    @pytest.mark.parametrize("edited", [False, True])
    async def test_an_approved_question_is_asked(self, temporal: TemporalClient, edited: bool) -> None:
        """8.6.2, 8.5.2: as people left it; its answer is the result of the call."""
        agent = an_agent(asks("Which?"), "Done", tools=[user_input()]).with_approval("user_input", "always")
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            await (execution.edit({"prompt": "What colour?"}) if edited else execution.approve())
            await office.until_envelope(execution, "agent.input.requested")
            (question,) = await execution.requests()
            await execution.submit_input("Blue")
            await final_result(execution)
            kinds = await office.envelope_types(execution)

            note = '[Arguments edited by user: {"prompt":"What colour?"}]\n' if edited else ""
            assert question.kind is CallNeed.INPUT
            assert question.request["prompt"] == ("What colour?" if edited else "Which?")
            assert await results(execution) == [f"{note}Blue"]
        assert kinds.index("agent.approval.requested") < kinds.index("agent.input.requested")

    async def test_a_denied_question_is_not_asked(self, temporal: TemporalClient) -> None:
        """8.6.2: the model reads that it was denied."""
        agent = an_agent(asks("Which?"), "Done", tools=[user_input()]).with_approval("user_input", "always")
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            await execution.deny()
            await final_result(execution)

            assert await results(execution) == ["Denied by user"]
            assert "agent.input.requested" not in await office.envelope_types(execution)

    async def test_an_approved_question_may_time_out(self, temporal: TemporalClient) -> None:
        """8.5.5, 8.6.2: the time runs from the question, and the tool decides at its end."""
        ask = user_input(0.05, default)
        agent = an_agent(asks("Which?"), "Done", tools=[ask]).with_approval("user_input", "always")
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            await execution.approve()
            await final_result(execution)

            assert await results(execution) == ["Blue"]
            assert await execution.requests() == ()

    async def test_only_a_stored_decision_approves_a_child(self, temporal: TemporalClient) -> None:
        """8.6.3: access to the workflow alone does not approve anything."""
        boss = a_boss(hires("hand"), "Thanks").with_approval("hire", "always").with_error_policy(FORGIVING)
        async with at_work(temporal, boss, a_hand("Three")) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            (request,) = await execution.requests()
            workflow: Any = execution.workflow
            await workflow.execute_update("resolve_approval", CallReply(request.call_id))
            await final_result(execution)

            assert await results(execution) == [f"Error: {NOT_ALLOWED}"]
            assert len((await office.client.list()).rows) == 1


class TestSecondAttempts:
    @pytest.mark.parametrize("effect", list(Effect))
    @pytest.mark.parametrize(
        "point",
        [
            Failpoint.SPAWN_AFTER_RESERVE,
            Failpoint.SPAWN_BEFORE_REPORT,
            Failpoint.REPORT_BEFORE_RECORD,
            Failpoint.REPORT_BEFORE_REPORT,
        ],
    )
    async def test_a_child_is_started_once_and_reported_once(
        self, temporal: TemporalClient, point: Failpoint, effect: Effect
    ) -> None:
        """1.1.3: after any failure of the first attempt."""
        boss, hand = a_boss(hires("hand"), "Thanks", hire=Hire(effect=effect)), a_hand("Three")
        async with at_work(temporal, boss, hand, strike=FailpointStrike(point)) as office:
            execution, result = await office.run()
            kinds = await office.envelope_types(execution)

            assert await office.conversation(execution) == ["Go", "", "[Subagent: hand] Three", "Thanks"]
            assert len((await office.client.list()).rows) == 2
        assert (kinds.count("agent.tool.started"), kinds.count("agent.tool.completed")) == (1, 1)
        assert result.steps == 2

    async def test_a_store_that_is_away_for_a_while_delays_and_doubles_nothing(
        self, temporal: TemporalClient
    ) -> None:
        """1.1.3: for a failure of any write."""
        office: Office
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), a_hand("Three")) as office:
            execution = await office.start()
            for method in ("reserve_call", "accept", "steps", "execution", "record_call"):
                office.store.fail_next(method, StoreUnavailable("connection refused"))
            await final_result(execution)

            assert await office.conversation(execution) == ["Go", "", "[Subagent: hand] Three", "Thanks"]
            assert len((await office.client.list()).rows) == 2


async def holds_still(execution: Execution) -> bool:
    return (await progress(execution)).facts.is_paused


class TestPausing:
    async def test_a_pause_and_a_resume_reach_the_children(self, temporal: TemporalClient) -> None:
        """8.2.1, 9.6.2: the work under way is done first, at every depth."""
        begun, goes_on = asyncio.Event(), asyncio.Event()

        @tool
        async def work() -> str:
            """Works."""
            begun.set()
            await goes_on.wait()
            return "worked"

        family = a_family(calls(("work", {})), "Done", tools=[work])
        async with at_work(temporal, *family) as office:
            execution = await office.start()
            await begun.wait()
            child = await child_of(office, execution)
            grandchild = await child_of(office, child)
            await execution.pause()
            await eventually(lambda: holds_still(grandchild))
            goes_on.set()
            for each in (grandchild, child, execution):
                await office.until_status(each, ExecutionStatus.PAUSED)
            assert [len(await each.steps()) for each in (grandchild, child, execution)] == [1, 1, 1]

            await execution.resume()
            await final_result(execution)

            assert await statuses_of(grandchild, child, execution) == [ExecutionStatus.COMPLETED] * 3
            assert len(await grandchild.steps()) == 2

    async def test_a_child_that_begins_while_its_parent_is_paused_pauses_too(
        self, temporal: TemporalClient
    ) -> None:
        """8.2.1: a child accepted before the pause begins, and is notified at once."""
        async with at_work(temporal, a_boss(hires("hand"), "Thanks"), a_hand("Done")) as office:
            execution = await office.start()
            async with office.store.hold("reserve_call") as accepting:
                await accepting.wait()
                await execution.pause()
            await office.until_status(execution, ExecutionStatus.PAUSED)
            await execution.resume()
            result = await final_result(execution)

        assert result.status is AgentStatus.COMPLETED
