"""Each kind of name that people write is refused with the known name that is near."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from everstep import (
    AgentBuilder,
    CriterionRef,
    CriterionRegistry,
    ErrorPolicy,
    InvalidInput,
    Script,
    ToolOptions,
)
from everstep.agent_domain.capabilities.extraction import SchemaRegistry
from everstep.agent_domain.loop.error_policy import as_policy
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.testing import MockTool
from everstep.capabilities.mcp.sections import from_section
from everstep.cli.id_arguments import parse_id
from everstep.cli.main import commands
from everstep.http_api.callers import validate_scopes
from everstep.inference.presets import Preset, Presets
from everstep.runtime.agents import AgentBook, load_agents
from everstep.runtime.demo_agent import DEMO
from everstep.runtime.settings import Settings, misspelled_variables
from everstep.runtime.worker import build_failpoint
from tests.everstep.cli.desk import NoModels

ID = UUID("0198a1b2-0000-7000-8000-000000000001")


class Person(BaseModel):
    name: str


def an_agent_file(tmp_path: Path, text: str) -> object:
    file = tmp_path / "clerk.md"
    file.write_text(f"---\nname: clerk\ndescription: Serves\n{text}\n---\nYou serve.\n")
    return load_agents(str(file))


def a_settings_file(text: str) -> Settings:
    Path("everstep.toml").write_text(text)
    return Settings.read()


def an_agents_module(where: str) -> object:
    Path("desk_agents.py").write_text("agents = []\n")
    return load_agents(where)


def an_id(text: str) -> object:
    async def read_ids() -> list[UUID]:
        return [ID, UUID(int=5)]

    return asyncio.run(parse_id(text, "an execution", "everstep executions", read_ids))


def a_registry() -> CriterionRegistry:
    registry = CriterionRegistry()
    registry.register("look.budget", lambda: None)
    return registry


def an_approval_of(tool: str) -> object:
    return AgentBuilder.base().with_tools([MockTool("look")]).with_approval(tool, "never").build()


def a_tool(**options: Any) -> object:
    return MockTool("look", options=ToolOptions(**options))


ATTEMPTS: Mapping[str, tuple[Callable[[Path], object], str | None]] = {
    "agent": (lambda _: AgentBook([DEMO], NoModels()).definition("asistant"), "assistant"),
    "preset": (lambda _: Presets.read({}, {}, "opneai"), "openai"),
    "key of a preset": (
        lambda _: Preset.read("x", {"driver": "openai", "model": "m", "temprature": 1}),
        "temperature",
    ),
    "setting": (lambda _: a_settings_file("agnets = []"), "agents"),
    "section": (lambda _: a_settings_file("[mpc.x]"), "mcp"),
    "key of a server": (lambda _: from_section("x", {"comand": ["a"]}), "command"),
    "key of a script": (lambda _: Script.from_yaml("turns: [{txt: Hello}]"), "text"),
    "failpoint": (lambda _: build_failpoint("link.before_sned"), "link.before_send"),
    "scope": (lambda _: validate_scopes(["session:all"]), "sessions:all"),
    "tool": (lambda folder: an_agent_file(folder, "tools: bahs"), "bash"),
    "capability": (lambda folder: an_agent_file(folder, "capabilities: bsah"), "bash"),
    "option of a capability": (
        lambda folder: an_agent_file(folder, "capabilities: {tasks: {max_item: 3}}"),
        "max_items",
    ),
    "model of a file": (lambda folder: an_agent_file(folder, "model: openia"), "openai"),
    "error policy": (lambda _: ErrorPolicy.named("retry_tool_error"), "retry_tool_errors"),
    "decision": (lambda _: as_policy({"on_tool_error": "rety"}), "retry"),
    "criterion": (lambda _: a_registry().build(CriterionRef(name="look.bugdet")), "look.budget"),
    "schema": (lambda _: SchemaRegistry({"person": Person}).get("persom"), "person"),
    "no schema": (lambda _: SchemaRegistry({}).get("x"), None),
    "broadcast preset": (lambda _: BroadcastConfig.preset("standart"), "standard"),
    "effect": (lambda _: a_tool(effect="at-most-onec"), "at_most_once"),
    "tool with an approval": (lambda _: an_approval_of("lok"), "look"),
    "module": (lambda _: an_agents_module("desk_agent:agents"), "desk_agents"),
    "attribute": (lambda _: an_agents_module("desk_agents:agnets"), "agents"),
    "id": (lambda _: an_id("0198A1B2"), str(ID)),
    "id without its end": (lambda _: an_id(str(ID)[:-1]), str(ID)),
    "no id": (lambda _: an_id("the last one"), None),
}


@pytest.mark.parametrize("kind", ATTEMPTS)
def test_an_unknown_name_is_refused_with_the_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """1.4.2"""
    monkeypatch.chdir(tmp_path)
    attempt, meant = ATTEMPTS[kind]
    with pytest.raises(InvalidInput) as refused:
        attempt(tmp_path)

    expected = f"; did you mean '{meant}'?" if meant else ""
    assert expected in str(refused.value)
    assert bool(meant) == ("did you mean" in str(refused.value))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "No such command 'rnu'; did you mean 'run'?"),
        (["kyes", "create"], "No such command 'kyes'; did you mean 'keys'?"),
        (["keys", "craete"], "No such command 'craete'. Did you mean 'create'?"),
        (["run", "--agnt", "x"], "(Did you mean one of: '--agent', '--agents'?)"),
        (["--dta", "x", "run"], "No such option '--dta'. Did you mean '--data'?"),
        (["frobnicate"], "No such command 'frobnicate'\n"),
    ],
)
def test_an_unknown_command_or_option_is_refused_with_the_near_one(arguments: list[str], words: str) -> None:
    """1.4.2"""
    result = CliRunner().invoke(commands, arguments, prog_name="everstep")

    assert result.exit_code == 2
    assert words in result.output


def test_an_environment_variable_that_is_probably_a_misspelled_setting_is_reported() -> None:
    """1.4.3"""
    environ = {
        "EVERSTEP_HTTP_PROT": "1",
        "EVERSTEP_API_TOKE": "t",
        "EVERSTEP_HTTP_PORT": "1",
        "EVERSTEP_DATA": "d",
        "EVERSTEP_API_URL": "u",
        # Of Kubernetes, and of programs beside this one.
        "EVERSTEP_GATEWAY_SERVICE_HOST": "10.0.0.1",
        "EVERSTEP_API_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "EVERSTEP_PORT": "tcp://10.0.0.1:8080",
        "EVERSTEP_CHAOS_SEED": "5",
        "HTTP_PROT": "1",
    }

    assert list(misspelled_variables(environ)) == [
        "EVERSTEP_API_TOKE is not a setting and has no effect; did you mean 'EVERSTEP_API_TOKEN'?",
        "EVERSTEP_HTTP_PROT is not a setting and has no effect; did you mean 'EVERSTEP_HTTP_PORT'?",
    ]
    result = CliRunner().invoke(commands, ["agents"], env={"EVERSTEP_HTTP_PROT": "1"}, prog_name="everstep")
    assert "did you mean 'EVERSTEP_HTTP_PORT'?" in result.stderr
    assert "did you mean" not in result.stdout
