"""Snapshots: an agent's state as JSON, reduced to the parts that its readers need.

The slim form is for people, dashboards and the final record of an execution; the continuation
form holds the data with which another process can continue the conversation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

from everstep.agent_domain.checks import require_integer
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.facts import ExecutionFacts, StateInfo
from everstep.agent_domain.loop.status import AgentStatus
from everstep.agent_domain.loop.step_facts import StepFacts
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.messages import (
    PROVIDER_ITEMS,
    Message,
    MessageStore,
    Role,
    as_messages,
    export,
    is_text_part,
)
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import StepExecution
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    FrozenList,
    format_moment,
    frozen_document,
    frozen_map,
    parse_optional_moment,
    parse_optional_uuid,
    reading,
    truncate,
)

SCHEMA_VERSION = 1
OMITTED_RESULT = "[tool result omitted]"
_STRUCTURE = ("tool_calls", "tool_call_id", "tool_name")
"""Message metadata that are needed to send a conversation to a model again."""
_NOT_FOR_READERS = ("result", PROVIDER_ITEMS)
"""Message metadata for the agent and its model only, left out of slim snapshots."""


@dataclass(frozen=True, slots=True)
class SlimSerializationConfig:
    """How much of a state a slim snapshot holds; None means no limit."""

    max_messages: int | None = 50
    max_content_length: int | None = 2000
    max_steps: int | None = 20
    include_steps: bool = True
    include_tool_results: bool = True
    include_continuation_trace: bool = False
    redact_tool_args: bool = False
    include_metadata: bool = True

    def __post_init__(self) -> None:
        for name in ("max_messages", "max_content_length", "max_steps"):
            value = getattr(self, name)
            if value is not None:
                require_integer(name, value)

    @classmethod
    def minimal(cls) -> "SlimSerializationConfig":
        """The latest messages, without details."""
        return cls(20, 500, 0, False, False, False, True, False)

    @classmethod
    def standard(cls) -> "SlimSerializationConfig":
        """The default configuration."""
        return cls()

    @classmethod
    def full(cls) -> "SlimSerializationConfig":
        """More messages and steps, with traces, for debugging."""
        return cls(100, 5000, 50, include_continuation_trace=True)

    @classmethod
    def unlimited(cls) -> "SlimSerializationConfig":
        """The whole state."""
        return cls(None, None, None, include_continuation_trace=True)


class SlimAgentStateSerializer:
    """Converts states to slim snapshots, and slim snapshots to states with the data that they hold."""

    def __init__(self, config: SlimSerializationConfig | None = None) -> None:
        if not isinstance(cast("object", config), SlimSerializationConfig | None):
            raise InvalidInput(f"the configuration is {config!r}; pass a SlimSerializationConfig")
        self.config = config or SlimSerializationConfig.standard()

    def serialize(
        self,
        state: AgentState,
        steps: Sequence[Mapping[str, Any]] | None = None,
        current: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Make the snapshot; every key is always present.

        Args:
            state: The state.
            steps: The completed steps in slim form, if the state does not hold them.
            current: With `steps`, the step in progress; without it, the last step is current.
        """
        config, outcome = self.config, state.last_outcome
        traced = outcome if config.include_continuation_trace else None
        return {
            "schema_version": SCHEMA_VERSION,
            "agent_id": _id(state.agent_id),
            "parent_agent_id": _id(state.parent_agent_id),
            "status": state.status.value,
            "step_count": state.step_count,
            "usage": state.usage.to_wire(),
            "execution": _execution(state),
            "messages": self._messages(state.messages),
            "steps": self._steps(state) if steps is None else list(steps),
            "current_step": _current(state) if steps is None else current or next(reversed(steps), None),
            "last_continuation": traced and _continuation(traced.to_dict()),
            "metadata": dict(state.metadata) if config.include_metadata else {},
        }

    def _messages(self, messages: tuple[Message, ...]) -> list[dict[str, Any]]:
        return [self._message(message) for message in _last(messages, self.config.max_messages)]

    def _message(self, message: Message) -> dict[str, Any]:
        omitted = message.role is Role.TOOL and not self.config.include_tool_results
        content = OMITTED_RESULT if omitted else _cut_content(message.content, self.config.max_content_length)
        return {"role": message.role.value, "content": content, "metadata": self._metadata(message.metadata)}

    def _metadata(self, metadata: FrozenDict) -> dict[str, Any]:
        kept = {key: value for key, value in metadata.items() if key not in _NOT_FOR_READERS}
        if not self.config.include_metadata:
            kept = {key: value for key, value in kept.items() if key in _STRUCTURE}
        if self.config.redact_tool_args and "tool_calls" in kept:
            calls = kept["tool_calls"]
            kept["tool_calls"] = (
                [_call_reference(call) for call in calls] if isinstance(calls, FrozenList) else []
            )
        return kept

    def _steps(self, state: AgentState) -> list[dict[str, Any]]:
        records = state.execution.step_executions if self.config.include_steps else ()
        return [slim_step(record) for record in _last(records, self.config.max_steps)]

    def deserialize(self, data: Mapping[str, Any]) -> AgentState:
        """Read a state: ids, status, usage, metadata, clocks and messages of the snapshot, but no steps."""
        with reading("the snapshot"):
            return _state_from(frozen_document(data, "the snapshot"))


def slim_step(record: StepExecution) -> dict[str, Any]:
    """The slim form of a recorded step."""
    return slim_step_facts(record.step.facts(record.number), record.duration * 1000)


