"""Agent specs: an agent as written in a file, with its name, description, prompt, tools and limits.

Two formats give the same value. Markdown, with the prompt as its body:

    ---
    name: reviewer
    description: Reviews a change before it is merged
    tools: bash, read_file
    model: inherit
    ---
    You review changes.

And JSON, with the prompt under `systemPrompt`, `prompt` or `system`. Unknown keys are ignored:
such files are shared with other programs. Without `tools` or `model`, an agent uses those of its
parent.

A top-level agent has no parent. It lists its `capabilities`, and may set limits and approvals.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from everstep.agent_domain.agents.budget_arguments import parse_budgets
from everstep.agent_domain.agents.compaction_policy import CompactionPolicy
from everstep.agent_domain.agents.front_matter import parse_names, split_front_matter
from everstep.agent_domain.agents.model_name import ModelName
from everstep.agent_domain.agents.plan import Profile
from everstep.agent_domain.capabilities.approvals import parse_approval
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.messages.response_format import output_format
from everstep.agent_domain.values import (
    FrozenDict,
    FrozenList,
    as_list,
    frozen_map,
    parse_json,
    truncate,
    type_name,
    valid_number,
    valid_text,
)

YamlParser = Callable[[str], object]
"""Port: parses a YAML text; raises `ValueError` if the text is not valid YAML."""

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_KEYS = (
    "name",
    "description",
    "tools",
    "model",
    "skills",
    "metadata",
    "capabilities",
    "max_steps",
    "max_tokens",
    "repeated_call_limit",
    "last_turn_without_tools",
    "timeout_seconds",
    "retry_seconds",
    "compaction",
    "budget",
    "approval",
    "error_policy",
    "profile",
    "output",
)
_PROMPT_KEYS = ("systemPrompt", "prompt", "system")


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent definition; the constructor raises `InvalidInput` for invalid values.

    `tools` and `skills` may be comma-separated text. `model` is the name of a preset, a model in one
    line (`openai:gpt-5.5`), `inherit`, or a map of model settings.
    """

    name: str
    description: str
    system_prompt: str
    tools: Sequence[str] | None = None
    """None: all tools of the parent; an empty list: no tools."""
    model: str | Mapping[str, Any] | None = None
    """None and `inherit`: the model of the parent."""
    skills: Sequence[str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)
    capabilities: Sequence[str] | Mapping[str, Any] | None = None
    """Names, or a map from names to options; stored as a map."""
    max_steps: int | None = None
    max_tokens: int | None = None
    timeout_seconds: float | None = None
    retry_seconds: float | None = None
    """How long a model call that fails in transport is retried."""
    compaction: bool | str | Mapping[str, Any] | None = None
    """How requests are kept within the model's context window: `on`, `off`, or a map; None: on."""
    budget: Sequence[Mapping[str, Any]] = ()
    """What model calls may use: a map with `usd`, `tokens` or `steps`, and optionally `on_exhausted`, `scope`
    and `degrade_to`, or a list of such maps. Stored as a list.
    """
    approval: Mapping[str, Any] = field(default_factory=FrozenDict)
    """Approval by the name of the tool: `never`, `always`, or a list of rules."""
    repeated_call_limit: int | None = None
    """How often the same call with the same result may be made in a row."""
    last_turn_without_tools: bool | None = None
    """Whether the model has to answer in the last step that `max_steps` allows."""
    error_policy: str | None = None
    """The name of a preset of `ErrorPolicy`, which decides whether a failure ends the execution."""
    profile: str | None = None
    """Where model calls are run: `regular` or `burst`."""
    output: Mapping[str, Any] | None = None
    """The JSON schema of the agent's result."""

    load_yaml: ClassVar[YamlParser | None] = None
    """Parses front matter. The domain has no YAML library: `everstep.agents` sets this parser."""

    def __post_init__(self) -> None:
        """Validate the fields and freeze them."""
        checked = {
            "name": _name(self.name),
            "description": _required_text(self.description, "description").strip(),
            "system_prompt": _prompt(self.system_prompt),
            "tools": _names(self.tools, "tools"),
            "model": _model(self.model),
            "skills": _names(self.skills, "skills"),
            "metadata": frozen_map(self.metadata, "'metadata'"),
            "capabilities": _capabilities(self.capabilities),
            "max_steps": _count(self.max_steps, "max_steps"),
            "max_tokens": _count(self.max_tokens, "max_tokens"),
            "repeated_call_limit": _count(self.repeated_call_limit, "repeated_call_limit"),
            "last_turn_without_tools": _flag(self.last_turn_without_tools, "last_turn_without_tools"),
            "timeout_seconds": _seconds(self.timeout_seconds, "timeout_seconds"),
            "retry_seconds": _retry_seconds(self.retry_seconds),
            "compaction": _compaction(self.compaction),
            "budget": _budget(self.budget),
            "approval": _approval(self.approval),
            "error_policy": _error_policy(self.error_policy),
            "profile": _profile(self.profile),
            "output": _output(self.output),
        }
        for key, value in checked.items():
            object.__setattr__(self, key, value)

    @classmethod
    def from_mapping(cls, front_matter: object, prompt: str) -> "AgentSpec":
        """Read a spec from a map of keys and a prompt.

        Raises:
            InvalidInput: It is not a map, or a value is invalid.
        """
        if not isinstance(front_matter, Mapping):
            raise InvalidInput(f"The front matter must be a map of keys, not {type(front_matter).__name__}")
        return _build_spec(cast("Mapping[object, Any]", front_matter), prompt)

    @classmethod
    def from_markdown(cls, text: str, load_yaml: YamlParser | None = None) -> "AgentSpec":
        """Read a spec from front matter, with the body as its prompt.

        Args:
            text: The whole file.
            load_yaml: A YAML parser to use instead of Everstep's.

        Raises:
            InvalidInput: There is no front matter, it is not valid YAML, or a value is invalid.
        """
        read = load_yaml or cls.load_yaml
        if read is None:
            raise InvalidInput("no YAML parser is set; import AgentSpec from everstep, or pass load_yaml")
        front_matter, body = split_front_matter(valid_text(text, "the agent"))
        if front_matter is None:
            raise InvalidInput(
                "The text has no front matter; begin it with a line '---', the keys, and a line '---'"
            )
        try:
            # The newline replaces the opening fence, so that errors have the line numbers of the file.
            given = read(f"\n{front_matter}")
        except ValueError as error:
            raise InvalidInput(f"The front matter is not valid YAML: {error}") from error
        return cls.from_mapping({} if given is None else given, body.strip())

    @classmethod
    def from_json(cls, given: str | Mapping[str, Any]) -> "AgentSpec":
        """Read a spec from a JSON object or its text.

        Raises:
            InvalidInput: It is not a JSON object, or a value is invalid.
        """
        value: object = parse_json(given, "the agent") if isinstance(given, str) else given
        if not isinstance(value, Mapping):
            raise InvalidInput(f"The agent must be a JSON object, not {type_name(value)}")
        fields = cast("Mapping[object, Any]", value)
        prompts = [fields[key] for key in _PROMPT_KEYS if fields.get(key) is not None]
        return _build_spec(fields, prompts[0] if prompts else "")

    def validate(self, parent_tools: Iterable[str]) -> list[str]:
        """One error text for each tool of the spec that the parent does not have."""
        parent_names = as_list(parent_tools, "the tools of the parent")
        missing = [tool for tool in self.tools or () if tool not in parent_names]
        return [f"Agent '{self.name}' asks for tool '{tool}', which its parent lacks" for tool in missing]


