"""`everstep schedules`, against the API on a port."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest_asyncio
from click.testing import CliRunner, Result

from everstep.cli.main import commands
from everstep.runtime.serving import serve_app
from tests.acceptance.front import a_free_port
from tests.everstep.http_api.house import ApiSetup, make_app

Run = Callable[..., Awaitable[Result]]


@pytest_asyncio.fixture
async def run(api_setup: ApiSetup) -> AsyncGenerator[Run]:
    """Runs a command about schedules, as `ann`."""
    port = a_free_port()
    given = {"EVERSTEP_API_URL": f"http://127.0.0.1:{port}", "EVERSTEP_API_TOKEN": api_setup.token("ann")}

    async def run_command(*arguments: str) -> Result:
        # In a thread: the command has its own event loop.
        return await asyncio.to_thread(
            CliRunner().invoke, commands, ["schedules", *arguments], env=given, prog_name="everstep"
        )

    async with serve_app(make_app(api_setup.api), "127.0.0.1", port):
        yield run_command


async def test_schedules_are_added_changed_and_removed(run: Run) -> None:
    """18.7.3"""
    added = (await run("add", "clerk", "hi", "--cron", "0 9 * * mon", "--timezone", "Europe/Berlin")).stdout
    name = added.split()[0]
    assert added.startswith(f"{name}  active  0 9 * * mon Europe/Berlin  clerk: hi\n  next   ")
    assert name in (await run("list")).stdout

    changed = json.loads((await run("change", name, "--every", "2h", "--json")).stdout)
    assert (changed["interval_seconds"], changed["cron"]) == (7200, None)
    assert "paused  every 7200 s" in (await run("pause", name)).stdout
    assert "active" in (await run("resume", name)).stdout
    assert {"next_runs", "recent_runs"} <= json.loads((await run("trigger", name, "--json")).stdout).keys()
    times = ("--start-at", "2026-01-12T00:00:00Z", "--end-at", "2026-01-12T00:00:01Z")
    assert (await run("backfill", name, *times)).stdout == "1 run to make up for\n"
    assert json.loads((await run("show", name, "--json")).stdout)["id"] == name

    assert (await run("remove", name)).stdout == f"removed: {name}\n"
    gone = await run("show", name)
    assert (gone.exit_code, name in gone.stderr) == (1, True)


async def test_the_command_says_in_one_sentence_what_is_wrong(run: Run) -> None:
    """18.7.8, 15.5.12: with the names of its options."""
    for arguments, words in (
        (("--cron", "9"), "five fields"),
        (("--every", "1h", "--end-at", "2020-01-01"), "--end-at is in the past"),
    ):
        refused = await run("add", "clerk", "hi", *arguments)
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (1, 1)
        assert words in refused.stderr
        assert "_" not in refused.stderr
    for arguments, words in (
        ((), "such as --every 1h, or times, such as --cron"),
        (("--every", "1h", "--cron", "@daily"), "either an interval, such as --every 1h"),
        (("--every", "0s"), "out of range; write 1s to 366d"),
        (("--every", "5 min"), "write seconds, or such as 90s, 5m"),
        (("--every", "1h", "--start-at", "tomorrow"), "such as 2026-01-16 or 2026-01-16T10:05:00Z"),
    ):
        unread = await run("add", "clerk", "hi", *arguments)
        assert (unread.exit_code, words in " ".join(unread.stderr.split())) == (2, True)
