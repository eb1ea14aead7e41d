"""The capabilities of agent files: building them from options, installing them, and describing them."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.react import ReActDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities.bash import BashPolicy, ExecutionPolicy
from everstep.agent_domain.capabilities.critique import CritiquePolicy
from everstep.agent_domain.capabilities.extraction import Nothing, StructuredOutputPolicy
from everstep.agent_domain.capabilities.scratchpad import MetadataPolicy
from everstep.agent_domain.capabilities.subagents import SubagentPolicy
from everstep.agent_domain.capabilities.tasks import TodoPolicy
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.tools.tools import ToolContext
from everstep.agent_domain.tools.toolsets import Asker, ListedTool
from everstep.agent_domain.values import EMPTY
from everstep.capabilities.approval import UseApproval
from everstep.capabilities.assembly import assemble_agent
from everstep.capabilities.bash import BashTool, UseBash
from everstep.capabilities.catalogue import AgentLocation, CatalogueEntry
from everstep.capabilities.critique import SelfCritic, UseSelfCritique
from everstep.capabilities.files import UseFileTools
from everstep.capabilities.llm_query import LlmQueryTool
from everstep.capabilities.mcp.toolset import McpToolset
from everstep.capabilities.metadata import MetadataWriteTool, UseMetadataTools
from everstep.capabilities.react import UseReAct
from everstep.capabilities.skills import UseSkills
from everstep.capabilities.standard import STANDARD
from everstep.capabilities.structured_output import ExtractDataTool, UseStructuredOutputs
from everstep.capabilities.structured_output.written import schema_definitions
from everstep.capabilities.subagents import SpawnSubagentTool, UseSubagents
from everstep.capabilities.tasks import TodoWriteTool, UseTaskPlanning
from everstep.capabilities.user_input import UseUserInput
from everstep.inference.presets import Presets

PRESETS = Presets.read({"fast": {"driver": "openai", "model": "small"}}, {})
REVIEWER = AgentSpec("reviewer", "Reviews", "You review.", tools="read_file, list_dir")
SERVERS = {"time": {"command": ["no-such-program"]}, "crm": {"url": "https://crm.example/mcp"}}


@pytest.fixture
def here(tmp_path: Path) -> AgentLocation:
    """A folder with skills and another agent."""
    for name in ("style", "tone"):
        skill = tmp_path / "agents" / "skills" / name / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text(f"---\ndescription: How to have {name}\n---\nHave {name}.")
    return AgentLocation(
        tmp_path / "agents", tmp_path, other_agents=AgentSpecRegistry([REVIEWER]), servers=SERVERS
    )


def an_agent(here: AgentLocation, /, **keys: Any) -> AgentDefinition:
    spec = AgentSpec("helper", "Helps", "You help.", **keys)
    return assemble_agent(spec, here, STANDARD, PRESETS.resolve)


def only_tool(here: AgentLocation, capability: str, /, **options: Any) -> Any:
    (tool,) = an_agent(here, capabilities={capability: options}).tools
    return tool


@pytest.mark.parametrize("entry", [*STANDARD], ids=lambda entry: entry.name)
def test_each_can_be_built_and_has_its_listed_tools(entry: CatalogueEntry, here: AgentLocation) -> None:
    """10.1.3"""
    definition = an_agent(here, capabilities={entry.name: entry.example})
    assert definition.tools.names == entry.tools
    assert list(definition.descriptor.capabilities) == [entry.name]


CHANGED: dict[str, dict[str, Any]] = {
    "bash": {
        "base_dir": "work",
        "timeout": 5.0,
        "memory_bytes": 2**28,
        "disk_bytes": 2**20,
        "network": True,
        "git": True,
        "readable_paths": ["/opt"],
        "writable_paths": ["out"],
        "max_output_chars": 100,
        "head_chars": 10,
        "tail_chars": 10,
    },
    "files": {
        "base_dir": "work",
        "readable_paths": ["/opt"],
        "writable_paths": ["out"],
        "max_results": 3,
        "max_entries": 3,
    },
    "tasks": {"max_items": 3, "max_in_progress": 2, "render_every_steps": 3, "reminder_every_steps": 3},
    "metadata": {"max_keys": 3, "max_value_size_bytes": 9},
    "skills": {"path": "library"},
    "subagents": {"max_depth": 1, "summary_max_chars": 9, "skills_path": "library"},
    "critique": {"max_iterations": 1, "verbose": False, "llm_preset": "demo"},
    "structured_output": {
        "schemas": {"day": {"type": "number"}},
        "max_retries": 1,
        "use_maybe": False,
        "llm_preset": "demo",
        "output_mode": "text",
        "system_prompt": "Extract.",
    },
    "llm_query": {"llm_preset": "demo"},
    "react": {"max_retries": 1, "final_via_inference": True},
    "mcp": {"servers": ["time", "crm"]},
    "user_input": {"timeout_seconds": 5.0, "default_answer": "Friday"},
    "approval": {
        "tools": {"todo_write": "always"},
        "approver": "owner",
        "four_eyes": True,
        "expires_after": 60,
    },
}
"""For each option a value that is not its default."""


@pytest.mark.parametrize("entry", [*STANDARD], ids=lambda entry: entry.name)
def test_another_option_is_another_definition(entry: CatalogueEntry, here: AgentLocation) -> None:
    """10.2.4"""
    assert {*CHANGED[entry.name]} == {*entry.options}
    # With a tool that may need approval.
    before = an_agent(here, capabilities={"tasks": {}, entry.name: entry.example})
    for option, value in CHANGED[entry.name].items():
        after = an_agent(here, capabilities={"tasks": {}, entry.name: {**entry.example, option: value}})
        assert after.digest != before.digest, option


def test_a_timeout_for_people_has_a_maximum(here: AgentLocation) -> None:
    """8.5.1: otherwise the error would occur when the question is asked, and end the execution."""
    an_agent(here, capabilities={"user_input": {"timeout_seconds": 100 * 365 * 86400.0}})
    with pytest.raises(
        InvalidInput, match=r"'user_input' .*: wait_seconds must be at most 3153600000; leave it"
    ):
        an_agent(here, capabilities={"user_input": {"timeout_seconds": 1e300}})


def test_a_misspelt_approval_is_refused_beside_tools_that_are_listed_later(here: AgentLocation) -> None:
    """8.6.1, 10.1.3"""
    both = {"capabilities": {"bash": {}, "mcp": {"servers": ["time"]}}}
    guarded = an_agent(here, **both, approval={"bash": "always", "time_now": "always"})
    assert list(guarded.approvals) == ["bash", "time_now"]
    with pytest.raises(
        InvalidInput, match=r"No tool for 'approval' named 'bahs'. Choose from: bash; did you mean 'bash'"
    ):
        an_agent(here, **both, approval={"bahs": "always"})


def test_another_choice_of_tools_or_skills_is_another_definition(here: AgentLocation) -> None:
    """10.2.4: tools of a server are listed later, and skills appear nowhere else."""
    server, skills = {"mcp": {"servers": ["time"]}}, dict[str, Any](skills={})
    choices: list[dict[str, Any]] = [
        {"capabilities": server},
        {"capabilities": server, "tools": ["time_now"]},
        {"capabilities": server, "tools": ["time_then"]},
        {"capabilities": skills},
        {"capabilities": skills, "skills": []},
    ]
    assert len({an_agent(here, **keys).digest for keys in choices}) == 5


@pytest.mark.parametrize("entry", [*STANDARD], ids=lambda entry: entry.name)
def test_each_has_a_one_sentence_description(entry: CatalogueEntry) -> None:
    assert re.fullmatch(r"[A-Z][^.\n]+\.", entry.about)


def test_builders_and_files_use_the_same_names() -> None:
    """10.3.3"""
    kinds = [UseBash, UseFileTools, UseTaskPlanning, UseMetadataTools, UseSkills, UseSubagents]
    kinds += [UseSelfCritique, UseStructuredOutputs, UseReAct, UseUserInput, UseApproval]
    named = {kind.name for kind in kinds} | {"mcp", "llm_query"}
    assert named == set(STANDARD.names)
    builder = DefinitionBuilder.base().with_capability(UseTaskPlanning()).with_capability(UseReAct())
    assert list(builder.definition().descriptor.capabilities) == ["tasks", "react"]


def test_without_options_they_are_as_the_builder_creates_them(here: AgentLocation) -> None:
    """9.1.1, 9.3.1, 9.4.1, 9.6.1, 9.7.1"""
    bash: BashTool = only_tool(here, "bash")
    assert (bash.policy, bash.output_policy) == (ExecutionPolicy.for_bash(here.working_dir), BashPolicy())
    todo: TodoWriteTool = only_tool(here, "tasks")
    assert todo.policy == TodoPolicy()
    spawn: SpawnSubagentTool = only_tool(here, "subagents")
    assert spawn.policy == SubagentPolicy()
    write = an_agent(here, capabilities="metadata").tools.get("metadata_write")
    assert isinstance(write, MetadataWriteTool)
    assert write.policy == MetadataPolicy()
    (critic,) = an_agent(here, capabilities="critique").processors
    assert isinstance(critic, SelfCritic)
    assert critic.policy == CritiquePolicy()


def test_bash_is_built_from_its_options(here: AgentLocation) -> None:
    """9.1.2, 10.1.3"""
    tool: BashTool = only_tool(
        here,
        "bash",
        base_dir="src",
        timeout=7,
        memory_bytes=1_000_000,
        network=True,
        readable_paths=["/data"],
        writable_paths=["out"],
        max_output_chars=100,
        head_chars=10,
        tail_chars=90,
    )
    root = here.working_dir
    policy = ExecutionPolicy.for_bash(root / "src", 7).with_memory(1_000_000).with_network()
    assert tool.policy == policy.with_readable_paths("/data").with_writable_paths(root / "out")
    assert tool.output_policy == BashPolicy(100, 10, 90)


def call_tool(tool: Any, **args: Any) -> Any:
    return tool.call(args, ToolContext(uuid4(), "call-1", 1))


def test_file_tools_use_the_base_directory_and_further_paths(here: AgentLocation) -> None:
    """9.2.1, 10.1.3"""
    for name in ("src/a.txt", "src/b.txt", "data/c.txt", "secret.txt"):
        (here.working_dir / name).parent.mkdir(exist_ok=True)
        (here.working_dir / name).write_text("x")
    options = {"base_dir": "src", "readable_paths": ["data"], "max_results": 1, "max_entries": 1}
    tools = an_agent(here, capabilities={"files": options}).tools
    assert call_tool(tools.get("read_file"), path="a.txt") == "     1\tx"
    assert call_tool(tools.get("read_file"), path=str(here.working_dir / "data/c.txt")) == "     1\tx"
    assert call_tool(tools.get("read_file"), path="../secret.txt").startswith("Error: Path is outside")
    assert call_tool(
        tools.get("write_file"), path=str(here.working_dir / "data/d.txt"), content=""
    ).startswith("Error: Path is outside")
    assert call_tool(tools.get("search_files"), pattern="*.txt").startswith("Files found: 1\n")
    assert call_tool(tools.get("list_dir"), path=".").endswith("... 1 more not shown")


def test_an_agent_loads_only_the_skills_that_it_names(here: AgentLocation) -> None:
    """9.5.3, 10.1.3"""
    named = AgentLocation(here.folder, here.working_dir, skills=("tone",))
    (tool,) = an_agent(named, skills="tone").tools
    assert call_tool(tool) == "Available skills:\n- [tone]: How to have tone"
    assert call_tool(tool, skill_name="style").startswith("Error: No skill named 'style'")
    (tool,) = an_agent(here, capabilities="skills").tools
    assert call_tool(tool, skill_name="style") == '<skill name="style">\nHave style.\n</skill>'


def test_an_unknown_skill_is_refused(here: AgentLocation) -> None:
    """10.1.3"""
    misspelt = AgentLocation(here.folder, here.working_dir, skills=("stile",))
    with pytest.raises(InvalidInput, match=r"No skill named 'stile'. Choose from: style, tone"):
        an_agent(misspelt, skills="stile")


def test_subagents_are_the_other_agents_of_the_folder(here: AgentLocation) -> None:
    """9.6.1, 9.6.5, 10.1.3"""
    tools = an_agent(here, capabilities={"files": {}, "subagents": {"max_depth": 1}}).tools
    spawn = tools.get("spawn_subagent")
    assert isinstance(spawn, SpawnSubagentTool)
    assert spawn.policy.max_depth == 1
    assert "- reviewer: Reviews (tools: read_file, list_dir)" in spawn.description
    assert spawn.subagents["reviewer"].tools.names == ("read_file", "list_dir")


def test_an_agent_without_any_subagent_is_refused(here: AgentLocation) -> None:
    """10.1.3"""
    alone = AgentLocation(here.folder, here.working_dir)
    with pytest.raises(InvalidInput, match="there is no other agent that it could start"):
        an_agent(alone, capabilities="subagents")


def test_a_subagent_with_an_unknown_skill_is_refused_before_its_start(here: AgentLocation) -> None:
    """9.6.2, 10.1.3"""
    needy = AgentSpec("needy", "Needs", "x", skills="stile")
    around = AgentLocation(here.folder, here.working_dir, other_agents=AgentSpecRegistry([needy]))
    with pytest.raises(InvalidInput, match="No skill named 'stile'"):
        an_agent(around, capabilities="subagents")


@pytest.mark.parametrize("name", ["critique", "llm_query", "structured_output"])
def test_an_unknown_preset_is_refused(name: str, here: AgentLocation) -> None:
    """9.7.1, 9.8.1, 10.1.3: a critic that cannot be called would approve everything."""
    options = {**STANDARD.get(name).example, "llm_preset": "fats"}
    with pytest.raises(InvalidInput, match=r"No preset named 'fats'\..* choose from: .*fast"):
        an_agent(here, capabilities={name: options})


def test_models_are_called_by_their_presets(here: AgentLocation) -> None:
    """9.7.1, 9.9.1, 12.2"""
    tool: LlmQueryTool = only_tool(here, "llm_query", llm_preset="fast")
    assert tool.model == "fast"
    options = {"critique": {"max_iterations": 1, "verbose": False, "llm_preset": "fast"}, "react": {}}
    agent = an_agent(here, capabilities=options, model="fast")
    (critic,) = agent.processors
    assert isinstance(critic, SelfCritic)
    assert critic.policy == CritiquePolicy(1, verbose=False, llm_preset="fast")
    assert isinstance(agent.driver, ReActDriver)
    assert (agent.llm_preset, agent.driver.wants_model) == ("fast", True)


# Schemas in files.

DAY = {"type": "object", "description": "A day", "properties": {"name": {"enum": ["Mon"]}}}


def test_schemas_are_written_as_json_schemas(here: AgentLocation) -> None:
    """9.8.1, 10.1.3"""
    options = {"schemas": {"day": {**DAY, "required": ["name"]}}, "max_retries": 1, "use_maybe": False}
    tool: ExtractDataTool = only_tool(here, "structured_output", **options)
    assert tool.policy == StructuredOutputPolicy(1, use_maybe=False)
    assert tool.schema["properties"]["schema"]["enum"] == ["day"]
    assert "- day: A day" in tool.schema["properties"]["schema"]["description"]


def test_extracted_data_fit_the_schema_of_the_file() -> None:
    """9.8.1"""
    day = schema_definitions({"day": {**DAY, "required": ["name"]}})["day"]
    assert day.answer_schema(use_maybe=False)["properties"] == DAY["properties"]
    assert (
        DAY["properties"]
        == day.answer_schema(use_maybe=True)["properties"]["value"]["anyOf"][0]["properties"]
    )
    assert day.read({"name": "Mon"}, use_maybe=False) == {"name": "Mon"}
    assert day.read({"value": {"name": "Mon"}}, use_maybe=True) == {"name": "Mon"}
    assert day.read({"value": None, "detail": "no day"}, use_maybe=True) == Nothing("no day")
    with pytest.raises(InvalidInput, match='"Tue" is not one of'):
        day.read({"name": "Tue"}, use_maybe=False)
    with pytest.raises(InvalidInput, match='"name" is a required property'):
        day.read({"value": {}}, use_maybe=True)


@pytest.mark.parametrize(
    ("schemas", "problem"),
    [
        ({}, "'schemas' is empty"),
        ({"day": {"$ref": "#/x"}}, "the schema 'day' refers to others by '\\$ref'; write it out in full"),
        ({"day": {"anyOf": [{"$ref": "#/x"}]}}, "refers to others"),
        ({"day": {"type": "objct"}}, "'day': the schema itself cannot be used"),
        ({" ": {}}, "a schema has a blank name"),
    ],
)
def test_invalid_schemas_are_refused(schemas: Mapping[str, Any], problem: str, here: AgentLocation) -> None:
    """9.8.1, 10.1.3"""
    with pytest.raises(InvalidInput, match=problem):
        an_agent(here, capabilities={"structured_output": {"schemas": schemas}})


# Servers in everstep.toml.


def toolset(agent: AgentDefinition) -> Any:
    (found,) = agent.toolsets
    return found


def test_a_file_names_servers_of_the_installation(here: AgentLocation) -> None:
    """10.1.3"""
    agent = an_agent(here, capabilities={"mcp": {"servers": ["crm", "time"]}})
    assert [each.name for each in agent.toolsets] == ["crm", "time"]
    assert all(isinstance(each, McpToolset) for each in agent.toolsets)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"servers": []}, "'servers' is empty; name at least one server"),
        (
            {"servers": ["crn"]},
            "No server named 'crn'. Choose from: time, crm; a server is a section [mcp.NAME] of "
            "everstep.toml; did you mean 'crm'?",
        ),
        ({"servers": ["crm", "crm"]}, "two toolsets are named 'crm'"),
        ({"command": ["rm", "-rf"]}, "command: Unexpected keyword argument (its options: servers)"),
        ({"servers": [{"command": "rm"}]}, "servers.0: Input should be a valid string"),
    ],
)
def test_a_file_cannot_start_its_own_program(
    options: Mapping[str, Any], problem: str, here: AgentLocation
) -> None:
    """10.1.3"""
    with pytest.raises(InvalidInput, match=re.escape(problem)):
        an_agent(here, capabilities={"mcp": options})


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({}, "set either 'command' or 'url'"),
        ({"command": ["a"], "url": "https://a.example"}, "set either 'command' or 'url'"),
        ({"url": "ftp://a"}, "begins with http"),
        ({"url": "https://a.example", "env": ["A"]}, "only a 'command' has 'env' and 'cwd'"),
        ({"command": ["a"], "headers_env": {"X": "Y"}}, "only a 'url' has 'headers_env'"),
        ({"command": ["a"], "tools": []}, "tools is a list of names or globs"),
        ({"command": ["a"], "timeout_seconds": 0}, "timeout_seconds: Input should be greater than 0"),
        ({"comand": ["a"]}, "comand: there is no such key"),
    ],
)
def test_an_invalid_section_is_named(section: Mapping[str, Any], problem: str, here: AgentLocation) -> None:
    """10.1.3"""
    around = AgentLocation(here.folder, here.working_dir, servers={"crm": section})
    with pytest.raises(InvalidInput, match=rf"\[mcp.crm\] in everstep.toml: .*{problem}"):
        an_agent(around, capabilities={"mcp": {"servers": ["crm"]}})


def test_the_name_of_a_section_is_the_prefix_of_its_tools(here: AgentLocation) -> None:
    """10.1.3"""
    around = AgentLocation(here.folder, here.working_dir, servers={"c.r.m": {"url": "https://a.example"}})
    with pytest.raises(InvalidInput, match=r"\[mcp.c.r.m\]: the name is the prefix of its tools"):
        an_agent(around, capabilities={"mcp": {"servers": ["c.r.m"]}})


def test_headers_come_from_the_environment_of_the_connecting_process(
    here: AgentLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.1.3"""
    section = {"url": "https://a.example", "headers_env": {"Authorization": "EVERSTEP_TEST_CRM"}}
    around = AgentLocation(here.folder, here.working_dir, servers={"crm": section})
    headers = toolset(an_agent(around, capabilities={"mcp": {"servers": ["crm"]}})).server.headers
    with pytest.raises(InvalidInput, match="needs the environment variable EVERSTEP_TEST_CRM; set it"):
        headers("default")
    monkeypatch.setenv("EVERSTEP_TEST_CRM", "Bearer secret")
    assert headers("default") == {"Authorization": "Bearer secret"}


