"""Bash and the file tools at work: the same in every shell, once if so declared, gone when cancelled."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient

from everstep.activities.failpoints import Failpoint
from everstep.activities.tool_runner import EFFECT_UNKNOWN
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.capabilities.bash import BashPolicy, ExecutionPolicy
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import CANCELLED_CALL, AgentState
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import calls
from everstep.agent_domain.tools.tools import ToolCall
from everstep.capabilities.bash import UseBash
from everstep.capabilities.files import ListDirTool, SearchFilesTool, UseFileTools
from everstep.local.runner import LocalRunner
from tests.everstep.capabilities.bash.surroundings import SandboxHost, need_a_sandbox, open_sandbox_host
from tests.workflows.failpoints import FailpointStrike, errors, results
from tests.workflows.harness import (
    HeldModel,
    an_agent,
    at_work,
    events_of,
    eventually,
    final_result,
    scheduled_activities,
)

UNKNOWN = f"Error: {EFFECT_UNKNOWN}"
AT_WORK = "(setsid sleep 98765 &); (sleep 98765 & sleep 98765) & touch begun; wait"


def a_worker(
    folder: Path, *script: InferenceResponse | str, seconds: float = 60, model: HeldModel | None = None
) -> DefinitionBuilder:
    """An agent that works in a directory, with all tools for it; it reads failures and continues."""
    policy = ExecutionPolicy.for_bash(folder, seconds)
    builder = an_agent(*script, tools=[SearchFilesTool(folder), ListDirTool(folder)], model=model)
    builder.with_capability(UseBash(policy, output_policy=BashPolicy(40, 10, 30)))
    return builder.with_capability(UseFileTools(folder)).with_error_policy(ErrorPolicy.ignore_tool_errors())


def runs(command: str) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": command}


def writes(path: str, content: str) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "content": content}


def edits(path: str, old: str, new: str) -> tuple[str, dict[str, Any]]:
    return "edit_file", {"path": path, "old_string": old, "new_string": new}


def reads(path: str) -> tuple[str, dict[str, Any]]:
    return "read_file", {"path": path}


WORK: Sequence[InferenceResponse | str] = (
    calls(writes("src/a.txt", "one\ntwo\n"), ("list_dir", {}), runs("echo begun; pwd | wc -l")),
    calls(edits("src/a.txt", "two", "three"), reads("gone"), ("search_files", {"pattern": "*.zip"})),
    calls(runs("cat src/a.txt; echo made >src/b.txt; chmod 600 src/b.txt"), reads("src/../../x")),
    calls(reads("src/b.txt"), edits("src/b.txt", "made", "changed"), runs("echo oops >&2; exit 3")),
    calls(runs("cat src/b.txt; printf '%0100d' 0"), ("list_dir", {"path": "src"}), runs("cat /etc/shadow")),
    calls(runs("printf 'a\\0b\\377'; kill -9 $$")),
    "Done",
)
READ = [
    ["Wrote src/a.txt: 8 bytes, 3 lines", "begun\n1\n"],
    ["Edited src/a.txt: 1 replacement(s)", "Error: No file at 'gone'", "No file matches *.zip"],
    ["one\nthree\n", "Error: Path is outside the allowed directory"],
    ["     1\tmade", "Edited src/b.txt: 1 replacement(s)", "Exit code: 3\n\nSTDERR:\noops\n"],
    [f"...(truncated)...\nchanged\n00\n...\n{'0' * 30}", "[file] a.txt\n[file] b.txt"],
    ["Exit code: 137\n\na\ufffdb\ufffd"],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    need_a_sandbox()
    return tmp_path


async def locally(agent: DefinitionBuilder) -> list[str]:
    """The results of the same calls in-process, as the model reads them."""
    state = await LocalRunner(agent.definition()).run(AgentState.empty().with_messages((user("Go"),)))
    return [execution.text for step in state.steps for execution in step.tool_executions]


async def test_the_tools_do_the_same_in_every_shell(temporal: TemporalClient, folder: Path) -> None:
    """durably and in-process; and the directory has the same content afterwards."""
    (folder / "durable").mkdir()
    (folder / "local").mkdir()
    # Calls of one step run in parallel, so one after the other here.
    agents = {
        name: a_worker(folder / name, *WORK).with_parallel_tools(False) for name in ("durable", "local")
    }
    async with at_work(temporal, agents["durable"]) as office:
        execution, result = await office.run()
        durable = await results(execution)
    assert result.steps == len(WORK)

    assert durable == await locally(agents["local"])

    for text in (text for step in READ for text in step):
        assert text in durable
    for name in agents:
        assert (folder / name / "src" / "a.txt").read_text() == "one\nthree\n"
        assert (folder / name / "src" / "b.txt").read_text() == "changed\n"
        assert (folder / name / "src" / "b.txt").stat().st_mode & 0o777 == 0o600


UNSTORABLE = {
    ("read_file", '{"path": "a\\u0000.txt"}'): "Error: Path contains a NUL character",
    ("write_file", '{"content": "a\\u0000", "path": "b\\u0000"}'): "Error: Path contains a NUL character",
    ("write_file", '{"content": "a\\u0000", "path": "b"}'): "Error: content contains a NUL character",
    ("search_files", '{"patterns": ["a", "b\\u0000"]}'): "Error: patterns contains a NUL character",
    ("edit_file", '{"path": "\\udcff", "old_string": "a", "new_string": "b"}'): (
        "Error: path holds characters that UTF-8 cannot express"
    ),
    ("bash", '{"command": "touch a\\u0000"}'): (
        "Error: the command contains a NUL character, which no command can; "
        "write \\0 where a program reads it"
    ),
    (
        "bash",
        '{"command": "touch a\\ud800"}',
    ): "Error: the command contains '\\ud800', which is not a valid character",
}


async def test_text_that_cannot_be_stored_is_a_problem_not_a_failure(
    temporal: TemporalClient, folder: Path
) -> None:
    """9.2.1, 9.1.3: as a provider sends it; nothing is run, and an agent that stops at failures continues."""
    made = tuple(ToolCall.from_text("", name, arguments) for name, arguments in UNSTORABLE)
    script = InferenceResponse("", made, "tool_calls"), "Done"
    strict = [a_worker(folder, *script).with_error_policy(ErrorPolicy()) for _ in range(2)]
    async with at_work(temporal, strict[0]) as office:
        execution, _ = await office.run()
        assert await results(execution) == list(UNSTORABLE.values())
        assert (await execution.get()).status is ExecutionStatus.COMPLETED
        assert await errors(execution) == []
    assert await locally(strict[1]) == list(UNSTORABLE.values())
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("bash", '{"command": "touch made", "more": "\\u0000"}'), ("read_file", "{"), ("bash", '["\\u0000"]')],
)
async def test_arguments_that_are_invalid_for_another_reason_fail(
    temporal: TemporalClient, folder: Path, name: str, arguments: str
) -> None:
    """5.4.3: and nothing is run that no person could have been shown."""
    made = InferenceResponse("", (ToolCall.from_text("", name, arguments),), "tool_calls")
    async with at_work(temporal, a_worker(folder, made, "Done")) as office:
        execution, _ = await office.run()
        assert await results(execution) == ["Error: Pass the arguments as a JSON object"]
    assert await locally(a_worker(folder, made, "Done")) == ["Error: Pass the arguments as a JSON object"]
    assert list(folder.iterdir()) == []


async def test_a_timeout_is_a_result_like_any_other(temporal: TemporalClient, folder: Path) -> None:
    """9.1.3: and the execution continues."""
    agent = a_worker(folder, calls(runs("echo first; sleep 98765")), "Done", seconds=1)
    async with at_work(temporal, agent) as office:
        execution, _ = await office.run()
        said = ["Time limit of 1s reached, command stopped\n\nfirst\n"]
        assert await results(execution) == said
        assert (await execution.get()).status is ExecutionStatus.COMPLETED


async def test_a_cancelled_execution_leaves_nothing_of_its_commands(
    temporal: TemporalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.1, 8.2.1: a cancel reaches a command with the next heartbeat, and ends it at once."""
    need_a_sandbox()
    with open_sandbox_host(tmp_path) as around:
        monkeypatch.setenv("LC_EVERSTEP_TEST", around.mark)
        agent = a_worker(around.base_dir, calls(runs(AT_WORK), runs(AT_WORK)), "Done", seconds=99)
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await eventually(lambda: wait_for_begin(around))
            assert around.running_processes()
            asked = time.monotonic()
            await execution.cancel()
            await final_result(execution)
            seconds = time.monotonic() - asked

            assert not around.running_processes()
            assert await results(execution) == [CANCELLED_CALL] * 2
            assert (await execution.get()).status is ExecutionStatus.CANCELLED
    # A quarter of a second until the next heartbeat; the rest is for a machine under load.
    assert seconds < 5


