"""Spans of models and tools by the semantic conventions, and what they do not contain."""

import ast
import json
import logging
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from everstep.agent_domain.agents.drivers import OnText, ignore_text
from everstep.agent_domain.errors import RateLimited
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import CachedContext, InferenceRequest
from everstep.agent_domain.messages.messages import assistant, call_entry, tool_message, user
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import frozen_map
from everstep.broadcast_gateway.hub import Hub
from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.broadcast_gateway.subscriptions import Viewer
from everstep.broadcast_gateway.wires.websocket import NATIVE
from everstep.runtime.settings import Settings
from everstep.runtime.telemetry_setup import open_telemetry
from everstep.runtime.worker_telemetry import ActivityTelemetry
from everstep.telemetry import genai, tracing
from everstep.telemetry.model_requests import ModelTarget, observe_request
from everstep.telemetry.otel import OpenTelemetryExporter, RareLines, WithoutTexts
from everstep.telemetry.scope import request_scope, working_for
from tests.broadcast_gateway.gateways import Table
from tests.broadcast_gateway.writers import SESSION

ROOT = Path(__file__).parents[3]
REF = ExecutionRef(uuid4(), "acme", uuid4())
REQUEST = InferenceRequest.compile((user("my key is hunter22"),), CachedContext())
TARGET = ModelTarget("fast", "gpt", "openai_chat", "https://llm.example:8443/v1")


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def exporter(
    request: pytest.FixtureRequest, spans: InMemorySpanExporter, reader: InMemoryMetricReader
) -> Generator[OpenTelemetryExporter]:
    captures = request.node.get_closest_marker("parametrize") is not None
    exporter = OpenTelemetryExporter(
        {"service.name": "test"},
        SimpleSpanProcessor(spans if captures else WithoutTexts(spans)),
        [reader],
        captures_content=captures,
        redaction=Redaction(("hunter22",)),
    )
    with tracing.exporting(exporter), working_for(REF):
        yield exporter
    exporter.close()


async def answer(_request: InferenceRequest, on_text: OnText) -> InferenceResponse:
    on_text("Hello")
    used = Usage(10, 5, cache_read=3, reasoning=2)
    return InferenceResponse(text="Hello", usage=used, model="gpt-1", finish_reason="stop")


@pytest.mark.usefixtures("exporter")
async def test_a_request_to_a_model_is_a_span(
    spans: InMemorySpanExporter, reader: InMemoryMetricReader
) -> None:
    """18.3.6 and 18.3.9"""
    await observe_request(TARGET, REQUEST, ignore_text, answer)

    (span,) = spans.get_finished_spans()
    found = dict(span.attributes or {})
    assert span.name == "chat gpt"
    assert found.pop("gen_ai.response.time_to_first_chunk")
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt",
        "gen_ai.request.stream": True,
        "server.address": "llm.example",
        "everstep.preset": "fast",
        "gen_ai.conversation.id": str(REF.session_id),
        "everstep.execution.id": str(REF.execution_id),
        "everstep.tenant.id": "acme",
        "gen_ai.usage.input_tokens": 13,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.response.model": "gpt-1",
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert {
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.token.usage",
        "everstep_steps",
    } <= measured(reader)


