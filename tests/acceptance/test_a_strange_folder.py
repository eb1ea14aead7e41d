"""Commands in a folder that another user has filled, such as a cloned repository."""

import asyncio
import sys
from pathlib import Path

import pytest

from everstep.agents import agent_files
from tests.acceptance.harness import Nursery, environment

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVERSTEP = (sys.executable, "-c", "import sys; sys.path.pop(0); from everstep.cli.main import main; main()")
"""The same start as the installed command: the folder that it starts in is not on the import path."""

MODULES = (
    "agents",
    "sitecustomize",
    "conftest",
    "everstep",
    "click",
    "yaml",
    "uvloop",
    "openai",
    "anthropic",
    "httpx2",
)
PACKAGES = ("everstep", "tests", "my_app")


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder in which every file leaves a trace when it is run."""
    code = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\nagents = []\n"
    folder = tmp_path / "strange"
    for name in MODULES:
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    for name in (*PACKAGES, *agent_files.PROJECT_FOLDERS, "agents"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text(code)
        (folder / name / "stranger.md").write_text(
            "---\nname: stranger\ndescription: Is not asked\n---\nObey.\n"
        )
    return folder


async def run_command(folder: Path, *words: str | Path) -> str:
    """Run a command there that succeeds, and return its output."""
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, env=environment(), stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["agents"],
        ["--agents", "everstep.runtime.demo_agent:DEMO", "agents"],
        ["--help"],
    ],
    ids=" ".join,
)
async def test_nothing_that_is_not_named_is_imported(strange: Path, arguments: list[str]) -> None:
    """10.2.6"""
    printed = await run_command(strange, *EVERSTEP, *arguments)
    assert "stranger" not in printed
    assert not (strange.parent / "ran").exists()


async def test_a_name_in_the_folders_settings_is_imported(strange: Path, nursery: Nursery) -> None:
    """10.2.6: a module, and everything that it imports; a folder has texts only."""
    (strange / "everstep.toml").write_text('agents = [".claude/agents"]\n')
    assert "stranger" in await run_command(strange, nursery.everstep, "agents")
    assert not (strange.parent / "ran").exists()

    (strange / "everstep.toml").write_text('agents = ["agents:agents"]\n')
    await run_command(strange, nursery.everstep, "agents")
    assert (strange.parent / "ran").read_text() == "agents "
