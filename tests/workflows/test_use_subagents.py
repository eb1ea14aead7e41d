"""`UseSubagents` in durable executions: inheritance, permissions, and the parent's results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.drivers import Model, OnText
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities.subagents import TOOL, SubagentPolicy
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus, ExecutionStatus, StopReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Role
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, ScriptedModel, calls, says
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.tools import Tool
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.capabilities.skills import SkillLibrary
from everstep.capabilities.subagents import UseSubagents
from everstep.client.client import Execution
from everstep.client.errors import Refused
from everstep.local.runner import LocalRunner
from everstep.runtime.agents import AgentBook
from everstep.runtime.worker import make_worker
from tests.toolsets import FakeToolset
from tests.workflows.failpoints import FailpointStrike, results
from tests.workflows.harness import HeldModel, Office, an_agent, an_office, at_work, final_result, progress
from tests.workflows.test_subagents import child_of

FORGIVING = ErrorPolicy.ignore_tool_errors()
HELPER = AgentSpec("helper", "Helps", "You help.")
LOOKS = calls(("look", {}), usage=Usage(input=10))


def spawns(*prompts: Any, name: str = "helper") -> InferenceResponse:
    asked = (("spawn_subagent", {"subagent": name, "prompt": prompt}) for prompt in prompts)
    return calls(*asked, usage=Usage(input=100))


class Talk:
    """A model with one script per agent, selected by the beginning of the conversation."""

    def __init__(self, **scripts: Sequence[InferenceResponse | str | Exception]) -> None:
        self.models = {name: ScriptedModel(*script) for name, script in scripts.items()}

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        return await self.models[self.speaker(request)].respond(request, on_text)

    def speaker(self, request: InferenceRequest) -> str:
        first = request.messages[0]
        return first.text.split()[-1].strip(".") if first.role is Role.SYSTEM else "boss"

    def last_request(self, name: str) -> list[str]:
        """The last request of an agent, as text."""
        return [message.text for message in self.models[name].requests[-1].messages]

    def tools(self, name: str) -> list[str]:
        """The tools that an agent could call."""
        return [tool["function"]["name"] for tool in self.models[name].requests[0].tools]


def a_boss(model: Model, *specs: AgentSpec, tools: Sequence[Tool] = (), **given: Any) -> DefinitionBuilder:
    """An agent that starts these."""
    agent = an_agent(model=model, tools=tools).with_name("boss")
    return agent.with_capability(UseSubagents(AgentSpecRegistry(specs or (HELPER,)), **given))


def look() -> MockTool:
    return MockTool.returning("look", "", "blue")


async def plan_of(office: Office, execution: Execution) -> Mapping[str, Any]:
    return (await office.store.material(execution.ref)).plan


class TestChildren:
    async def test_a_child_knows_its_prompt_its_skills_and_its_task(
        self, temporal: TemporalClient, tmp_path: Path
    ) -> None:
        """9.6.2, 9.6.3: nothing of its parent's conversation; and the parent only its text."""
        (tmp_path / "seeing.md").write_text("---\ndescription: How to see\n---\nOpen your eyes.\n")
        spec = AgentSpec("helper", "Helps", "You help.", skills=["seeing"])
        talk = Talk(boss=(spawns("Look at the sea"), "Thanks"), help=(LOOKS, "Blue "))
        boss = a_boss(talk, spec, tools=[look()], skill_library=SkillLibrary(tmp_path))
        async with at_work(temporal, boss) as office:
            execution, _ = await office.run("Describe the sea")
            child = await child_of(office, execution)
            row, plan, said = (
                await child.get(),
                await plan_of(office, child),
                await office.conversation(child),
            )
            transcript = await office.store.transcript(child.ref)

            assert await results(execution) == ["[Subagent: helper] Blue"]
            assert await office.conversation(execution) == [
                "Describe the sea",
                "",
                "[Subagent: helper] Blue",
                "Thanks",
            ]
        skill = '<skill name="seeing">\nOpen your eyes.\n</skill>'
        assert said == ["You help.", "", skill, "Look at the sea", "", "blue", "Blue "]
        assert [call["function"]["name"] for call in transcript[1].calls] == ["load_skill"]
        assert transcript[2].metadata["tool_call_id"] == transcript[1].calls[0]["id"]
        assert (plan["max_steps"], plan["max_tokens"], plan["timeout_seconds"]) == (20, 32768, 300)
        assert (row.agent, row.parent_execution_id) == ("boss/helper", execution.id)

    @pytest.mark.parametrize(
        ("wanted", "has"),
        [
            (None, ["look", "hear", TOOL]),
            (["hear", "fly"], ["hear"]),
            ([TOOL, "look"], ["look", TOOL]),
            ([], []),
        ],
        ids=["all", "some", "to start others", "none"],
    )
    async def test_a_child_has_tools_of_its_parent(
        self, temporal: TemporalClient, wanted: list[str] | None, has: list[str]
    ) -> None:
        """9.6.4, 9.6.5: all, or those of its list that the parent has."""
        talk = Talk(boss=(spawns("Help"), "Thanks"), help=("Done",))
        spec = AgentSpec("helper", "Helps", "You help.", tools=wanted)
        async with at_work(temporal, a_boss(talk, spec, tools=[look(), MockTool("hear")])) as office:
            await office.run()

        assert talk.tools("help") == has

    async def test_a_call_of_a_tool_that_a_child_lacks_is_refused(self, temporal: TemporalClient) -> None:
        """9.6.5, 5.4.3: also if its model knows the name from elsewhere."""
        talk = Talk(boss=(spawns("Help"), "Thanks"), help=(LOOKS, "Done"))
        tools = [seen := look(), MockTool("hear")]
        spec = AgentSpec("helper", "Helps", "You help.", tools=["hear"])
        boss = a_boss(talk, spec, tools=tools).with_error_policy(FORGIVING)
        async with at_work(temporal, boss) as office:
            execution, _ = await office.run()
            child = await child_of(office, execution)

            assert await results(child) == ["Error: No tool named 'look'. Choose from: hear"]
        assert seen.calls == []

    async def test_a_child_has_the_listed_tools_of_its_parent(self, temporal: TemporalClient) -> None:
        """9.6.5: also those that its parent's toolsets list, but none outside its own list."""
        shelf = FakeToolset(
            {"weigh": lambda _args, _context: "heavy", "cut": lambda _args, _context: "short"}
        )
        weighs = calls(("weigh", {}))
        talk = Talk(boss=(spawns("Help"), "Thanks"), help=(weighs, "Done"))
        spec = AgentSpec("helper", "Helps", "You help.", tools=["weigh"])
        async with at_work(temporal, a_boss(talk, spec).with_toolset(shelf)) as office:
            execution, _ = await office.run()
            child = await child_of(office, execution)

            assert await results(child) == ["heavy"]
        assert talk.tools("help") == ["weigh"]
        assert [asker.execution_id for asker in shelf.askers] == [execution.id, child.id]

    @pytest.mark.parametrize(
        ("model", "speaks"),
        [(None, "own"), ("inherit", "own"), ("fast", "fast"), ({"model": "x"}, "settings")],
        ids=["nothing", "inherit", "preset", "settings"],
    )
    async def test_a_child_asks_the_model_of_its_parent_or_its_own(
        self, temporal: TemporalClient, model: str | dict[str, str] | None, speaks: str
    ) -> None:
        """9.6.5."""

        class Models:
            def model(self, choice: ModelChoice = None) -> Model:
                return ScriptedModel("fast" if choice == "fast" else "settings" if choice else "default")

        spec = AgentSpec("helper", "Helps", "You help.", model=model)
        talk = Talk(boss=(spawns("Help"), "Thanks"), help=("own",))
        office = an_office(temporal, a_boss(talk, spec))
        async with make_worker(
            temporal, office.port, AgentBook(office.agents, Models()), office.settings, bus=office.bus
        ):
            execution, _ = await office.run()

            assert await results(execution) == [f"[Subagent: helper] {speaks}"]


