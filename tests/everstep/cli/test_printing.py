"""Every command shows texts of people and models without control characters."""

import re
import unicodedata
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.harness import Nursery, until
from tests.everstep.cli.agents import HOSTILE
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")

HIDDEN = {"Cc", "Cf", "Zl", "Zp"}


class CommandProcesses:
    """Runs commands as processes, and records their output."""

    def __init__(self, desk: CommandLine, nursery: Nursery, folder: Path) -> None:
        self.desk, self.nursery, self.folder = desk, nursery, folder
        self.printed = ""

    async def output_of(self, *arguments: object, **environment: str) -> str:
        """A command's output, from both streams."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        log.touch()
        given = {**self.desk.environment, **environment}
        process = await self.nursery.start(*map(str, arguments), log=log, environment=given)
        await process.wait()
        text = log.read_bytes().decode()
        hidden = {
            hex(ord(char)) for char in text if unicodedata.category(char) in HIDDEN and char not in "\n\t"
        }
        assert not hidden, (arguments, text)
        self.printed += text
        return text


async def test_no_command_prints_control_characters(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    """8.11.1"""
    terminal = CommandProcesses(desk, nursery, tmp_path)
    execution = (await terminal.output_of("run", "--detach", f"hostile {HOSTILE}")).strip()
    handle = desk.client.execution(execution)

    async def is_asked() -> bool:
        return bool(await handle.requests())

    await until("it asks", is_asked)
    assert "Which \ufffd[2J" in await terminal.output_of("show", execution)
    assert "must be one of: \ufffd" in await terminal.output_of("answer", execution, HOSTILE[:4])
    assert "answered: Which \ufffd" in await terminal.output_of("answer", execution, HOSTILE)
    await handle.result()
    for command in ("follow", "show", "trace"):
        told = await terminal.output_of(command, execution)
        assert "Done \ufffd[2J" in told
        assert "fine\ufffdenif" in told
    await terminal.output_of("executions")
    await terminal.output_of("agents")
    # Errors quote the input, including errors of click.
    for arguments in (
        ("show", HOSTILE),
        ("executions", "--status", HOSTILE),
        (HOSTILE,),
        ("run", "--agent", HOSTILE, "hello"),
        ("--traceback", "run", "--agent", HOSTILE, "hello"),
        ("--agents", HOSTILE, "run", "hello"),
    ):
        assert "fine" in await terminal.output_of(*arguments)
    await terminal.output_of("keys", "create", f"shop {HOSTILE}", "--user", HOSTILE, "--tenant", HOSTILE)
    assert "shop \ufffd" in await terminal.output_of("keys", "list", "--tenant", HOSTILE)
    # Also on a terminal with few characters.
    plain = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for arguments in (("show", execution), ("executions", "--status", HOSTILE)):
        assert "fine" in await terminal.output_of(*arguments, **plain)


async def test_titles_of_sessions_and_logs_are_shown(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    """8.11.1"""
    terminal = CommandProcesses(desk, nursery, tmp_path)
    key = (
        await terminal.output_of("keys", "create", "curl", "--user", "ann", "--tenant", "printing")
    ).splitlines()[0]
    log = tmp_path / "api.log"
    log.touch()
    api = await nursery.start("api", "--port", "0", log=log, environment=desk.environment)
    await until("it answers", lambda: api.ended.done() or "answering at" in log.read_text())
    url = re.findall(r"answering at (\S+),", log.read_text())[0]
    try:
        async with httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as ann:
            made = await ann.post("/agent/sessions", json={"title": f"Trip {HOSTILE}"})
            assert made.status_code == 201
            unknown = await ann.post("/agent/sessions", json={"agent": HOSTILE})
            assert unknown.status_code == 422
        listed = await terminal.output_of("sessions", "--url", url, "--token", key)
        assert "Trip \ufffd[2J" in listed
        assert "\ufffd" in await terminal.output_of("chat", "--agent", HOSTILE, "--url", url, "--token", key)
    finally:
        await api.stop()
    assert not {char for char in log.read_text() if unicodedata.category(char) in HIDDEN} - {"\n", "\t"}
