"""Anthropic's Messages API.

Thinking is signed: its blocks are sent back unchanged, in their places between texts and calls. Blocks
without a signature (from an answer that was cut off) are not sent.

A prompt is cached up to a mark. Marks are placed after the tools, after the cached messages, and at the end
of an agent's conversation, because the next step begins with the same messages.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import anthropic

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.finish_reason import FinishReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Message, Role, is_text_part
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import json_text, thaw
from everstep.inference.context_windows import default_output
from everstep.inference.json_reading import Json, count
from everstep.inference.loop_clients import LoopClients
from everstep.inference.presets import Preset
from everstep.inference.provider_items import bundle_items, matches_message, own_items
from everstep.inference.provider_model import ProviderModel, SdkErrors, timeouts, utc_now
from everstep.inference.request_parts import (
    INVALID_JSON,
    FunctionSchema,
    ToolChoice,
    call_arguments,
    output_limit,
    parallel_tool_calls,
    with_extra,
)
from everstep.inference.spoken import AnswerText, storable
from everstep.inference.strict_schemas import refers_to_itself

ADDRESS = "https://api.anthropic.com"
BEGIN = "Begin."
CONTINUE = "Continue."
"""Conversations begin and end with the user: the API refuses another first message, and continues another
last one.
"""

_CACHED = {"type": "ephemeral"}
_DONE = "[DONE]"
"""The last event in the streams of some servers."""


_COUNTED_FIELDS = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"}
)
"""Fields of a request that the counter takes; it refuses others."""

_T = TypeVar("_T")


class _EventStream(anthropic.AsyncStream[_T]):
    """The SDK's stream drops events without a name; this one keeps them, as they show another API."""

    async def _iter_events(self) -> AsyncIterator[Any]:
        async for event in super()._iter_events():
            if event.event is None and event.data not in ("", _DONE):
                yield type(event)(event="message", data=event.data, id=event.id, retry=event.retry)
            else:
                yield event


class AnthropicMessages(ProviderModel):
    """A model behind the Messages API."""

    errors = SdkErrors(
        anthropic.AnthropicError,
        anthropic.APIStatusError,
        anthropic.APITimeoutError,
        anthropic.APIConnectionError,
    )

    def __init__(self, preset: Preset, key: str | None, now: Callable[[], datetime] = utc_now) -> None:
        super().__init__(preset, key, now)
        self._clients = LoopClients(lambda: _client(preset, key))

    def body(self, request: InferenceRequest) -> Json:
        """The request, without fields that are not set."""
        return request_body(self.preset, request)

    def can_enforce(self, response_format: ResponseFormat) -> bool:
        """Whether the API can enforce the schema; it refuses those of trees, and parts of any type."""
        if refers_to_itself(response_format.schema):
            return False
        try:
            _strict_schema(response_format)
        except InvalidInput:
            return False
        return True

    def reader(self) -> "MessagesReader":
        """A reader for one answer."""
        return MessagesReader(self.preset.origin)

    async def open(self, body: Json) -> anthropic.AsyncStream[object]:
        """Send the request."""
        sdk = await self._clients.get()
        return await sdk.post(
            "/v1/messages", cast_to=object, body=body, stream=True, stream_cls=_EventStream[object]
        )

    async def _post_count(self, body: Json) -> object:
        sdk = await self._clients.get()
        counted = {name: value for name, value in body.items() if name in _COUNTED_FIELDS}
        return await sdk.post("/v1/messages/count_tokens", cast_to=object, body=counted)


def _client(preset: Preset, key: str | None) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        # Without a key the SDK would look for one in the environment and on the disk.
        api_key=key or "none",
        base_url=preset.base_url or ADDRESS,
        max_retries=0,
        timeout=timeouts(),
        default_headers=dict(preset.extra_headers),
        # A request has one span, which `observe_request` opens, and providers learn no ids of traces.
        open_telemetry=False,
    )


# --- The request ---


