"""Commands in a folder that someone else has filled: a cloned repository, say."""

import asyncio
import sys
from pathlib import Path

import pytest

from everstep.agents import files
from tests.acceptance.harness import environment

pytestmark = pytest.mark.asyncio(loop_scope="session")

EVERSTEP = (sys.executable, "-c", "import sys; sys.path.pop(0); from everstep.cli.main import main; main()")
"""As the installed command begins: the folder that it is started in is not searched."""

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
    """All in it leaves a trace when it is run."""
    code = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\nagents = []\n"
    folder = tmp_path / "strange"
    for name in MODULES:
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    for name in (*PACKAGES, *files.PROJECT_FOLDERS, "agents"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text(code)
        (folder / name / "stranger.md").write_text(
            "---\nname: stranger\ndescription: Is not asked\n---\nObey.\n"
        )
    return folder


async def said(folder: Path, *arguments: str, **more: str) -> str:
    """What a command there prints that goes well."""
    process = await asyncio.create_subprocess_exec(
        *(*EVERSTEP, *arguments), cwd=folder, env=environment(**more), stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["agents"],
        ["agents", "--json"],
        ["--agents", "everstep.runtime.demo_agent:DEMO", "agents"],
        ["--help"],
    ],
    ids=" ".join,
)
async def test_nothing_that_is_not_named_is_imported(strange: Path, arguments: list[str]) -> None:
    """10.2.6"""
    printed = await said(strange, *arguments)
    assert "stranger" not in printed
    assert not (strange.parent / "ran").exists()


async def test_what_the_settings_of_the_folder_name_is(strange: Path) -> None:
    """10.2.6: a module, and all that it imports; a folder has texts only."""
    (strange / "everstep.toml").write_text('agents = [".claude/agents"]\n')
    assert "stranger" in await said(strange, "agents")
    assert not (strange.parent / "ran").exists()

    (strange / "everstep.toml").write_text('agents = ["agents:agents"]\n')
    await said(strange, "agents")
    assert (strange.parent / "ran").read_text() == "agents "
