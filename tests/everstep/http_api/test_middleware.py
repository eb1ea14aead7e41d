"""The middleware of every request: ids, limits, the log, and error responses that disclose no internals."""

import json
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.errors import EverstepError, StoreUnavailable
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionEnded
from everstep.client.errors import Refused
from everstep.http_api.app import create_app
from everstep.http_api.middleware import MAX_BODY, MAX_HEAD, MAX_HEADERS
from everstep.http_api.pages import PUBLIC_ROUTES
from everstep.http_api.schemas.execution_responses import ExecutionResponse, Request
from everstep.http_api.schemas.responses import MessageAccepted, MessageResponse, Session
from everstep.http_api.schemas.text import ResponseModel
from everstep.runtime.public_hosts import allowed_hosts
from everstep.runtime.settings import Settings
from everstep.telemetry.log_lines import JsonLines
from tests.everstep.http_api.house import (
    ORIGIN,
    WIRES,
    ApiCaller,
    ApiSetup,
    assert_problem,
    assert_refused,
    http_client,
)

SECRET_PLACE = "postgresql://user:hush@db.internal/everstep"  # noqa: S105 -- no secret


async def chunks(size: int, piece: int = 8192) -> AsyncGenerator[bytes]:
    """A body without a length."""
    head = b'{"content": "'
    yield head
    left = size - len(head) - 2
    while left > 0:
        yield b"x" * min(piece, left)
        left -= piece
    yield b'"}'


JSON = {"Content-Type": "application/json"}


async def test_a_body_may_be_as_large_as_the_limit(ann: ApiCaller) -> None:
    def body(size: int) -> bytes:
        return b'{"content": "x", "metadata": {"a": "' + b"x" * (size - 39) + b'"}}'

    assert len(body(MAX_BODY)) == MAX_BODY
    as_large = await ann.http.post("/agent/messages", content=body(MAX_BODY), headers=JSON)
    larger = await ann.http.post("/agent/messages", content=body(MAX_BODY + 1), headers=JSON)
    assert as_large.status_code == 201
    assert_problem(larger, 413, str(MAX_BODY))


async def test_a_body_without_a_length_is_limited_too(ann: ApiCaller) -> None:
    async def send_body(size: int) -> Any:
        return await ann.http.post("/agent/messages", content=chunks(size), headers=JSON)

    assert_problem(await send_body(MAX_BODY + 1), 413)
    # The body is read, and then the message is too long.
    assert_problem(await send_body(MAX_BODY), 422, "body.content")


@pytest.mark.parametrize("length", ["999999999999", "9" * 500, "262145"])
async def test_an_announced_length_is_trusted(ann: ApiCaller, length: str) -> None:
    headers = {**JSON, "Content-Length": length}

    assert_problem(await ann.http.post("/agent/messages", content=b"{}", headers=headers), 413)


@pytest.mark.parametrize("given", ["abc-123", "0" * 128, "a.b/c:d=="])
async def test_a_request_keeps_its_id(ann: ApiCaller, given: str) -> None:
    answer = await ann.http.get("/agent/agents", headers={"X-Request-Id": given})

    assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "0" * 129, "a b", "é", "a\tb", '"'])
async def test_a_request_without_a_valid_id_gets_one(ann: ApiCaller, given: str) -> None:
    answer = await ann.http.get("/agent/agents", headers=[(b"X-Request-Id", given.encode())])

    assert len(answer.headers["x-request-id"]) == 32


async def test_a_request_is_one_log_line(ann: ApiCaller, caplog: pytest.LogCaptureFixture) -> None:
    session = await ann.create_session(title="a private matter")
    with caplog.at_level(logging.INFO, "everstep.http_api"):
        await ann.http.get(f"/agent/sessions/{session}", headers={"X-Request-Id": "r-1"})

    # The line of a request may follow its response, so that of the first one may be among them.
    records = [record for record in caplog.records if record.name == "everstep.http_api.middleware"]
    lines = [json.loads(JsonLines().format(record)) for record in records]
    (line,) = [line for line in lines if line["request_id"] == "r-1"]
    milliseconds = line.pop("ms")
    assert milliseconds >= 0
    assert line.pop("time")
    assert line == {
        "level": "info",
        "logger": "everstep.http_api.middleware",
        "message": f"GET /agent/sessions/{{session_id}}: 200, {milliseconds} ms",
        "request_id": "r-1",
        "method": "GET",
        "route": "/agent/sessions/{session_id}",
        "status": 200,
        "tenant_id": ann.api_setup.tenant,
    }