async def wait_for_begin(around: SandboxHost) -> bool:
    return (around.base_dir / "begun").exists()


@dataclass(frozen=True)
class Lost:
    """A worker that is lost in a call: the place, the model's result, and the content of the disk."""

    call: tuple[str, dict[str, Any]]
    point: Failpoint
    told: str
    holds: str


APPEND = runs("echo once >>log")
EDIT = edits("log", "begun", "begun once")
WRITE = writes("log", "once\n")
DID = "(no output)", "begun\nonce\n"
EDITED = "Edited log: 1 replacement(s)"
WROTE = "Wrote log: 5 bytes, 2 lines"

LOST = [
    Lost(APPEND, Failpoint.TOOL_AFTER_RESERVE, UNKNOWN, "begun\n"),
    Lost(APPEND, Failpoint.TOOL_AFTER_EFFECT, UNKNOWN, "begun\nonce\n"),
    Lost(APPEND, Failpoint.TOOL_BEFORE_REPORT, "(no output)", "begun\nonce\n"),
    Lost(EDIT, Failpoint.TOOL_AFTER_RESERVE, UNKNOWN, "begun\n"),
    Lost(EDIT, Failpoint.TOOL_AFTER_EFFECT, UNKNOWN, "begun once\n"),
    Lost(EDIT, Failpoint.TOOL_BEFORE_REPORT, EDITED, "begun once\n"),
    Lost(WRITE, Failpoint.TOOL_AFTER_RESERVE, WROTE, "once\n"),
    Lost(WRITE, Failpoint.TOOL_AFTER_EFFECT, WROTE, "once\n"),
    Lost(WRITE, Failpoint.TOOL_BEFORE_REPORT, WROTE, "once\n"),
    Lost(reads("log"), Failpoint.TOOL_AFTER_EFFECT, "     1\tbegun", "begun\n"),
    Lost(
        ("search_files", {"pattern": "log"}),
        Failpoint.TOOL_AFTER_EFFECT,
        "Files found: 1\n\n[log]\nlog",
        "begun\n",
    ),
    Lost(("list_dir", {}), Failpoint.TOOL_AFTER_EFFECT, "[file] log", "begun\n"),
]


