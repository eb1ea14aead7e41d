"""`everstep sign-ins`: the sessions of people in browsers, on the machine of an installation."""

from uuid import uuid4

import pytest

from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_sessions_are_listed_and_ended(desk: CommandLine) -> None:
    """16.2.8"""
    tenant = f"tenant-{uuid4().hex[:8]}"
    first = await desk.open_browser_session("ann", tenant)
    second = await desk.open_browser_session("ann", tenant)
    other = await desk.open_browser_session("ben", tenant)
    of_tenant = ("--tenant", tenant)

    listed = await desk.output_of("sign-ins", "list", *of_tenant)
    assert [line.split()[0] for line in listed.splitlines()] == [str(other), str(second), str(first)]
    assert "Browser/1" in listed
    assert str(other) not in await desk.output_of("sign-ins", "list", "--user", "ann", *of_tenant)

    assert await desk.output_of("sign-ins", "end", second, *of_tenant) == "1 session ended\n"
    assert "no sign-in" in await desk.error_of("sign-ins", "end", second, *of_tenant)
    assert "no sign-in" in await desk.error_of("sign-ins", "end", first, "--tenant", "default")
    assert str(first) in await desk.error_of("sign-ins", "end", str(first)[:8], *of_tenant)
    assert await desk.output_of("sign-ins", "end", "--user", "ann", *of_tenant) == "1 session ended\n"
    assert await desk.output_of("sign-ins", "end", "--everyone", *of_tenant) == "1 session ended\n"
    assert await desk.output_of("sign-ins", "list", *of_tenant) == ""


@pytest.mark.parametrize("arguments", [(), ("--user", "ann", "--everyone"), (str(uuid4()), "--everyone")])
async def test_what_ends_is_named_once(desk: CommandLine, arguments: tuple[str, ...]) -> None:
    assert "name one of" in await desk.usage_error_of("sign-ins", "end", *arguments)
