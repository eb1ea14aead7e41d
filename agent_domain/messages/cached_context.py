"""Model requests, and the part of them that stays the same from step to step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstep.agent_domain.messages.messages import Messages, Role, as_messages, system
from everstep.agent_domain.messages.response_format import ResponseFormat, as_response_format
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    as_list,
    freeze,
    read_optional,
    require_map,
    valid_text,
)


@dataclass(frozen=True, slots=True)
class CachedContext:
    """Messages and settings that precede every request of a run, so that providers can cache them."""

    messages: Messages = ()
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | FrozenDict | None = None
    response_format: ResponseFormat | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", as_messages(self.messages))
        object.__setattr__(self, "tools", freeze(as_list(self.tools, "tools"), "tools"))
        object.__setattr__(self, "tool_choice", freeze(self.tool_choice, "tool_choice") or None)
        object.__setattr__(self, "response_format", as_response_format(self.response_format))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (self.messages or self.tools or self.tool_choice or self.response_format)

    @property
    def output(self) -> ResponseFormat | None:
        """The format of the run's result, which is validated; None if answers are not checked."""
        found = self.response_format
        return found if found is not None and found.is_checked else None

    def with_system_prompt(self, prompt: str) -> "CachedContext":
        """A copy with the prompt before all cached messages; blank or repeated prompts change nothing."""
        message = system(valid_text(prompt, "the system prompt").strip())
        if not message.content or message in self.messages:
            return self
        return replace(self, messages=(message, *self.messages))

    def with_response_format(
        self, given: "ResponseFormat | Mapping[str, Any] | type | None"
    ) -> "CachedContext":
        """A copy with another response format."""
        return replace(self, response_format=as_response_format(given))

    def with_tools(self, schemas: Iterable[Mapping[str, Any]]) -> "CachedContext":
        """A copy with these tool schemas."""
        return replace(self, tools=as_list(schemas, "tools"))

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        return {
            "messages": [m.to_dict() for m in self.messages],
            "tools": self.tools,
            "toolChoice": self.tool_choice,
            "responseFormat": self.response_format.to_dict() if self.response_format else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any] | None) -> "CachedContext":
        """Read the JSON form; unknown keys are ignored."""
        data = data or EMPTY
        require_map(data, "the cached context")
        return cls(
            read_optional(data, "messages", as_messages) or (),
            data.get("tools") or (),
            data.get("toolChoice"),
            read_optional(data, "responseFormat", as_response_format),
        )


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """The complete request to a model in one step; the first `cached_messages` messages may be cached."""

    messages: Messages
    cached_messages: int = 0
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | FrozenDict | None = None
    response_format: ResponseFormat | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    """The length of the answer that a budget pays for; a shorter one in the model's settings applies."""

    @classmethod
    def compile(
        cls,
        conversation: Messages,
        cached: CachedContext = CachedContext(),
        own: CachedContext = CachedContext(),
        *,
        parallel_tools: bool = True,
    ) -> "InferenceRequest":
        """Combine the cached context and the conversation into a request.

        Args:
            conversation: The messages after the cached ones.
            cached: The context that precedes every request of the run.
            own: The context of this request alone; its settings replace the cached ones.
            parallel_tools: Whether the model may call several tools at once.
        """
        tools = own.tools or cached.tools
        return cls(
            (*cached.messages, *own.messages, *without_orphans(conversation)),
            len(cached.messages),
            tools,
            (own.tool_choice or cached.tool_choice) if tools else None,
            own.response_format or cached.response_format,
            False if tools and not parallel_tools else None,
        )


def without_orphans(messages: Messages) -> Messages:
    """Remove leading tool results whose call is not in the conversation: providers refuse those."""
    called = {call.get("id") for message in messages for call in message.calls}
    for index, message in enumerate(messages):
        if message.role is not Role.TOOL or message.answers in called:
            return messages[index:]
    return ()
