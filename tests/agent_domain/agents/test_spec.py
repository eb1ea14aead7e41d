"""Agent definitions and their two written forms."""

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput

MARKDOWN = """\
---
name: reviewer
description: Reviews a change
tools: bash, read_file
model: fast
skills:
  - style
metadata:
  team: core
color: purple
created: 2026-01-16
---

You review changes.

---
Be kind.
"""


def load_yaml(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def from_markdown(text: str) -> AgentSpec:
    return AgentSpec.from_markdown(text, load_yaml)


def a_spec(**changes: Any) -> AgentSpec:
    fields: dict[str, Any] = {"name": "helper", "description": "Helps", "system_prompt": "You help."}
    return AgentSpec(**(fields | changes))


def test_a_spec_needs_three_texts() -> None:
    """10.1.1: tools, model and skills are None when left out."""
    spec = AgentSpec("helper", "Helps", "You help.")
    assert (spec.tools, spec.model, spec.skills, spec.metadata) == (None, None, None, {})


@pytest.mark.parametrize("name", ["a", "reviewer", "code-reviewer-2", "a-"])
def test_a_name_starts_with_a_letter(name: str) -> None:
    """10.1.1."""
    assert a_spec(name=name).name == name


@pytest.mark.parametrize("name", ["Reviewer", "1st", "-a", "a_b", "a b", "a\n", "é", "aé", "a٣"])
def test_any_other_name_is_refused(name: str) -> None:
    """10.1.1: `^[a-z][a-z0-9-]*$`."""
    with pytest.raises(InvalidInput, match="cannot be the name of an agent; begin with a letter a-z"):
        a_spec(name=name)


@pytest.mark.parametrize("field", ["name", "description"])
@pytest.mark.parametrize("value", ["", " \n", None])
def test_name_and_description_are_needed(field: str, value: object) -> None:
    """10.1.1, 10.1.2."""
    with pytest.raises(InvalidInput) as refused:
        a_spec(**{field: value})
    assert str(refused.value) == f"The agent needs a '{field}'"


@pytest.mark.parametrize("field", ["name", "description", "system_prompt"])
@pytest.mark.parametrize("value", [3, True, ["text"], {"a": "b"}])
def test_texts_are_text(field: str, value: object) -> None:
    """10.1.1: YAML reads `yes` as a truth value and `1.5` as a number."""
    with pytest.raises(InvalidInput, match=f"must be text, not {type(value).__name__}"):
        a_spec(**{field: value})


def test_a_blank_prompt_is_refused() -> None:
    """10.1.1."""
    with pytest.raises(
        InvalidInput, match="needs a prompt; write it below the front matter, or in JSON under"
    ):
        a_spec(system_prompt=" \n")


def test_text_that_cannot_be_stored_is_refused() -> None:
    """10.1.1."""
    with pytest.raises(InvalidInput, match="the prompt contains a NUL character"):
        a_spec(system_prompt="a\x00b")


def test_an_empty_list_of_tools_is_not_the_same_as_none() -> None:
    """10.1.1, 9.6.5."""
    assert a_spec(tools=[]).tools == []
    assert a_spec(skills="").skills == []


@pytest.mark.parametrize("field", ["tools", "skills"])
def test_lists_may_be_comma_text_but_nothing_else(field: str) -> None:
    """10.1.2."""
    assert getattr(a_spec(**{field: "a, b"}), field) == ["a", "b"]
    with pytest.raises(InvalidInput, match=f"'{field}' must be a list of names"):
        a_spec(**{field: {"a": "b"}})


def test_a_model_is_a_preset_inherit_or_a_map() -> None:
    """10.1.1, 9.6.5."""
    assert a_spec(model=" fast ").model == "fast"
    assert a_spec(model="inherit").model == "inherit"
    assert a_spec(model={"provider": "openai", "temperature": 0.5}).model == {
        "provider": "openai",
        "temperature": 0.5,
    }


@pytest.mark.parametrize(("model", "given"), [(3, "int"), (["fast"], "list"), (True, "bool"), (" ", "blank")])
def test_any_other_model_is_refused(model: object, given: str) -> None:
    """10.1.2."""
    with pytest.raises(InvalidInput) as refused:
        a_spec(model=model)
    assert (
        str(refused.value)
        == f"'model' must be a model's or a preset's name, 'inherit' or a map of settings, not {given}"
    )


def test_a_spec_does_not_change() -> None:
    """0.8, 10.1.1: neither directly nor through the objects that it was made from."""
    tools, metadata = ["bash"], {"team": {"name": "core"}}
    spec: Any = a_spec(tools=tools, metadata=metadata)
    tools.append("write_file")
    metadata["team"]["name"] = "other"
    assert (spec.tools, spec.metadata) == (["bash"], {"team": {"name": "core"}})
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "other"


@pytest.mark.parametrize("metadata", ["text", ["a"], 3])
def test_metadata_is_a_map(metadata: object) -> None:
    """10.1.1."""
    with pytest.raises(InvalidInput, match="'metadata' must be a map"):
        a_spec(metadata=metadata)


def test_a_spec_names_the_tools_that_its_parent_lacks() -> None:
    """10.1.1."""
    spec = a_spec(name="reviewer", tools=["bash", "search", "fly"])
    assert spec.validate(["search", "read_file"]) == [
        "Agent 'reviewer' asks for tool 'bash', which its parent lacks",
        "Agent 'reviewer' asks for tool 'fly', which its parent lacks",
    ]
    assert spec.validate(iter(["bash", "search", "fly"])) == []


@pytest.mark.parametrize("tools", [None, []])
def test_a_spec_that_names_no_tool_lacks_none(tools: object) -> None:
    """10.1.1."""
    assert a_spec(tools=tools).validate([]) == []


def test_markdown_is_read_with_its_body_as_prompt() -> None:
    """10.1.2: the body is trimmed, unknown keys are ignored with any value."""
    assert from_markdown(MARKDOWN) == AgentSpec(
        name="reviewer",
        description="Reviews a change",
        system_prompt="You review changes.\n\n---\nBe kind.",
        tools=["bash", "read_file"],
        model="fast",
        skills=["style"],
        metadata={"team": "core"},
    )


def test_a_key_without_a_value_counts_as_absent() -> None:
    """10.1.2."""
    spec = from_markdown("---\nname: a\ndescription: >\n  Helps\ntools:\nmodel:\nmetadata:\n---\nx")
    assert spec == AgentSpec("a", "Helps", "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("You help.", "The text has no front matter"),
        ("---\nname: a\n", "The text has no front matter"),
        ("---\nname: [a\n---\nx", "The front matter is not valid YAML: "),
        ("---\n- a\n---\nx", "The front matter must be a map of keys, not list"),
        ("---\njust text\n---\nx", "The front matter must be a map of keys, not str"),
        ("---\n# nothing\n---\nx", "The agent needs a 'name'"),
        ("---\ndescription: b\n---\nx", "The agent needs a 'name'"),
        ("---\nname: a\n---\nx", "The agent needs a 'description'"),
        ("---\nname: a\ndescription: b\n---\n \n", "The agent needs a prompt"),
        ("---\nname: a\ndescription: b\ntools: 3\n---\nx", "'tools' must be a list of names"),
        ("---\nname: a\ndescription: b\ntools: [3]\n---\nx", "each name in 'tools' must be text, not int"),
        (
            "---\nname: a\ndescription: b\nmodel: [fast]\n---\nx",
            "'model' must be a model's or a preset's name",
        ),
        ("---\nname: a\ndescription: b\nskills: {a: b}\n---\nx", "'skills' must be a list of names"),
        ("---\nname: a\ndescription: 2026-01-16\n---\nx", "'description' must be text, not date"),
        (
            "---\nname: a\ndescription: b\nmetadata: {1: b}\n---\nx",
            "'metadata' has the key 1; keys must be text",
        ),
        (
            "---\nname: a\ndescription: b\nmetadata: {on: 2026-01-16}\n---\nx",
            "'metadata' has the key True; keys must be text",
        ),
        ("---\nname: a\ndescription: b\nmodel: {at: 2026-01-16}\n---\nx", "'model'.at is of type date"),
    ],
)
def test_an_error_in_markdown_is_reported(text: str, message: str) -> None:
    """10.1.2."""
    with pytest.raises(InvalidInput) as refused:
        from_markdown(text)
    assert str(refused.value).startswith(message)


