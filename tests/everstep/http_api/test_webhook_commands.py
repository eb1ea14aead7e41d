"""`everstep webhooks`, against the API on a port."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest_asyncio
from click.testing import CliRunner, Result

from everstep.cli.main import commands
from everstep.runtime.serving import serve_app
from tests.everstep.http_api.house import ApiSetup, make_app

Run = Callable[..., Awaitable[Result]]


@pytest_asyncio.fixture
async def run(api_setup: ApiSetup) -> AsyncGenerator[Run]:
    """Runs a command about webhooks, as an operator."""
    async with serve_app(make_app(api_setup.api)) as url:
        given = {
            "EVERSTEP_API_URL": url,
            "EVERSTEP_API_TOKEN": api_setup.token("boss", "admin", "sessions:all"),
        }

        async def run_command(*arguments: str) -> Result:
            # In a thread: the command has its own event loop.
            return await asyncio.to_thread(
                CliRunner().invoke, commands, ["webhooks", *arguments], env=given, prog_name="everstep"
            )

        yield run_command


async def test_webhooks_are_added_changed_and_removed(run: Run) -> None:
    """18.6.1, 18.6.6"""
    added = await run("add", "http://127.0.0.1:9/hook", "--event", "execution.failed")
    name = added.stdout.split()[0]
    first, secret = added.stdout.splitlines()
    assert first == f"{name}  enabled   http://127.0.0.1:9/hook  execution.failed"
    assert secret.startswith("  secret   whsec_")
    assert "whsec_" in json.loads((await run("rotate", name, "--json")).stdout)["secret"]
    assert name in (await run("list")).stdout
    assert "whsec_" not in (await run("show", name)).stdout

    ping = json.loads((await run("ping", name, "--json")).stdout)
    assert (ping["type"], ping["state"]) == ("webhook.ping", "pending")
    assert ping["id"] in (await run("deliveries", name)).stdout
    assert (await run("replay", name)).stdout == "queued: 0\n"
    assert (await run("replay", name, ping["id"])).stdout == "queued: 1\n"

    assert "disabled" in (await run("change", name, "--disable")).stdout
    changed = json.loads((await run("change", name, "--enable", "--include-content", "--json")).stdout)
    assert (changed["enabled"], changed["include_content"]) == (True, True)
    assert (await run("change", name)).exit_code == 2
    assert (await run("remove", name)).stdout == f"removed: {name}\n"
    gone = await run("show", name)
    assert (gone.exit_code, name in gone.stderr) == (1, True)