def _build_spec(given: Mapping[object, Any], prompt: Any) -> AgentSpec:
    fields: dict[str, Any] = {key: given[key] for key in _KEYS if given.get(key) is not None}
    needed: dict[str, Any] = {"name": "", "description": "", "system_prompt": prompt}
    return AgentSpec(**(needed | fields))


def _required_text(value: object, key: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InvalidInput(f"The agent needs a '{key}'")
    return valid_text(value, f"'{key}'")


def _name(value: object) -> str:
    name = _required_text(value, "name")
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"'{truncate(name, 64)}' cannot be the name of an agent; "
            "begin with a letter a-z and go on with letters a-z, digits and hyphens"
        )
    return name


def _prompt(value: object) -> str:
    prompt = valid_text(value, "the prompt")
    if not prompt.strip():
        raise InvalidInput(
            "The agent needs a prompt; write it below the front matter, or in JSON under 'systemPrompt'"
        )
    return prompt


def _names(value: object, key: str) -> FrozenList | None:
    return None if value is None else FrozenList(parse_names(value, key))


def _model(value: object) -> str | FrozenDict | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return frozen_map(cast("object", value), "'model'")
    if not isinstance(value, str) or not value.strip():
        given = "blank" if isinstance(value, str) else type(value).__name__
        raise InvalidInput(
            f"'model' must be a model's or a preset's name, 'inherit' or a map of settings, not {given}"
        )
    name = valid_text(value, "'model'").strip()
    ModelName.parse(name)
    return name


