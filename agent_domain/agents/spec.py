"""An agent as people write it down: its name, when to use it, its prompt, what it may use.

Two written forms give the same value. Markdown, with the prompt as its body:

    ---
    name: reviewer
    description: Reviews a change before it is merged
    tools: bash, read_file
    model: inherit
    ---
    You review changes.

And JSON, with the prompt under `systemPrompt`, `prompt` or `system`. Keys that are not ours
are ignored: such files are shared with other programs. Left out, tools and model are those
of the parent.

An agent that is started by itself has no parent. It says by `capabilities` what it can do, and may
set limits and approvals of its own.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from everstep.agent_domain.agents.front_matter import names_of, split_front_matter
from everstep.agent_domain.capabilities.approvals import parse_approval
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.error_policy import ErrorPolicy
from everstep.agent_domain.values import (
    FrozenDict,
    FrozenList,
    cut,
    frozen_map,
    listed,
    number,
    parse_json,
    type_name,
    valid_text,
)

ReadsYaml = Callable[[str], object]
"""Port: the value that a YAML text stands for; `ValueError` when the text is no valid YAML."""

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
    "timeout_seconds",
    "retry_seconds",
    "approval",
    "error_policy",
)
_PROMPT_KEYS = ("systemPrompt", "prompt", "system")


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """One agent definition; to make an invalid one raises `InvalidInput`.

    `tools` and `skills` may be given as comma text, `model` as the name of a preset, as
    `inherit` or as a map of model settings.
    """

    name: str
    description: str
    system_prompt: str
    tools: Sequence[str] | None = None
    """None stands for all tools of the parent, an empty list for none."""
    model: str | Mapping[str, Any] | None = None
    """None and `inherit` stand for the model of the parent."""
    skills: Sequence[str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)
    capabilities: Sequence[str] | Mapping[str, Any] | None = None
    """Names, or a map from names to options; kept as that map."""
    max_steps: int | None = None
    max_tokens: int | None = None
    timeout_seconds: float | None = None
    retry_seconds: float | None = None
    """How long a model call that fails in transport is tried again."""
    approval: Mapping[str, Any] = field(default_factory=FrozenDict)
    """Whether calls wait for a person, by the name of the tool: `never`, `always`, or a list of rules."""
    error_policy: str | None = None
    """What a failure means for the run: the name of a preset of `ErrorPolicy`."""

    load_yaml: ClassVar[ReadsYaml | None] = None
    """Reads front matter. The domain has no YAML library: `everstep.agents` sets this one."""

    def __post_init__(self) -> None:
        """Replace what was given by its checked, frozen form."""
        checked = {
            "name": _name(self.name),
            "description": _needed(self.description, "description").strip(),
            "system_prompt": _prompt(self.system_prompt),
            "tools": _names(self.tools, "tools"),
            "model": _model(self.model),
            "skills": _names(self.skills, "skills"),
            "metadata": frozen_map(self.metadata, "'metadata'"),
            "capabilities": _capabilities(self.capabilities),
            "max_steps": _count(self.max_steps, "max_steps"),
            "max_tokens": _count(self.max_tokens, "max_tokens"),
            "timeout_seconds": _seconds(self.timeout_seconds, "timeout_seconds"),
            "retry_seconds": _retry_seconds(self.retry_seconds),
            "approval": _approval(self.approval),
            "error_policy": _error_policy(self.error_policy),
        }
        for key, value in checked.items():
            object.__setattr__(self, key, value)

    @classmethod
    def from_mapping(cls, front_matter: object, prompt: str) -> "AgentSpec":
        """The spec that a map describes, in everything but the prompt."""
        if not isinstance(front_matter, Mapping):
            raise InvalidInput(f"The front matter must be a map of keys, not {type(front_matter).__name__}")
        return _spec(cast("Mapping[object, Any]", front_matter), prompt)

    @classmethod
    def from_markdown(cls, text: str, load_yaml: ReadsYaml | None = None) -> "AgentSpec":
        """The spec in front matter, its prompt in the body.

        Args:
            text: The whole file.
            load_yaml: Another reader of YAML than Everstep's.

        Raises:
            InvalidInput: There is no front matter, it is no valid YAML, or it describes no agent.
        """
        read = load_yaml or cls.load_yaml
        if read is None:
            raise InvalidInput("no reader of YAML is set; import AgentSpec from everstep, or pass load_yaml")
        front_matter, body = split_front_matter(valid_text(text, "the agent"))
        if front_matter is None:
            raise InvalidInput(
                "The text has no front matter; begin it with a line '---', the keys, and a line '---'"
            )
        try:
            # Below a line, as in the file: then errors name the lines by their numbers there.
            given = read(f"\n{front_matter}")
        except ValueError as error:
            raise InvalidInput(f"The front matter is no valid YAML: {error}") from error
        return cls.from_mapping({} if given is None else given, body.strip())

    @classmethod
    def from_json(cls, given: str | Mapping[str, Any]) -> "AgentSpec":
        """The spec in a JSON object, or in its text."""
        value: object = parse_json(given, "the agent") if isinstance(given, str) else given
        if not isinstance(value, Mapping):
            raise InvalidInput(f"The agent must be a JSON object, not {type_name(value)}")
        fields = cast("Mapping[object, Any]", value)
        prompts = [fields[key] for key in _PROMPT_KEYS if fields.get(key) is not None]
        return _spec(fields, prompts[0] if prompts else "")

    def validate(self, parent_tools: Iterable[str]) -> list[str]:
        """What a parent with these tools could not give it, one text for each."""
        known = listed(parent_tools, "the tools of the parent")
        lacking = [tool for tool in self.tools or () if tool not in known]
        return [f"Agent '{self.name}' asks for tool '{tool}', which its parent lacks" for tool in lacking]


def _spec(given: Mapping[object, Any], prompt: Any) -> AgentSpec:
    fields: dict[str, Any] = {key: given[key] for key in _KEYS if given.get(key) is not None}
    needed: dict[str, Any] = {"name": "", "description": "", "system_prompt": prompt}
    return AgentSpec(**(needed | fields))


def _needed(value: object, key: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InvalidInput(f"The agent needs a '{key}'")
    return valid_text(value, f"'{key}'")


def _name(value: object) -> str:
    name = _needed(value, "name")
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"'{cut(name, 64)}' cannot be the name of an agent; "
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
    return None if value is None else FrozenList(names_of(value, key))


def _model(value: object) -> str | FrozenDict | None:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return frozen_map(cast("object", value), "'model'")
    if not isinstance(value, str) or not value.strip():
        given = "blank" if isinstance(value, str) else type(value).__name__
        raise InvalidInput(f"'model' must be a preset's name, 'inherit' or a map of settings, not {given}")
    return valid_text(value, "'model'").strip()


def _capabilities(value: object) -> FrozenDict | None:
    """The options of each, by its name: an empty map where none are given."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return FrozenDict(dict.fromkeys(names_of(value, "capabilities"), FrozenDict()))
    given = frozen_map(cast("object", value), "'capabilities'")
    return FrozenDict(
        {
            name: FrozenDict() if options is None else frozen_map(options, f"'capabilities.{name}'")
            for name, options in given.items()
        }
    )


def _count(value: object, key: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise InvalidInput(f"'{key}' must be a whole number of at least 1, not {cut(repr(value), 64)}")
    return value


def _seconds(value: object, key: str) -> float | None:
    if value is None:
        return None
    seconds = number(value, f"'{key}'")
    if seconds <= 0:
        raise InvalidInput(f"'{key}' must be greater than zero, not {seconds:g}")
    return seconds


def _retry_seconds(value: object) -> float | None:
    if value is None:
        return None
    seconds = number(value, "'retry_seconds'")
    if seconds < 0:
        raise InvalidInput(f"'retry_seconds' must be 0 or more, not {seconds:g}")
    return seconds


def _approval(value: object) -> FrozenDict:
    given = frozen_map(value, "'approval'")
    for tool, approval in given.items():
        try:
            parse_approval(approval)
        except InvalidInput as error:
            raise InvalidInput(f"'approval.{tool}': {error}") from None
    return given


def _error_policy(value: object) -> str | None:
    if value is None:
        return None
    name = valid_text(value, "'error_policy'")
    try:
        ErrorPolicy.named(name)
    except InvalidInput as error:
        raise InvalidInput(f"'error_policy': {error}") from None
    return name
