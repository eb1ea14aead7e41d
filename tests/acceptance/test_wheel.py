"""The built wheel, installed and used as the README says, and beside modules of Temporal's usual names."""

import asyncio
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.acceptance.harness import DEADLINE, ROOT, Installation, environment
from tests.services import data_directory

AGENTS = """
import activities
import agent_domain
import workflows
from everstep import AgentBuilder, MockTool, ScriptedModel, ToolCallingDriver, calls

OURS = (activities.OURS, agent_domain.OURS, workflows.OURS)
look = MockTool("look", handler=lambda: " and ".join(OURS))
model = ScriptedModel(calls(("look", {})), "I looked")
builder = AgentBuilder.base().with_name("looker").with_tools([look]).with_driver(ToolCallingDriver(model))
agents = [builder]
"""

APP = """
import my_agents
import workflows

assert workflows.OURS


async def app(scope, receive, send):
    state = await my_agents.builder.build().arun("Go")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    said = f"{state.messages[-2].text} / {state.final_response}"
    await send({"type": "http.response.body", "body": said.encode()})
"""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """The output of a command that succeeds."""
    done = subprocess.run(  # noqa: S603 -- our own words
        [str(each) for each in command],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(commands: str, folder: Path, **variables: str) -> str:
    """The output of commands that a reader of the README copies."""
    path = ":".join([str(folder / ".venv" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(  # noqa: S603 -- our own page
        ["bash", "-euc", commands],  # noqa: S607 -- the reader's shell
        cwd=folder,
        env=environment(PATH=path, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Page:
    """The README's section about a project outside of the repository, by its blocks."""

    def __init__(self) -> None:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        (section,) = re.findall(r"## In a project of your own\n(.*?)\n## ", readme, re.DOTALL)
        self.install, self.start, self.ask = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        (self.agents,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        (self.printed,) = re.findall(r"```\n(step 1.*?)```", section, re.DOTALL)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheels")
    run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--wheel", "--out-dir", folder)
    (built,) = folder.glob("*.whl")
    return built


UV = f"""
python3() {{ uv venv --quiet --python {sys.executable} "${{@:3}}"; }}
pip() {{ uv pip "$@" --quiet; }}
"""
"""The README's commands, carried out by uv: pip takes half a minute of CPU time for the same packages."""


@pytest.fixture(scope="module")
def reader(wheel: Path) -> Generator[Path]:
    """A folder in which the README's first commands have run: with the wheel, and with what it needs."""
    with data_directory() as folder:
        # As long as no index has the package, it is found in this folder.
        shell(UV + Page().install, folder, UV_FIND_LINKS=str(wheel.parent))
        yield folder


@pytest.fixture(scope="module")
def installed(reader: Path) -> Path:
    """The programs of the README's environment."""
    return reader / ".venv" / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a `workflows.py`, an `activities` package and an `agent_domain.py` of its own."""
    (tmp_path / "activities").mkdir()
    for file in ("workflows.py", "activities/__init__.py", "agent_domain.py"):
        (tmp_path / file).write_text(f"OURS = {file.removesuffix('.py').removesuffix('/__init__')!r}\n")
    (tmp_path / "my_agents.py").write_text(AGENTS)
    (tmp_path / "web.py").write_text(APP)
    return tmp_path


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"everstep"}
    assert len(names) == len({*names})
    assert "everstep/agent_domain/loop/loop.py" in names


@asynccontextmanager
async def open_process(
    *command: str | Path, cwd: Path, variables: dict[str, str] | None = None, says: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that has printed a line with these words; it is stopped at the end."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=cwd, env=variables or environment(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout
    printed: list[str] = []
    try:
        async with asyncio.timeout(DEADLINE):
            while not printed or says not in printed[-1]:
                line = await process.stdout.readline()
                assert line, "".join(printed)
                printed.append(line.decode())
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def test_the_project_of_the_readme_runs(reader: Path, installed: Path) -> None:
    path = f"{installed}:{os.environ['PATH']}"
    with data_directory() as home:
        place = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        begin = (
            "bash",
            "-euc",
            re.sub(r"^everstep up", "exec everstep up", Page().start, flags=re.MULTILINE),
        )
        async with open_process(
            *begin, cwd=reader, variables=environment(PATH=path, **place), says="Ctrl-C stops everything"
        ):
            told = await asyncio.to_thread(shell, Page().ask, reader, **place)
    assert Page().printed in told
    assert "\nstatus     completed\n" in told

    (reader / "agents.py").write_text(Page().agents)
    assert "shipping-desk" in await asyncio.to_thread(shell, "everstep agents", reader, **place)


async def test_uvicorn_serves_it_beside_modules_of_the_same_names(installed: Path, project: Path) -> None:
    socket = project / "web.sock"
    uvicorn = (installed / "python", "-m", "uvicorn", "web:app", "--uds", socket, "--lifespan", "off")
    async with open_process(*uvicorn, cwd=project, says="Uvicorn running"):
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(DEADLINE):
            answer = await reader.read()
        writer.close()
        assert answer.endswith(b"\r\n\r\nactivities and agent_domain and workflows / I looked")


@pytest.mark.asyncio(loop_scope="session")
async def test_a_worker_runs_it_beside_modules_of_the_same_names(
    installed: Path, project: Path, installation: Installation
) -> None:
    variables = installation.environment(EVERSTEP_TASK_QUEUE="wheel", EVERSTEP_AGENTS="my_agents:agents")
    async with open_process(
        installed / "everstep", "worker", cwd=project, variables=variables, says="working on"
    ):
        process = await asyncio.create_subprocess_exec(
            installed / "everstep", "run", "Go", cwd=project, env=variables, stdout=-1, stderr=-1
        )
        async with asyncio.timeout(DEADLINE):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert "activities and agent_domain and workflows" in out.decode()
        assert "I looked" in out.decode()