def test_a_missing_name_is_reported_in_exactly_these_words() -> None:
    """10.1.2."""
    with pytest.raises(InvalidInput, match=r"^The agent needs a 'name'$"):
        AgentSpec.from_mapping({}, "x")
    with pytest.raises(InvalidInput, match=r"^The agent needs a 'description'$"):
        AgentSpec.from_mapping({"name": "a"}, "x")


@pytest.mark.parametrize("key", ["systemPrompt", "prompt", "system"])
@pytest.mark.parametrize("write", [dict[str, Any], json.dumps])
def test_json_has_its_prompt_under_one_of_three_keys(key: str, write: Any) -> None:
    """10.1.2."""
    given = {"name": "a", "description": "b", key: "You help.", "tools": ["bash"], "color": "purple"}
    assert AgentSpec.from_json(write(given)) == AgentSpec("a", "b", "You help.", tools=["bash"])


def test_of_several_prompts_the_first_key_wins() -> None:
    """10.1.2."""
    given = {"name": "a", "description": "b", "system": "3", "prompt": "2", "systemPrompt": None}
    assert AgentSpec.from_json(given).system_prompt == "2"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "the agent is not valid JSON"),
        ("[]", "The agent must be a JSON object, not list"),
        ("{}", "The agent needs a 'name'"),
        ('{"name": "a"}', "The agent needs a 'description'"),
        ('{"name": "a", "description": "b"}', "The agent needs a prompt"),
        ('{"name": "a", "description": "b", "prompt": 3}', "the prompt must be text, not int"),
        ('{"name": "a", "description": "b", "prompt": ["c"]}', "the prompt must be text, not list"),
        (
            {"name": "a", "description": "b", "prompt": "x", "model": 3},
            "'model' must be a model's or a preset's name",
        ),
    ],
)
def test_an_error_in_json_is_reported(given: str | Mapping[str, Any], message: str) -> None:
    """10.1.2."""
    with pytest.raises(InvalidInput) as refused:
        AgentSpec.from_json(given)
    assert str(refused.value).startswith(message)


LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=",\u2028\u2029\ufeff\uffff")
NAMES = st.lists(st.text(LETTERS, min_size=1).map(str.strip).filter(bool), unique=True)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(LETTERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS), inner, max_size=3),
    max_leaves=8,
)
TEXTS = st.text(LETTERS, min_size=1).map(str.strip).filter(bool)
SPECS = st.builds(
    AgentSpec,
    name=st.from_regex(r"[a-z][a-z0-9-]*", fullmatch=True),
    description=TEXTS,
    system_prompt=st.lists(TEXTS | st.just("---"), min_size=1).map("\n".join),
    tools=st.none() | NAMES,
    model=st.none() | TEXTS | st.dictionaries(TEXTS, PLAIN, max_size=3),
    skills=st.none() | NAMES,
    metadata=st.dictionaries(TEXTS, PLAIN, max_size=3),
)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(SPECS)
def test_a_spec_survives_its_markdown_form(spec: AgentSpec) -> None:
    """10.1.2."""
    front_matter = plain(
        {key: value for key, value in dataclasses.asdict(spec).items() if key != "system_prompt"}
    )
    text = f"---\n{yaml.safe_dump(front_matter)}---\n{spec.system_prompt}\n"
    assert from_markdown(text) == spec


@given(SPECS, st.sampled_from(["systemPrompt", "prompt", "system"]))
def test_a_spec_survives_its_json_form(spec: AgentSpec, key: str) -> None:
    """10.1.2."""
    fields = dataclasses.asdict(spec)
    fields[key] = fields.pop("system_prompt")
    assert AgentSpec.from_json(json.dumps(fields)) == spec


