"""OpenAI's Responses API.

The provider stores nothing (`store: false`), so a reasoning model needs its reasoning back in the next
request. The items come encrypted and are sent back unchanged, in their places between the messages and the
calls that they led to, and with the `phase` of each message.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from openai import AsyncStream

from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.loop.finish_reason import FinishReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Message, Role, is_text_part
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import thaw
from everstep.inference.failures import ProviderComplaint
from everstep.inference.foreign import incomplete_api
from everstep.inference.json_reading import Json, count, record, records
from everstep.inference.loop_clients import LoopClients
from everstep.inference.openai_client import ERRORS, client
from everstep.inference.presets import Preset
from everstep.inference.provider_items import bundle_items, matches_message, own_items
from everstep.inference.provider_model import ProviderModel, utc_now
from everstep.inference.request_parts import (
    FunctionSchema,
    ToolChoice,
    cache_key,
    output_limit,
    parallel_tool_calls,
    with_extra,
)
from everstep.inference.spoken import AnswerText, storable
from everstep.inference.strict_schemas import json_schema_format

# These models refuse a request for encrypted reasoning, because they have none.
_NOT_REASONING = ("gpt-3.5", "gpt-4", "chatgpt-4o", "gpt-5-chat")

_COUNTED_FIELDS = frozenset(
    {"model", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text"}
)
"""Fields of a request that the counter takes; it refuses others."""


class OpenAIResponses(ProviderModel):
    """A model behind the Responses API."""

    errors = ERRORS

    def __init__(self, preset: Preset, key: str | None, now: Callable[[], datetime] = utc_now) -> None:
        super().__init__(preset, key, now)
        self._clients = LoopClients(lambda: client(preset, key))

    def body(self, request: InferenceRequest) -> Json:
        """The request, without fields that are not set."""
        return request_body(self.preset, request)

    def reader(self) -> "ResponsesReader":
        """A reader for one answer."""
        return ResponsesReader(self.preset, self.error_for)

    async def open(self, body: Json) -> AsyncStream[object]:
        """Send the request."""
        sdk = await self._clients.get()
        return await sdk.post(
            "/responses", cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]
        )

    async def _post_count(self, body: Json) -> object:
        sdk = await self._clients.get()
        counted = {name: value for name, value in body.items() if name in _COUNTED_FIELDS}
        return await sdk.post("/responses/input_tokens", cast_to=object, body=counted)


# --- The request ---


def request_body(preset: Preset, request: InferenceRequest) -> Json:
    """The request in the format of the Responses API."""
    optional: Json = {
        "max_output_tokens": output_limit(request, preset.max_output_tokens),
        "temperature": preset.temperature,
        "top_p": preset.top_p,
        "service_tier": preset.service_tier,
        "reasoning": {"effort": preset.reasoning_effort} if preset.reasoning_effort else None,
        "include": ["reasoning.encrypted_content"] if _reasons(preset) else None,
        "tools": [_tool(schema) for schema in request.tools] or None,
        "tool_choice": _tool_choice(preset, request),
        "parallel_tool_calls": parallel_tool_calls(preset, request),
        "text": _text_format(request.response_format),
        "prompt_cache_key": cache_key(request),
    }
    items = [item for message in request.messages for item in _items(preset.origin, message)]
    fixed: Json = {"model": preset.model, "input": items, "store": False, "stream": True}
    return with_extra(preset, fixed | {name: value for name, value in optional.items() if value is not None})


def _reasons(preset: Preset) -> bool:
    return not preset.model.startswith(_NOT_REASONING)


def _items(origin: str, message: Message) -> Iterator[Json]:
    match message.role:
        case Role.TOOL:
            output = _content(message)
            yield {"type": "function_call_output", "call_id": message.answers, "output": output}
        case Role.ASSISTANT:
            yield from _own_items(origin, message) or _plain_items(message)
        case Role.SYSTEM | Role.DEVELOPER | Role.USER:
            yield {"role": str(message.role), "content": _content(message)}


def _own_items(origin: str, message: Message) -> list[Json]:
    """The items that this provider made, if they still match the message."""
    items = own_items(origin, message)
    call_ids = [item.get("call_id") for item in items if item.get("type") == "function_call"]
    return items if matches_message(message, _joined_text(items), call_ids) else []


def _plain_items(message: Message) -> Iterator[Json]:
    """The text and the calls of an assistant message as items, whichever model made it."""
    if message.content:
        yield {"role": "assistant", "content": _content(message)}
    for call in message.calls:
        function = call["function"]
        yield {
            "type": "function_call",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
        }


def _content(message: Message) -> str | list[Json]:
    if isinstance(message.content, str):
        return message.content
    text = "output_text" if message.is_assistant else "input_text"
    return [_part(part, text) for part in message.content]


def _part(part: Any, text_type: str) -> Any:
    """A part in the format of this API; unknown parts, and those in that format already, are passed on."""
    given: Json = thaw(part)
    match given:
        case {"type": "image_url", "image_url": {"url": url, **more}}:
            return {"type": "input_image", "image_url": url, "detail": more.get("detail", "auto")}
        case {"type": "image_url", "image_url": str(url)}:
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case {"type": "file", "file": {**file}}:
            return {"type": "input_file", **file}
        case _ if is_text_part(given):
            return {"type": text_type, "text": given["text"]}
        case _:
            return given


def _tool(schema: Mapping[str, Any]) -> Json:
    function = FunctionSchema.of(schema)
    if function is None:
        return thaw(schema)
    # If it is missing, strict defaults to true, which refuses schemas that were not written for it.
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        "strict": bool(function.strict),
    }


def _tool_choice(preset: Preset, request: InferenceRequest) -> str | Json | None:
    choice = ToolChoice.of(preset, request)
    if choice is None:
        return None
    return {"type": "function", "name": choice.name} if choice.name else choice.mode


def _text_format(response_format: ResponseFormat | None) -> Json | None:
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type != "json_schema":
        return {"format": {"type": response_format.type}}
    return {"format": {"type": "json_schema", **json_schema_format(response_format)}}


# --- The answer ---

_INCOMPLETE = {
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


class ResponsesReader:
    """Reads the events of one answer."""

    def __init__(self, preset: Preset, error_for: Callable[[ProviderComplaint], ModelError]) -> None:
        self.spoken = AnswerText()
        self.is_complete = False
        self.has_output = False
        self._preset = preset
        self._origin = preset.origin
        self._complained = error_for
        self._done: dict[int, Json] = {}
        self._closing: Json = {}

    def feed(self, event: Json) -> None:
        """Process an event; events that are unknown or repeat known data are ignored."""
        match event["type"]:
            case "response.output_text.delta" | "response.refusal.delta":
                self.spoken.append(event["delta"])
            case "response.output_item.added":
                self.has_output = True
                if event["item"]["type"] == "message":
                    self.spoken.begin_paragraph()
            case "response.output_item.done" if "output_index" not in event:
                raise incomplete_api(self._preset, "output_index")
            case "response.output_item.done":
                self._done[event["output_index"]] = event["item"]
            case "response.completed" | "response.incomplete":
                self._close(event["response"])
            case "response.failed":
                self._closing = event["response"]
                raise self._complained(ProviderComplaint.parse(event["response"].get("error")))
            case "error":
                raise self._complained(ProviderComplaint.parse({**event, "type": ""}))
            case _:
                pass

    @property
    def is_counted(self) -> bool:
        """Whether the counters of the whole answer were read."""
        return bool(self._closing.get("usage"))

    @property
    def usage(self) -> Usage:
        """The counters; they come with the closing event."""
        return usage(self._closing.get("usage"))

    def _close(self, response: Json) -> None:
        self._closing = response
        if response.get("error"):
            raise self._complained(ProviderComplaint.parse(response["error"]))
        self.is_complete = True
        if not self.spoken.text:
            self.spoken.append(_joined_text(self._output))

    @property
    def _output(self) -> list[Json]:
        """The items of the closing event, each as of its done event, which has the complete encryption."""
        done = [self._done[index] for index in sorted(self._done)]
        by_id = {item["id"]: item for item in done if item.get("id")}
        return [by_id.get(item.get("id", ""), item) for item in records(self._closing.get("output"))] or done

    def response(self) -> InferenceResponse:
        """The complete answer."""
        calls = tuple(_call(item) for item in self._output if item["type"] == "function_call")
        return InferenceResponse(
            self.spoken.text,
            calls,
            self._finish_reason(called=bool(calls)).value,
            self.usage,
            bundle_items(self._origin, _to_return(self._output)),
        )

    def _finish_reason(self, *, called: bool) -> FinishReason:
        match self._closing.get("status"):
            case "incomplete":
                # Without a reason, it is the usual one.
                reason = record(self._closing.get("incomplete_details")).get("reason") or "max_output_tokens"
                return _INCOMPLETE.get(reason, FinishReason.parse(reason))
            case "completed" | None:
                if any(part["type"] == "refusal" for part in _parts(self._output)):
                    return FinishReason.CONTENT_FILTER
                return FinishReason.TOOL_CALLS if called else FinishReason.STOP
            case other:
                return FinishReason.parse(str(other))


def _call(item: Json) -> ToolCall:
    return ToolCall.from_text(item["call_id"], storable(item["name"]), storable(item["arguments"]))


def _parts(items: Iterable[Json]) -> Iterator[Json]:
    for item in items:
        if item.get("type") == "message":
            yield from records(item.get("content"))


def _joined_text(items: Iterable[Json]) -> str:
    """The text of the messages among the items."""
    texts = (
        "".join(storable(str(part.get("text") or part.get("refusal") or "")) for part in _parts([item]))
        for item in items
    )
    return "\n\n".join(text for text in texts if text)


def _to_return(items: Sequence[Json]) -> list[Json]:
    """The items, if they hold more than the message does. The API refuses reasoning that led to nothing."""
    usable = [item for item in items if item["type"] != "reasoning" or _can_be_read(item)]
    while usable and usable[-1]["type"] == "reasoning":
        usable.pop()
    return usable if any(item["type"] == "reasoning" or item.get("phase") for item in usable) else []


def _can_be_read(reasoning: Json) -> bool:
    # Without either there is only an id of an item that was not stored.
    return bool(reasoning.get("encrypted_content") or reasoning.get("content"))


def usage(counts: object) -> Usage:
    """The counters, disjoint: the provider counts cached tokens as input and reasoning as output, too."""
    read = count(counts, "input_tokens_details", "cached_tokens")
    write = count(counts, "input_tokens_details", "cache_write_tokens")
    reasoning = count(counts, "output_tokens_details", "reasoning_tokens")
    return Usage(
        input=max(0, count(counts, "input_tokens") - read - write),
        output=max(0, count(counts, "output_tokens") - reasoning),
        cache_write=write,
        cache_read=read,
        reasoning=reasoning,
    )
