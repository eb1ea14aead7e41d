"""The small model of this machine: llama.cpp's Chat Completions, with calls that a grammar enforces.

A small model knows how a call is written, and often writes it in another way. So the tools are described in
the prompt in the form that the model was trained on, and the answer is constrained: it is a text, or calls
whose arguments fit the tools' schemas. The server's own parser of calls is not used.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, cast

from openai import AsyncStream

from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.media_types import FileKind
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Message, Messages, is_text_part
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import json_text, thaw
from everstep.inference.json_reading import Json, record
from everstep.inference.local_endpoint import FindEndpoint
from everstep.inference.openai_chat import ChatReader, OpenAIChat, request_body
from everstep.inference.presets import Driver, Preset
from everstep.inference.provider_model import utc_now
from everstep.inference.request_parts import (
    FunctionSchema,
    ToolChoice,
    call_arguments,
    parallel_tool_calls,
)

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"
TEXT_ONLY: Final = "the local model reads text only: remove the image or file, or use another model"
LOOPBACK: Final = "http://127.0.0.1"

_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>

Call a function only if you need it. When you know the answer, write it as plain text."""


AFTER_RESULTS = (
    "\n\nThis is the result. Tell it to me in a sentence, or call a function for what is still unknown."
)
"""Without this, the model repeats the call whose result it has just received. Later requests keep it:
without it there, the model answers each later question with the sentence that followed the result,
and calls no tool.
"""


class LocalChat(OpenAIChat):
    """The local model."""

    api = Driver.OPENAI_CHAT

    def __init__(self, preset: Preset, endpoint: FindEndpoint, now: Callable[[], datetime] = utc_now) -> None:
        super().__init__(preset, None, now)
        self._endpoint = endpoint

    def readable(self, request: InferenceRequest) -> InferenceRequest:
        """The request with files in words.

        Raises:
            ModelError: The last question has a file that is not text. Words about it do not help: a model of
                this size answers as if it saw the file.
        """
        question = next((each for each in reversed(request.messages) if each.is_user), None)
        if question and any(each.kind is not FileKind.TEXT for each in question.attachments):
            raise ModelError(TEXT_ONLY, advice=TEXT_ONLY)
        return super().readable(request)

    def body(self, request: InferenceRequest) -> Json:
        """The request, with the tools in the prompt and a grammar for the answer."""
        return local_request(self.preset, request)

    def reader(self) -> "LocalReader":
        """A reader for one answer."""
        return LocalReader(self.preset.origin)

    async def open(self, body: Json) -> AsyncStream[object]:
        """Send the request."""
        endpoint = await self._endpoint()
        sdk = (await self._clients.get()).with_options(api_key=endpoint.key)
        url = f"{endpoint.url}/chat/completions"
        return await sdk.post(url, cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object])


def local_request(preset: Preset, request: InferenceRequest) -> Json:
    """The request in the format of Chat Completions, without fields for tools.

    Raises:
        ModelError: A message has a part that is not text.
    """
    tools = _callable_tools(preset, request)
    # Its address is not known yet; without one, it would get parameters that only OpenAI knows.
    body = request_body(preset.model_copy(update={"base_url": LOOPBACK}), request)
    for name in ("tools", "tool_choice", "parallel_tool_calls"):
        body.pop(name, None)
    body["messages"] = _messages(request.messages, tools)
    if tools:
        body.pop("response_format", None)
        body["grammar"] = _grammar(preset, request, tools)
    return body


def _callable_tools(preset: Preset, request: InferenceRequest) -> list[FunctionSchema]:
    """The tools that the answer may call."""
    choice = ToolChoice.of(preset, request)
    if choice and choice.mode == "none":
        return []
    found = [FunctionSchema.of(schema) for schema in request.tools]
    tools = [each for each in found if each is not None]
    if choice and choice.name:
        tools = [each for each in tools if each.name == choice.name]
        if not tools:
            raise InvalidInput(f"tool_choice names '{choice.name}', which is no tool of the agent")
    return tools


# --- The prompt ---


def _messages(messages: Messages, tools: Sequence[FunctionSchema]) -> list[Json]:
    opening = [_text_of(each) for each in messages if each.is_system]
    if tools:
        entries = (
            {"name": each.name, "description": each.description, "parameters": each.parameters}
            for each in tools
        )
        described = "\n".join(json_text({"type": "function", "function": entry}) for entry in entries)
        opening.append(_TOOLS.format(tools=described))
    first = [{"role": "system", "content": "\n\n".join(opening)}] if opening else []
    return [*first, *_turns(each for each in messages if not each.is_system)]


def _turns(messages: Iterator[Message]) -> list[Json]:
    """The conversation; the results of one answer's calls are a single turn, as the model expects it."""
    turns = list[Json]()
    follows_result = False
    for message in messages:
        if follows_result and not message.is_tool:
            turns[-1]["content"] += AFTER_RESULTS
        if message.is_tool:
            content = f"<tool_response>\n{_text_of(message)}\n</tool_response>"
            if follows_result:
                turns[-1]["content"] += f"\n{content}"
            else:
                turns.append({"role": "user", "content": content})
        elif message.is_assistant:
            calls = [_written(each["function"]["name"], call_arguments(each)) for each in message.calls]
            turns.append({"role": "assistant", "content": "\n".join(filter(None, [message.text, *calls]))})
        else:
            turns.append({"role": "user", "content": _text_of(message)})
        follows_result = message.is_tool
    if follows_result:
        turns[-1]["content"] += AFTER_RESULTS
    return turns


