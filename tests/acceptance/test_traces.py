"""What a collector receives from an API process, and from workers of which one is killed."""

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from everstep.activities.failpoints import Failpoint
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.fairness.tenant_limits import TenantLimits
from everstep.agent_domain.ids import ExecutionRef
from everstep.client.tenants import Tenants
from everstep.http_api.api_keys import create_key
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import connect
from everstep.store.keys import PostgresKeys
from everstep.workflows.contracts import WORKFLOW, ExecutionInput, workflow_id
from tests.acceptance.agents import ARMED
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, until
from tests.acceptance.storm.programs import Program
from tests.acceptance.town import Town
from tests.test_dashboards import named_metrics, sample_names
from tests.workflows.harness import of_type

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MARK = "xylophone"


@dataclass
class Collector:
    """An OTLP receiver: the spans and the names of the measurements that it was sent."""

    spans: list[Span] = field(default_factory=list[Span])
    measurements: set[str] = field(default_factory=set[str])
    bodies: list[bytes] = field(default_factory=list[bytes])

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        elif path == "/v1/metrics":
            metrics = ExportMetricsServiceRequest.FromString(body)
            for resource in metrics.resource_metrics:
                for scope in resource.scope_metrics:
                    self.measurements |= {each.name for each in scope.metrics}

    def of(self, execution: str) -> list[Span]:
        """The spans of an execution and of its trace."""
        return [each for each in self.spans if attributes(each).get("everstep.execution.id") == execution]


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in span.attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind or "string_value")