@pytest.mark.parametrize("lost", LOST, ids=[f"{lost.call[0]}, {lost.point}" for lost in LOST])
async def test_a_lost_worker_leaves_what_the_tool_declares(
    temporal: TemporalClient, folder: Path, lost: Lost
) -> None:
    """1.1.3: commands and edits are not repeated, idempotent calls are, and a result is kept."""
    (folder / "log").write_text("begun\n")
    strike = FailpointStrike(lost.point)
    async with at_work(temporal, a_worker(folder, calls(lost.call), "Done"), strike=strike) as office:
        execution, _ = await office.run()

        assert await results(execution) == [lost.told]
        assert (await execution.get()).status is ExecutionStatus.COMPLETED
    assert strike.at is None
    assert (folder / "log").read_text() == lost.holds


async def test_a_stopped_worker_takes_its_commands_along(
    temporal: TemporalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1.1, 1.1.3: the next one does not run the command again, and reports that its effect is unknown."""
    need_a_sandbox()
    with open_sandbox_host(tmp_path) as around:
        monkeypatch.setenv("LC_EVERSTEP_TEST", around.mark)
        agent = a_worker(around.base_dir, calls(runs(AT_WORK)), "Done", seconds=99)
        async with at_work(temporal, agent) as office:
            execution = await office.start()
            await eventually(lambda: wait_for_begin(around))
        (around.base_dir / "begun").unlink()
        assert not around.running_processes()
        async with office.worker():
            await final_result(execution)
            assert await results(execution) == [UNKNOWN]
        assert not await wait_for_begin(around)


async def test_how_each_tool_is_run(temporal: TemporalClient, folder: Path) -> None:
    """1.1.3: a call that returns at once needs no separate activity."""
    every = calls(
        runs("true"),
        writes("a", "x"),
        edits("a", "", "y"),
        reads("b"),
        ("list_dir", {}),
        ("search_files", {}),
    )
    async with at_work(temporal, a_worker(folder, every, "Done")) as office:
        execution, _ = await office.run()
        ran = scheduled_activities(await events_of(execution), "run_tool")
    assert len(ran) == 4