def _written(name: str, arguments: dict[str, Any]) -> str:
    return f"{OPENING}\n{json_text({'name': name, 'arguments': arguments})}\n{CLOSING}"


def _text_of(message: Message) -> str:
    content = message.content
    if not isinstance(content, str) and not all(is_text_part(thaw(part)) for part in content):
        raise ModelError(TEXT_ONLY, advice=TEXT_ONLY)
    return message.text


# --- The grammar, in the Lark format of LLGuidance ---


_FORMS: Final = {"<tool_call>\\n": "\\n</tool_call>", "```json\\n": "\\n```", "": ""}
"""How the model writes calls: as it was told, or in two ways of its own."""
_TEXT: Final = r"/(?s:[^<{`\[\s].*|`[^`].*|``[^`].*|```[^j].*)/"
"""A text that does not begin like a call."""


def _grammar(preset: Preset, request: InferenceRequest, tools: Sequence[FunctionSchema]) -> str:
    """The grammar of answers: a text (or the JSON that was asked for), calls, or a text and then calls."""
    choice, several = ToolChoice.of(preset, request), parallel_tool_calls(preset, request) is not False
    calls = 'call ("\\n" call)*' if several else "call"
    rules = ["%llguidance {}"]
    wanted = request.response_format
    if choice and choice.mode == "required":
        rules.append(f"start: {calls}")
    elif wanted is not None and wanted.type == "json_schema":
        rules += [f"start: answer | {calls}", f"answer: %json {json.dumps(thaw(wanted.schema))}"]
    else:
        rules += [f"start: TEXT | {calls}", f"TEXT: {_TEXT}"]
    names = [f"call_{number}" for number in range(len(tools))]
    forms = (f'"{opening}" any "{closing}"' if opening else "any" for opening, closing in _FORMS.items())
    rules += [f"call: {' | '.join(forms)}", f"any: {' | '.join(names)}"]
    for name, each in zip(names, tools, strict=True):
        schema = {
            "type": "object",
            "properties": {"name": {"const": each.name}, "arguments": each.parameters},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        if "$defs" in each.parameters:
            # References are written from the root of a schema.
            own = {key: value for key, value in each.parameters.items() if key != "$defs"}
            schema["properties"] = {"name": {"const": each.name}, "arguments": own}
            schema["$defs"] = each.parameters["$defs"]
        rules.append(f"{name}: %json {json.dumps(schema)}")
    return "\n".join(rules)


# --- The answer ---


class LocalReader(ChatReader):
    """Reads an answer whose calls are written in its text."""

    def __init__(self, origin: str) -> None:
        super().__init__(origin)
        self._written = ""
        self._is_text = False
        """Whether the answer is known to be a text; one that begins like a call is held back."""
        self._id = ""

    def feed(self, event: Json) -> None:
        """Process a chunk."""
        self._id = event.get("id") or self._id
        super().feed(event)

    def append_text(self, text: str) -> None:
        """Add a piece."""
        self._written += text
        if self._is_text:
            self.spoken.append(text)
        elif not _may_be_call(self._written):
            self._is_text = True
            self.spoken.append(self._written)

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls; an answer that only looked like one is a text."""
        # A small model repeats itself, and a call that is written twice is one.
        found = [] if self._is_text else list(dict.fromkeys(_calls_in(self._written)))
        if not found and not self._is_text:
            self._is_text = True
            self.spoken.append(self._written)
        return tuple(
            ToolCall.from_text(f"call_{self._id[-12:]}_{number}", name, arguments)
            for number, (name, arguments) in enumerate(found)
        )


_CLOSINGS: Final = {OPENING: CLOSING, "```json": "```", "": ""}
_BEGINNINGS: Final = (OPENING, "```json", "{")
_NAME: Final = re.compile(r'"name"\s*:\s*"([^"]*)"\s*,\s*"arguments"\s*:')


def _may_be_call(text: str) -> bool:
    """Whether the text begins like a call, as far as it has arrived."""
    return any(text.startswith(each) or each.startswith(text) for each in _BEGINNINGS)


def _calls_in(text: str) -> Iterator[tuple[str, str]]:
    """The names and arguments of calls; one that was cut off has the beginning of its arguments."""
    rest, decoder = text.strip(), json.JSONDecoder()
    while rest:
        opening = next(each for each in _CLOSINGS if rest.startswith(each))
        rest = rest.removeprefix(opening).lstrip()
        try:
            value, end = cast("tuple[object, int]", decoder.raw_decode(rest))
        except ValueError:
            if found := _NAME.search(rest):
                yield found[1], rest[found.end() :].strip() or "{"
            return
        call = record(value)
        if call.keys() != {"name", "arguments"}:
            return
        yield str(call["name"]), json_text(call["arguments"])
        rest = rest[end:].lstrip().removeprefix(_CLOSINGS[opening]).lstrip()
