"""Chat Completions: OpenAI's, and the API that nearly every other model server supports.

OpenAI's own parameters are sent to OpenAI only, as other servers refuse parameters that they do not know.

Some models stream their reasoning beside the text, and some sign their calls. While they work on one task,
both are sent back unchanged. Reasoning for earlier questions is left out, because providers refuse or ignore
it.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, cast
from urllib.parse import urlsplit

from openai import AsyncStream

from everstep.agent_domain.loop.finish_reason import FinishReason
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Message, Messages, Role, is_text_part
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import json_text, thaw
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
    call_arguments,
    output_limit,
    parallel_tool_calls,
    with_extra,
)
from everstep.inference.spoken import AnswerText, storable
from everstep.inference.strict_schemas import json_schema_format

_OPENAI_HOSTS = ("openai.com", "azure.com")
_REASONING = ("reasoning_content", "reasoning")
"""The fields in which servers put their reasoning, beside `content`."""


class OpenAIChat(ProviderModel):
    """A model behind a Chat Completions API."""

    errors = ERRORS

    def __init__(self, preset: Preset, key: str | None, now: Callable[[], datetime] = utc_now) -> None:
        super().__init__(preset, key, now)
        self._clients = LoopClients(lambda: client(preset, key))

    def body(self, request: InferenceRequest) -> Json:
        """The request, without fields that are not set."""
        return request_body(self.preset, request)

    def reader(self) -> "ChatReader":
        """A reader for one answer."""
        return ChatReader(self.preset.origin)

    async def open(self, body: Json) -> AsyncStream[object]:
        """Send the request."""
        sdk = await self._clients.get()
        return await sdk.post(
            "/chat/completions", cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]
        )


# --- The request ---


def request_body(preset: Preset, request: InferenceRequest) -> Json:
    """The request in the format of Chat Completions."""
    own = _is_openai(preset)
    optional: Json = {
        # Other servers get the old name, which all of them support.
        "max_completion_tokens" if own else "max_tokens": output_limit(request, preset.max_output_tokens),
        "temperature": preset.temperature,
        "top_p": preset.top_p,
        "seed": preset.seed,
        "stop": list(preset.stop) or None,
        "reasoning_effort": preset.reasoning_effort,
        "service_tier": preset.service_tier,
        "tools": [_tool(schema) for schema in request.tools] or None,
        "tool_choice": _tool_choice(preset, request),
        "parallel_tool_calls": parallel_tool_calls(preset, request),
        "response_format": _response_format(request.response_format),
        "store": False if own else None,
        "prompt_cache_key": cache_key(request) if own else None,
    }
    fixed: Json = {
        "model": preset.model,
        "messages": _messages(preset.origin, request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return with_extra(preset, fixed | {name: value for name, value in optional.items() if value is not None})


def _is_openai(preset: Preset) -> bool:
    host = urlsplit(preset.base_url or "https://api.openai.com").hostname or ""
    return any(host == own or host.endswith(f".{own}") for own in _OPENAI_HOSTS)


def _messages(origin: str, messages: Messages) -> list[Json]:
    last_user = max((index for index, message in enumerate(messages) if message.is_user), default=-1)
    return [
        sent
        for index, message in enumerate(messages)
        for sent in _message(message, own_items(origin, message) if index > last_user else [])
    ]


def _message(message: Message, items: list[Json]) -> Iterator[Json]:
    match message.role:
        case Role.TOOL:
            yield {"role": "tool", "tool_call_id": message.answers, "content": message.text}
        case Role.ASSISTANT:
            if message.content or message.calls:
                yield _assistant(message, items)
        case Role.SYSTEM | Role.DEVELOPER | Role.USER:
            yield {"role": str(message.role), "content": _content(message)}


def _assistant(message: Message, items: list[Json]) -> Json:
    calls = [_call(call) for call in message.calls]
    sent: Json = {"role": "assistant", "content": message.text or None}
    for item in items:
        signatures: Json = item["signatures"]
        if calls and matches_message(message, item["text"], item["call_ids"]):
            sent |= item["reasoning"]
            calls = [call | signatures.get(call["id"], {}) for call in calls]
    return sent | ({"tool_calls": calls} if calls else {})


def _call(call: Mapping[str, Any]) -> Json:
    # Servers that fill the conversation into a template fail on arguments that are no JSON.
    function = {"name": call["function"]["name"], "arguments": json_text(call_arguments(call))}
    return {"id": call["id"], "type": "function", "function": function}


def _content(message: Message) -> str | list[Json]:
    if isinstance(message.content, str):
        return message.content
    return [_part(thaw(part)) for part in message.content]


def _part(part: Json) -> Json:
    return {"type": "text", "text": part["text"]} if is_text_part(part) else part


def _tool(schema: Mapping[str, Any]) -> Json:
    function = FunctionSchema.of(schema)
    if function is None:
        return thaw(schema)
    function_schema: Json = {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
    }
    strict = {} if function.strict is None else {"strict": function.strict}
    return {"type": "function", "function": function_schema | strict}


def _tool_choice(preset: Preset, request: InferenceRequest) -> str | Json | None:
    choice = ToolChoice.of(preset, request)
    if choice is None:
        return None
    return {"type": "function", "function": {"name": choice.name}} if choice.name else choice.mode


def _response_format(response_format: ResponseFormat | None) -> Json | None:
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type != "json_schema":
        return {"type": response_format.type}
    return {"type": "json_schema", "json_schema": json_schema_format(response_format)}


# --- The answer ---

_FINISH = {"function_call": FinishReason.TOOL_CALLS}


class _PartialCall:
    """A call whose arguments are still arriving."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.signature: Json = {}

    def add(self, delta: Json) -> None:
        function = record(delta.get("function"))
        self.id = delta.get("id") or self.id
        self.name = function.get("name") or self.name
        self.arguments.append(function.get("arguments") or "")
        if delta.get("extra_content"):
            self.signature = {"extra_content": delta["extra_content"]}

    def call(self) -> ToolCall:
        return ToolCall.from_text(self.id, storable(self.name), storable("".join(self.arguments)))


