"""Hostile servers over stdio."""

import asyncio
import json
import logging
import re
import resource
import sys
import time
from pathlib import Path

import pytest

from everstep.agent_domain.errors import ToolFailed
from everstep.agent_domain.loop.step_error import ErrorType, StepError
from everstep.agent_domain.tools.tools import Effect
from everstep.capabilities.mcp import StdioServer, UseMCP
from everstep.capabilities.mcp.connection_registry import CONNECTIONS
from everstep.capabilities.mcp.errors import McpError, McpTimeout
from everstep.capabilities.mcp.stdio import MAX_MESSAGE_BYTES, request_id_of
from tests.everstep.capabilities.mcp.using import (
    HOSTILE,
    UNSTOPPED,
    hostile,
    is_running,
    open_tools,
    tools_of,
    wait_until,
)
from tests.node import do_without

SECRET = "sk-very-secret"  # noqa: S105 -- a fake secret

# Listing.


async def test_all_pages_are_listed() -> None:
    async with open_tools(hostile("paged")) as tools:
        assert len(tools.names) == 200
        assert tools.names[0] == "s_tool_0_0"
        assert tools.names[-1] == "s_tool_9_19"


async def test_only_chosen_tools_are_listed(caplog: pytest.LogCaptureFixture) -> None:
    async with open_tools(hostile("paged"), tools=["tool_3_*", "tool_4_1", "missing"]) as tools:
        assert len(tools.names) == 21
        assert "'missing'" in caplog.text


async def test_if_no_tool_matches_the_error_lists_them() -> None:
    with pytest.raises(
        McpError, match=r"MCP server 's': it has no tool that matches ech; its tools: echo, wait"
    ):
        async with open_tools(hostile(), tools=["ech"]):
            pass


async def test_an_endless_list_is_abandoned() -> None:
    with pytest.raises(McpError, match="its list of tools has no end"):
        async with open_tools(hostile("endless")):
            pass


async def test_a_list_that_is_too_long_for_a_model_is_refused_until_some_are_chosen() -> None:
    with pytest.raises(
        McpError, match=r"its 20 tools take more than 1,000,000 characters to describe; choose"
    ):
        async with open_tools(hostile("heavy")):
            pass
    async with open_tools(hostile("heavy"), tools=["heavy_1", "heavy_2"]) as tools:
        assert tools.names == ["s_heavy_1", "s_heavy_2"]


async def test_of_two_tools_with_one_name_the_first_counts(caplog: pytest.LogCaptureFixture) -> None:
    async with open_tools(hostile("double")) as tools:
        assert tools.names == ["s_same", "s_other"]
        assert tools.listed["same"].description == "first"
        assert "lists 'same' twice" in caplog.text


async def test_tools_with_the_same_resulting_name_are_refused_until_one_is_chosen() -> None:
    with pytest.raises(McpError, match=r"'a\.b' and 'a/b' would both be called 's_a_b'"):
        async with open_tools(hostile("clash")):
            pass
    async with open_tools(hostile("clash"), tools=["a.b", "c"]) as tools:
        assert tools.names == ["s_a_b", "s_c"]


async def test_tools_that_a_model_cannot_use_are_omitted(caplog: pytest.LogCaptureFixture) -> None:
    async with open_tools(hostile("odd")) as tools:
        assert list(tools.listed) == ["näme with späces.and.dots", "x" * 100, "wordy"]
        assert len(tools.listed["wordy"].description) < 10_000
        assert "'nul' is left out: its schema" in caplog.text
        assert "'large' is left out: its schema has more than 64,000 characters" in caplog.text


async def test_the_effect_of_a_tool_follows_its_servers_annotations() -> None:
    async with open_tools(hostile("hints"), timeout_seconds=7) as tools:
        effects = {name: each.options.effect for name, each in tools.listed.items()}

        assert effects == {
            "reads": Effect.IDEMPOTENT,
            "again": Effect.IDEMPOTENT,
            "writes": Effect.AT_MOST_ONCE,
            "silent": Effect.AT_MOST_ONCE,
        }
        assert {each.options.timeout_seconds for each in tools.listed.values()} == {7}


async def test_no_secret_is_recorded() -> None:
    """9.10.2"""
    async with open_tools(hostile(env={"TOKEN": SECRET})) as tools:
        recorded = json.dumps([each.to_dict() for each in tools.listed.values()])

        assert SECRET not in recorded
        assert "hostile.py" not in recorded