WORDS = st.sampled_from(
    [
        "---",
        "\n",
        "\r\n",
        " ",
        "name",
        "description",
        "tools",
        "model",
        ":",
        "a",
        "-",
        "[",
        "{",
        "!!int",
        "&a",
        "*a",
        "'",
    ]
)


@given(
    st.text()
    | st.lists(WORDS).map("".join)
    | st.lists(WORDS).map(lambda words: f"---\n{' '.join(words)}\n---\nx")
)
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    """10.1.2."""
    with suppress(InvalidInput):
        assert AgentSpec.from_markdown(text, json.loads).name


def test_defaults_of_an_agent_without_a_parent_are_not_written() -> None:
    """10.1.3"""
    spec = a_spec()
    assert (spec.capabilities, spec.max_steps, spec.max_tokens, spec.timeout_seconds) == (None,) * 4
    assert spec.approval == {}


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ("bash, files", {"bash": {}, "files": {}}),
        ("[bash, files, bash]", {"bash": {}, "files": {}}),
        ("{bash: {timeout: 5}, files: null}", {"bash": {"timeout": 5}, "files": {}}),
        ("[]", {}),
    ],
)
def test_capabilities_are_names_or_a_map_of_options(written: str, options: dict[str, Any]) -> None:
    """10.1.3"""
    text = f"---\nname: a\ndescription: b\ncapabilities: {written}\n---\nx"
    assert from_markdown(text).capabilities == options


def test_limits_and_approvals_are_read() -> None:
    """10.1.3"""
    front = "max_steps: 3\nmax_tokens: 500\ntimeout_seconds: 1.5\napproval: {bash: always}\ncompaction: off"
    spec = from_markdown(f"---\nname: a\ndescription: b\n{front}\n---\nx")
    assert (spec.max_steps, spec.max_tokens, spec.timeout_seconds) == (3, 500, 1.5)
    assert (spec.approval, spec.compaction) == ({"bash": "always"}, False)


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"capabilities": 3}, "'capabilities' must be a list of names or names between commas, not int"),
    ({"capabilities": [{"bash": {}}]}, "each name in 'capabilities' must be text, not dict"),
    ({"capabilities": {"bash": "fast"}}, "'capabilities.bash' must be a map, not str"),
    ({"capabilities": {"bash": [5]}}, "'capabilities.bash' must be a map, not list"),
    ({"capabilities": {"bash": {"at": {1}}}}, "'capabilities'.bash.at is of type set"),
    ({"max_steps": 0}, "'max_steps' must be a whole number of at least 1, not 0"),
    ({"max_steps": True}, "'max_steps' must be a whole number of at least 1, not True"),
    ({"max_tokens": "many"}, "'max_tokens' must be a whole number of at least 1, not 'many'"),
    ({"max_tokens": 1.5}, "'max_tokens' must be a whole number of at least 1, not 1.5"),
    ({"timeout_seconds": 0}, "'timeout_seconds' must be greater than zero, not 0"),
    ({"timeout_seconds": "5"}, "'timeout_seconds' must be a number, not str"),
    ({"timeout_seconds": float("inf")}, "'timeout_seconds' must be finite"),
    ({"compaction": "sometimes"}, "'compaction': it is 'on', 'off', or a map with the keys at, to and model"),
    ({"compaction": {"at": 2}}, "'compaction': at: "),
    ({"compaction": {"until": 0.5}}, "'compaction': it has no key 'until'; its keys are at, to and model"),
    ({"approval": "always"}, "'approval' must be a map, not str"),
    ({"approval": {"bash": "sometimes"}}, "'approval.bash': 'sometimes' is not an approval; use 'never'"),
]


@pytest.mark.parametrize(("changes", "problem"), UNUSABLE)
def test_an_invalid_value_is_reported_with_its_key(changes: dict[str, Any], problem: str) -> None:
    """10.1.3"""
    with pytest.raises(InvalidInput) as refused:
        a_spec(**changes)
    assert str(refused.value).startswith(problem)