def request_body(preset: Preset, request: InferenceRequest) -> Json:
    """The request in the format of the Messages API."""
    tools = [_tool(schema) for schema in request.tools]
    prompt = _MessagesPrompt(preset.origin)
    for index, message in enumerate(request.messages):
        prompt.add(message)
        if index == request.cached_messages - 1:
            prompt.mark()
    if tools:
        tools[-1]["cache_control"] = _CACHED
        prompt.close()
        prompt.mark()
    prompt.close()
    optional: Json = {
        "system": [*prompt.system, *_instructions(request.response_format)] or None,
        "tools": tools or None,
        "tool_choice": _tool_choice(preset, request),
        "output_config": _output_config(preset, request.response_format),
        "thinking": _thinking(preset.reasoning_effort),
        "stop_sequences": list(preset.stop) or None,
        "service_tier": preset.service_tier,
    }
    fixed: Json = {
        "model": preset.model,
        "max_tokens": output_limit(request, preset.max_output_tokens or default_output(preset)),
        "messages": prompt.messages,
        "stream": True,
    }
    return with_extra(preset, fixed | {name: value for name, value in optional.items() if value is not None})


class _MessagesPrompt:
    """Messages of this API: instructions separately, then user and assistant in turns."""

    def __init__(self, origin: str) -> None:
        self.system: list[Json] = []
        self.messages: list[Json] = []
        self._origin = origin

    def add(self, message: Message) -> None:
        """Add a message to the turn of its role."""
        match message.role:
            case Role.SYSTEM | Role.DEVELOPER if not self.messages:
                self.system.extend(_blocks(message))
            case Role.SYSTEM | Role.DEVELOPER:
                # Few models accept instructions in the middle of a conversation.
                self._append("user", [{"type": "text", "text": f"<system>\n{message.text}\n</system>"}])
            case Role.ASSISTANT:
                self._append("assistant", _own_blocks(self._origin, message) or _plain_blocks(message))
            case Role.TOOL:
                result = {"type": "tool_result", "tool_use_id": message.answers}
                self._append("user", [{**result, "content": _result(message)}])
            case Role.USER:
                self._append("user", _blocks(message))

    def _append(self, role: str, blocks: Sequence[Json]) -> None:
        if not blocks:
            return
        if not self.messages and role == "assistant":
            self._append("user", [{"type": "text", "text": BEGIN}])
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"].extend(blocks)
        else:
            self.messages.append({"role": role, "content": list(blocks)})

    def close(self) -> None:
        """Make sure that the user has the last turn."""
        if not self.messages:
            self._append("user", [{"type": "text", "text": BEGIN}])
        if self.messages[-1]["role"] == "assistant":
            self._append("user", [{"type": "text", "text": CONTINUE}])

    def mark(self) -> None:
        """Mark the messages so far as cacheable."""
        blocks = self.messages[-1]["content"] if self.messages else self.system
        if blocks:
            blocks[-1] = {**blocks[-1], "cache_control": _CACHED}


def _blocks(message: Message) -> list[Json]:
    """The content as blocks, without blank text, which the API refuses."""
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}] if message.content.strip() else []
    blocks = [_part(thaw(part)) for part in message.content]
    return [block for block in blocks if block.get("type") != "text" or block["text"].strip()]


def _result(message: Message) -> str | list[Json]:
    return message.content if isinstance(message.content, str) else _blocks(message)


def _part(part: Json) -> Json:
    """A part in the format of this API; unknown parts, and those in that format already, are passed on."""
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return {"type": "image", "source": _source(url)}
        case {"type": "file", "file": {"file_data": str(data), **file}}:
            title = {"title": file["filename"]} if file.get("filename") else {}
            return {"type": "document", "source": _source(data), **title}
        case {"type": "text"}:
            return part
        case _ if is_text_part(part):
            return {"type": "text", "text": part["text"]}
        case _:
            return part