@contextmanager
def collecting() -> Generator[tuple[Collector, str]]:
    collector = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_packed = self.headers.get("content-encoding") == "gzip"
            collector.take(self.path, gzip.decompress(body) if is_packed else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass
class WatchedTown:
    """A town whose processes export to a collector."""

    town: Town
    collector: Collector

    async def spans(self, execution: str, count: int = 1) -> Sequence[Span]:
        """The spans of an execution, once its own ended, without those of requests that act on it."""

        def has_ended() -> bool:
            names = [each.name for each in self.collector.of(execution)]
            return sum(name.startswith("invoke_agent") for name in names) >= count

        await until("its span is exported", has_ended)
        return [each for each in self.collector.of(execution) if "/agent/executions/" not in each.name]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched_town(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[WatchedTown]:
    folder: Path = tmp_path_factory.mktemp("traced")
    tenant = f"traced-{uuid4().hex}"
    made = await create_key(PostgresKeys(installation.store.engine), "ann", tenant_id=tenant, user_id="ann")
    with collecting() as (collector, endpoint):
        variables = {
            "EVERSTEP_AGENTS": "tests.acceptance.citizens:agents",
            "EVERSTEP_TEST_FOLDER": str(folder),
            "EVERSTEP_LOG_FORMAT": "json",
            "EVERSTEP_METRICS_PORT": "0",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
        }
        front = Front(installation, folder, made.secret, f"traced-{uuid4().hex}", variables=variables)
        front.kill_at = Failpoint.TOOL_AFTER_EFFECT
        await front.process("worker", says="working on")
        front.kill_at = None
        try:
            async with Town.open(front, tenant) as town:
                yield WatchedTown(town, collector)
        finally:
            for process in front.begun:
                await process.kill()


async def test_an_execution_whose_worker_is_killed_is_one_trace(watched_town: WatchedTown) -> None:
    """18.3.6 and 18.3.7: the caller's trace continues in the API, the workflow, its activities and tools."""
    town, front = watched_town.town, watched_town.town.front
    (front.folder / ARMED).touch()
    content = Program(f"[{uuid4().hex[:6]}]", [[("count", {"mark": MARK})]]).text()
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    answer = await town.http.post(
        "/agent/messages", json={"content": content, "agent": "citizen"}, headers=headers
    )
    accepted = answer.json()
    await until("the worker is killed", front.begun[0].ended.done)
    await front.process("worker", says="working on")
    assert (await town.wait_for_end(accepted))["status"] == "completed"

    spans = await watched_town.spans(accepted["execution_id"])

    assert {each.trace_id.hex() for each in spans} == {TRACE}
    assert {attributes(each)["gen_ai.conversation.id"] for each in spans} == {accepted["session_id"]}
    ids = Counter(each.span_id for each in spans)
    assert max(ids.values()) == 1
    by_name = {name: [each for each in spans if each.name == name] for name in {s.name for s in spans}}
    (request,) = by_name["POST /agent/messages"]
    assert request.parent_span_id.hex() == CALLER
    (agent,) = by_name["invoke_agent citizen"]
    assert agent.parent_span_id == request.span_id
    assert attributes(agent)["everstep.stop_reason"] == "completed"
    # The attempt that was killed took its span along; the next one says which attempt it is.
    (retried,) = by_name["everstep.run_tool"]
    assert attributes(retried)["everstep.activity.attempt"] == 2
    assert retried.parent_span_id == agent.span_id
    # The tool had run before; that span may have been exported just before the kill.
    assert retried.span_id in {each.parent_span_id for each in by_name["execute_tool count"]}
    # What the killed worker had not sent is lost.
    chat = max(by_name["chat Player"], key=lambda each: each.start_time_unix_nano)
    assert attributes(chat)["gen_ai.operation.name"] == "chat"
    assert chat.parent_span_id in {each.span_id for each in by_name["everstep.infer"]}
    assert attributes(chat)["gen_ai.response.finish_reasons"]
    assert not any(MARK.encode() in body for body in watched_town.collector.bodies)


async def test_a_subagent_and_a_queued_message_belong_to_their_traces(watched_town: WatchedTown) -> None:
    """18.3.6: a child to that of its parent, and a message to that of its own request."""
    town = watched_town.town
    task = Program("[child]", [[("count", {"mark": "deep"})]]).text()
    first = await town.begin([("nap", {}), ("spawn_subagent", {"subagent": "finder", "prompt": task})])
    second = await town.say(first["session_id"], [("count", {"mark": "b"})], on_busy="enqueue")
    await town.wait_for_end(first)
    await town.wait_for_end(second)

    parent = await watched_town.spans(first["execution_id"])
    queued = await watched_town.spans(second["execution_id"])

    (own,) = {each.trace_id for each in parent}
    (other,) = {each.trace_id for each in queued}
    assert own != other
    (agent,) = [each for each in parent if each.name == "invoke_agent citizen"]
    children = [each for each in watched_town.collector.spans if each.parent_span_id == agent.span_id]
    (child,) = [each for each in children if each.name.startswith("invoke_agent")]
    assert child.trace_id == own


async def test_an_execution_that_a_command_starts_belongs_to_its_trace(watched_town: WatchedTown) -> None:
    """18.3.6: the command has no endpoint."""
    town, installation = watched_town.town, watched_town.town.installation
    limits = Tenants(installation.client(town.front.queue, "tests.acceptance.citizens:agents"))
    await limits.set(TenantLimits(town.tenant, max_running=0))
    waiting = await town.begin([("count", {"mark": "late"})])
    assert (await town.execution(waiting))["queue_position"] == 1
    variables = {
        "EVERSTEP_AGENTS": "tests.acceptance.citizens:agents",
        "EVERSTEP_TASK_QUEUE": town.front.queue,
    }
    log = town.front.folder / "command.txt"
    command = await installation.nursery.start(
        *("tenants", "set", town.tenant, "--max-running", "none"),
        log=log,
        environment=installation.environment(**variables),
    )
    assert await command.wait() == 0, log.read_text()
    await town.wait_for_end(waiting)

    spans = await watched_town.spans(waiting["execution_id"])

    by_name = {each.name: each for each in spans}
    request, agent = by_name["POST /agent/messages"], by_name["invoke_agent citizen"]
    assert {each.trace_id for each in spans} == {request.trace_id}
    assert agent.parent_span_id == request.span_id


async def test_each_span_of_a_cancelled_execution_names_it(watched_town: WatchedTown) -> None:
    """18.3.6: also those of requests about it, and of activities without a step."""
    town, collector = watched_town.town, watched_town.collector
    cancelled = await town.begin([("nap", {})])
    await town.status(cancelled, "running")
    path = f"/agent/executions/{cancelled['execution_id']}"
    await town.post(f"{path}/cancel")
    await town.wait_for_end(cancelled)
    await town.get(f"{path}/because")

    def names() -> set[str]:
        return {each.name for each in collector.of(cancelled["execution_id"])}

    route = "/agent/executions/{execution_id}"
    wanted = {"everstep.request_cancel", f"POST {route}/cancel", f"GET {route}", f"GET {route}/because"}
    await until("they are exported", lambda: wanted <= names())
    of_executions = [each for each in collector.spans if not each.name.startswith(("GET", "POST"))]
    assert all("gen_ai.conversation.id" in attributes(each) for each in of_executions)


async def test_a_failure_is_an_error_without_its_message(watched_town: WatchedTown) -> None:
    """18.3.8: the tool's exception has a password, which no body that was exported contains."""
    accepted = await watched_town.town.begin([("spill", {})])
    await watched_town.town.wait_for_end(accepted)

    spans = await watched_town.spans(accepted["execution_id"])

    (tool,) = [each for each in spans if each.name == "execute_tool spill"]
    assert attributes(tool)["error.type"] == "RuntimeError"
    assert tool.status.code == Status.STATUS_CODE_ERROR
    assert not any(b"hunter2" in body for body in watched_town.collector.bodies)


async def fail_workflow_task(town: Town) -> None:
    """Start a workflow whose input the workers cannot decrypt."""
    address = town.installation.temporal_address
    key = base64.b64encode(b"k" * 32).decode()
    temporal = await connect(Settings(temporal_address=address, payload_key=key))
    ref = ExecutionRef(uuid4(), town.tenant)
    start = ExecutionInput(ref, ExecutionPlan(agent="citizen"))
    workflow = await temporal.start_workflow(
        WORKFLOW, start, id=workflow_id(ref), task_queue=town.front.queue
    )

    async def has_failed() -> bool:
        return bool(of_type(list((await workflow.fetch_history()).events), "WORKFLOW_TASK_FAILED"))

    await until("a workflow task failed", has_failed)
    await workflow.terminate()


async def test_dashboards_and_alerts_read_metrics_of_real_pages(watched_town: WatchedTown) -> None:
    """18.3.12"""
    logs = "".join(each.log.read_text() for each in watched_town.town.front.begun)
    *_, worker = re.findall(r"metrics at ([^\s\"]+)", logs)
    accepted = await watched_town.town.begin([("count", {"mark": "page"})])
    await watched_town.town.wait_for_end(accepted)
    await fail_workflow_task(watched_town.town)

    async with httpx2.AsyncClient() as prometheus:
        pages = [
            (await prometheus.get(url)).text for url in (worker, f"{watched_town.town.front.url}/metrics")
        ]

    exposed = {name for page in pages for name in sample_names(page)}
    assert {each for each in named_metrics() if not each.startswith("everstep_gateway_")} <= exposed


async def test_measurements_are_exported_too(watched_town: WatchedTown) -> None:
    """18.3.9"""
    wanted = {"gen_ai.client.operation.duration", "everstep_steps", "everstep_executions"}

    await until("they are exported", lambda: wanted <= watched_town.collector.measurements)


async def test_each_line_of_the_log_names_its_execution(watched_town: WatchedTown) -> None:
    """18.3.10: and the end of an execution is one line, without texts."""
    accepted = await watched_town.town.begin()
    await watched_town.town.wait_for_end(accepted)
    logs = [process.log for process in watched_town.town.front.begun]

    def ends() -> list[dict[str, Any]]:
        lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith("{")]
        entries = [json.loads(line) for line in lines]
        return [
            each
            for each in entries
            if each["logger"].endswith("execution_ends") and each["execution_id"] == accepted["execution_id"]
        ]

    await until("it is logged", ends)
    (line,) = ends()
    assert line["level"] == "info"
    assert line["session_id"] == accepted["session_id"]
    assert line["tenant_id"] == watched_town.town.tenant
    assert (line["agent"], line["status"], line["stop_reason"]) == ("citizen", "completed", "completed")
    assert len(line["trace_id"]) == 32