class TestRefusals:
    async def test_calls_that_start_no_child(self, temporal: TemporalClient) -> None:
        """9.6.3: an unknown name, a blank prompt, an unknown skill: texts, and never failures."""
        lost = AgentSpec("lost", "Needs more", "You help.", skills=["flying"])
        script = calls(
            *(
                (TOOL, {"subagent": name, "prompt": prompt})
                for name, prompt in (("ghost", "Boo"), ("helper", " "), ("lost", "Fly"))
            )
        )
        boss = a_boss(Talk(boss=(script, "Thanks")), HELPER, lost)
        async with at_work(temporal, boss) as office:
            execution, result = await office.run()

            assert await results(execution) == [
                "Error: No agent named 'ghost'. Choose from: helper, lost",
                "Error: Subagent 'helper' failed: Its prompt is blank; write down the whole task",
                "Error: Subagent 'lost' failed: It needs skills that are not there: flying",
            ]
            assert len((await office.client.list()).rows) == 1
        assert result.status is AgentStatus.COMPLETED

    @pytest.mark.parametrize("depth", [0, 1, 2])
    async def test_the_depth_of_nesting(self, temporal: TemporalClient, depth: int) -> None:
        """9.6.3, 9.6.4: an agent at the limit gets a text, and continues."""
        talk = Talk(boss=(spawns("Help"), "Thanks"), help=(spawns("Help"), spawns("Help"), "Done"))
        boss = a_boss(talk, HELPER, policy=SubagentPolicy(max_depth=depth))
        async with at_work(temporal, boss) as office:
            execution, result = await office.run()
            read, deepest = list[str](), execution
            for _ in range(depth):
                deepest = await child_of(office, deepest)
            read = await results(deepest)
            count = len((await office.client.list()).rows)

        refusal = f"Error: Subagent 'helper' not started, subagents nest at most {depth} deep"
        assert read[0] == refusal
        assert count == depth + 1
        assert result.status is AgentStatus.COMPLETED


