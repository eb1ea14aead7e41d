"""The built wheel, in an empty environment, used in a folder with modules of Temporal's usual names."""

import asyncio
import subprocess
import sys
import zipfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.acceptance.harness import DEADLINE, ROOT, Installation, environment

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

PROGRAM = """
import my_agents

state = my_agents.builder.build().run("Go")
print(state.messages[-2].text, "/", state.final_response)
"""

APP = """
import my_agents
import workflows

assert workflows.OURS


async def app(scope, receive, send):
    state = await my_agents.builder.build().arun("Go")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": state.final_response.encode()})
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


def install(wheels: Path, place: Path) -> None:
    """Install what the README says. uv is faster, but does not know an index that pip is given."""
    run(sys.executable, "-m", "venv", place)
    wanted = ("--find-links", wheels, "everstep[local]")
    if ".index-url=" in run(sys.executable, "-m", "pip", "config", "list"):
        run(place / "bin" / "python", "-m", "pip", "install", "--quiet", *wanted)
    else:
        uv = Path(sys.executable).with_name("uv")
        run(uv, "pip", "install", "--quiet", "--python", place / "bin" / "python", *wanted)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheels")
    run(Path(sys.executable).with_name("uv"), "build", "--quiet", "--wheel", "--out-dir", folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has nothing but the wheel and what it needs."""
    place = tmp_path_factory.mktemp("installed") / "venv"
    install(wheel.parent, place)
    return place / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a `workflows.py`, an `activities` package and an `agent_domain.py` of its own."""
    (tmp_path / "activities").mkdir()
    for file in ("workflows.py", "activities/__init__.py", "agent_domain.py"):
        (tmp_path / file).write_text(f"OURS = {file.removesuffix('.py').removesuffix('/__init__')!r}\n")
    (tmp_path / "my_agents.py").write_text(AGENTS)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "web.py").write_text(APP)
    return tmp_path


def test_the_wheel_has_one_top_level_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"everstep"}
    assert len(names) == len({*names})
    assert "everstep/agent_domain/loop/loop.py" in names


def test_it_runs_in_process_beside_modules_of_the_same_names(programs: Path, project: Path) -> None:
    printed = run(programs / "python", "program.py", cwd=project)
    assert printed == "activities and agent_domain and workflows / I looked\n"


@asynccontextmanager
async def started(
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


async def test_uvicorn_serves_it_beside_modules_of_the_same_names(programs: Path, project: Path) -> None:
    socket = project / "web.sock"
    uvicorn = (programs / "python", "-m", "uvicorn", "web:app", "--uds", socket, "--lifespan", "off")
    async with started(*uvicorn, cwd=project, says="Uvicorn running"):
        reader, writer = await asyncio.open_unix_connection(socket)
        writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(DEADLINE):
            answer = await reader.read()
        writer.close()
        assert answer.endswith(b"I looked")


@pytest.mark.asyncio(loop_scope="session")
async def test_a_worker_runs_it_beside_modules_of_the_same_names(
    programs: Path, project: Path, installation: Installation
) -> None:
    variables = installation.environment(EVERSTEP_TASK_QUEUE="wheel", EVERSTEP_AGENTS="my_agents:agents")
    async with started(programs / "everstep", "worker", cwd=project, variables=variables, says="working on"):
        process = await asyncio.create_subprocess_exec(
            programs / "everstep", "run", "Go", cwd=project, env=variables, stdout=-1, stderr=-1
        )
        async with asyncio.timeout(DEADLINE):
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert "activities and agent_domain and workflows" in out.decode()
        assert "I looked" in out.decode()
