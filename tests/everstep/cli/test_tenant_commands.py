"""The commands about tenants."""

import json
from uuid import uuid4

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
    assert {"tenant_id": "globex", "user_id": None, "max_running": 2}.items() <= listed[0].items()
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
        (("list", "--token", "bad"), "--token is for an API: name it with --url, or omit --token"),
    ):
        assert message in await desk.usage_error_of("tenants", *arguments)
    await desk.output_of("tenants", "remove", "globex", "--user", "ann")
    hint = "has no limits, also not those of '*': `everstep tenants remove globex` lets these apply.\n"
    assert (await desk.output_of("tenants", "set", "globex", "--max-running", "none")).endswith(hint)
    assert hint in await desk.output_of("tenants", "list")
    await desk.output_of("tenants", "remove", "globex")
    assert (await desk.output_of("tenants", "list")).startswith("No tenant has limits;")


async def test_what_waits_for_a_limit_says_for_which(desk: CommandLine) -> None:
    """18.2.18: until it is changed."""
    tenant = f"tenant-{uuid4().hex[:8]}"
    # No worker listens there, so nothing begins once the limit is gone.
    execution = await CommandLine(desk.installation, "deaf").client_of(tenant).start("clerk", "hello")
    limit = f"until max_model_calls of the tenant '{tenant}' is raised from 0"

    said = await desk.output_of("tenants", "set", tenant, "--max-model-calls", "0")
    assert (
        said
        == f"set: {tenant}: paused: no model call begins until max_model_calls is raised; max model calls 0\n"
    )
    assert f"pending: waiting {limit}, since" in await desk.output_of("because", execution.id)
    shown = await desk.output_of("show", execution.id)
    assert f"waiting {limit}" in shown
    assert "no worker" not in shown
    assert f"waits {limit}\n" in await desk.output_of("top", "--tenant", tenant)
    found = f"1 execution(s) of '{tenant}' are pending {limit}: see `everstep tenants show {tenant}`"
    assert found in (await desk.run_command("doctor")).output

    queued = CommandLine(desk.installation, "deaf").client_of(tenant)
    await desk.output_of("tenants", "set", tenant, "--max-model-calls", "none", "--max-running", "1")
    waiting = await queued.start("clerk", "hello")
    assert "queue of its tenant, as max_running of" in await desk.output_of("because", waiting.id)
    started = await desk.output_of("tenants", "set", tenant, "--max-running", "none")
    assert f"started 1 execution of {tenant} that waited\n" in started

    await desk.output_of("tenants", "remove", tenant)
    assert "pending: waiting for a worker since" in await desk.output_of("because", execution.id)
    assert "no worker has picked it up" in await desk.output_of("show", execution.id)
    assert "waits for a worker\n" in await desk.output_of("top", "--tenant", tenant)
    for each in (execution, waiting):
        await each.workflow.terminate()
