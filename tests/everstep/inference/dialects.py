"""One response, in the wire format of each provider."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from everstep.agent_domain.loop.usage import Usage

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call, with its arguments in the chunks in which they arrive."""

    id: str
    name: str
    arguments: Sequence[str] = ("{}",)

    @property
    def text(self) -> str:
        return "".join(self.arguments)


@dataclass(frozen=True)
class Answer:
    """A model's response, independent of the provider."""

    text: Sequence[str] = ()
    calls: Sequence[Call] = ()
    finish: str = "stop"
    """`stop`, `length`, `content_filter` or `tool_calls`."""
    reasoning: str = ""
    usage: Usage = Usage(input=12, output=7)


def answer_with_calls(
    *calls: Call, text: Sequence[str] = (), reasoning: str = "", usage: Usage | None = None
) -> Answer:
    """An answer that calls tools."""
    return Answer(text, calls, "tool_calls", reasoning, usage or Usage(input=12, output=7))


def sse(data: object, event: str | None = None) -> bytes:
    """One event."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


class Dialect(ABC):
    """The wire format of a provider."""

    driver: ClassVar[str]
    prefix: ClassVar[str]
    """The end of the base URL."""
    path: ClassVar[str]

    @abstractmethod
    def events(self, answer: Answer) -> list[bytes]:
        """The stream, one event each."""

    @abstractmethod
    def closing(self, events: Sequence[bytes]) -> int:
        """The index of the event that completes the response."""

    @abstractmethod
    def refusal(self, kind: str, message: str, code: str | None = None) -> Json:
        """The body of an error."""

    @abstractmethod
    def broken(self, kind: str, message: str) -> bytes:
        """An event that reports an error in the middle of a stream."""

    @abstractmethod
    def reasoning_in(self, body: Json) -> list[str]:
        """The reasoning that a request sends back."""


class ResponsesDialect(Dialect):
    driver = "openai"
    prefix = "/v1"
    path = "/v1/responses"

    def events(self, answer: Answer) -> list[bytes]:
        return [sse(event, event["type"]) for event in self._events(answer)]

    def _events(self, answer: Answer) -> Iterator[Json]:
        response: Json = {"id": "resp_1", "object": "response", "output": [], "model": "m"}
        yield {"type": "response.created", "response": response | {"status": "in_progress"}}
        output: list[Json] = []
        for index, (item, deltas) in enumerate(self._items(answer)):
            started = item | {"status": "in_progress"} | self._empty(item)
            yield {"type": "response.output_item.added", "output_index": index, "item": started}
            for delta in deltas:
                yield delta | {"item_id": item["id"], "output_index": index}
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
            output.append(item)
        yield self._closing(answer, response | {"output": output, "usage": self._usage(answer.usage)})

    @staticmethod
    def _empty(item: Json) -> Json:
        started: dict[str, Json] = {
            "message": {"content": []},
            "function_call": {"arguments": ""},
            "reasoning": {"encrypted_content": None},
        }
        return started[item["type"]]

    @staticmethod
    def _items(answer: Answer) -> Iterator[tuple[Json, list[Json]]]:
        if answer.reasoning:
            item: Json = {"id": "rs_1", "type": "reasoning", "summary": []}
            yield item | {"encrypted_content": answer.reasoning}, []
        if answer.text:
            part: Json = {"type": "output_text", "text": "".join(answer.text), "annotations": []}
            item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
            deltas: list[Json] = [{"type": "response.output_text.delta", "delta": t} for t in answer.text]
            yield item | {"content": [part]}, deltas
        for number, call in enumerate(answer.calls):
            item = {"id": f"fc_{number}", "type": "function_call", "status": "completed"}
            deltas = [{"type": "response.function_call_arguments.delta", "delta": a} for a in call.arguments]
            yield item | {"call_id": call.id, "name": call.name, "arguments": call.text}, deltas

    @staticmethod
    def _closing(answer: Answer, response: Json) -> Json:
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish)
        status = "incomplete" if reason else "completed"
        details = {"reason": reason} if reason else None
        whole = response | {"status": status, "incomplete_details": details}
        return {"type": f"response.{status}", "response": whole}

    @staticmethod
    def _usage(usage: Usage) -> Json:
        cached = usage.cache_read + usage.cache_write
        return {
            "input_tokens": usage.input + cached,
            "input_tokens_details": {
                "cached_tokens": usage.cache_read,
                "cache_write_tokens": usage.cache_write,
            },
            "output_tokens": usage.output + usage.reasoning,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.total,
        }

    def closing(self, events: Sequence[bytes]) -> int:
        return len(events) - 1

    def refusal(self, kind: str, message: str, code: str | None = None) -> Json:
        return {"error": {"type": kind, "message": message, "code": code, "param": None}}

    def broken(self, kind: str, message: str) -> bytes:
        return sse({"type": "error", "code": kind, "message": message, "param": None}, "error")

    def reasoning_in(self, body: Json) -> list[str]:
        return [item["encrypted_content"] for item in body["input"] if item.get("type") == "reasoning"]


class ChatDialect(Dialect):
    driver = "openai-chat"
    prefix = "/v1"
    path = "/v1/chat/completions"

    def events(self, answer: Answer) -> list[bytes]:
        deltas = [{"role": "assistant", "content": None}, *self._deltas(answer)]
        chunks: list[Json] = [self._chunk([{"index": 0, "delta": d, "finish_reason": None}]) for d in deltas]
        chunks.append(self._chunk([{"index": 0, "delta": {}, "finish_reason": answer.finish}]))
        chunks.append(self._chunk([]) | {"usage": self._usage(answer.usage)})
        return [*(sse(chunk) for chunk in chunks), b"data: [DONE]\n\n"]

    @staticmethod
    def _chunk(choices: list[Json]) -> Json:
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}

    @staticmethod
    def _deltas(answer: Answer) -> Iterator[Json]:
        if answer.reasoning:
            yield {"reasoning_content": answer.reasoning}
        for text in answer.text:
            yield {"content": text}
        for index, call in enumerate(answer.calls):
            function: Json = {"name": call.name, "arguments": ""}
            yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
            for arguments in call.arguments:
                yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}

    @staticmethod
    def _usage(usage: Usage) -> Json:
        return {
            "prompt_tokens": usage.input + usage.cache_read + usage.cache_write,
            "prompt_tokens_details": {
                "cached_tokens": usage.cache_read,
                "cache_write_tokens": usage.cache_write,
            },
            "completion_tokens": usage.output + usage.reasoning,
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.total,
        }

    def closing(self, events: Sequence[bytes]) -> int:
        return len(events) - 3

    def refusal(self, kind: str, message: str, code: str | None = None) -> Json:
        return {"error": {"type": kind, "message": message, "code": code, "param": None}}

    def broken(self, kind: str, message: str) -> bytes:
        return sse({"error": {"type": kind, "message": message}})

    def reasoning_in(self, body: Json) -> list[str]:
        return [m["reasoning_content"] for m in body["messages"] if "reasoning_content" in m]


class MessagesDialect(Dialect):
    driver = "anthropic"
    prefix = ""
    path = "/v1/messages"

    def events(self, answer: Answer) -> list[bytes]:
        return [sse(event, event["type"]) for event in self._events(answer)]

    def _events(self, answer: Answer) -> Iterator[Json]:
        usage = answer.usage
        counts = {
            "input_tokens": usage.input,
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": 1,
        }
        message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
        yield {"type": "message_start", "message": message | {"usage": counts, "stop_reason": None}}
        yield {"type": "ping"}
        for index, (block, deltas) in enumerate(self._blocks(answer)):
            yield {"type": "content_block_start", "index": index, "content_block": block}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        reasons = {"length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}
        delta = {"stop_reason": reasons.get(answer.finish, "end_turn"), "stop_sequence": None}
        output: Mapping[str, Any] = {
            "output_tokens": usage.output + usage.reasoning,
            "output_tokens_details": {"thinking_tokens": usage.reasoning},
        }
        yield {"type": "message_delta", "delta": delta, "usage": output}
        yield {"type": "message_stop"}

    @staticmethod
    def _blocks(answer: Answer) -> Iterator[tuple[Json, list[Json]]]:
        if answer.reasoning:
            thinking = {"type": "thinking_delta", "thinking": "Let me see"}
            signature = {"type": "signature_delta", "signature": answer.reasoning}
            yield {"type": "thinking", "thinking": "", "signature": ""}, [thinking, signature]
        if answer.text:
            yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": t} for t in answer.text]
        for call in answer.calls:
            block: Json = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield block, [{"type": "input_json_delta", "partial_json": a} for a in call.arguments]

    def closing(self, events: Sequence[bytes]) -> int:
        return len(events) - 1

    def refusal(self, kind: str, message: str, code: str | None = None) -> Json:
        details = {"details": {"error_code": code}} if code else {}
        return {"type": "error", "error": {"type": kind, "message": message, **details}}

    def broken(self, kind: str, message: str) -> bytes:
        return sse(self.refusal(kind, message), "error")

    def reasoning_in(self, body: Json) -> list[str]:
        return [
            block["signature"]
            for message in body["messages"]
            for block in message["content"]
            if block["type"] == "thinking"
        ]


DIALECTS: dict[str, Dialect] = {
    dialect.driver: dialect for dialect in (ResponsesDialect(), ChatDialect(), MessagesDialect())
}
