"""Normalised parts of a request; each driver converts them to its own format."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import PROVIDER_ITEMS, Message, call_entry
from everstep.agent_domain.values import FrozenDict, freeze, json_text, parse_json, thaw
from everstep.inference.json_reading import Json, record
from everstep.inference.presets import Preset

INVALID_JSON = "INVALID_JSON"
"""The key for arguments that were no JSON object, where the API accepts only an object."""


_ACCEPTED_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def output_limit(request: InferenceRequest, limit: int | None) -> int | None:
    """The length of the answer to ask for: the shorter of the limit and what a budget pays for."""
    given = [tokens for tokens in (request.max_output_tokens, limit) if tokens is not None]
    return min(given, default=None)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the model may, must or must not call."""

    mode: Literal["auto", "none", "required"]
    name: str | None = None
    """The only tool, which the model must call."""

    @classmethod
    def of(cls, preset: Preset, request: InferenceRequest) -> "ToolChoice | None":
        """The choice of the request, or else that of the preset if there are tools."""
        return cls.parse(request.tool_choice or (preset.tool_choice if request.tools else None))

    @classmethod
    def parse(cls, value: str | Mapping[str, Any] | None) -> "ToolChoice | None":
        """Read the values of all providers; any other text is the name of a tool."""
        if not value:
            return None
        if isinstance(value, str):
            return cls._of_word(value)
        name = (record(value.get("function")) or value).get("name")
        if isinstance(name, str):
            return cls("required", name)
        kind = value.get("type")
        if kind not in {"auto", "none", "any", "required"}:
            raise InvalidInput(
                f"tool_choice {json_text(value)} is not understood; "
                "use auto, none, required or the name of a tool"
            )
        return cls._of_word(kind)

    @classmethod
    def _of_word(cls, word: str) -> "ToolChoice":
        match word:
            case "auto" | "none" | "required":
                return cls(word)
            case "any":
                return cls("required")
            case name:
                return cls("required", name)


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """A tool's description for the model."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool | None = None

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> "FunctionSchema | None":
        """Read a tool's schema; None for a provider's own tool, such as its web search."""
        function = record(schema.get("function"))
        if schema.get("type") != "function" or not function:
            return None
        parameters = record(thaw(function.get("parameters"))) or {"type": "object", "properties": {}}
        return cls(
            str(function.get("name")),
            str(function.get("description") or ""),
            parameters,
            function.get("strict"),
        )


def with_accepted_names(request: InferenceRequest) -> InferenceRequest:
    """The request without names of tools that no provider accepts.

    Models call tools that do not exist, such as `functions.add`. Providers refuse whole conversations for it.
    """
    if all(_ACCEPTED_NAME.fullmatch(name) for message in request.messages for name in _called_names(message)):
        return request
    return replace(request, messages=tuple(map(_with_accepted_names, request.messages)))


def _called_names(message: Message) -> list[str]:
    return [call["function"]["name"] for call in message.calls]


def _with_accepted_names(message: Message) -> Message:
    names = _called_names(message)
    accepted = [re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_" for name in names]
    if names == accepted:
        return message
    calls = [
        call_entry(call["id"], name, call["function"]["arguments"])
        for name, call in zip(accepted, message.calls, strict=True)
    ]
    # Items of the provider repeat the name, and are signed with it.
    rest = {name: value for name, value in message.metadata.items() if name != PROVIDER_ITEMS}
    return replace(message, metadata=freeze(rest | {"tool_calls": calls}, "the calls"))


def call_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call in the conversation, as the object that providers require."""
    arguments: str = call["function"]["arguments"]
    try:
        value = parse_json(arguments or "{}")
    except InvalidInput:
        return {INVALID_JSON: arguments}
    return thaw(value) if isinstance(value, FrozenDict) else {INVALID_JSON: arguments}


def parallel_tool_calls(preset: Preset, request: InferenceRequest) -> bool | None:
    """Whether the model may call several tools at once; the agent's setting takes precedence."""
    if request.parallel_tool_calls is not None or not request.tools:
        return request.parallel_tool_calls
    return preset.parallel_tool_calls


def with_extra(preset: Preset, body: Json) -> Json:
    """The body with the preset's additional fields; those of an object are added to the driver's own."""
    added: Json = {
        name: {**record(body.get(name)), **record(cast("object", value))}
        if isinstance(value, dict)
        else value
        for name, value in record(thaw(preset.extra_body)).items()
    }
    return body | added


def cache_key(request: InferenceRequest) -> str | None:
    """A key that is equal for all requests with the same cached messages and tools."""
    cached = request.messages[: request.cached_messages]
    if not cached and not request.tools:
        return None
    beginning = json_text([request.tools, [[message.role, message.content] for message in cached]])
    return hashlib.sha256(beginning.encode()).hexdigest()[:32]