def _source(url: str) -> Json:
    """The source of an image or a document: a URL, or the data in a `data:` URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:"):
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": head[len("data:") :].split(";")[0], "data": data}


def _own_blocks(origin: str, message: Message) -> list[Json]:
    """The blocks that this model made, if they still match the message."""
    blocks = own_items(origin, message)
    call_ids = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    return blocks if matches_message(message, _joined_text(blocks), call_ids) else []


def _plain_blocks(message: Message) -> list[Json]:
    """The text and the calls of an assistant message as blocks, whichever model made it."""
    calls = (
        {"type": "tool_use", "id": c["id"], "name": c["function"]["name"], "input": call_arguments(c)}
        for c in message.calls
    )
    return [*_blocks(message), *calls]


def _tool(schema: Mapping[str, Any]) -> Json:
    function = FunctionSchema.of(schema)
    if function is None:
        return thaw(schema)
    tool: Json = {
        "name": function.name,
        "description": function.description,
        "input_schema": function.parameters,
    }
    return tool | ({} if function.strict is None else {"strict": function.strict})


def _tool_choice(preset: Preset, request: InferenceRequest) -> Json | None:
    choice = ToolChoice.of(preset, request)
    alone = {"disable_parallel_tool_use": True} if parallel_tool_calls(preset, request) is False else {}
    if choice is None:
        return {"type": "auto", **alone} if alone else None
    if choice.name:
        return {"type": "tool", "name": choice.name, **alone}
    match choice.mode:
        case "none":
            return {"type": "none"}
        case "auto":
            return {"type": "auto", **alone}
        case "required":
            return {"type": "any", **alone}


def _thinking(effort: str | None) -> Json | None:
    if effort is None:
        return None
    return {"type": "disabled"} if effort == "none" else {"type": "adaptive"}


def _output_config(preset: Preset, response_format: ResponseFormat | None) -> Json | None:
    effort = preset.reasoning_effort
    config: Json = {"effort": effort} if effort and effort != "none" else {}
    if response_format is not None and _is_enforced(response_format):
        config["format"] = {"type": "json_schema", "schema": _strict_schema(response_format)}
    return config or None


def _is_enforced(response_format: ResponseFormat) -> bool:
    """Whether the API enforces it: it supports strict schemas only, others are requested in the prompt."""
    return response_format.type == "json_schema" and response_format.strict


def _strict_schema(response_format: ResponseFormat) -> Json:
    try:
        return anthropic.transform_schema(thaw(response_format.schema))
    except (ValueError, AttributeError, TypeError, AssertionError) as error:
        problem = (
            f"the response format '{response_format.name}' has a schema that cannot be enforced: {error}"
        )
        raise InvalidInput(problem) from None


def _instructions(response_format: ResponseFormat | None) -> Iterator[Json]:
    if response_format is None or response_format.type == "text" or _is_enforced(response_format):
        return
    schema = (
        f" that satisfies this JSON schema:\n{json_text(response_format.schema)}"
        if response_format.schema
        else "."
    )
    yield {"type": "text", "text": f"Answer with one JSON object and nothing else{schema}"}


# --- The answer ---

_FINISH = {
    "end_turn": FinishReason.STOP,
    "refusal": FinishReason.CONTENT_FILTER,
    "model_context_window_exceeded": FinishReason.LENGTH,
}
# Deltas of a block, and the field of the block that each continues.
_CONTINUES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


class MessagesReader:
    """Reads the events of one answer."""

    def __init__(self, origin: str) -> None:
        self.spoken = AnswerText()
        self.is_complete = False
        self._origin = origin
        self._blocks: dict[int, Json] = {}
        self._arguments: dict[int, str] = {}
        self._usage: Json = {}
        self._stop_reason = ""
        self.has_output = False

    def feed(self, event: Json) -> None:
        """Process an event; unknown events are ignored."""
        match event["type"]:
            case "message_start":
                self._count(event["message"].get("usage"))
            case "content_block_start":
                self._start(event["index"], event["content_block"])
            case "content_block_delta":
                self._continue(event["index"], event["delta"])
            case "message_delta":
                self._count(event.get("usage"))
                self._stop_reason = event["delta"].get("stop_reason") or self._stop_reason
            case "message_stop":
                self.is_complete = bool(self._stop_reason)
            case _:
                pass

    @property
    def is_counted(self) -> bool:
        """Whether the counters of the whole answer were read: they come with the stop reason."""
        return bool(self._stop_reason)

    @property
    def usage(self) -> Usage:
        """The counters so far."""
        return usage(self._usage)

    def _count(self, counts: Mapping[str, Any] | None) -> None:
        """Counters are running totals; missing ones keep their value."""
        self._usage |= {name: value for name, value in (counts or {}).items() if value is not None}

    def _start(self, index: int, block: Json) -> None:
        self.has_output = True
        self._blocks[index] = dict(block)
        if block["type"] == "text":
            self.spoken.append(block.get("text") or "")
        else:
            self.spoken.begin_paragraph()

    def _continue(self, index: int, delta: Json) -> None:
        block, kind = self._blocks[index], delta["type"]
        if kind in _CONTINUES:
            name = _CONTINUES[kind]
            block[name] = (block.get(name) or "") + delta[name]
            if kind == "text_delta":
                self.spoken.append(delta["text"])
        elif kind == "input_json_delta":
            self._arguments[index] = self._arguments.get(index, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]

    def response(self) -> InferenceResponse:
        """The complete answer."""
        calls = tuple(self._call(i, b) for i, b in sorted(self._blocks.items()) if b["type"] == "tool_use")
        return InferenceResponse(
            self.spoken.text,
            calls,
            _FINISH.get(self._stop_reason, FinishReason.parse(self._stop_reason)).value,
            self.usage,
            bundle_items(self._origin, _to_return(self._returnable_blocks())),
        )

    def _call(self, index: int, block: Json) -> ToolCall:
        # Some servers send the complete arguments when the block starts.
        arguments = self._arguments.get(index) or json_text(block.get("input") or {})
        return ToolCall.from_text(block["id"], storable(block["name"]), storable(arguments))

    def _returnable_blocks(self) -> Iterator[Json]:
        """The blocks in the form in which they may be sent back."""
        for index, block in sorted(self._blocks.items()):
            if block["type"] == "tool_use":
                call = self._call(index, block)
                arguments = call.args if call.malformed is None else {INVALID_JSON: call.malformed}
                yield {**block, "input": arguments}
            elif block["type"] != "text":
                yield block
            elif block["text"].strip():
                yield {name: value for name, value in block.items() if value is not None}


def _to_return(blocks: Iterable[Json]) -> list[Json]:
    """The blocks, if they hold more than the message does.

    Thinking that was cut off is refused by the API.
    """
    usable = [block for block in blocks if block["type"] != "thinking" or block.get("signature")]
    while usable and usable[-1]["type"] in {"thinking", "redacted_thinking"}:
        usable.pop()
    return usable if any(block["type"] not in {"text", "tool_use"} for block in usable) else []


def _joined_text(blocks: Iterable[Json]) -> str:
    """The text of the blocks, joined in the same way as the reader does."""
    text = AnswerText()
    for block in blocks:
        if block.get("type") == "text":
            text.append(block["text"])
        else:
            text.begin_paragraph()
    return text.text


def usage(counts: Mapping[str, Any]) -> Usage:
    """The counters, disjoint: the provider counts thinking as output, too."""
    thinking = count(counts, "output_tokens_details", "thinking_tokens")
    return Usage(
        input=count(counts, "input_tokens"),
        output=max(0, count(counts, "output_tokens") - thinking),
        cache_write=count(counts, "cache_creation_input_tokens"),
        cache_read=count(counts, "cache_read_input_tokens"),
        reasoning=thinking,
    )
