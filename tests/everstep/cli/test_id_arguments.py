"""Ids in arguments find their tenant."""

from pathlib import Path
from uuid import uuid4

import click
import pytest

from everstep.cli.main import commands
from tests.everstep.cli.desk import CommandLine
from tests.everstep.cli.test_commands import all_commands

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Each command with the id of an execution of another tenant, in the order in which they run, with its output.
OF_EXECUTIONS = (
    ("show {id}", "status     paused"),
    ("because {id}", "waits: approval of transfer"),
    ("trace {id}", "because    waits: approval of transfer"),
    ("files {id}", "The execution has no files."),
    ("diff {id} {id}", "{id}"),
    ("what-if --execution {id} --max-steps 9", "examined       1 executions"),
    ("ledger {id}", '"kind":"accepted"'),
    ("audit {id}", "result     whole"),
    ("budget {id}", "The execution has no budget."),
    ("export {id} --as scenario --output {folder}", "exported up to"),
    ("steer {id} Hurry", "the agent reads it before its next step"),
    ("pause {id}", "the execution pauses"),
    ("resume {id}", "the execution continues"),
    ("answer {id} high", "No question is open"),
    ("approve {id}", 'approved: transfer {{"euros":80}}'),
    ("follow {id}", "answer     It is done."),
    ("retry {id}", "Only a failed execution can be retried"),
    ("cancel {id}", "has ended as completed"),
)
OTHERS = ("keys revoke", "sign-ins end")


async def test_every_command_that_takes_an_id_finds_its_tenant_or_asks_the_api() -> None:
    """15.5.11"""
    taking = set[str]()
    for path in all_commands(commands):
        found: click.Command = commands
        for name in path:
            assert isinstance(found, click.Group)
            found = found.get_command(click.Context(found), name) or found
        names = {each.name or "" for each in found.params}
        # A build of workers has no tenant.
        ids = {name for name in names if name.endswith(("_id", "_ids"))} - {"build_id"}
        if ids and "url" in names:
            assert "tenant" in names, path
        elif ids:
            taking.add(" ".join(path))

    assert taking == {command.split()[0] for command, _ in OF_EXECUTIONS} | set(OTHERS)


async def test_commands_find_the_tenant_of_an_execution(desk: CommandLine, tmp_path: Path) -> None:
    """15.5.11"""
    tenant = f"tenant-{uuid4().hex[:8]}"
    execution = await desk.start_until_pause("pay", tenant)

    for command, text in OF_EXECUTIONS:
        values = {"id": execution.id, "folder": tmp_path}
        result = await desk.run_command(*command.format(**values).split())
        assert text.format(**values) in result.output, (command, result.output)
    of_tenant = ("--tenant", tenant)
    assert await desk.output_of("audit", *of_tenant) == "1 of 1 executions are whole\n"
    assert str(execution.id) in await desk.output_of("ledger", *of_tenant)
    assert "examined       1 executions" in await desk.output_of("what-if", *of_tenant, "--max-steps", "9")
    exported = await desk.output_of("export", *of_tenant, "--as", "dataset", "--output", tmp_path, "--force")
    assert exported.startswith(str(tmp_path))


async def test_commands_find_the_tenant_of_a_key_and_a_sign_in(desk: CommandLine) -> None:
    """15.5.11"""
    tenant = f"tenant-{uuid4().hex[:8]}"
    created = await desk.output_of("keys", "create", "robot", "--tenant", tenant)
    key = created.split()[-1]
    session = await desk.open_browser_session("ann", tenant)

    for command, known in (("keys revoke", key), ("sign-ins end", session)):
        arguments = (*command.split(), known)
        assert "the tenant 'default' has no" in await desk.error_of(*arguments, "--tenant", "default")
        assert "there is no" in await desk.error_of(*arguments[:-1], uuid4())
        await desk.output_of(*arguments)
