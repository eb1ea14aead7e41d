"""docs/agents.md matches the behaviour."""

import asyncio
import json
import re
import shlex
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path

import yaml

from everstep.agent_domain.agents.spec import AgentSpec
from everstep.capabilities.standard import STANDARD
from everstep.runtime.agents import load_agents
from tests.acceptance.harness import environment, until
from tests.services import data_directory

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
SCENARIO = """
turns:
  - text: I need to know the day.
    calls: [{name: user_input, args: {prompt: "Which day suits you?"}}]
  - text: "Here is your plan."
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def a_folder(folder: Path) -> Path:
    """The folder of the page, with a scripted model."""
    (agent,) = blocks("markdown")
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "trip-planner.md").write_text(agent)
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "everstep.toml").write_text(
        "[presets.default]\ndriver = 'scripted'\nscenario = 'scenario.yaml'\n"
    )
    return folder


async def output_of(everstep: Path, folder: Path, *arguments: str) -> str:
    """The output of a successful command."""
    process = await asyncio.create_subprocess_exec(
        everstep, *arguments, stdout=PIPE, stderr=PIPE, cwd=folder, env=environment()
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@asynccontextmanager
async def open_installation(everstep: Path, folder: Path, command: str) -> AsyncGenerator[None]:
    ports = ("--temporal-port", "0", "--ui-port", "0", "--http-port", "0", "--gateway-port", "0", "--json")
    up = await asyncio.create_subprocess_exec(
        everstep, *shlex.split(command), *ports, stdout=PIPE, cwd=folder, env=environment()
    )
    try:
        assert up.stdout
        assert json.loads(await up.stdout.readline())["api_url"]
        yield
    finally:
        up.send_signal(signal.SIGINT)
        await up.wait()


async def test_the_agent_of_the_page_is_listed_as_the_page_shows(programs: Path, tmp_path: Path) -> None:
    """10.2.3"""
    (shown,) = re.findall(r"```\n\$ everstep (.*?)\n(.*?)```", PAGE, re.DOTALL)
    command, lines = shown
    assert await output_of(programs / "everstep", a_folder(tmp_path / "here"), *shlex.split(command)) == lines


async def test_the_agent_of_the_page_asks_and_completes_its_plan(programs: Path) -> None:
    """8.5.3, 10.1.3, 10.2.4: from its file through its own installation to the answer."""
    up, run = re.findall(r"^everstep (--agents agents .*)$", PAGE, re.MULTILINE)
    everstep = programs / "everstep"
    with data_directory() as data:
        folder = a_folder(data / "here")
        async with open_installation(everstep, folder, up):
            execution = (await output_of(everstep, folder, *shlex.split(run), "--detach")).strip()

            async def asks() -> bool:
                return "question   Which day suits you?" in await output_of(
                    everstep, folder, "show", execution
                )

            await until("the agent asks", asks)
            await output_of(everstep, folder, "answer", execution, "Friday")
            told = await output_of(everstep, folder, "follow", execution)
            assert "status     completed" in told
            assert "Here is your plan." in told

            listed = await output_of(everstep, folder, "agents", "--agents", "agents", "--json")
            planner = json.loads(listed.splitlines()[0])
            assert f"definition {planner['definition_hash']}" in told


def test_the_page_explains_every_capability() -> None:
    """10.1.3"""
    rows = [
        f"| `{entry.name}` | {entry.about} | {_names(entry.tools)} | {_names(entry.options)} |"
        for entry in STANDARD
    ]
    table = re.findall(r"^\| name \|.*?\n\|---.*?\n(.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert table == ["\n".join(rows)]


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def test_the_page_explains_every_key() -> None:
    """10.1.1, 10.1.3"""
    explained = re.findall(r"^\| (`.*?`) \|.*\|.*\|$", PAGE.partition("## Capabilities")[0], re.MULTILINE)
    keys = {key for row in explained for key in re.findall(r"`([a-z_]+)`", row)}
    assert keys == {field.name for field in fields(AgentSpec)} - {"system_prompt"}


def test_the_pages_examples_of_options_are_valid(tmp_path: Path) -> None:
    """8.6.1, 10.1.3"""
    (keys,) = blocks("yaml")
    front = {"name": "a", "description": "b", **yaml.safe_load(keys)}
    (tmp_path / "a.md").write_text(f"---\n{json.dumps(front)}\n---\nx")
    (agent,) = load_agents(str(tmp_path / "a.md"))
    assert agent.tools.names == ("user_input",)
    assert list(agent.approvals) == ["user_input"]
