"""`everstep tenants`, against the API on a port."""

import asyncio
import json

from click.testing import CliRunner, Result

from everstep.cli.main import commands
from everstep.runtime.serving import serve_app
from tests.everstep.http_api.house import ApiSetup, make_app


async def test_limits_of_another_installation_are_set_shown_and_removed(api_setup: ApiSetup) -> None:
    """18.2.4"""
    tenant = f"{api_setup.tenant}/one"
    async with serve_app(make_app(api_setup.api)) as url:
        operator = {"EVERSTEP_API_URL": url, "EVERSTEP_API_TOKEN": api_setup.token("boss", "admin")}

        async def run(*arguments: str) -> Result:
            # In a thread: the command has its own event loop.
            return await asyncio.to_thread(
                CliRunner().invoke, commands, ["tenants", *arguments], env=operator, prog_name="everstep"
            )

        said = await run("set", tenant, "--max-running", "2", "--tokens-per-minute", "6000")
        assert said.stdout == f"set: {tenant}: max running 2, tokens per minute 6000\n"
        assert "has no executions yet; check its name." in said.stderr
        # What is not named stays, and what is not known is no error of the installation.
        said = await run("set", tenant, "--max-running", "none")
        assert (said.stdout, said.stderr) == (f"set: {tenant}: tokens per minute 6000\n", "")
        await run("set", tenant, "--user", "ann", "--max-running", "0")
        assert (await run("show", tenant)).stdout.splitlines() == [
            f"{tenant}: tokens per minute 6000",
            f"{tenant}, user ann: paused: nothing starts until max_running is raised; max running 0",
        ]
        listed = [json.loads(line) for line in (await run("list", "--json")).stdout.splitlines()]
        assert {"tenant_id": tenant, "user_id": "ann", "max_running": 0}.items() <= listed[-1].items()
        assert (await run("remove", tenant, "--user", "ann")).stdout.startswith(
            f"removed: {tenant}, user ann"
        )
        assert (await run("remove", tenant)).exit_code == 0
        for arguments, message in (
            (("show", tenant), f"there is no tenant '{tenant}'"),
            (("remove", tenant), "has no limits"),
            (("set", "a\x1bb", "--max-running", "1"), "invisible characters"),
        ):
            refused = await run(*arguments)
            assert refused.exit_code == 1
            assert message in refused.stderr