class TestPeople:
    async def test_an_approval_for_one_parent_call_approves_one_child(self, temporal: TemporalClient) -> None:
        """8.6.1, 9.6.5: the child pauses, its parent with it; the approval is for the child's call."""
        talk = Talk(boss=(spawns("Look"), "Thanks"), help=(LOOKS, "Blue"))
        tools = [seen := look()]
        async with at_work(temporal, a_boss(talk, tools=tools).with_approval("look", "always")) as office:
            execution = await office.start()
            child = await child_of(office, execution)
            await office.until_waiting(child)
            await office.until_waiting(execution)
            before = len(seen.calls)
            with pytest.raises(Refused):
                await execution.approve()
            (request,) = await child.requests()
            await child.approve()
            result = await final_result(execution)

            assert await results(execution) == ["[Subagent: helper] Blue"]
            assert await office.statuses(execution) == ["processing", "paused", "processing", "completed"]
        assert (before, len(seen.calls)) == (0, 1)
        assert request.call_id
        assert result.status is AgentStatus.COMPLETED

    async def test_cancelling_the_parent_cancels_its_children(self, temporal: TemporalClient) -> None:
        """8.2.1: a child in a model call disconnects."""
        model = HeldModel(spawns("Help"), holds=2)
        async with at_work(temporal, a_boss(model)) as office:
            execution = await office.start()
            await model.begun.wait()
            child = await child_of(office, execution)
            await execution.cancel()
            result = await final_result(execution)

            assert (await child.get()).status is ExecutionStatus.CANCELLED
            assert await results(execution) == [CANCELLED_CALL]
        assert model.was_closed
        assert result.stop_reason is StopReason.USER_REQUESTED


class TestEnds:
    @pytest.mark.parametrize(
        ("says_", "reads"),
        [
            (ModelError("401", advice="set a key"), "Error: Subagent 'helper' failed: set a key"),
            ("  ", "[Subagent: helper] (no response)"),
            (" " + "blue " * 5, "[Subagent: helper] blue blue\n..."),
        ],
        ids=["failure", "silence", "length"],
    )
    async def test_results_for_the_parent(
        self, temporal: TemporalClient, says_: str | Exception, reads: str
    ) -> None:
        """9.6.3: never a failure of the call."""
        talk = Talk(boss=(spawns("Help"), "Thanks"), help=(says_,))
        boss = a_boss(talk, policy=SubagentPolicy(summary_max_chars=10))
        async with at_work(temporal, boss) as office:
            execution, result = await office.run()

            assert await results(execution) == [reads]
        assert result.status is AgentStatus.COMPLETED

    async def test_a_child_stops_at_its_limits(self, temporal: TemporalClient) -> None:
        """9.6.2: 20 steps; its last text is read."""
        talk = Talk(boss=(spawns("Help"), "Thanks"), help=(LOOKS,))
        async with at_work(temporal, a_boss(talk, tools=[look()])) as office:
            execution, _ = await office.run()
            row = await (await child_of(office, execution)).get()

            assert await results(execution) == ["[Subagent: helper] (no response)"]
        assert (row.step_count, row.stop_reason) == (20, StopReason.STEPS_LIMIT)


