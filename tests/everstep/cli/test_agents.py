"""The agents that a command can use; listing them needs no server."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everstep.cli.main import commands
from everstep.runtime.demo_agent import DEMO

REVIEWER = """---
name: reviewer
description: Reviews a change
  before it is merged
tools: user_input
---
You review changes.
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the commands."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "reviewer.md").write_text(REVIEWER)
    (tmp_path / "helper.json").write_text('{"name": "helper", "description": "Helps", "prompt": "You help."}')
    return tmp_path


def run_command(*arguments: str, **environment: str) -> Result:
    told: dict[str, str | None] = {"EVERSTEP_AGENTS": None, **environment}
    return CliRunner().invoke(commands, arguments, env=told, prog_name="everstep")


def names_in_output(*arguments: str, **environment: str) -> list[str]:
    result = run_command(*arguments, "agents", "--json", **environment)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["name"] for line in result.stdout.splitlines()]


def test_agents_are_listed_with_their_capabilities_and_files(here: Path) -> None:
    """10.2.3"""
    del here
    result = run_command("--agents", "agents", "agents")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "reviewer  Reviews a change before it is merged",
        "  tools         user_input",
        "  capabilities  user_input",
        "  from          agents/reviewer.md",
        "assistant  Answers questions",
        "  tools         none",
        "  capabilities  none",
        "  from          built in",
    ]


def test_agents_are_listed_as_json(here: Path) -> None:
    """10.2.3"""
    del here
    lines = run_command("--agents", "agents", "agents", "--json").stdout.splitlines()
    reviewer, assistant = map(json.loads, lines)
    assert re.fullmatch("[0-9a-f]{64}", reviewer.pop("definition_hash"))
    assert reviewer == {
        "name": "reviewer",
        "description": "Reviews a change before it is merged",
        "tools": ["user_input"],
        "capabilities": ["user_input"],
        "source": "agents/reviewer.md",
    }
    assert assistant["definition_hash"] == DEMO.digest


def test_sources_may_be_given_before_or_after_the_command_and_replace_the_configured_ones(here: Path) -> None:
    """10.2.3"""
    del here
    assert names_in_output() == ["assistant"]
    assert names_in_output(EVERSTEP_AGENTS="agents,helper.json") == ["reviewer", "helper", "assistant"]
    assert names_in_output("--agents", "agents", EVERSTEP_AGENTS="helper.json") == ["reviewer", "assistant"]
    assert names_in_output("--agents", "helper.json", "--agents", "agents") == [
        "helper",
        "reviewer",
        "assistant",
    ]

    both = run_command("--agents", "helper.json", "agents", "--agents", "agents", EVERSTEP_AGENTS="nowhere")
    assert [line.split()[0] for line in both.stdout.splitlines() if line[0] != " "] == [
        "helper",
        "reviewer",
        "assistant",
    ]


def test_a_file_may_name_a_preset_of_the_installation(here: Path) -> None:
    """10.1.1, 10.1.3"""
    (here / "helper.md").write_text("---\nname: helper\ndescription: Helps\nmodel: small\n---\nYou help.")
    refused = run_command("--agents", "helper.md", "agents")
    assert refused.stderr == (
        "Error: helper.md: No preset named 'small'. Name a model with its provider, as in openai:gpt-5.5, "
        "or choose from: openai, anthropic, demo, local\n"
    )

    (here / "everstep.toml").write_text("[presets.small]\ndriver = 'openai'\nmodel = 'x'\n")
    assert names_in_output("--agents", "helper.md") == ["helper", "assistant"]


def test_agents_in_an_unconfigured_folder_are_not_loaded(here: Path) -> None:
    """10.2.3"""
    for folder in (".everstep", ".claude"):
        (here / folder / "agents").mkdir(parents=True)
        (here / folder / "agents" / "stranger.md").write_text(REVIEWER)
    assert names_in_output() == ["assistant"]
    assert names_in_output("--agents", "agents") == ["reviewer", "assistant"]


def test_an_invalid_file_causes_a_warning(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    """10.2.3"""
    (here / "agents" / "broken.md").write_text("no agent")
    assert names_in_output("--agents", "agents") == ["reviewer", "assistant"]
    assert caplog.messages == [
        "skipped an agent definition: agents/broken.md: The text has no front matter; "
        "begin it with a line '---', the keys, and a line '---'"
    ]


def test_a_closed_pipe_ends_the_command_silently(here: Path) -> None:
    del here
    nobody, out = os.pipe()
    os.close(nobody)
    try:
        done = subprocess.run(  # noqa: S603 -- ours
            [Path(sys.executable).parent / "everstep", "agents"],
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(out)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--agents", "nowhere"), "Error: 'nowhere' names no agents: there is no such folder"),
        (("--agents", "gone.md"), "Error: gone.md: "),
        (("--agents", "agents", "--agents", "agents/reviewer.md"), "Error: two agents are named 'reviewer'"),
    ],
)
def test_invalid_input_is_refused_in_one_line(here: Path, arguments: tuple[str, ...], complaint: str) -> None:
    """10.2.3"""
    del here
    result = run_command(*arguments, "agents")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(complaint)