async def test_the_line_of_a_request_about_an_execution_names_it(
    ann: ApiCaller, caplog: pytest.LogCaptureFixture
) -> None:
    """18.3.10"""
    with caplog.at_level(logging.INFO, "everstep.http_api"):
        accepted = await ann.post("/agent/messages", {"content": "Hello"})
        path = f"/agent/executions/{accepted['execution_id']}"
        for request in (
            ann.http.post(f"{path}/cancel"),
            ann.http.get(f"{path}/requests"),
            ann.http.get(path),
        ):
            assert (await request).is_success

    # The last line may follow its response.
    lines = [vars(each) for each in caplog.records if each.name == "everstep.http_api.middleware"][:3]
    assert [line["status"] for line in lines] == [201, 200, 200]
    assert {line["execution_id"] for line in lines} == {accepted["execution_id"]}
    assert {line["session_id"] for line in lines} == {accepted["session_id"]}


# Errors.


@pytest.mark.parametrize("path", ["/agent", "/agent/", "/agent/sessions/", "/agent/executions/x/steps/1"])
async def test_an_unknown_address_is_a_problem(ann: ApiCaller, path: str) -> None:
    assert_problem(await ann.http.get(path), 404, "/docs")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/agent/agents", "GET"),
        ("PATCH", "/agent/tenants/acme", "DELETE, GET, PUT"),
        ("POST", f"/agent/schedules/{uuid4()}", "DELETE, GET, PATCH"),
        ("DELETE", "/metrics", "GET"),
        ("POST", "/console", "GET, HEAD"),
    ],
    ids=["agents", "tenant", "schedule", "metrics", "console"],
)
async def test_an_unknown_method_is_a_problem(ann: ApiCaller, method: str, path: str, allowed: str) -> None:
    """8.8.6"""
    answer = await ann.http.request(method, path)

    assert_problem(answer, 405, f"use {allowed}")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"null", 422),
        (b'"text"', 422),
        (b"[" * 100_000, 400),
        (b'{"content": "x", "metadata": ' + b'{"a":' * 99 + b"1" + b"}" * 99 + b"}", 201),
        (b'{"content": "x", "metadata": ' + b'{"a":' * 101 + b"1" + b"}" * 101 + b"}", 422),
        (b'{"content": "x", "metadata": {"a": ' + b"9" * 4000 + b"}}", 201),
        (b'{"content": "x", "metadata": {"a": ' + b"9" * 5000 + b"}}", 400),
        (b'{"content": "x", "metadata": {"a": NaN}}', 422),
        (b'{"content": "x", "metadata": {"a": 1e999}}', 422),
        (b'{"content": "\\ud800"}', 422),
        (b'{"content": "x", "metadata": {"\\ud800": 1}}', 422),
        (b'{"content": "x", "metadata": {"a": "\\u0000"}}', 422),
        (b'{"content": "\xff"}', 400),
        ('{"content": "\N{GRINNING FACE}\u202e\u0301"}'.encode(), 201),
    ],
)
async def test_any_content_is_accepted_or_refused(ann: ApiCaller, body: bytes, status: int) -> None:
    answer = await ann.http.post("/agent/messages", content=body, headers=JSON)

    assert answer.status_code == status, answer.text
    if status != 201:
        assert_problem(answer, status)


async def test_text_that_is_not_json_is_refused_with_the_place_of_its_fault(ann: ApiCaller) -> None:
    answer = await ann.http.post("/agent/messages", content=b'{"content": x}', headers=JSON)

    assert_problem(answer, 422)
    assert answer.json()["errors"] == [
        {"at": "body", "message": "Invalid JSON: Expecting value (at character 13)"}
    ]