class TestViewers:
    async def test_all_generations_publish_in_one_stream(self, temporal: TemporalClient) -> None:
        """7.1.1, 8.1.2: without a gap, each under its own execution's id, and each in its own order."""
        talk = Talk(boss=(spawns("Help", "Help", "Help"), "Thanks"), help=(spawns("Help"), LOOKS, "Done"))
        boss = a_boss(talk, policy=SubagentPolicy(max_depth=2), tools=[look()])
        async with at_work(temporal, boss) as office:
            execution, _ = await office.run(session_id=uuid4())
            envelopes = await office.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)
            rows = {row.ref.execution_id: row for row in (await office.client.list()).rows}

        assert [envelope.seq for envelope in envelopes] == [*range(1, len(envelopes) + 1)]
        moments = [envelope.created_at for envelope in envelopes]
        assert moments == sorted(set(moments))
        assert {envelope.execution_id for envelope in envelopes} == set(rows)
        assert len(rows) > 4
        for id_ in rows:
            own = [e for e in envelopes if e.execution_id == id_]
            statuses = [e.payload["status"] for e in own if e.type == "agent.status"]
            assert statuses == ["processing", "completed"]
            assert (own[0].type, own[-1].type) == ("agent.status", "agent.status")
            numbers = [e.payload["step_number"] for e in own if e.type == "agent.step.started"]
            assert numbers == [*range(1, len(numbers) + 1)]
        assert (envelopes[0].execution_id, envelopes[-1].execution_id) == (execution.id, execution.id)
        # No execution ends before its children.
        ends = {e.execution_id: e.seq for e in envelopes if e.payload.get("status") == "completed"}
        links = [(row.parent_execution_id, id_) for id_, row in rows.items() if row.parent_execution_id]
        assert all(ends[parent] > ends[child] for parent, child in links)


class TestShells:
    async def test_in_process_it_is_the_same(self, temporal: TemporalClient) -> None:
        """1.1.6, 9.6.3: the parent's results, the charged usage, and the stop reason."""

        def agent() -> DefinitionBuilder:
            expensive = says("x" * 50, Usage(input=300))
            refused = calls(
                (TOOL, {"subagent": "ghost", "prompt": "Boo"}), (TOOL, {"subagent": 7, "prompt": 7})
            )
            talk = Talk(
                boss=(spawns("Help"), refused, spawns({"odd": [1]}), "Thanks"),
                help=(spawns("Help"), expensive, "Done", ModelError("refused", advice="refused")),
            )
            policy = SubagentPolicy(max_depth=2, summary_max_chars=10)
            return a_boss(talk, policy=policy).with_max_tokens(5000)

        async with at_work(temporal, agent()) as office:
            execution, result = await office.run()
            said = await office.conversation(execution)
            facts = (await progress(execution)).facts
        local = await LocalRunner(agent().definition()).run(AgentState.empty().with_user_message("Go"))

        assert [message.text for message in local.messages] == said
        assert said[2] == "[Subagent: helper] Done"
        assert said[-2] == "Error: Subagent 'helper' failed: refused"
        assert (local.facts.child_tokens, local.tokens) == (facts.child_tokens, facts.tokens)
        assert facts.child_tokens == 400
        assert (local.status, local.step_count) == (result.status, result.steps)