# Starting.


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (StdioServer("no-such-command"), "there is no command 'no-such-command' on this machine"),
        (StdioServer("./no-such-command"), "there is no command './no-such-command' on this machine"),
        (StdioServer(sys.executable, cwd="/no/such/place"), "there is no directory '/no/such/place'"),
        (StdioServer("/etc/passwd"), "there is no command '/etc/passwd'"),
        (hostile("crash"), "it ended with exit code 1"),
        (hostile("garbage"), "it wrote more than 100 lines that are not JSON-RPC"),
    ],
)
async def test_a_server_that_does_not_start_has_a_clear_error(server: StdioServer, told: str) -> None:
    with pytest.raises(McpError, match=f"^MCP server 's': .*{told}"):
        async with open_tools(server):
            pass


async def test_a_server_that_never_answers_is_abandoned() -> None:
    with pytest.raises(McpTimeout, match=r"MCP server 's': it did not answer within 0\.3s"):
        async with open_tools(hostile("silent"), connect_seconds=0.3):
            pass


# Calling.


async def test_a_server_gets_only_its_configured_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVERSTEP_AUTH_SECRET", "the worker's own")
    async with open_tools(hostile(env={"TOKEN": SECRET})) as tools:
        seen = json.loads(await tools.call("env"))

        assert seen["TOKEN"] == SECRET
        assert "EVERSTEP_AUTH_SECRET" not in seen


@pytest.mark.parametrize(
    ("tool", "error", "told"),
    [
        ("failed", ToolFailed, "^it did not work$"),
        ("error", McpError, "^MCP server 's': no$"),
        ("broken", McpError, "MCP server 's': its answer breaks the protocol: content"),
        ("die", McpError, "it ended with exit code 3; whether it did what was asked is unknown"),
        ("kill", McpError, "it ended with exit code 137; whether it did what was asked is unknown"),
        ("huge", McpError, "it answered with a message of 25,000,0.. bytes, and at most 8,388,608 are read"),
        ("huge_first", McpError, "it answered with a message of 25,000,0.. bytes"),
        ("huge_anonymous", McpError, "it answered with a message of 25,000,0.. bytes"),
    ],
)
async def test_a_failed_call_has_its_reason_and_the_next_one_works(
    tool: str, error: type[Exception], told: str
) -> None:
    async with open_tools(hostile()) as tools:
        with pytest.raises(error, match=told):
            await tools.call(tool)

        assert await tools.call("echo", text="still here") == "still here"


async def test_failures_are_short(caplog: pytest.LogCaptureFixture) -> None:
    async with open_tools(hostile()) as tools:
        for tool in ("failed", "error"):
            with pytest.raises((ToolFailed, McpError)) as failed:
                await tools.call(tool, text="x" * 100_000)
            assert len(str(failed.value)) < 5_000


async def test_a_long_result_is_cut() -> None:
    async with open_tools(hostile(), max_result_chars=1_000) as tools:
        assert (await tools.call("echo", text="x" * 5_000_000)).endswith(
            "first 1,000 of 5,000,000 characters]"
        )


async def test_a_huge_answer_takes_no_memory_and_does_not_affect_other_calls() -> None:
    async with open_tools(hostile()) as tools:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        waiting = asyncio.create_task(tools.call("wait", seconds=0.5))
        for _ in range(2):
            with pytest.raises(McpError, match="25,000,0"):
                await tools.call("huge")

        assert await waiting == "waited"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 6 * MAX_MESSAGE_BYTES / 1024


async def test_lines_that_are_not_messages_are_ignored() -> None:
    async with open_tools(hostile()) as tools:
        assert await tools.call("garbage") == "after the garbage"
        with pytest.raises(McpError, match="it wrote more than 100 lines that are not JSON-RPC"):
            await tools.call("garbage", lines=100_000)
        assert await tools.call("echo", text="again") == "again"