def slim_step_facts(step: StepFacts, duration_ms: float | None) -> dict[str, Any]:
    """The slim form of a step, from its facts."""
    return {
        "step_number": step.number,
        "type": step.step_type.value,
        "has_tool_calls": step.has_tool_calls,
        "finish_reason": step.finish_reason,
        "errors": len(step.errors),
        "usage": {"total": step.usage.total},
        "duration_ms": duration_ms,
        "tool_calls": [{"id": call.id, "name": call.name} for call in step.calls],
    }


def _current(state: AgentState) -> dict[str, Any] | None:
    """The latest step; its duration is known once it is recorded."""
    records, step = state.execution.step_executions, state.current_step
    if state.facts.is_recorded:
        return slim_step(records[-1]) if records else None
    return slim_step_facts(step.facts(len(records) + 1), None) if step else None


def _execution(state: AgentState) -> dict[str, Any]:
    # A snapshot is restored without the step in progress, so the working time of that step is included.
    info = state.state_info.add_execution_time(state.facts.seconds_under_way)
    return {
        "started_at": format_moment(info.started_at, 0) if info.started_at else None,
        "updated_at": format_moment(info.updated_at, 0) if info.updated_at else None,
        "cumulative_seconds": info.cumulative_execution_seconds,
        "session_seconds": info.session_execution_seconds,
        "step_count": state.step_count,
    }


def _continuation(outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "should_continue": outcome["shouldContinue"],
        "stop_reason": outcome["stopReason"],
        "resolved_by": outcome["resolvedBy"],
    }


def _last(entries: tuple[Any, ...], count: int | None) -> tuple[Any, ...]:
    if count is None:
        return entries
    return entries[-count:] if count > 0 else ()


def _cut_content(content: str | FrozenList, length: int | None) -> Any:
    """Cut a text to a length; in a list of parts, cut each text."""
    if length is None or length <= 0:
        return content
    if isinstance(content, str):
        return truncate(content, length)
    return [
        {**part, "text": truncate(part["text"], length)} if is_text_part(part) else part for part in content
    ]


def _call_reference(call: object) -> dict[str, Any]:
    """Reduce a call to its id and name."""
    entry = _map_or_empty(call)
    function = _map_or_empty(entry.get("function"))
    return {"id": entry.get("id"), "name": entry.get("name") or function.get("name") or "unknown"}


def _map_or_empty(value: object) -> FrozenDict:
    return value if isinstance(value, FrozenDict) else EMPTY


def _id(value: UUID | None) -> str | None:
    return str(value) if value else None


def _state_from(data: FrozenDict) -> AgentState:
    execution = frozen_map(data.get("execution") or {}, "execution")
    info = StateInfo(
        id=parse_optional_uuid(data.get("agent_id"), "agent_id"),
        started_at=parse_optional_moment(execution.get("started_at"), "started_at"),
        updated_at=parse_optional_moment(execution.get("updated_at"), "updated_at"),
        cumulative_execution_seconds=float(execution.get("cumulative_seconds") or 0.0),
        session_execution_seconds=float(execution.get("session_seconds") or 0.0),
    )
    status = AgentStatus(data.get("status") or AgentStatus.IN_PROGRESS)
    state = AgentState(
        agent_id=parse_optional_uuid(data.get("agent_id"), "agent_id"),
        parent_agent_id=parse_optional_uuid(data.get("parent_agent_id"), "parent_agent_id"),
        facts=ExecutionFacts(status=status, state_info=info, usage=Usage.from_dict(data.get("usage"))),
        metadata=frozen_map(data.get("metadata") or {}, "metadata"),
    )
    return state.with_messages(as_messages(data.get("messages") or ()))


CONTINUATION_VERSION = 1
CONTINUATION_MESSAGES = 50
CONTINUATION_CONTENT = 2000


class ContinuationAgentStateSerializer:
    """Converts states to the data with which another process can continue the conversation.

    The data are all sections of the conversation, the metadata and the ids.
    """

    def serialize(self, state: AgentState) -> dict[str, Any]:
        """Make the form that `deserialize` reads."""
        sections = [
            {"name": name, "messages": export(_shorten_messages(messages))}
            for name, messages in state.message_store.sections
        ]
        return {
            "version": CONTINUATION_VERSION,
            "agent_id": _id(state.agent_id),
            "parent_agent_id": _id(state.parent_agent_id),
            "message_store": {"sections": sections},
            "metadata": dict(state.metadata),
        }

    def deserialize(self, data: Mapping[str, Any]) -> AgentState:
        """Read a state in progress, without steps and usage."""
        with reading("the continuation state"):
            read = frozen_document(data, "the continuation state")
            if read.get("version", CONTINUATION_VERSION) != CONTINUATION_VERSION:
                raise InvalidInput(f"its version is {read['version']}; this one reads {CONTINUATION_VERSION}")
            return AgentState(
                agent_id=parse_optional_uuid(read.get("agent_id"), "agent_id"),
                parent_agent_id=parse_optional_uuid(read.get("parent_agent_id"), "parent_agent_id"),
                message_store=MessageStore.from_dict(read.get("message_store") or read),
                metadata=frozen_map(read.get("metadata") or {}, "metadata"),
            )


def _shorten_messages(messages: tuple[Message, ...]) -> Iterable[Message]:
    # Empty messages are left out of the serialized form, so they must not count towards the limit.
    non_empty = tuple(message for message in messages if not message.is_empty)
    for message in _last(non_empty, CONTINUATION_MESSAGES):
        yield replace(message, content=_cut_content(message.content, CONTINUATION_CONTENT))