def measured(reader: InMemoryMetricReader) -> set[str]:
    data = reader.get_metrics_data()
    assert data
    return {
        metric.name
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.mark.usefixtures("exporter")
async def test_a_model_without_a_name_is_not_named(spans: InMemorySpanExporter) -> None:
    """18.3.13: such as a script."""
    await observe_request(ModelTarget("scripted", ""), REQUEST, ignore_text, answer)

    (span,) = spans.get_finished_spans()
    assert span.name == "chat"
    assert "gen_ai.request.model" not in (span.attributes or {})


@pytest.mark.usefixtures("exporter")
def test_a_request_is_about_the_first_execution_that_it_names(spans: InMemorySpanExporter) -> None:
    """18.3.6: it may start others that waited."""
    own, other = ExecutionRef(uuid4(), "acme", uuid4()), ExecutionRef(uuid4(), "acme")
    with request_scope() as named, tracing.open_span("POST", dict):
        for each in (own, other, own):
            tracing.name_execution(each)

    (span,) = spans.get_finished_spans()
    assert named.ref == own
    assert (span.attributes or {})["everstep.execution.id"] == str(own.execution_id)


class _Activity(ActivityInboundInterceptor):
    def __init__(self) -> None:
        """It has no next one."""

    async def execute_activity(self, input: ExecuteActivityInput) -> None:  # noqa: A002 -- the SDK's name
        del input


@pytest.mark.usefixtures("exporter")
async def test_an_activity_of_a_schedule_names_the_execution_that_it_checks(
    spans: InMemorySpanExporter,
) -> None:
    """18.3.6"""
    environment, checked = ActivityEnvironment(), ExecutionRef(uuid4(), "acme", uuid4())
    environment.info = replace(environment.info, activity_type="everstep.has_ended")
    telemetry = ActivityTelemetry().intercept_activity(_Activity())

    await environment.run(
        telemetry.execute_activity, ExecuteActivityInput(telemetry.execute_activity, (checked,), None, {})
    )

    (span,) = spans.get_finished_spans()
    assert span.name == "everstep.has_ended"
    assert (span.attributes or {})["gen_ai.conversation.id"] == str(checked.session_id)


@pytest.mark.usefixtures("exporter")
async def test_a_failed_request_says_the_kind_of_its_error_only(spans: InMemorySpanExporter) -> None:
    """18.3.8"""

    async def refuse(_request: InferenceRequest, _on_text: OnText) -> InferenceResponse:
        raise RateLimited("the prompt 'my key is hunter22' has to wait")

    with pytest.raises(RateLimited):
        await observe_request(TARGET, REQUEST, ignore_text, refuse)

    (span,) = spans.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "RateLimited"
    assert span.status.status_code is StatusCode.ERROR
    assert "prompt" not in span.to_json()


@pytest.mark.parametrize("captured", [True])
@pytest.mark.usefixtures("exporter", "captured")
async def test_texts_are_exported_where_they_are_asked_for_without_secrets(
    spans: InMemorySpanExporter,
) -> None:
    """18.3.8, 18.3.13: calls and results with their ids, by the conventions."""
    called = ToolCall("c1", "look", frozen_map({"for": "hunter22"}))
    asked_before = assistant("", tool_calls=[call_entry(called.id, called.name, called.arguments)])
    conversation = (user("my key is hunter22"), asked_before, tool_message("found it", "c1", "look"))

    async def call_again(_request: InferenceRequest, _on_text: OnText) -> InferenceResponse:
        return InferenceResponse("One moment", (replace(called, id=""),))

    await observe_request(
        TARGET, InferenceRequest.compile(conversation, CachedContext()), ignore_text, call_again
    )
    with genai.open_tool(called) as span:
        genai.finish_tool(span, None, lambda: "found hunter22")

    chat, tool = (dict(each.attributes or {}) for each in spans.get_finished_spans())
    call = {"type": "tool_call", "name": "look", "arguments": {"for": "[redacted]"}}
    assert json.loads(str(chat["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "my key is [redacted]"}]},
        {"role": "assistant", "parts": [call | {"id": "c1"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "found it"}]},
    ]
    (said,) = json.loads(str(chat["gen_ai.output.messages"]))
    # The model has given its call no id.
    assert said["parts"] == [{"type": "text", "content": "One moment"}, call]
    assert json.loads(str(tool["gen_ai.tool.call.arguments"])) == {"for": "[redacted]"}
    assert tool["gen_ai.tool.call.result"] == "found [redacted]"


@pytest.fixture
def captured() -> bool:
    return True


@pytest.mark.usefixtures("exporter")
def test_spans_of_libraries_lose_their_texts(
    exporter: OpenTelemetryExporter, spans: InMemorySpanExporter
) -> None:
    """18.3.8"""
    with exporter.tracers.get_tracer("a library").start_as_current_span("tools/call look") as span:
        span.add_event("exception", {"exception.message": "the prompt was x"})
        span.set_status(Status(StatusCode.ERROR, "the prompt was x"))

    (exported,) = spans.get_finished_spans()
    assert isinstance(exported, ReadableSpan)
    assert "prompt" not in exported.to_json()
    assert exported.name == "tools/call look"
    assert exported.status.status_code is StatusCode.ERROR
    assert (exported.attributes or {})["gen_ai.conversation.id"] == str(REF.session_id)


@pytest.mark.usefixtures("exporter")
def test_a_stored_trace_is_continued_and_the_current_one_is_not(spans: InMemorySpanExporter) -> None:
    """18.3.6"""
    with tracing.open_span("request", dict):
        plan = tracing.trace_to_store()
    with tracing.open_span("another", dict):
        with tracing.continue_trace_of(plan), tracing.open_span("start", dict):
            pass
        with tracing.continue_trace_of({}), tracing.open_span("untraced", dict):
            pass

    by_name = {each.name: each for each in spans.get_finished_spans()}
    traces = {name: span.context.trace_id for name, span in by_name.items() if span.context}
    assert traces["start"] == traces["request"] != traces["another"]
    assert traces["untraced"] not in (traces["request"], traces["another"])


def test_nothing_is_stored_and_opened_without_an_exporter() -> None:
    """18.3.11"""
    assert tracing.trace_to_store() == {}
    assert tracing.open_span("request", lambda: pytest.fail("no attributes are needed")) is tracing.NO_SPAN


def test_a_collector_that_is_away_is_one_line_a_minute() -> None:
    """18.3.11"""
    now = 0.0
    lines, record = RareLines(60, lambda: now), logging.makeLogRecord({})

    written = list[bool]()
    for now in (0.0, 1.0, 59.0, 60.0, 61.0):  # noqa: B007 -- the clock reads it
        written.append(lines.filter(record))

    assert written == [True, False, False, True, False]


EXPORTING = {"everstep/telemetry/otel.py", "everstep/runtime/otlp.py", "everstep/runtime/workflow_spans.py"}
"""The modules that need the extra."""


def top_imports(path: Path) -> set[str]:
    """What a module imports when it is imported itself."""
    names = set[str]()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
    return names


def test_the_sdk_is_imported_only_where_an_endpoint_is_set() -> None:
    """18.3.11: by modules that others import inside of functions."""
    own = {f"{name.removesuffix('.py').replace('/', '.')}" for name in EXPORTING}
    for package in ("everstep", "activities", "agent_domain", "broadcast_gateway", "workflows"):
        for path in (ROOT / package).rglob("*.py"):
            imported = top_imports(path)
            if str(path.relative_to(ROOT)) not in EXPORTING:
                assert not [each for each in imported if each.startswith("opentelemetry")], path
                assert not [each for each in imported if each.startswith("temporalio.contrib.open")], path
                assert not imported & own, path


async def test_a_viewer_that_subscribes_continues_its_trace(
    exporter: OpenTelemetryExporter, spans: InMemorySpanExporter
) -> None:
    """18.3.6"""
    del exporter
    hub, viewer = Hub(Table(), GatewayMetrics()), Viewer(lambda _: None, lambda _: None)
    viewer.traceparent = f"00-{'ab' * 16}-{'cd' * 8}-01"

    await hub.join(viewer, "a channel", SESSION, is_session=True, wire=lambda _: NATIVE)

    (span,) = [each for each in spans.get_finished_spans() if each.name == "everstep.gateway.subscribe"]
    assert span.parent
    assert (span.parent.trace_id, span.parent.span_id) == (int("ab" * 16, 16), int("cd" * 8, 16))


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is grpc; use http/protobuf"),
        ({"OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, ""),
    ],
)
def test_what_cannot_be_exported_is_said_and_changes_nothing(
    variables: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """18.3.11"""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", **variables}

    with open_telemetry(Settings(), "worker", environ):
        assert tracing.exporter() is None

    said = capsys.readouterr().err
    assert words in said
    assert bool(said) == bool(words)
