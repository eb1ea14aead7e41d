"""Capabilities by name, and agents that use them."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.builder import AgentCapability, DefinitionBuilder
from everstep.agent_domain.agents.compaction_policy import CompactionPolicy
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import Profile
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.capabilities.questions import UserInputPolicy
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.testing import MockTool
from everstep.agent_domain.tools.tools import Tool
from everstep.capabilities.approval import UseApproval
from everstep.capabilities.assembly import assemble_agent
from everstep.capabilities.catalogue import AgentLocation, CapabilityGroup, Catalogue, CatalogueEntry
from everstep.capabilities.standard import STANDARD
from everstep.capabilities.user_input import UserInputTool
from everstep.inference.presets import Presets

PRESETS = Presets.read({"fast": {"driver": "openai", "model": "small"}}, {})


class RecordingCapability:
    """A capability that records its options."""

    def __init__(self, *tools: str, **given: Any) -> None:
        self.tools = tools
        self.given = given

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        return builder.with_tools([MockTool(name) for name in self.tools])


made: list[RecordingCapability] = []


def _shell(
    here: AgentLocation, *, timeout: int = 120, base_dir: str = ".", paths: list[str] | None = None
) -> AgentCapability:
    made.append(
        RecordingCapability("bash", timeout=timeout, base_dir=here.working_dir / base_dir, paths=paths)
    )
    return made[-1]


def _disk(here: AgentLocation) -> AgentCapability:
    del here
    return CapabilityGroup(RecordingCapability("read_file", "write_file"), MockTool("list_dir"))


def _library(here: AgentLocation, *, path: str = "skills") -> AgentCapability:
    made.append(RecordingCapability("load_skill", path=here.folder / path, skills=here.skills))
    return made[-1]


def _server(here: AgentLocation, *, command: str) -> AgentCapability:
    del here
    if not command:
        raise FileNotFoundError("there is no program ''")
    return RecordingCapability("server_time")


def _critic(here: AgentLocation) -> AgentCapability:
    del here
    return RecordingCapability()


CATALOGUE = Catalogue(
    [
        STANDARD.get("user_input"),
        STANDARD.get("approval"),
        CatalogueEntry("bash", "Runs commands.", ("bash",), _shell),
        CatalogueEntry("files", "Reads and writes files.", ("read_file", "write_file", "list_dir"), _disk),
        CatalogueEntry("skills", "Loads skills.", ("load_skill",), _library),
        CatalogueEntry("server", "Asks a server.", ("server_time",), _server, {"command": "serve"}),
        CatalogueEntry("critique", "Looks at answers again.", (), _critic),
    ]
)


def here(folder: Path = Path("agents"), **given: Any) -> AgentLocation:
    return AgentLocation(folder, Path("/desk"), **given)


def an_agent(around: AgentLocation | None = None, /, **keys: Any) -> AgentDefinition:
    spec = AgentSpec("helper", "Helps", "You help.", **keys)
    skills = None if spec.skills is None else tuple(spec.skills)
    return assemble_agent(spec, around or here(skills=skills), CATALOGUE, PRESETS.resolve)


def capabilities_and_tools(definition: AgentDefinition) -> tuple[list[str], list[str]]:
    """Its capabilities and its tools, in the public description and in the agent."""
    assert list(definition.descriptor.tools) == list(definition.tools.names)
    assert [tool.name for tool in definition.base_plan.tools] == list(definition.tools.names)
    return list(definition.descriptor.capabilities), list(definition.tools.names)


# The catalogue.


@pytest.mark.parametrize("entry", [*CATALOGUE], ids=lambda entry: entry.name)
def test_each_capability_can_be_built_and_has_its_listed_tools(entry: CatalogueEntry, tmp_path: Path) -> None:
    """10.1.3"""
    builder = DefinitionBuilder.base()
    entry.install(builder, entry.example, AgentLocation(tmp_path))
    assert builder.definition().tools.names == entry.tools


@pytest.mark.parametrize("entry", [*STANDARD], ids=lambda entry: entry.name)
def test_each_capability_has_a_one_sentence_description(entry: CatalogueEntry) -> None:
    assert re.fullmatch(r"[A-Z][^.\n]+\.", entry.about)


def test_options_are_passed_on() -> None:
    """8.5.5, 10.1.3"""
    options = {"timeout_seconds": 30, "default_answer": {"day": "Monday"}}
    (tool,) = an_agent(capabilities={"user_input": options}).tools
    assert isinstance(tool, UserInputTool)
    assert tool.policy == UserInputPolicy(30, {"day": "Monday"})


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        (
            "user_input",
            {"timeout": 30},
            "timeout: Unexpected keyword argument; did you mean 'timeout_seconds'? "
            "(its options: timeout_seconds, default_answer)",
        ),
        ("user_input", {"timeout_seconds": "30"}, "timeout_seconds: Input should be a valid number"),
        ("user_input", {"timeout_seconds": -1}, "timeout_seconds must be greater than zero"),
        ("user_input", {"here": "x"}, "here: Unexpected keyword argument"),
        ("bash", {"paths": "/tmp"}, "paths: Input should be a valid list"),  # noqa: S108 -- only named
        ("bash", {"timeout": True}, "timeout: Input should be a valid integer"),
        ("files", {"root": "."}, "root: Unexpected keyword argument (its options: none)"),
        ("server", {}, "command: Missing required keyword only argument"),
        ("server", {"command": ""}, "there is no program ''"),
    ],
)
def test_invalid_options_are_named(name: str, options: Mapping[str, Any], reason: str) -> None:
    """10.1.3"""
    with pytest.raises(InvalidInput) as refused:
        an_agent(capabilities={name: options})
    assert str(refused.value).startswith(
        f"the capability '{name}' cannot be made with these options: {reason}"
    )


def test_a_name_and_a_tool_belong_to_one_capability() -> None:
    entry = STANDARD.get("user_input")
    with pytest.raises(InvalidInput, match="two capabilities are named 'user_input'; rename one"):
        Catalogue([entry, entry])
    with pytest.raises(InvalidInput, match="'user_input' and 'ask' both bring the tool 'user_input'"):
        Catalogue([entry, CatalogueEntry("ask", "Asks.", ("user_input",), entry.make)])


# Agents.


def test_without_capabilities_there_are_no_tools() -> None:
    """10.1.3"""
    assert capabilities_and_tools(an_agent()) == ([], [])


@pytest.mark.parametrize(
    ("keys", "capabilities", "tools"),
    [
        ({"capabilities": "bash, files"}, ["bash", "files"], ["bash", "read_file", "write_file", "list_dir"]),
        ({"capabilities": "bash, files", "tools": "list_dir, bash"}, ["bash", "files"], ["bash", "list_dir"]),
        ({"tools": "read_file, user_input"}, ["files", "user_input"], ["read_file", "user_input"]),
        (
            {"tools": "bash, read_file", "capabilities": {"files": {}}},
            ["files", "bash"],
            ["read_file", "bash"],
        ),
        ({"tools": []}, [], []),
        ({"tools": [], "capabilities": "critique"}, ["critique"], []),
        ({"skills": "style"}, ["skills"], ["load_skill"]),
        ({"skills": "style", "tools": "bash"}, ["skills", "bash"], ["load_skill", "bash"]),
    ],
)
def test_capabilities_bring_tools_and_tools_bring_their_capability(
    keys: dict[str, Any], capabilities: list[str], tools: list[str]
) -> None:
    """10.1.3"""
    assert capabilities_and_tools(an_agent(**keys)) == (capabilities, tools)


def test_it_uses_the_working_directory_and_the_skills_beside_its_file() -> None:
    """10.1.3"""
    an_agent(capabilities={"bash": {"timeout": 5, "base_dir": "src"}}, skills=["style"])
    shell, library = made[-2:]
    assert shell.given == {"timeout": 5, "base_dir": Path("/desk/src"), "paths": None}
    assert library.given == {"path": Path("agents/skills"), "skills": ("style",)}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"tools": "bahs"}, "No tool named 'bahs'. Choose from: user_input, bash, read_file"),
        (
            {"capabilities": "shell"},
            "No capability named 'shell'. Choose from: user_input, approval, bash, files, skills",
        ),
        (
            {"model": "sonnet"},
            "No preset named 'sonnet'. Name a model with its provider, as in openai:gpt-5.5, or choose ",
        ),
        (
            {"approval": {"bahs": "always"}, "tools": "bash"},
            "No tool for 'approval' named 'bahs'. Choose from: bash",
        ),
    ],
)
def test_an_unknown_name_is_reported_with_the_known_ones(keys: dict[str, Any], problem: str) -> None:
    """10.1.3"""
    with pytest.raises(UnknownName) as refused:
        an_agent(**keys)
    assert str(refused.value).startswith(problem)


def test_a_capability_without_any_of_its_tools_is_an_error() -> None:
    """10.1.3"""
    with pytest.raises(
        InvalidInput, match=re.escape("'tools' names no tool of the capability 'files' (read_file,")
    ):
        an_agent(capabilities="bash, files", tools="bash")


def test_limits_and_approvals_are_those_of_the_file_or_the_default() -> None:
    """10.1.3, 11"""
    usual = DefinitionBuilder.base().definition().base_plan
    plan = an_agent().base_plan
    assert (plan.max_steps, plan.max_tokens, plan.timeout_seconds) == (
        usual.max_steps,
        usual.max_tokens,
        usual.timeout_seconds,
    )

    limited = an_agent(
        max_steps=3, max_tokens=500, timeout_seconds=1.5, tools="bash", approval={"bash": "always"}
    )
    plan = limited.base_plan
    assert (plan.max_steps, plan.max_tokens, plan.timeout_seconds) == (3, 500, 1.5)
    assert limited.spec().approvals == {"bash": "always"}


def test_compaction_is_that_of_the_file_or_on() -> None:
    """14.4"""
    assert (
        an_agent().base_plan.compaction
        == CompactionPolicy()
        == an_agent(compaction="on").base_plan.compaction
    )
    assert an_agent(compaction="off").base_plan.compaction is None
    chosen = an_agent(compaction={"at": 0.9, "to": 0.2, "model": "fast"}).base_plan.compaction
    assert chosen == CompactionPolicy(at=0.9, to=0.2, model="fast")
    with pytest.raises(UnknownName, match="No preset named 'quick'"):
        an_agent(compaction={"model": "quick"})


def test_approvals_are_a_capability_by_their_key_or_by_name() -> None:
    """8.6.1, 10.1.3"""
    rules = [{"tool": "bash", "args": {"command": "git *"}, "approval": "never"}]
    by_key = an_agent(tools="bash", approval={"bash": rules})
    by_name = an_agent(tools="bash", capabilities={"approval": {"tools": {"bash": rules}}})
    by_hand = DefinitionBuilder.base().with_tools([MockTool("bash")]).with_capability(UseApproval(bash=rules))
    assert by_key.approvals == by_name.approvals == by_hand.definition().approvals
    assert by_key.descriptor.capabilities == by_name.descriptor.capabilities == ["approval", "bash"]
    assert by_hand.definition().descriptor.capabilities == ["approval"]
    with pytest.raises(InvalidInput, match="is set twice, as a key and as a capability; keep one"):
        an_agent(tools="bash", approval={"bash": "always"}, capabilities={"approval": {"tools": {}}})


def test_an_invalid_approval_is_refused() -> None:
    """8.6.1, 10.1.3"""
    with pytest.raises(InvalidInput, match="the capability 'approval' cannot be made with these options"):
        an_agent(tools="bash", capabilities={"approval": {"tools": {"bash": "sometimes"}}})


def test_a_file_sets_the_profile() -> None:
    """18.8.1, 10.1.3"""
    assert an_agent().base_plan.profile is Profile.REGULAR
    assert an_agent(profile="burst").base_plan.profile is Profile.BURST
    with pytest.raises(InvalidInput, match="'profile' was given 'fast'; pass 'regular' or 'burst'"):
        an_agent(profile="fast")


def test_a_file_sets_the_error_policy() -> None:
    """3.2, 10.1.3: by default, any failure ends the run."""
    assert an_agent().base_plan.error_policy == ErrorPolicy.stop_on_any_error()
    agent = an_agent(error_policy="retry_tool_errors")
    assert agent.base_plan.error_policy == ErrorPolicy.retry_tool_errors()
    with pytest.raises(InvalidInput) as refused:
        an_agent(error_policy="retry")
    assert str(refused.value) == (
        "'error_policy': No error policy named 'retry'. Choose from: "
        "stop_on_any_error, retry_tool_errors, ignore_tool_errors, retry_all; did you mean 'retry_all'?"
    )


def test_an_agent_gets_its_prompt_and_others_its_description() -> None:
    """10.1.1"""
    definition = an_agent()
    assert (definition.descriptor.name, definition.descriptor.description) == ("helper", "Helps")
    assert [message.text for message in definition.cached_context.messages] == ["You help."]


@pytest.mark.parametrize(
    ("model", "preset", "settings"),
    [
        (None, None, {}),
        ("inherit", None, {}),
        ("fast", "fast", {}),
        ({"driver": "openai", "model": "x"}, None, {"driver": "openai", "model": "x"}),
    ],
)
def test_a_model_is_a_preset_or_settings(model: Any, preset: str | None, settings: dict[str, Any]) -> None:
    """10.1.1: without a parent, to inherit means the default one."""
    definition = an_agent(model=model)
    assert (definition.llm_preset, definition.model_settings) == (preset, settings)


def test_unknown_model_settings_are_refused() -> None:
    """10.1.1"""
    with pytest.raises(InvalidInput, match="put the key into an environment variable"):
        an_agent(model={"driver": "openai", "model": "x", "api_key": "secret"})
    with pytest.raises(InvalidInput, match="preset 'inline': temperatur: there is no such key"):
        an_agent(model={"driver": "openai", "model": "x", "temperatur": 1})


@pytest.mark.parametrize("key", ["base_url", "api_key_env", "extra_headers"])
def test_a_file_cannot_send_a_secret_elsewhere(key: str) -> None:
    """10.1.3"""
    settings = {"driver": "openai-chat", "model": "x", key: "https://elsewhere.example"}
    with pytest.raises(InvalidInput, match=f"'model' must not hold '{key}'"):
        an_agent(model=settings)


ELSEWHERE = "openai-chat:x@https://elsewhere.example/v1"


@pytest.mark.parametrize(
    "file",
    [
        {"model": ELSEWHERE},
        {"model": {"preset": ELSEWHERE}},
        {"model": {"fallback": [ELSEWHERE]}},
    ],
)
def test_a_file_cannot_send_conversations_elsewhere(file: Any) -> None:
    """10.1.3"""
    with pytest.raises(InvalidInput, match=r"must not hold the address https://elsewhere\.example/v1"):
        an_agent(**file)


def test_the_option_of_a_capability_cannot_send_conversations_elsewhere() -> None:
    """10.1.3"""
    with pytest.raises(
        InvalidInput, match=r"'llm_preset' must not hold the address https://elsewhere\.example"
    ):
        AgentLocation(Path()).require_preset(ELSEWHERE)


@pytest.mark.parametrize("model", ["openai:gpt-5.5", "openai-chat:qwen3:8b@http://127.0.0.1:11434/v1"])
def test_a_file_may_name_a_model_in_one_line(model: str) -> None:
    """10.1.3"""
    assert an_agent(model=model).llm_preset == model


NAMES = st.sampled_from(
    ["bash", "files", "user_input", "read_file", "skills", "fast", "x", "", "\x1b", "always"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
KEYS = [
    "capabilities",
    "tools",
    "skills",
    "model",
    "approval",
    "max_steps",
    "timeout_seconds",
    "compaction",
    "metadata",
]


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_file_is_an_agent_or_refused(keys: dict[str, Any]) -> None:
    """10.1.3"""
    front = {"name": "helper", "description": "Helps", **keys}
    with suppress(InvalidInput):
        spec = AgentSpec.from_mapping(front, "You help.")
        definition = assemble_agent(spec, here(), CATALOGUE, PRESETS.resolve)
        assert len(definition.spec().definition_hash) == 64


def test_a_tool_and_its_capability_have_one_name() -> None:
    parts: list[AgentCapability | Tool] = [RecordingCapability("a"), MockTool("b")]
    assert DefinitionBuilder.base().with_capability(CapabilityGroup(*parts)).definition().tools.names == (
        "a",
        "b",
    )
