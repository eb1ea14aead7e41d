"""The first hour: a project is written, tested, started, used and changed, with the commands of its user."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.harness import Nursery, Process, environment, until
from tests.services import data_directory

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANY_PORT = ("--temporal-port", "0", "--ui-port", "0", "--http-port", "0", "--gateway-port", "0")
QUESTION = "What does it cost to ship 2 kg to Norway?"

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = next(re.finditer(r"everstep run .*?```\n\n```\n(.*?)```", README, re.DOTALL))[1]
"""What the README shows as the output."""

HELD_TOOL = """
    import os
    from pathlib import Path
    from time import sleep

    with Path("calls").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while Path("hold").exists():
        sleep(0.05)
"""
"""Lines for a tool, which then waits as long as a file exists."""

BROKEN_RESOURCE = """
from everstep import resource


@resource
async def rates():
    raise OSError("refused")
    yield
"""
"""Lines for a module of agents, which then cannot start."""


@dataclass(frozen=True)
class Project:
    """A project's folder, and its user's home beside it."""

    home: Path
    nursery: Nursery

    @property
    def folder(self) -> Path:
        return self.home / "project"

    @property
    def log(self) -> str:
        """What `everstep up` printed on standard error."""
        return (self.home / "err").read_text()

    async def output_of(self, *command: str) -> str:
        """The output of a program that succeeds in the project's folder."""
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.folder, env=self.environment, stdout=-1, stderr=-1
        )
        out, err = await process.communicate()
        assert process.returncode == 0, out.decode() + err.decode()
        return out.decode()

    async def says(self, *arguments: str) -> str:
        """The output of a command that succeeds in the project's folder."""
        out, err = self.home / "command-out", self.home / "command-err"
        for file in (out, err):
            file.write_text("")
        process = await self.start(*arguments, out=out, err=err)
        assert await process.wait() == 0, out.read_text() + err.read_text()
        return out.read_text()

    async def start(self, *arguments: str, out: Path, err: Path) -> Process:
        """Start a command in the project's folder."""
        return await self.nursery.start(
            *arguments, log=out, errors=err, environment=self.environment, folder=self.folder
        )

    @property
    def environment(self) -> dict[str, str]:
        own = environment(HOME=str(self.home), XDG_STATE_HOME=str(self.home / "state"))
        return {name: value for name, value in own.items() if not name.endswith("_API_KEY")}

    def save(self, old: str, new: str) -> None:
        """Change the module of the agents as an editor does that renames a new file over the old one."""
        file = self.folder / "agents.py"
        text = file.read_text()
        assert old in text
        file.with_suffix(".py~").write_text(text.replace(old, new))
        os.replace(file.with_suffix(".py~"), file)

    async def wait_for_text(self, words: str) -> None:
        await until(f"it says {words!r}", lambda: words in self.log)


@pytest.fixture
def project(nursery: Nursery) -> Generator[Project]:
    with data_directory() as home:
        (home / "project").mkdir()
        yield Project(home, nursery)


@asynccontextmanager
async def up(project: Project) -> AsyncGenerator[None]:
    """`everstep up --reload` in another terminal, until Ctrl-C."""
    out, err = project.home / "out", project.home / "err"
    for file in (out, err):
        file.touch()
    process = await project.start("up", "--reload", "--json", *ANY_PORT, out=out, err=err)
    try:
        await until("it is up", lambda: out.read_text() or process.code is not None)
        assert process.code is None, project.log
        yield
    finally:
        if process.code is None:
            process.signal(signal.SIGINT)
        assert await process.wait() == 0, project.log


@pytest.mark.timeout(600)
async def test_a_new_project_is_tested_started_and_changed_while_an_execution_runs(
    project: Project, interpreter: Path
) -> None:
    """13.6.2, 13.6.3, 13.6.5 and 9.9.7"""
    await project.says("init")
    assert "2 passed" in await project.output_of(str(interpreter), "-m", "pytest", "-p", "no:cacheprovider")
    project.save("    if country not in", f"{HELD_TOOL}\n    if country not in")

    async with up(project):
        answer = await project.says("run", QUESTION)
        assert answer.startswith(SHOWN)

        (project.folder / "hold").touch()
        execution = (await project.says("run", "--detach", QUESTION)).strip()
        calls = project.folder / "calls"
        await until("the tool waits", lambda: calls.read_text().count("\n") == 2)

        project.save('"Norway": 7.0,', '"Norway": 9.0')
        await project.wait_for_text("not reloaded: the module of 'agents:agents' cannot be imported: ")
        assert "(agents.py, line 5)" in project.log
        project.save("\nEUROS_PER_KG", f"{BROKEN_RESOURCE}\nEUROS_PER_KG")
        project.save('"Norway": 9.0', '"Norway": 9.0,')
        await project.wait_for_text("not reloaded: the resource 'rates' cannot be started: OSError: refused")
        project.save(BROKEN_RESOURCE, "")
        await project.wait_for_text("\nreloaded: shipping-desk, assistant")

        (project.folder / "hold").unlink()
        followed = await project.says("follow", execution)
        assert "shipping_cost(country: 'Norway', weight_kg: 2) -> 14.00 euros" in followed
        assert "status     completed" in followed
        assert "-> 18.00 euros" in await project.says("run", QUESTION)

    # The old process finished the call that it had begun, and no call ran twice.
    before, held, after = calls.read_text().split()
    assert before == held != after
