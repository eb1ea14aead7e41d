"""Notes, tasks and skills of agents: they are there in the next step after any interruption."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.capabilities.scratchpad import MetadataPolicy
from everstep.agent_domain.capabilities.tasks import TodoPolicy
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.messages.messages import system, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import MockTool, calls
from everstep.agent_domain.values import json_text
from everstep.capabilities.metadata import UseMetadataTools
from everstep.capabilities.skills import SkillLibrary, UseSkills
from everstep.capabilities.tasks import UseTaskPlanning
from everstep.client.client import Execution
from everstep.local.runner import LocalRunner
from everstep.store.sessions import PostgresSessions
from everstep.workflows import agent_execution
from tests.engines import open_engine
from tests.everstep.client.parlour import SessionSetup, open_session_setup
from tests.services import Servers, make_database
from tests.workflows.failpoints import FailpointStrike, results
from tests.workflows.harness import Office, an_agent, at_work, final_result, runs_of

FORGIVING = ErrorPolicy.ignore_tool_errors()
FEW_EVENTS = 30
"""A history is cut every few steps; between two runs the server waits a second."""


def writes(*notes: tuple[str, Any]) -> InferenceResponse:
    return calls(*(("metadata_write", {"key": key, "value": value}) for key, value in notes))


def reads(*keys: str) -> InferenceResponse:
    return calls(*(("metadata_read", {"key": key}) for key in keys))


def plans(*tasks: str, status: str = "pending") -> InferenceResponse:
    todos = [{"content": task, "status": status, "activeForm": f"Doing {task}"} for task in tasks]
    return calls(("todo_write", {"todos": todos}))


LOOKS = calls(("look", {}))
LISTS = calls(("metadata_list", {}))


def a_writer(*script: InferenceResponse | str, policy: MetadataPolicy | None = None) -> DefinitionBuilder:
    """An agent with a scratchpad, and with a tool that takes no notes."""
    return an_agent(*script, tools=[MockTool("look")]).with_capability(UseMetadataTools(policy))


async def metadata(office: Office | SessionSetup, execution: Execution) -> dict[str, Any]:
    return dict((await office.store.material(execution.ref)).metadata)


async def locally(agent: DefinitionBuilder) -> AgentState:
    """The same in-process."""
    return await LocalRunner(agent.definition()).run(AgentState.empty().with_messages((user("Go"),)))


class TestNotes:
    async def test_a_step_sees_the_writes_of_the_steps_before_it(self, temporal: TemporalClient) -> None:
        """9.4.2, 9.4.3: a read in the same step sees the old value; parallel writes merge by key."""
        script = (
            writes(("a", 1), ("b", [1, 2]), ("a", "one")),
            calls(
                ("metadata_write", {"key": "a", "value": "uno"}),
                ("metadata_read", {"key": "a"}),
                ("metadata_read", {"key": "b"}),
                ("metadata_read", {"key": "c"}),
            ),
            reads("a"),
            "Done",
        )
        async with at_work(temporal, a_writer(*script)) as office:
            execution, _ = await office.run()

            assert (await results(execution))[3:] == [
                "Stored 'a': uno",
                "one",
                "[1,2]",
                "Error: Nothing is stored under 'c'. Stored keys: a, b",
                "uno",
            ]
            assert await metadata(office, execution) == {"a": "uno", "b": [1, 2]}
            local = await locally(a_writer(*script))
            assert await office.conversation(execution) == [message.text for message in local.messages]

    @pytest.mark.parametrize("is_parallel", [True, False])
    async def test_limits_count_earlier_writes_of_the_step(
        self, temporal: TemporalClient, is_parallel: bool
    ) -> None:
        """9.4.2: including whether they were refused themselves."""
        script = writes(("a", 1), ("b", 2), ("tasks", 3), ("c", 4), ("a", 5), ("d", 6))
        agent = a_writer(script, "Done", policy=MetadataPolicy(max_keys=3)).with_parallel_tools(is_parallel)
        async with at_work(temporal, agent) as office:
            execution, _ = await office.run()

            assert await results(execution) == [
                "Stored 'a': 1",
                "Stored 'b': 2",
                "Error: Metadata not stored: The key 'tasks' is reserved, choose another",
                "Stored 'c': 4",
                "Stored 'a': 5",
                "Error: Metadata not stored: Maximum of 3 keys reached",
            ]
            assert await metadata(office, execution) == {"a": 5, "b": 2, "c": 4}

    @pytest.mark.parametrize(
        "point", [Failpoint.TOOL_AFTER_RESERVE, Failpoint.TOOL_AFTER_EFFECT, Failpoint.TOOL_BEFORE_REPORT]
    )
    async def test_a_lost_worker_loses_no_notes(self, temporal: TemporalClient, point: Failpoint) -> None:
        """9.4.2, 1.1.3: and stores none of them twice."""
        strike = FailpointStrike(point)
        agent = a_writer(writes(("a", 1), ("b", 2)), reads("a", "b"), "Done")
        async with at_work(temporal, agent, strike=strike) as office:
            execution, _ = await office.run()

            assert await results(execution) == ["Stored 'a': 1", "Stored 'b': 2", "1", "2"]
            assert await metadata(office, execution) == {"a": 1, "b": 2}
        assert strike.at is None

    async def test_notes_outlive_a_pause(self, temporal: TemporalClient) -> None:
        """9.4.2, 8.4.1: one that comes between two steps, and one during a step."""
        script = (writes(("a", 1)), calls(("metadata_write", {"key": "b", "value": 2}), ("look", {})), LISTS)
        async with at_work(temporal, a_writer(*script, "Done").with_approval("look", "always")) as office:
            execution = await office.start()
            await office.until_waiting(execution)
            noted = await metadata(office, execution)
            await execution.approve()
            await final_result(execution)

            assert noted == {"a": 1, "b": 2}
            listed = '{"count":2,"keys":[{"key":"a","type":"integer"},{"key":"b","type":"integer"}]}'
            assert (await results(execution))[-1] == listed

    async def test_notes_outlive_runs(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """9.4.2, 1.1.4: history carries none of them, the store all."""
        monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", FEW_EVENTS)
        script = [writes((f"note {number}", number)) for number in range(6)]
        async with at_work(temporal, a_writer(*script, reads("note 0", "note 5"), "Done")) as office:
            execution, _ = await office.run()

            assert (await results(execution))[-2:] == ["0", "5"]
            assert await metadata(office, execution) == {f"note {number}": number for number in range(6)}
            assert len(await runs_of(execution)) > 1


class TestPlans:
    @pytest.mark.parametrize("few_events", [False, True])
    async def test_tasks_are_mentioned_as_often_as_in_process(
        self, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch, few_events: bool
    ) -> None:
        """9.3.2, 9.3.3, 1.1.4: reminders and renderings at the same places, wherever the history is cut."""
        if few_events:
            monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", 3 * FEW_EVENTS)

        def an_agent_with_plans() -> DefinitionBuilder:
            script = (LOOKS, LOOKS, LOOKS, plans("sow", "reap"), *[LOOKS] * 6, plans(), LOOKS, LOOKS, "Done")
            policy = TodoPolicy(render_every_steps=2, reminder_every_steps=3)
            return an_agent(*script, tools=[MockTool("look")]).with_capability(UseTaskPlanning(policy))

        async with at_work(temporal, an_agent_with_plans()) as office:
            execution, result = await office.run()
            said = await office.conversation(execution)
            local = await locally(an_agent_with_plans())

            assert said == [message.text for message in local.messages]
            assert json_text(await metadata(office, execution)) == json_text(local.metadata) == '{"tasks":[]}'
            assert (len(await runs_of(execution)) > 1) is few_events
        assert result.status is AgentStatus.COMPLETED
        assert sum("<todo-render>" in text for text in said) > 1
        assert sum("<todo-reminder-nag>" in text for text in said) > 1
        assert sum("<todo-reminder-initial>" in text for text in said) == 1

    async def test_a_refused_plan_changes_nothing(self, temporal: TemporalClient) -> None:
        """9.3.1, 9.3.2: of two plans in one step the later one is kept."""
        script = calls(
            *(
                ("todo_write", {"todos": [{"content": c, "status": s, "activeForm": c}]})
                for c, s in (("sow", "pending"), ("reap", "completed"), ("rest", "soon"))
            ),
        )
        agent = an_agent(script, "Done").with_capability(UseTaskPlanning())
        agent = agent.with_error_policy(FORGIVING)
        async with at_work(temporal, agent) as office:
            execution, _ = await office.run()
            read = await results(execution)
            tasks = (await metadata(office, execution))["tasks"]

        assert read[1] == "1. ● reap\nDone: 1 of 1, in progress: 0, pending: 0"
        assert read[2].startswith("Error: Task #1 has an unknown 'status'")
        assert [task["content"] for task in tasks] == ["reap"]


class TestSkills:
    async def test_skills_are_announced_once_and_loaded(
        self, temporal: TemporalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """9.5.3, 9.5.4, 1.1.4: as in-process; they precede the conversation in every run."""
        monkeypatch.setattr(agent_execution, "ROLL_OVER_EVENTS", FEW_EVENTS)
        (tmp_path / "sowing.md").write_text("---\ndescription: How to sow\n---\nIn spring.\n")

        def a_farmer() -> DefinitionBuilder:
            script = (calls(("load_skill", {"skill_name": "sowing"})), LOOKS, LOOKS, LOOKS, "Done")
            return an_agent(*script, tools=[MockTool("look")]).with_capability(
                UseSkills(SkillLibrary(tmp_path))
            )

        async with at_work(temporal, a_farmer()) as office:
            execution, _ = await office.run()
            said = await office.conversation(execution)

            assert said == [message.text for message in (await locally(a_farmer())).messages]
            assert len(await runs_of(execution)) > 1
        assert said[0].startswith("<skills-metadata>")
        assert said[1:4] == ["Go", "", '<skill name="sowing">\nIn spring.\n</skill>']
        assert sum("<skills-metadata>" in text for text in said) == 1


# Conversations of a session.


@pytest.fixture(scope="module")
def database(services: Servers) -> str:
    """The URL of a database with our tables."""
    return make_database(services, "remembering")


@pytest_asyncio.fixture
async def store(database: str) -> AsyncGenerator[PostgresSessions]:
    async with open_engine(database) as engine:
        yield PostgresSessions(engine)


class TestConversations:
    async def test_the_next_message_finds_notes_and_tasks(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """9.4.2, 9.3.2: they belong to the conversation."""
        script = (writes(("a", 1)), plans("sow"), "Sown", reads("a"), "Reaped")
        agent = a_writer(*script).with_capability(UseTaskPlanning(TodoPolicy(render_every_steps=1)))
        async with open_session_setup(temporal, store, agent) as parlour:
            session = await parlour.session()
            await parlour.wait_for_completion(await parlour.post(session, "Go"))
            sent = await parlour.post(session, "Go on")
            await parlour.wait_for_completion(sent)
            execution = parlour.execution(sent)

            assert await results(execution) == ["1"]
            noted = await metadata(parlour, execution)
            said = await parlour.conversation(sent)
        assert noted["a"] == 1
        assert [task["content"] for task in noted["tasks"]] == ["sow"]
        assert sum("1. ○ sow" in text for text in said if "<todo-render>" in text) > 0

    async def test_a_fork_has_the_notes_of_its_place(
        self, temporal: TemporalClient, store: PostgresSessions
    ) -> None:
        """9.4.2: not those of later steps, and nothing is run again."""

        def opens_late(state: AgentState) -> AgentState:
            late = state.step_count == 3 and user("And now?") not in state.messages
            state = state.with_metadata("steps", state.step_count)
            return state.with_messages((system("Late"), *state.messages)) if late else state

        script = (
            writes(("a", 1), ("gone", 0)),
            writes(("a", 2), ("b", 2)),
            writes(("a", 3)),
            "Done",
            LISTS,
            reads("a", "b"),
            "Forked",
        )
        async with open_session_setup(
            temporal, store, a_writer(*script).add_processor(opens_late)
        ) as parlour:
            sent = await parlour.post(await parlour.session(), "Go")
            await parlour.wait_for_completion(sent)
            fork = await parlour.sessions.fork(parlour.execution(sent).ref, 2, "And now?")
            await parlour.wait_for_completion(fork.id)

            assert (await results(fork))[1:] == ["2", "2"]
            assert await metadata(parlour, fork) == {"a": 2, "gone": 0, "b": 2, "steps": 3}
            assert (await parlour.conversation(sent))[0] == "Late"
            transcript = await parlour.conversation(fork.id)
        stored = ["", "Stored 'a': 1", "Stored 'gone': 0", "", "Stored 'a': 2", "Stored 'b': 2"]
        assert transcript[:8] == ["Go", *stored, "And now?"]
