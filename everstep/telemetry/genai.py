"""Spans and measurements of models and tools, by the semantic conventions for generative AI."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.leak_guard import calls_in
from everstep.agent_domain.messages.messages import Message
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import json_text
from everstep.telemetry.tracing import NO_SPAN, Exporter, TraceSpan, Value, exporter, open_span

_PROVIDERS = {"openai_chat": "openai"}


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """The model that a request is for."""

    preset: str
    model: str
    provider: str = "scripted"
    """The driver, such as `openai`."""
    server: str | None = None
    """The URL of a server of one's own."""


def open_chat(
    target: ModelTarget, request: Callable[[], InferenceRequest]
) -> AbstractContextManager[TraceSpan]:
    """Open the span of a request to a model."""
    return open_span(
        f"chat {target.model}".rstrip(), lambda: _chat_attributes(target, request()), kind="client"
    )


def record_first_chunk(span: TraceSpan, target: ModelTarget, seconds: float) -> None:
    """Record when the first text of a reply came."""
    if to := exporter():
        span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
        to.record("gen_ai.client.operation.time_to_first_chunk", seconds, _target_attributes(target))


def record_usage(
    span: TraceSpan, target: ModelTarget, usage: Usage, seconds: float, error: str | None
) -> None:
    """Record how long a request took, and what it used."""
    to = exporter()
    if to is None:
        return
    attributes = _target_attributes(target)
    outcome: dict[str, Value] = {"error.type": error} if error else {}
    to.record("gen_ai.client.operation.duration", seconds, attributes | outcome)
    # By the conventions, input includes what was cached, and output what was reasoning.
    counts = {"input": usage.input + usage.cached, "output": usage.output + usage.reasoning}
    for kind, count in counts.items():
        span.set_attribute(f"gen_ai.usage.{kind}_tokens", count)
        if count:
            to.record("gen_ai.client.token.usage", count, attributes | {"gen_ai.token.type": kind})
    details = {
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }
    for name, count in details.items():
        if count:
            span.set_attribute(name, count)


def finish_chat(span: TraceSpan, response: InferenceResponse) -> None:
    """Record the reply."""
    to = exporter()
    if to is None:
        return
    if response.model:
        span.set_attribute("gen_ai.response.model", response.model)
    reason = response.finish_reason or ("tool_calls" if response.tool_calls else "stop")
    span.set_attribute("gen_ai.response.finish_reasons", [reason])
    if to.captures_content:
        parts = [
            *([{"type": "text", "content": response.text}] if response.text else []),
            *(_call_part(call) for call in response.tool_calls),
        ]
        said = [{"role": "assistant", "parts": parts, "finish_reason": reason}]
        span.set_attribute("gen_ai.output.messages", to.redact(json_text(said)))


def open_tool(call: ToolCall) -> AbstractContextManager[TraceSpan]:
    """Open the span of a tool call."""
    return open_span(f"execute_tool {call.name}", lambda: _tool_attributes(call))


def finish_tool(span: TraceSpan, error_type: str | None, text: Callable[[], str]) -> None:
    """Record the result of a call; its text only where that was asked for."""
    to = exporter()
    if to is None or span is NO_SPAN:
        return
    if error_type:
        to.fail_span(span, error_type)
    if to.captures_content:
        span.set_attribute("gen_ai.tool.call.result", to.redact(text()))


def _target_attributes(target: ModelTarget) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(target.provider, target.provider),
    }
    if target.model:
        attributes["gen_ai.request.model"] = target.model
    if target.server and (host := urlsplit(target.server).hostname):
        attributes["server.address"] = host
    return attributes


def _chat_attributes(target: ModelTarget, request: InferenceRequest) -> dict[str, Value]:
    attributes = _target_attributes(target)
    attributes |= {"everstep.preset": target.preset, "gen_ai.request.stream": True}
    if request.max_output_tokens:
        attributes["gen_ai.request.max_tokens"] = request.max_output_tokens
    to = exporter()
    if to and to.captures_content:
        system = [each for each in request.messages if each.is_system]
        others = [each for each in request.messages if not each.is_system]
        attributes["gen_ai.input.messages"] = _messages_text(to, others)
        if system:
            parts = [{"type": "text", "content": each.text} for each in system]
            attributes["gen_ai.system_instructions"] = to.redact(json_text(parts))
    return attributes


def _messages_text(to: Exporter, messages: Sequence[Message]) -> str:
    return to.redact(
        json_text([{"role": str(each.role), "parts": _message_parts(each)} for each in messages])
    )


def _message_parts(message: Message) -> list[dict[str, Any]]:
    if message.is_tool:
        named = {"id": message.answers} if message.answers else {}
        return [{"type": "tool_call_response", **named, "response": message.text}]
    calls = [_call_part(call) for call in calls_in((message,))]
    text = [{"type": "text", "content": message.text}] if message.text or not calls else []
    return [*text, *calls]


def _call_part(call: ToolCall) -> dict[str, Any]:
    # Some models give their calls no id.
    named = {"id": call.id} if call.id else {}
    return {"type": "tool_call", **named, "name": call.name, "arguments": call.arguments}


def _tool_attributes(call: ToolCall) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
    }
    to = exporter()
    if to and to.captures_content:
        attributes["gen_ai.tool.call.arguments"] = to.redact(json_text(call.args))
    return attributes
