"""docs/capabilities.md matches the code."""

import re
import tomllib
from collections.abc import Mapping
from inspect import Parameter
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities import bash, critique, extraction, files, scratchpad, subagents, tasks
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.tools.tools import Effect, Tool, options_of
from everstep.agent_domain.values import json_text
from everstep.capabilities.bash import process, profile, resource_watch
from everstep.capabilities.catalogue import AgentLocation, CatalogueEntry
from everstep.capabilities.files import regular_files, writing
from everstep.capabilities.mcp.sections import McpSection, from_section
from everstep.capabilities.skills import library
from everstep.capabilities.standard import STANDARD

PAGE = (Path(__file__).parents[3] / "docs" / "capabilities.md").read_text(encoding="utf-8")
SECTIONS: dict[str, str] = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
RUNS = {CallNeed.INPUT: "waits for a person", CallNeed.SUBAGENT: "execution of its own"}
EFFECTS = {Effect.IDEMPOTENT: "runs again", Effect.AT_MOST_ONCE: "at most once"}

MIB = 1024 * 1024


def rows(section: str, header: str) -> list[list[str]]:
    """The cells of the table with this header."""
    table = re.search(rf"^\| {header} \|.*\n\|---.*\n((?:\|.*\n)+)", section, re.MULTILINE)
    lines = table[1].splitlines() if table else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def tools_of(entry: CatalogueEntry, folder: Path) -> list[Tool]:
    other = AgentSpecRegistry([AgentSpec("other", "Helps", "You help.")])
    here = AgentLocation(folder, folder, other_agents=other, servers={"time": {"command": ["serve"]}})
    builder = DefinitionBuilder.base()
    entry.install(builder, entry.example, here)
    return list(builder.definition().tools)


def effects_of(tool: Tool) -> list[str]:
    options = options_of(tool)
    if options.need in RUNS:
        return [f"`{tool.name}`", RUNS[options.need], "continues"]
    return [f"`{tool.name}`", "quick" if options.quick else "activity", EFFECTS[options.effect]]


def default_text(entry: CatalogueEntry, option: str) -> str:
    value = entry.default(option)
    if value is Parameter.empty:
        return "needed"
    return "none" if value is None else f"`{json_text(value)}`"


def test_the_page_has_a_section_for_each_capability() -> None:
    """9.1.1, 10.1.3"""
    assert list(SECTIONS) == list(STANDARD.names)


@pytest.mark.parametrize("entry", [*STANDARD], ids=lambda entry: entry.name)
def test_each_section_lists_its_tools_with_the_effect_of_a_lost_worker(
    entry: CatalogueEntry, tmp_path: Path
) -> None:
    """1.1.3"""
    assert rows(SECTIONS[entry.name], "tool") == [effects_of(tool) for tool in tools_of(entry, tmp_path)]


@pytest.mark.parametrize("entry", [*STANDARD], ids=lambda entry: entry.name)
def test_each_section_explains_its_options_and_their_defaults(entry: CatalogueEntry) -> None:
    """10.1.3"""
    written = rows(SECTIONS[entry.name], "option")
    assert [row[:2] for row in written] == [
        [f"`{name}`", default_text(entry, name)] for name in entry.options
    ]
    assert all(meaning for *_, meaning in written)


SAID: Mapping[str, list[object]] = {
    "bash": [
        bash.NO_OUTPUT,
        f"{bash.MAX_MEMORY // 2**30} GiB",
        f"{profile.PROCESSES} processes",
        f"{profile.OPEN_FILES:,} open files",
        f"{resource_watch.MAX_SOCKETS} sockets",
        f"more than {process.MAX_OUTPUT_BYTES // MIB} MiB",
        f"{bash.ExecutionPolicy.for_bash('.').stdout_cap // MIB} MiB of stdout",
        f"{bash.ExecutionPolicy.for_bash('.').stderr_cap // MIB} MiB of stderr",
        *(f"`{name}`" for name in [*bash.KEPT_VARIABLES, "LC_*"]),
    ],
    "files": [
        files.OUTSIDE,
        f"{files.MAX_LINES:,} at a time",
        f"{files.MAX_LINE_CHARS:,} characters",
        f"{regular_files.MAX_READ // MIB} MiB of a file",
        f"{writing.MAX_WRITE // MIB} MiB are written",
    ],
    "tasks": [tasks.METADATA_KEY, tasks.INITIAL_MARKER, tasks.NAG_MARKER, tasks.RENDER_MARKER],
    "metadata": [f"`{key}`" for key in scratchpad.RESERVED_KEYS],
    "skills": [f"{library.MAX_SKILLS} skills", f"{library.MAX_BYTES // 1024} KiB"],
    "subagents": [
        f"{subagents.CHILD_MAX_STEPS} steps",
        f"{subagents.CHILD_MAX_TOKENS:,} tokens",
        f"{subagents.CHILD_TIMEOUT_SECONDS} seconds",
        subagents.failure_text("{name}", "..."),
    ],
    "critique": [f"{critique.MAX_EVIDENCE:,} characters"],
    "structured_output": [extraction.extraction_error("{schema}", "{reason}")],
}


@pytest.mark.parametrize("name", SAID)
def test_limits_and_texts_are_those_of_the_code(name: str) -> None:
    """9.1.1, 9.2.1, 9.2.2, 9.3.3, 9.4.1, 9.6.3, 9.7.1, 9.8.2"""
    section = " ".join(SECTIONS[name].split())
    assert [each for each in SAID[name] if str(each) not in section] == []


def test_the_pages_example_of_servers_is_valid() -> None:
    """10.1.3"""
    section = SECTIONS["mcp"]
    (written,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    servers: dict[str, dict[str, Any]] = tomllib.loads(written)["mcp"]
    assert [from_section(name, server).toolset.name for name, server in servers.items()] == ["time", "crm"]

    assert [key for key in McpSection.model_fields if f"`{key}`" not in section] == []
    for key in ("timeout_seconds", "connect_seconds", "idle_seconds", "max_result_chars"):
        assert f"`{key}` ({McpSection.model_fields[key].default:,})" in section


def test_both_ways_to_install_have_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10.1.3, 10.3.3"""
    monkeypatch.chdir(tmp_path)
    code, keys = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[0] for kind in ("python", "yaml"))
    namespace: dict[str, Any] = {}
    exec(compile(code, "a page", "exec"), namespace)  # noqa: S102 -- our own page
    built = namespace["agent"].definition()

    builder = DefinitionBuilder.base()
    for name, options in yaml.safe_load(keys)["capabilities"].items():
        STANDARD.get(name).install(builder, options, AgentLocation(tmp_path, Path()))
    assert builder.definition().tools.names == built.tools.names
    assert list(built.descriptor.capabilities) == ["bash", "tasks"]