class TestTokens:
    async def test_children_are_charged_to_their_parents(self, temporal: TemporalClient) -> None:
        """9.6.2, 2.6.2: over the whole tree; a parent without remaining tokens takes no further step."""
        expensive = says("Done", Usage(input=300))
        talk = Talk(boss=(spawns("Help", "Help"), "Thanks"), help=(spawns("Help"), expensive, expensive))
        boss = a_boss(talk, policy=SubagentPolicy(max_depth=2)).with_max_tokens(600)
        boss = boss.with_parallel_tools(False)
        async with at_work(temporal, boss) as office:
            execution, result = await office.run()
            facts = (await progress(execution)).facts

        # The first child and its own child use 700, which leaves the second child next to nothing.
        assert facts.child_tokens >= 700
        assert (result.usage.total, result.stop_reason) == (100, StopReason.TOKEN_LIMIT)
        assert result.tokens == facts.tokens == 100 + facts.child_tokens

    async def test_a_child_gets_the_remaining_tokens(self, temporal: TemporalClient) -> None:
        """9.6.2: and so does its child."""
        talk = Talk(boss=(LOOKS, spawns("Help"), "Thanks"), help=(spawns("Help"), "Done", "Done"))
        boss = a_boss(talk, tools=[look()]).with_max_tokens(1000)
        async with at_work(temporal, boss) as office:
            execution, _ = await office.run()
            child = await child_of(office, execution)
            grandchild = await child_of(office, child)

            assert (await plan_of(office, child))["max_tokens"] == 1000 - 10 - 100
            assert (await plan_of(office, grandchild))["max_tokens"] == 890 - 100

    async def test_tokens_of_other_calls_of_the_step_are_not_left(self, temporal: TemporalClient) -> None:
        """9.6.2, 9.9.1: a child that starts after they were paid gets no more than remains."""
        both = calls(
            ("llm_query", {"query": "How many?"}),
            (TOOL, {"subagent": "helper", "prompt": "Help"}),
            usage=Usage(input=100),
        )
        talk = Talk(boss=(both, says("Six", Usage(input=30)), "Thanks"), help=("Done",))
        boss = a_boss(talk, tools=[LlmQueryTool()]).with_max_tokens(1000).with_parallel_tools(False)
        async with at_work(temporal, boss) as office:
            execution, _ = await office.run()
            plan = await plan_of(office, await child_of(office, execution, 1))

        assert plan["max_tokens"] == 1000 - 100 - 30

    @pytest.mark.parametrize("whom", ["the parent", "the child"])
    async def test_usage_before_a_cancel_is_charged(self, temporal: TemporalClient, whom: str) -> None:
        """9.6.2, 8.2.1: in every generation, also usage that no call reports any more."""
        looks = calls(("look", {}), usage=Usage(input=700))
        model = HeldModel(spawns("Help"), spawns("Help"), looks, "Never", "Thanks", holds=4)
        boss = a_boss(model, policy=SubagentPolicy(max_depth=2), tools=[look()])
        async with at_work(temporal, boss) as office:
            execution = await office.start()
            await model.begun.wait()
            child = await child_of(office, execution)
            await (child if whom == "the child" else execution).cancel()
            ended, result = await final_result(child), await final_result(execution)

        # The child has paid 100 for delegating, and its own child 700 for its work.
        assert (ended.stop_reason, ended.child_tokens) == (StopReason.USER_REQUESTED, 700)
        assert result.child_tokens == 100 + 700
        assert ended.seconds > 0

    async def test_the_usage_of_a_child_whose_workflow_is_gone_is_charged(
        self, temporal: TemporalClient
    ) -> None:
        """9.6.2: as far as it was stored, and with the usage of its children."""
        model = HeldModel(
            spawns("Help"), spawns("Help"), says("Looked", Usage(input=700)), "Never", "Thanks", holds=4
        )
        boss = a_boss(model, policy=SubagentPolicy(max_depth=2))
        async with at_work(temporal, boss) as office:
            execution = await office.start()
            await model.begun.wait()
            child = await child_of(office, execution)
            await child.workflow.terminate()
            result = await final_result(execution)
            (call,) = (await execution.steps())[0].calls

        assert result.child_tokens == 100 + 700
        assert call.record
        assert call.record.seconds > 0


@pytest.mark.parametrize(
    "point",
    [
        Failpoint.SPAWN_AFTER_RESERVE,
        Failpoint.SPAWN_BEFORE_REPORT,
        Failpoint.REPORT_BEFORE_RECORD,
        Failpoint.REPORT_BEFORE_REPORT,
    ],
)
async def test_a_lost_worker_starts_no_second_child(temporal: TemporalClient, point: Failpoint) -> None:
    """1.1.3, 9.6.2: and charges the first one once."""
    talk = Talk(boss=(spawns("Help"), "Thanks"), help=(says("Done", Usage(input=7)),))
    strike = FailpointStrike(point)
    async with at_work(temporal, a_boss(talk), strike=strike) as office:
        execution, result = await office.run()

        assert await results(execution) == ["[Subagent: helper] Done"]
        assert len((await office.client.list()).rows) == 2
    assert strike.at is None
    assert len(talk.models["help"].requests) == 1
    assert result.child_tokens == 7