async def test_invalid_json_is_refused(ann: ApiCaller) -> None:
    as_text = {"Content-Type": "text/plain"}

    assert_problem(await ann.http.post("/agent/messages", content=b'{"content": "x"}', headers=as_text), 422)


@pytest.mark.parametrize("path", ["/agent/sessions/7", "/agent/executions/x", "/agent/executions/%00/steps"])
async def test_an_invalid_id_is_refused(ann: ApiCaller, path: str) -> None:
    assert_problem(await ann.http.get(path), 422, "path.")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (StoreUnavailable(f"{SECRET_PLACE} is away"), 503, "same Idempotency-Key"),
        (RPCError(f"{SECRET_PLACE} is away", RPCStatusCode.UNAVAILABLE, b""), 503, "Temporal"),
        (RPCError(f"{SECRET_PLACE} is away", RPCStatusCode.INTERNAL, b""), 503, "Temporal"),
        (RPCError(f"{SECRET_PLACE} is away", RPCStatusCode.UNIMPLEMENTED, b""), 500, "log"),
        (EverstepError(f"{SECRET_PLACE} is odd"), 500, "log"),
        (RuntimeError(f"{SECRET_PLACE} is odd"), 500, "log"),
        (RecursionError("deep"), 500, "log"),
        (ExecutionEnded(uuid4(), ExecutionStatus.FAILED), 409, "has ended as failed"),
        (Refused("No approval is open"), 409, "No approval is open"),
    ],
)
async def test_a_server_error_is_logged_and_the_caller_gets_a_reference(
    ann: ApiCaller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    error: Exception,
    status: int,
    words: str,
) -> None:
    async def fails(*_given: Any, **_named: Any) -> None:
        raise error

    monkeypatch.setattr("everstep.store.sessions.PostgresSessions.session", fails)
    answer = await ann.http.get(f"/agent/sessions/{uuid4()}")

    assert_problem(answer, status, words)
    assert "hush" not in answer.text
    assert "Traceback" not in answer.text
    if status >= 500:
        assert "away" in caplog.text or "odd" in caplog.text or "deep" in caplog.text
    if status == 503:
        assert answer.headers["retry-after"] == "1"


# Health, metrics and pages.


async def test_the_health_check_answers(ann: ApiCaller) -> None:
    async with http_client(ann.app) as probe:
        assert (await probe.get("/healthz")).json() == {"status": "ok"}
        assert (await probe.get("/readyz")).json() == {"status": "ready", "checks": []}


async def test_requests_are_counted(ann: ApiCaller) -> None:
    session = await ann.create_session()
    await ann.http.get(f"/agent/sessions/{session}")
    await ann.send_post("/agent/messages", {"content": "x"}, key="k")
    await ann.send_post("/agent/messages", {"content": "x"}, key="k")
    await ann.http.get("/nothing")
    await ann.http.request("BREW", "/agent/sessions")

    async with http_client(ann.app) as prometheus:
        counted = (await prometheus.get("/metrics")).text

    route = 'route="/agent/sessions/{session_id}"'
    assert f'everstep_http_requests_total{{method="GET",{route},status="200"}} 1.0' in counted
    assert 'everstep_http_requests_total{method="GET",route="unknown",status="404"} 1.0' in counted
    assert 'method="other"' in counted
    assert "everstep_http_answers_replayed_total 1.0" in counted
    assert 'everstep_messages_accepted_total{route="start"} 1.0' in counted
    assert "everstep_http_requests_in_progress 1.0" in counted
    assert "everstep_http_request_seconds_bucket" in counted
    assert ann.api_setup.tenant not in counted
    assert session not in counted


async def test_metrics_are_not_public(api_setup: ApiSetup) -> None:
    """13.3.6: their labels name tenants, and proxies pass on the name under which people reach the API."""
    settings = Settings(allowed_hosts=("*",), public_url="https://agents.example")
    api = replace(api_setup.api, allowed_hosts=allowed_hosts(settings, settings.http_host, "EVERSTEP_HTTP"))
    async with http_client(create_app(api)) as caller:
        for path in ("/metrics", "/%6Detrics"):
            assert_problem(await caller.get(path, headers={"Host": "agents.example"}), 404)
        assert "everstep_http_requests_total" in (await caller.get("/metrics", headers={"Host": "api"})).text