def test_a_program_gets_the_variables_that_its_section_names(
    here: AgentLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.1.3"""
    monkeypatch.setenv("EVERSTEP_TEST_KEY", "secret")
    section = {"command": ["serve", "now"], "env": ["EVERSTEP_TEST_KEY", "EVERSTEP_TEST_UNSET"], "cwd": "/"}
    around = AgentLocation(here.folder, here.working_dir, servers={"crm": section})
    server = toolset(an_agent(around, capabilities={"mcp": {"servers": ["crm"]}})).server
    assert (server.command, server.args, server.cwd) == ("serve", ("now",), "/")
    assert server.env == {"EVERSTEP_TEST_KEY": "secret"}


async def test_tools_filters_the_list_of_a_server(
    here: AgentLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10.1.3: the list is known during an execution only, so no name is refused."""
    agent = an_agent(here, capabilities={"mcp": {"servers": ["crm"]}}, tools="crm_find, bash")
    assert agent.tools.names == ("bash",)

    async def list_tools(self: McpToolset, asker: Asker) -> list[ListedTool]:
        del self, asker
        return [ListedTool(name, "", EMPTY) for name in ("crm_find", "crm_delete")]

    monkeypatch.setattr(McpToolset, "list_tools", list_tools)
    found = await toolset(agent).list_tools(Asker(uuid4(), "default"))
    assert [tool.name for tool in found] == ["crm_find"]
    for tools, problem in (
        ("bash", "'tools' names no tool that begins with 'crm_'"),
        ("crm_find, bahs", "bahs"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            an_agent(here, capabilities={"mcp": {"servers": ["crm"]}}, tools=tools)


def test_a_missing_library_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """9.5.1"""
    caplog.set_level(logging.WARNING)
    (tool,) = an_agent(AgentLocation(tmp_path), capabilities="skills").tools
    assert call_tool(tool) == "(no skills)"
    assert "the directory does not exist" in caplog.text