async def test_a_call_that_times_out_is_cancelled_at_the_server(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with open_tools(hostile(env={"NOTES": str(notes)}), timeout_seconds=0.2) as tools:
        with pytest.raises(McpTimeout, match=r"MCP server 's': it did not answer within 0\.2s") as late:
            await tools.call("never", note=str(notes))

        assert StepError.of(late.value).type is ErrorType.TIMEOUT
        await wait_until(lambda: "cancelled" in notes.read_text())
        began, cancelled = notes.read_text().split("\n")[:2]
        assert began.split()[1] == cancelled.split()[1]
        assert await tools.call("echo", text="a") == "a"


async def test_a_cancelled_call_ends_at_once_and_is_cancelled_at_the_server(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with open_tools(hostile(env={"NOTES": str(notes)})) as tools:
        calling = asyncio.create_task(tools.call("never", note=str(notes)))
        other = asyncio.create_task(tools.call("wait", seconds=0.3))
        await wait_until(notes.exists)

        began = time.perf_counter()
        calling.cancel()
        await asyncio.wait({calling})
        assert calling.cancelled()
        assert time.perf_counter() - began < 0.1

        await wait_until(lambda: "cancelled" in notes.read_text())
        assert await other == "waited"


async def test_a_cancelled_call_ends_at_once_when_the_server_reads_nothing() -> None:
    """Not even the cancel notification is delivered."""
    async with open_tools(hostile()) as tools:
        await tools.call("stop_reading")
        calls = [asyncio.create_task(tools.call("echo", text="x" * 1_000_000)) for _ in range(3)]
        # The concurrent calls fill the pipe.
        await asyncio.wait(calls, timeout=0.2)

        began = time.perf_counter()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert all(call.cancelled() for call in calls)
        assert time.perf_counter() - began < 0.1


async def test_fifty_concurrent_calls_wait_together() -> None:
    async with open_tools(hostile()) as tools:
        began = time.perf_counter()
        answers = await asyncio.gather(*(tools.call("wait", seconds=0.5) for _ in range(50)))

        assert answers == ["waited"] * 50
        assert time.perf_counter() - began < 5
        assert len(CONNECTIONS) == 1


async def test_of_fifty_calls_none_hangs_when_the_server_dies() -> None:
    async with open_tools(hostile()) as tools:
        waiting = [asyncio.create_task(tools.call("wait", seconds=60)) for _ in range(50)]
        with pytest.raises(McpError, match="exit code 3"):
            await tools.call("die")

        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), UNSTOPPED)
        assert {str(each) for each in outcomes} == {
            "MCP server 's': it ended with exit code 3; "
            "whether it did what was asked is unknown, and it was not asked again"
        }


@pytest.mark.parametrize("half", ["input", "output"])
async def test_a_half_closed_server_is_abandoned(half: str) -> None:
    async with open_tools(hostile()) as tools:
        await tools.call(f"close_{half}")

        with pytest.raises(McpError, match=f"it closed its {half}; whether it did"):
            await tools.call("echo", text="a")
        assert await tools.call("echo", text="a") == "a"


async def test_a_tool_that_may_run_once_is_not_retried(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with open_tools(hostile()) as tools:
        with pytest.raises(McpError, match="was not asked again"):
            await tools.call("die", note=str(notes))

        assert notes.read_text() == "died\n"


async def test_a_tool_that_may_run_twice_is_retried(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with open_tools(hostile()) as tools:
        assert await tools.call("dies_once", note=str(notes)) == "alive"
        assert notes.read_text() == "died\n"


async def test_a_removed_tool_is_reported() -> None:
    async with open_tools(hostile("paged")) as before, open_tools(hostile()) as now:
        now.listed = before.listed
        with pytest.raises(
            McpError, match="MCP server 's': the tool 'tool_0_0' is gone: the server no longer"
        ):
            await now.call("tool_0_0")


# Connections and their end.


async def test_an_idle_connection_is_closed_and_opened_again() -> None:
    async with open_tools(hostile(), idle_seconds=0.2) as tools:
        await wait_until(lambda: len(CONNECTIONS) == 0)

        assert await tools.call("echo", text="again") == "again"


async def test_a_connection_in_use_is_not_idle() -> None:
    async with open_tools(hostile(), idle_seconds=0.1) as tools:
        assert await tools.call("wait", seconds=0.6) == "waited"


async def test_closing_ends_a_program_that_ignores_signals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "everstep.capabilities.mcp")
    async with open_tools(hostile("stubborn")):
        await wait_until(lambda: "starting as" in caplog.text)
        pid = _pid(caplog.text)
        assert _runs(pid)
    assert not is_running(pid)
    assert len(CONNECTIONS) == 0


async def test_closing_fails_the_waiting_calls() -> None:
    async with open_tools(hostile()) as tools:
        waiting = asyncio.create_task(tools.call("wait", seconds=60))
        await tools.call("echo", text="the other is under way")
        await tools.use.aclose()

        with pytest.raises(McpError, match="the connection was closed"):
            await waiting


async def test_toolsets_of_one_server_share_its_program() -> None:
    async with open_tools(hostile()):
        again = await tools_of(UseMCP(hostile(), "s"))

        assert await again.call("echo", text="a") == "a"
        assert len(CONNECTIONS) == 1


def test_each_event_loop_has_its_own_connections_and_ends_them() -> None:
    use = UseMCP(hostile(), "s")

    async def once() -> str:
        return await (await tools_of(use)).call("echo", text="a")

    assert [asyncio.run(once()) for _ in range(2)] == ["a", "a"]
    assert len(CONNECTIONS) == 0


async def test_the_error_output_of_a_server_is_logged_within_limits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "everstep.capabilities.mcp")
    async with open_tools(hostile("chatty", env={"TOKEN": SECRET})):
        await wait_until(lambda: "more of its errors is not logged" in caplog.text)

    ours = [each for each in caplog.records if each.name.startswith("everstep.capabilities.mcp")]
    assert {each.levelno for each in ours} == {logging.DEBUG}
    assert len(ours) < 1_100
    assert max(len(each.getMessage()) for each in ours) < 600
    assert "with [hidden]" in caplog.text
    assert SECRET not in caplog.text


