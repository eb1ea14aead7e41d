"""The commands about tenants."""

import json

import pytest

from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_limits_are_set_shown_listed_and_removed(desk: CommandLine) -> None:
    """18.2.4, 18.2.7"""
    said = await desk.output_of("tenants", "set", "globex", "--max-running", "2", "--weight", "1.5")
    assert said == (
        "set: globex: weight 1.5, max running 2\nThe tenant 'globex' has no executions yet; check its name.\n"
    )
    said = await desk.output_of("tenants", "set", "globex", "--user", "ann", "--max-running", "0")
    assert said == (
        "set: globex, user ann: paused: nothing starts until max_running is raised; max running 0\n"
    )
    assert (await desk.output_of("tenants", "set", "globex", "--weight", "none")).endswith("max running 2\n")
    shown = await desk.output_of("tenants", "show", "globex")
    assert shown.splitlines()[0] == "globex: max running 2"
    listed = [json.loads(line) for line in (await desk.output_of("tenants", "list", "--json")).splitlines()]
    assert {"tenant": "globex", "user": None, "max_running": 2}.items() <= listed[0].items()
    for arguments, message in (
        (("show", "globx"), "there is no tenant 'globx': it has no limits and no executions; did you mean"),
        (("set", "globex", "--max-running", "-1"), "--max-running is -1; use a number from 0"),
        (("set", " ", "--max-running", "1"), "are not blank"),
        (("set", "x" * 201, "--max-running", "1"), "at most 200 characters"),
        (("set", "globex", "--user", "x" * 201, "--max-running", "1"), "at most 200 characters"),
        (("remove", "globex", "--user", "bob"), "globex, user bob has no limits"),
    ):
        assert message in await desk.error_of("tenants", *arguments)
    for arguments, message in (
        (("set", "globex"), "Name a limit to set"),
        (("set", "globex", "--max-running", "many"), "'many' is neither a number nor 'none'"),
    ):
        assert message in await desk.usage_error_of("tenants", *arguments)
    await desk.output_of("tenants", "remove", "globex", "--user", "ann")
    await desk.output_of("tenants", "remove", "globex")
    assert (await desk.output_of("tenants", "list")).startswith("No tenant has limits;")