async def test_the_pages_load_nothing_from_other_origins(ann: ApiCaller) -> None:
    async with http_client(ann.app) as reader:
        answer = await reader.get("/docs")
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
        page = answer.text
        assert "https://" not in page.replace("https://fastapi.tiangolo.com", "")
        for name, kind in (("swagger-ui-bundle.js", "javascript"), ("swagger-ui.css", "css")):
            assert f"/docs/{name}" in page
            asset = await reader.get(f"/docs/{name}")
            assert kind in asset.headers["content-type"]
            assert len(asset.content) > 10_000
        assert_problem(await reader.get("/docs/other"), 404)


async def test_pages_load_the_browser_client_from_this_server(ann: ApiCaller) -> None:
    """From every allowed origin; it is sent again only after a change."""
    address = "/everstep-client.js"
    async with http_client(ann.app) as page:
        client = await page.get(address)
        assert client.headers["content-type"] == "text/javascript; charset=utf-8"
        assert client.headers["cache-control"] == "no-cache"
        assert "export function connect" in client.text
        tag = client.headers["etag"]
        for known in (tag, f'"other", W/{tag}', "*"):
            again = await page.get(address, headers={"If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert (await page.get(address, headers={"If-None-Match": '"other"'})).content == client.content
        elsewhere = await page.get(address, headers={"Origin": ORIGIN})
        assert elsewhere.headers["access-control-allow-origin"] == ORIGIN


async def test_the_document_describes_every_error_as_a_problem(ann: ApiCaller) -> None:
    document = await ann.get("/openapi.json")

    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"]
            for status, response in operation["responses"].items():
                if status >= "4" and path != "/readyz":
                    form = next((form for prefix, form in WIRES.items() if path.startswith(prefix)), None)
                    expected = form.partition(";")[0] if form else "application/problem+json"
                    assert [*response["content"]] == [expected], path
    bodies = document["components"]["schemas"]
    for name, schema in bodies.items():
        if name.endswith("Sent"):
            assert schema["additionalProperties"] is False
            assert schema["examples"], name


@pytest.mark.parametrize("told", [ExecutionResponse, MessageResponse, MessageAccepted, Request, Session])
def test_the_examples_of_the_document_match_the_responses(told: type[ResponseModel]) -> None:
    (sample,) = told.model_json_schema()["examples"]

    assert told.model_validate(sample).model_dump(mode="json") == sample


async def test_the_limit_can_be_set(api_setup: ApiSetup, ann: ApiCaller) -> None:
    async with http_client(create_app(api_setup.api, max_body=10), dict(ann.http.headers)) as caller:
        assert_problem(await caller.post("/agent/messages", content=b"x" * 11), 413, "10 bytes")
        assert_problem(await caller.post("/agent/messages", content=b"x" * 10, headers=JSON), 422)


async def test_no_body_is_read_before_the_caller_is_authenticated(ann: ApiCaller) -> None:
    """8.8.3: at every address that requires authentication. An unread body closes the connection."""
    async with http_client(ann.app) as stranger:
        for path, operations in (await ann.get("/openapi.json"))["paths"].items():
            for method in operations.keys() - ({*operations} if path in PUBLIC_ROUTES else {"get"}):
                address = path.replace("{", "").replace("}", "")
                answer = await stranger.request(method, address, content=chunks(1000), headers=JSON)
                assert_refused(answer, path, 401)
                assert answer.headers["connection"] == "close"
    known = await ann.http.post("/agent/messages", content=chunks(1000), headers=JSON)
    assert "connection" not in known.headers


async def test_headers_that_are_too_large_are_refused(ann: ApiCaller) -> None:
    """8.8.1"""
    for large in ({"A": "a" * MAX_HEAD}, {f"A{number}": "a" for number in range(MAX_HEADERS)}):
        assert_problem(
            await ann.http.get("/agent/agents", headers=large), 431, str(MAX_HEAD), str(MAX_HEADERS)
        )