CHILD = """
import asyncio, logging, sys
from contextlib import AsyncExitStack
from tests.everstep.capabilities.mcp.using import open_tools
from everstep.capabilities.mcp import StdioServer

async def main():
    async with AsyncExitStack() as stack:
        for n, words in enumerate({commands!r}):
            await stack.enter_async_context(open_tools(StdioServer(*words), f"s{{n}}"))
        await asyncio.sleep(600)

logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
asyncio.run(main())
"""

STARTING_OTHERS = """(setsid sleep 600 & echo "left $!." >&2)
    setsid sh -c 'sleep 600 & echo "left $!." >&2; wait' &
    "$@" """
"""Starts processes in other process sessions, one with a parent that has ended, as daemons are started."""


async def test_a_worker_that_is_killed_leaves_no_process_behind(interpreter: Path) -> None:
    """No server that ignores its closed input and every signal that can be ignored, not even behind a shell,
    and no process that a server started.
    """
    server = [sys.executable, "-I", "-S", str(HOSTILE)]
    commands = [
        (server[0], [*server[1:], "stubborn"]),
        ("sh", ["-c", '"$@"; true', "sh", *server, "stubborn"]),
        ("sh", ["-c", STARTING_OTHERS, "sh", *server]),
    ]
    worker = await asyncio.create_subprocess_exec(
        *(interpreter, "-c", CHILD.format(commands=commands)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=2**20,
    )
    try:
        async with asyncio.timeout(UNSTOPPED):
            said = ""
            while said.count("starting as") < len(commands) or said.count("left ") < 2:
                said += await _line(worker)
        left = [*map(int, re.findall(r"(?:starting as|left) (\d+)", said))]
        assert len(left) == len(commands) + 2
        assert all(map(_runs, left))
    finally:
        worker.kill()
        await worker.communicate()
    await wait_until(lambda: not any(map(is_running, left)))


async def _line(worker: asyncio.subprocess.Process) -> str:
    assert worker.stdout
    line = await worker.stdout.readline()
    assert line, "the worker ended by itself"
    return line.decode()


def _pid(text: str) -> int:
    return int(text.split("starting as ")[1].split(maxsplit=1)[0])


def _runs(pid: int) -> bool:
    """Whether it runs; a process that cannot be observed running cannot be observed ending either."""
    if not Path("/proc/self/stat").exists():
        do_without("this needs /proc to see whether a process runs")
    return is_running(pid)


# Parts.


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{}}', 7),
        (b' { "id" : 7 , "result":{}}', 7),
        (b'{"result":{"id":5},"jsonrpc":"2.0","id":7}\n', 7),
        (b'{"result":{"id":5}, "id": 7, "jsonrpc": "2.0"}', 7),
        (b'{"result":{"content":[],"id":5}}', None),
        (b'{"id":"seven","result":{}}', None),
        (b'{"method":"x","params":{"id":5}}', None),
        (b"xxxx", None),
    ],
)
def test_the_request_id_is_read_at_the_outermost_level(line: bytes, asked: int | None) -> None:
    assert request_id_of(line, line) == asked
