"""Lists of executions and of what waits for people, with their filters."""

import json
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE

import pytest

from tests.acceptance.harness import ROOT, until_pause
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")

NEVER = "2100-01-01"


async def ids_of(desk: CommandLine, *arguments: object) -> list[str]:
    """The first words of the lines of a list."""
    result = await desk.run_command(*arguments)
    assert result.exit_code == 0, result.output
    return [line.split()[0] for line in result.stdout.splitlines()]


async def test_executions_are_filtered(desk: CommandLine) -> None:
    """15.5.7"""
    mine = await desk.client.start("clerk", "hello", user_id="filter-ann")
    await mine.result()
    one = [str(mine.id)]

    assert await ids_of(desk, "executions", "--user", "filter-ann") == one
    assert (
        await ids_of(desk, "executions", "--user", "filter-ann", "--agent", "clerk", "--since", "1h") == one
    )
    assert await ids_of(desk, "executions", "--user", "filter-ann", "--agent", "broken") == []
    assert await ids_of(desk, "executions", "--user", "filter-ann", "--since", NEVER) == []
    assert await ids_of(desk, "executions", "--tenant", "nobody") == []
    empty = await desk.run_command("executions", "--tenant", "nobody", "--agent", "clerk")
    assert (empty.stdout, empty.stderr) == ("", "There are no executions that match.\n")


async def test_the_inbox_has_what_waits_for_people_with_the_command_that_answers(desk: CommandLine) -> None:
    """15.5.7: oldest first."""
    asks = await desk.client.start("clerk", "choose", user_id="inbox-ann")
    wants = await desk.client.start("clerk", "pay", user_id="inbox-ann")
    for execution in (asks, wants):
        await until_pause(execution)

    result = await desk.run_command("inbox", "--user", "inbox-ann")

    lines = result.stdout.splitlines()
    assert len(lines) == 2
    question = next(line for line in lines if str(asks.id) in line)
    approval = next(line for line in lines if str(wants.id) in line)
    assert question.endswith(f"  question  clerk  Which floor?  everstep answer {asks.id} TEXT")
    assert approval.endswith(f'  clerk  transfer {{"euros":80}}  everstep approve {wants.id} [--deny]')
    assert [line[:20] for line in lines] == sorted(line[:20] for line in lines)
    for filters, count in (
        (("--kind", "approval"), 1),
        (("--kind", "budget"), 0),
        (("--agent", "broken"), 0),
        (("--since", NEVER), 0),
        (("--since", "1h"), 2),
        (("--limit", "1"), 1),
    ):
        found = await desk.run_command("inbox", "--user", "inbox-ann", *filters)
        assert len(found.stdout.splitlines()) == count, filters
    assert "More than 1 wait: raise --limit" in found.stderr
    await asks.cancel()
    await wants.cancel()
    for execution in (asks, wants):
        await execution.result()
    after = await desk.run_command("inbox", "--user", "inbox-ann")
    assert (after.stdout, after.stderr) == ("", "Nothing waits for people.\n")


async def test_top_prints_once_in_a_pipe(desk: CommandLine) -> None:
    """15.5.6"""
    execution = await desk.start_until_pause("pay")

    said = await desk.output_of("top", "--tenant", "default", "--agent", "clerk")
    data = json.loads(await desk.output_of("top", "--tenant", "default", "--agent", "clerk", "--json"))

    line = next(line for line in said.splitlines() if str(execution.id) in line)
    assert line.split()[1:3] == ["paused", "default"]
    assert "for approval: transfer" in line
    assert "  paused" not in said.splitlines()[0]
    assert said.splitlines()[0].startswith("default  clerk  ")
    (entry,) = [each for each in data["executions"] if each["id"] == str(execution.id)]
    assert (entry["status"], entry["tenant"], entry["step"], entry["attempt"]) == ("paused", "default", 1, 1)
    (agent,) = data["agents"]
    assert agent["paused"] >= 1
    await execution.cancel()


async def test_a_closed_pipe_ends_a_list_quietly(desk: CommandLine) -> None:
    """15.5.10"""
    for _ in range(2):
        await (await desk.client.start("clerk", "hello")).result()
    process = await create_subprocess_exec(
        "sh",
        "-c",
        f"{desk.installation.nursery.everstep} executions --limit 500 | head -1; echo done",
        stdout=PIPE,
        stderr=PIPE,
        cwd=ROOT,
        env={**desk.environment, "PYTHONUNBUFFERED": "1"},
    )
    out, err = await process.communicate()
    assert out.decode().splitlines()[-1] == "done"
    assert err == b""


async def test_without_standard_output_a_command_ends_quietly(desk: CommandLine) -> None:
    """15.5.10"""
    process = await create_subprocess_exec(
        "sh",
        "-c",
        f"exec {sys.executable} -m everstep.cli executions >&-",
        stderr=PIPE,
        cwd=ROOT,
        env=desk.environment,
    )
    _, err = await process.communicate()
    assert b"Traceback" not in err
    assert len(err.decode().splitlines()) <= 1


async def test_an_unavailable_database_is_one_sentence(desk: CommandLine) -> None:
    """15.5.10"""
    nowhere = {"DATABASE_URL": "postgresql://127.0.0.1:9/x"}
    for name in ("executions", "inbox", "top"):
        assert "Check that it runs and that the database URL is" in await desk.error_of(name, **nowhere)


@pytest.mark.parametrize("arguments", [("executions", "--since", "soon"), ("inbox", "--since", "soon")])
async def test_an_unreadable_time_is_refused(desk: CommandLine, arguments: tuple[str, ...]) -> None:
    """15.5.7"""
    assert "'soon' is not a time; write how long ago" in await desk.usage_error_of(*arguments)
