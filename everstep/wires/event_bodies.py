"""The bodies that envelopes leave out: texts, arguments and results, which a reader of the log looks up.

Envelopes are small, so they have summaries where a wire needs the whole. `RunLog.needs` says which bodies an
envelope needs; the HTTP API loads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from everstep.agent_domain.messages.messages import PROVIDER_ITEMS, Message
from everstep.agent_domain.storage.metadata_changes import NO_METADATA_CHANGES, MetadataChanges
from everstep.agent_domain.values import EMPTY


@dataclass(frozen=True, slots=True)
class CallBody:
    """A call of a reply, with its result once there is one."""

    id: str
    name: str
    args: Mapping[str, Any]
    text: str = ""
    result: Any = None
    error: str | None = None
    is_done: bool = False
    """Whether it has its result."""
    is_denied: bool = False
    is_question: bool = False
    """Whether it asks a person, whose answer is its result."""
    changes: MetadataChanges = NO_METADATA_CHANGES
    files: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class StepBody:
    """A step whose reply is recorded."""

    number: int
    attempt: int = 1
    text: str = ""
    reasoning: str = ""
    calls: tuple[CallBody, ...] = ()
    because: str | None = None

    def call(self, call_id: str) -> CallBody | None:
        """The call with this id."""
        return next((call for call in self.calls if call.id == call_id), None)


@dataclass(frozen=True, slots=True)
class ExecutionBody:
    """An execution: its agent, its parent, and how it is explained now."""

    agent: str
    parent_id: str | None = None
    state: Mapping[str, Any] = EMPTY
    """The metadata of the agent at its begin."""
    because: str | None = None
    stop_reason: str | None = None
    usage: Mapping[str, int] = EMPTY


@dataclass(frozen=True, slots=True)
class NeedsExecution:
    """The execution at its begin."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class NeedsOutcome:
    """The execution as it is now, with its because."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class NeedsStep:
    """A step with its calls; `call_id` names one whose result is needed."""

    execution_id: str
    number: int
    call_id: str | None = None
    is_complete: bool = False
    """Whether the because of the step is needed as well."""


Need: TypeAlias = NeedsExecution | NeedsOutcome | NeedsStep


@dataclass(frozen=True, slots=True)
class Bodies:
    """What was loaded for an envelope; None for what does not exist."""

    executions: Mapping[str, ExecutionBody | None] = field(default_factory=dict[str, ExecutionBody | None])
    outcomes: Mapping[str, ExecutionBody | None] = field(default_factory=dict[str, ExecutionBody | None])
    steps: Mapping[tuple[str, int], StepBody | None] = field(
        default_factory=dict[tuple[str, int], StepBody | None]
    )


NO_BODIES = Bodies()


def json_map(value: object) -> Mapping[str, Any]:
    """A value of JSON as a map; empty if it is none."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else EMPTY


def reasoning_text(message: Message) -> str:
    """The readable reasoning among a provider's items: sealed reasoning is none."""
    bundles = cast("Sequence[object]", message.metadata.get(PROVIDER_ITEMS) or ())
    items = [json_map(item) for bundle in bundles for item in json_map(bundle).get("items") or ()]
    return "\n\n".join(text for item in items for text in _reasoning_parts(item) if text)


def _reasoning_parts(item: Mapping[str, Any]) -> Sequence[str]:
    if item.get("type") == "thinking":
        parts = [item.get("thinking")]
    elif item.get("type") == "reasoning":
        parts = [
            json_map(part).get("text") for name in ("summary", "content") for part in item.get(name) or ()
        ]
    else:
        parts = [*json_map(item.get("reasoning")).values()]
    return [part for part in parts if isinstance(part, str)]
