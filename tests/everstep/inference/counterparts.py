"""The servers of the contract tests of model drivers: our own server, a third-party server, a script."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from everstep.agent_domain.agents.drivers import Model, OnText
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.inference.models import Models
from everstep.inference.presets import Presets
from everstep.inference.scripted import (
    ScenarioModel,
    Script,
    ScriptedCall,
    ScriptedError,
    ScriptedTurn,
)
from tests.everstep.inference.aimock import Aimock
from tests.everstep.inference.dialects import DIALECTS, Answer, Dialect
from tests.everstep.inference.wire_server import Reply, StreamBreak, WireServer

KEY = "sk-secret"


def a_model(driver: str, base_url: str, stack: AsyncExitStack, **settings: Any) -> Model:
    """A model at that address; its connections are closed with the stack."""
    section = {"driver": driver, "model": "test-model", "base_url": base_url, "api_key_env": "TEST_KEY"}
    presets = Presets.read({"tested": section | settings}, {}, default="tested")
    models = Models(presets, {"TEST_KEY": KEY})
    stack.push_async_callback(models.aclose)
    return models.model()


@dataclass(frozen=True)
class ReceivedMessage:
    """A message as the server parsed it."""

    role: str
    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Id, name and arguments."""
    answers: str | None = None


class ModelServer(ABC):
    """The server behind a model driver."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()

    def supports_finish(self, finish: str) -> bool:
        """Whether it supports this finish reason."""
        del finish
        return True

    @abstractmethod
    def model(self, **settings: Any) -> Model:
        """A model that sends its requests to this server."""

    @abstractmethod
    async def script_answers(self, *answers: Answer) -> None:
        """Respond with these answers, in order."""

    @abstractmethod
    async def script_break(self, answer: Answer) -> None:
        """Send only the beginning of this answer."""

    @abstractmethod
    async def script_error(self, status: int, message: str, retry_after: int | None = None) -> None:
        """Respond with an error."""

    @abstractmethod
    async def script_delay(self, answer: Answer) -> None:
        """Respond later than every timeout."""

    @abstractmethod
    async def received_conversations(self) -> list[list[ReceivedMessage]]:
        """The conversations of the requests that it received."""


class WireModelServer(ModelServer):
    """Our own server, in a provider's wire format."""

    def __init__(self, dialect: Dialect, server: WireServer) -> None:
        super().__init__()
        self.dialect = dialect
        self.server = server

    def model(self, **settings: Any) -> Model:
        url = settings.pop("base_url", self.server.url + self.dialect.prefix)
        return a_model(self.dialect.driver, url, self.stack, **settings)

    async def script_answers(self, *answers: Answer) -> None:
        self.server.answers(*(self.dialect.events(answer) for answer in answers))

    async def script_break(self, answer: Answer) -> None:
        events = self.dialect.events(answer)
        self.server.answers(Reply((*events[: self.dialect.closing(events)], StreamBreak.CUT)))

    async def script_error(self, status: int, message: str, retry_after: int | None = None) -> None:
        wait = {} if retry_after is None else {"Retry_After": str(retry_after)}
        self.server.answers(Reply.json(status, self.dialect.refusal("some_error", message), **wait))

    async def script_delay(self, answer: Answer) -> None:
        self.server.answers(Reply((self.dialect.events(answer)[0], StreamBreak.STALL)))

    async def received_conversations(self) -> list[list[ReceivedMessage]]:
        read = {"openai": _read_items, "openai-chat": _read_chat, "anthropic": _read_turns}
        return [read[self.dialect.driver](request.body) for request in self.server.requests]


def _read_items(body: Mapping[str, Any]) -> list[ReceivedMessage]:
    """Items of the Responses API; calls belong to the message before them."""
    said: list[ReceivedMessage] = []
    for item in body["input"]:
        match item.get("type"):
            case "function_call":
                call = (item["call_id"], item["name"], item["arguments"])
                if said[-1].role != "assistant":
                    said.append(ReceivedMessage("assistant"))
                said[-1] = ReceivedMessage("assistant", said[-1].text, (*said[-1].calls, call))
            case "function_call_output":
                said.append(ReceivedMessage("tool", item["output"], answers=item["call_id"]))
            case "reasoning":
                pass
            case _:
                content = item["content"]
                text = content if isinstance(content, str) else "".join(part["text"] for part in content)
                said.append(ReceivedMessage(item["role"], text))
    return said


def _read_chat(body: Mapping[str, Any]) -> list[ReceivedMessage]:
    return [
        ReceivedMessage(
            message["role"],
            message["content"] or "",
            tuple(
                (c["id"], c["function"]["name"], c["function"]["arguments"])
                for c in message.get("tool_calls") or ()
            ),
            message.get("tool_call_id"),
        )
        for message in body["messages"]
    ]