def _capabilities(value: object) -> FrozenDict | None:
    """The options of each capability by its name; an empty map without options."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return FrozenDict(dict.fromkeys(parse_names(value, "capabilities"), FrozenDict()))
    given = frozen_map(cast("object", value), "'capabilities'")
    return FrozenDict(
        {
            name: FrozenDict() if options is None else frozen_map(options, f"'capabilities.{name}'")
            for name, options in given.items()
        }
    )


def _count(value: object, key: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidInput(f"'{key}' must be a whole number of at least 1, not {truncate(repr(value), 64)}")
    return value


def _flag(value: object, key: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"'{key}' must be true or false, not {truncate(repr(value), 64)}")
    return value


def _seconds(value: object, key: str) -> float | None:
    if value is None:
        return None
    seconds = valid_number(value, f"'{key}'")
    if seconds <= 0:
        raise InvalidInput(f"'{key}' must be greater than zero, not {seconds:g}")
    return seconds


def _retry_seconds(value: object) -> float | None:
    if value is None:
        return None
    seconds = valid_number(value, "'retry_seconds'")
    if seconds < 0:
        raise InvalidInput(f"'retry_seconds' must be 0 or more, not {seconds:g}")
    return seconds


def _compaction(value: object) -> bool | str | FrozenDict | None:
    if value is None:
        return None
    try:
        CompactionPolicy.read(value)
    except InvalidInput as error:
        raise InvalidInput(f"'compaction': {error}") from None
    if isinstance(value, Mapping):
        return frozen_map(cast("object", value), "'compaction'")
    return cast("bool | str", value)


def _budget(value: object) -> FrozenList:
    entries = [cast("object", value)] if isinstance(value, Mapping) else as_list(value, "'budget'")
    given = FrozenList(frozen_map(entry, "'budget'") for entry in entries)
    for entry in given:
        parse_budgets(entry, "'budget'")
    return given


def _approval(value: object) -> FrozenDict:
    given = frozen_map(value, "'approval'")
    for tool, approval in given.items():
        try:
            parse_approval(approval)
        except InvalidInput as error:
            raise InvalidInput(f"'approval.{tool}': {error}") from None
    return given


def _profile(value: object) -> str | None:
    return None if value is None else str(Profile.parse(value, "'profile'"))


def _error_policy(value: object) -> str | None:
    if value is None:
        return None
    name = valid_text(value, "'error_policy'")
    try:
        ErrorPolicy.named(name)
    except InvalidInput as error:
        raise InvalidInput(f"'error_policy': {error}") from None
    return name


def _output(value: object) -> FrozenDict | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidInput(f"'output' must be a JSON schema, not {type_name(value)}")
    try:
        output_format(cast("object", value))
    except InvalidInput as error:
        raise InvalidInput(f"'output': {error}") from None
    return frozen_map(cast("object", value), "'output'")