class ChatReader:
    """Reads the chunks of one answer."""

    def __init__(self, origin: str) -> None:
        self.spoken = AnswerText()
        self.is_complete = False
        self._origin = origin
        self._calls: list[_PartialCall] = []
        self._by_index: dict[int, _PartialCall] = {}
        self._reasoning: dict[str, list[str]] = {}
        self._finish_reason = ""
        self._refused = False
        self._usage: object = None
        self.has_output = False

    def feed(self, event: Json) -> None:
        """Process a chunk; the last one may contain only counters."""
        self._usage = event.get("usage") or self._usage
        for choice in records(event.get("choices")):
            self.has_output = True
            self._feed_delta(record(choice.get("delta")))
            if choice.get("finish_reason"):
                self._finish_reason = choice["finish_reason"]
                self.is_complete = True

    @property
    def is_counted(self) -> bool:
        """Whether the counters of the whole answer were read."""
        return self.is_complete and bool(self._usage)

    @property
    def usage(self) -> Usage:
        """The counters so far; some servers send them with each chunk."""
        return usage(self._usage)

    def _feed_delta(self, delta: Json) -> None:
        self.append_text(_text(delta.get("content")))
        if delta.get("refusal"):
            self._refused = True
            self.spoken.append(delta["refusal"])
        for name in _REASONING:
            if isinstance(delta.get(name), str):
                self._reasoning.setdefault(name, []).append(delta[name])
        for call in records(delta.get("tool_calls")):
            self._partial(call).add(call)

    def append_text(self, text: str) -> None:
        """Add a piece of the answer's text."""
        self.spoken.append(text)

    def calls(self) -> tuple[ToolCall, ...]:
        """The complete calls."""
        return tuple(partial.call() for partial in self._calls)

    def _partial(self, delta: Json) -> _PartialCall:
        """The call that a fragment belongs to; some servers number all calls 0, or not at all."""
        index = delta.get("index") or 0
        partial = self._by_index.get(index)
        if partial is None or (delta.get("id") and partial.id and delta["id"] != partial.id):
            partial = self._by_index[index] = _PartialCall()
            self._calls.append(partial)
        return partial

    def response(self) -> InferenceResponse:
        """The complete answer."""
        calls = self.calls()
        return InferenceResponse(
            self.spoken.text,
            calls,
            self._reason(called=bool(calls)).value,
            self.usage,
            bundle_items(self._origin, self._to_return()),
        )

    def _reason(self, *, called: bool) -> FinishReason:
        word = self._finish_reason
        reason = _FINISH.get(word, FinishReason.parse(word))
        if reason is FinishReason.STOP:
            if self._refused:
                return FinishReason.CONTENT_FILTER
            # Several servers send `stop` although they called a tool.
            return FinishReason.TOOL_CALLS if called else reason
        return reason

    def _to_return(self) -> list[Json]:
        """Reasoning and signatures of an answer with calls; those of other answers are not needed."""
        reasoning = {name: "".join(parts) for name, parts in self._reasoning.items() if any(parts)}
        signatures = {partial.id: partial.signature for partial in self._calls if partial.signature}
        if not self._calls or not (reasoning or signatures):
            return []
        ids = [partial.id for partial in self._calls]
        return [{"text": self.spoken.text, "call_ids": ids, "reasoning": reasoning, "signatures": signatures}]


def _text(content: object) -> str:
    """The text of a delta; of a list of parts, the joined text parts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in cast("list[Any]", content) if is_text_part(part))
    return content if isinstance(content, str) else ""


def usage(counts: object) -> Usage:
    """The counters, disjoint: the provider counts cached tokens as input and reasoning as output, too."""
    read = count(counts, "prompt_tokens_details", "cached_tokens")
    write = count(counts, "prompt_tokens_details", "cache_write_tokens")
    reasoning = count(counts, "completion_tokens_details", "reasoning_tokens")
    return Usage(
        input=max(0, count(counts, "prompt_tokens") - read - write),
        output=max(0, count(counts, "completion_tokens") - reasoning),
        cache_write=write,
        cache_read=read,
        reasoning=reasoning,
    )