def _read_turns(body: Mapping[str, Any]) -> list[ReceivedMessage]:
    said = [ReceivedMessage("system", block["text"]) for block in body.get("system", [])]
    for message in body["messages"]:
        blocks = message["content"]
        texts = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = tuple((b["id"], b["name"], _compact(b["input"])) for b in blocks if b["type"] == "tool_use")
        said += [
            ReceivedMessage("tool", b["content"], answers=b["tool_use_id"])
            for b in blocks
            if b["type"] == "tool_result"
        ]
        if texts or calls:
            said.append(ReceivedMessage(message["role"], texts, calls))
    return said


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class AimockModelServer(ModelServer):
    """A third-party server."""

    def __init__(self, dialect: Dialect, server: Aimock) -> None:
        super().__init__()
        self.dialect = dialect
        self.server = server

    def supports_finish(self, finish: str) -> bool:
        # For a filter it sends `response.completed` with the status `failed`, which the provider never does.
        return (self.dialect.driver, finish) != ("openai", "content_filter")

    def model(self, **settings: Any) -> Model:
        return a_model(self.dialect.driver, self.server.url + self.dialect.prefix, self.stack, **settings)

    async def script_answers(self, *answers: Answer) -> None:
        await self.server.reset()
        for number, answer in enumerate(answers):
            await self.server.add_responses(
                {"match": {"turnIndex": number}, "response": self._response(answer)}
            )

    @staticmethod
    def _response(answer: Answer) -> dict[str, Any]:
        calls = [{"id": c.id, "name": c.name, "arguments": c.text} for c in answer.calls]
        said: dict[str, Any] = {
            "finishReason": answer.finish,
            "usage": {"input_tokens": answer.usage.input, "output_tokens": answer.usage.output},
        }
        if calls:
            said["toolCalls"] = calls
        if answer.text or not calls:
            said["content"] = "".join(answer.text)
        if answer.reasoning:
            said["reasoning"] = answer.reasoning
        return said

    async def script_break(self, answer: Answer) -> None:
        await self.server.reset()
        await self.server.add_responses(
            {"match": {}, "response": self._response(answer), "truncateAfterChunks": 6}
        )

    async def script_error(self, status: int, message: str, retry_after: int | None = None) -> None:
        await self.server.reset()
        refusal: dict[str, Any] = {"error": {"message": message, "type": "some_error"}, "status": status}
        wait = {} if retry_after is None else {"retryAfter": retry_after}
        await self.server.add_responses({"match": {}, "response": refusal | wait})

    async def script_delay(self, answer: Answer) -> None:
        await self.server.reset()
        await self.server.add_responses({"match": {}, "response": self._response(answer), "latency": 60_000})

    async def received_conversations(self) -> list[list[ReceivedMessage]]:
        return [_join_items(_read_chat(body)) for body in await self.server.requests()]


def _join_items(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    """It parses the items of the Responses API as separate messages."""
    said: list[ReceivedMessage] = []
    for message in messages:
        if said and message.role == said[-1].role == "assistant":
            before = said.pop()
            said.append(
                ReceivedMessage("assistant", before.text + message.text, before.calls + message.calls)
            )
        else:
            said.append(message)
    return said


class ScriptedModelServer(ModelServer):
    """A script instead of a provider."""

    def __init__(self) -> None:
        super().__init__()
        self.script = Script.of("ok")
        self.requests: list[InferenceRequest] = []

    def model(self, **settings: Any) -> Model:
        return _RecordingModel(ScenarioModel(self.script), self.requests)

    async def script_answers(self, *answers: Answer) -> None:
        self.script = Script.of(*(self._turn(answer) for answer in answers))

    @staticmethod
    def _turn(answer: Answer) -> ScriptedTurn:
        calls = tuple(ScriptedCall(id=c.id, name=c.name, arguments=c.text) for c in answer.calls)
        text = "".join(answer.text)
        return ScriptedTurn.model_validate(
            {
                "text": text,
                "calls": calls,
                "finish_reason": answer.finish,
                "usage": answer.usage,
                "pace": {"characters": 5},
            }
        )

    async def script_break(self, answer: Answer) -> None:
        self._fails(answer, type="unavailable", after=5)

    async def script_error(self, status: int, message: str, retry_after: int | None = None) -> None:
        kind = {429: "rate_limit", 503: "unavailable"}.get(status, "refused")
        self._fails(Answer(), type=kind, message=message, retry_after=retry_after)

    async def script_delay(self, answer: Answer) -> None:
        self._fails(answer, type="timeout")

    def _fails(self, answer: Answer, **error: Any) -> None:
        turn = self._turn(answer)
        self.script = Script.of(turn.model_copy(update={"error": ScriptedError.model_validate(error)}))

    async def received_conversations(self) -> list[list[ReceivedMessage]]:
        return [[_received_message(message) for message in request.messages] for request in self.requests]


class _RecordingModel:
    """A model that records its requests."""

    def __init__(self, model: Model, requests: list[InferenceRequest]) -> None:
        self.model = model
        self.requests = requests

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        self.requests.append(request)
        return await self.model.respond(request, on_text)


def _received_message(message: Message) -> ReceivedMessage:
    calls = ((c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.calls)
    return ReceivedMessage(message.role, message.text, tuple(calls), message.answers)


COUNTERPARTS = [f"{kind} {driver}" for kind in ("ours", "aimock") for driver in DIALECTS] + ["scripted"]
