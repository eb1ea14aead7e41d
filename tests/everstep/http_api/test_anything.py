"""Every response to any request, at any address, is one that the API describes, and no server error.

Requests are generated from the API's own description, valid and invalid ones, and sent to a real server.
"""

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from everstep.http_api.app import create_app
from everstep.http_api.dependencies import Logs
from everstep.runtime.serving import serve_app
from everstep.store.streams import PostgresStreams
from tests.everstep.http_api.house import ApiSetup, open_api_setup
from tests.services import Servers
from tests.workflows.harness import connect_temporal

A_FEW: Final = 2
"""Requests of each kind at each address: the simplest one, and another."""
MANY: Final = 60
"""Enough for ten thousand requests."""

DELETES: Final = {
    ("DELETE", "/agent/sessions/{session_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("DELETE", "/agent/schedules/{schedule_id}"),
}
"""Requests that would delete what the others need."""

OTHERS: Final[Any] = [
    getattr(checks, kind) for kind in ("positive_data_acceptance", "negative_data_rejection")
]
"""The findings of schemathesis about accepted requests."""

TRACES: Final = re.compile(
    r"Traceback|File \"|\.py\b|SELECT |INSERT |psycopg|sqlalchemy|asyncio", re.IGNORECASE
)
"""Texts that reveal internals."""


@dataclass(frozen=True)
class ApiServer:
    """The API on a port, with an authenticated caller."""

    url: str
    headers: Mapping[str, str]
    ids: Mapping[str, str]
    document: Mapping[str, Any]

    def request(
        self, method: str, path: str, content: bytes, kind: str = "application/json"
    ) -> httpx2.Response:
        """Any text."""
        headers = {**self.headers, "Content-Type": kind}
        return httpx2.request(method, self.url + path, content=content, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def server(http_database: str, services: Servers) -> Generator[ApiServer]:
    """In its own thread, because its callers block while they wait for responses."""
    ready, stop = threading.Event(), asyncio.Event()
    made = dict[str, Any]()

    async def serve() -> None:
        made["loop"] = asyncio.get_running_loop()
        async with (
            open_api_setup(http_database, await connect_temporal(services)) as api_setup,
            api_setup.open_worker(),
        ):
            headers = {"Authorization": f"Bearer {api_setup.token('ann')}"}
            app = create_app(replace(api_setup.api, feed=_empty_stream, logs=_logs(api_setup)))
            async with serve_app(app, "127.0.0.1", 0) as url:
                async with httpx2.AsyncClient(base_url=url, headers=headers) as ann:
                    made["server"] = ApiServer(
                        url, headers, await _existing_ids(ann), (await ann.get("/openapi.json")).json()
                    )
                ready.set()
                await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield made["server"]
    made["loop"].call_soon_threadsafe(stop.set)
    thread.join(30)


def _logs(api_setup: ApiSetup) -> Logs:
    return Logs(_empty_log, PostgresStreams(api_setup.keys.engine))


async def _empty_log(*_: object) -> AsyncGenerator[bytes]:
    """A log without further envelopes."""

    async def no_lines() -> AsyncGenerator[bytes]:
        for data in (b"\n",):
            yield data

    return no_lines()


async def _empty_stream(*_: object) -> AsyncGenerator[bytes]:
    """A stream without further events: a caller reads to its end."""

    async def no_events() -> AsyncGenerator[bytes]:
        for data in (b":\n\n",):
            yield data

    return no_events()


async def _existing_ids(ann: httpx2.AsyncClient) -> Mapping[str, str]:
    """Ids of existing rows: requests with unknown ids test little."""
    asked = (await ann.post("/agent/messages", json={"content": "book"})).json()
    path = f"/agent/executions/{asked['execution_id']}/requests"
    while not (waiting := (await ann.get(path)).json()["items"]):  # noqa: ASYNC110 -- there is no event to wait for
        await asyncio.sleep(0.02)
    said = (await ann.post("/agent/messages", json={"content": "hello"})).json()
    path = f"/agent/sessions/{said['session_id']}/messages"
    while not (answers := await _answers(ann, path)):  # noqa: ASYNC110 -- there is no event to wait for
        await asyncio.sleep(0.02)
    file = (await ann.post("/agent/attachments?name=a.txt", content=b"hello")).json()
    schedule = {"agent": "clerk", "content": "hello", "interval_seconds": 3600, "paused": True}
    return {
        "attachment_id": file["id"],
        "schedule_id": (await ann.post("/agent/schedules", json=schedule)).json()["id"],
        # Of an operator and of a browser: this caller has neither.
        **{name: str(uuid4()) for name in ("sign_in_id", "webhook_id", "delivery_id", "event_id")},
        "tenant_id": "default",
        "session_id": asked["session_id"],
        "execution_id": asked["execution_id"],
        "other_id": said["execution_id"],
        "stream_id": asked["session_id"],
        "request_id": waiting[0]["id"],
        "message_id": answers[0],
        "name": "clerk",
        "number": "1",
        "agent": "clerk",
        "thread_id": said["session_id"],
        "chat_id": said["session_id"],
        "model": "clerk",
        "response_id": f"resp_{UUID(said['execution_id']).hex}",
    }


async def _answers(ann: httpx2.AsyncClient, path: str) -> list[str]:
    """The ids of the answers in a session."""
    return [each["id"] for each in (await ann.get(path)).json()["items"] if each["role"] == "assistant"]


def kinds(server: ApiServer) -> Iterator[tuple[str, str, GenerationMode]]:
    """Every address, with valid requests and, where a request can be invalid, with invalid ones."""
    for path, operations in server.document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, GenerationMode.POSITIVE
            if operation.keys() & {"parameters", "requestBody"}:
                yield method.upper(), path, GenerationMode.NEGATIVE


def send_all_kinds(server: ApiServer, count: int) -> None:
    """Send this many requests of each kind to each address, and report all that have wrong responses."""
    # Its types are less strict than pyright requires. Read once: that takes as long as some requests.
    schema: Any = schemathesis.openapi.from_dict({**server.document})
    failed = list[Exception]()
    for method, path, mode in kinds(server):
        try:
            send_generated(server, schema, (method, path), mode, count)
        except Exception as error:  # noqa: BLE001 -- of any check, and reported below
            error.add_note(f"{method} {path}, {mode.value}")
            failed.append(error)
    if failed:
        raise ExceptionGroup("Wrong responses", failed)


def send_generated(
    server: ApiServer, schema: Any, address: tuple[str, str], mode: GenerationMode, count: int
) -> None:
    """Send this many requests of a kind to an address."""
    method, path = address
    operation = schema[path][method]
    names = re.findall(r"{(\w+)}", path)
    real = {name: server.ids[name] for name in names} or None
    cases: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)
    if real and (method, path) not in DELETES:
        # First: the simplest request, which is always sent, names existing rows.
        cases = operation.as_strategy(generation_mode=mode, path_parameters=real) | cases
    session = requests.Session()

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(cases)
    def send(case: Any) -> None:
        response = case.call(base_url=server.url, session=session, headers={**server.headers}, timeout=30)
        # Status, content type and body match the description. Other tests check accepted requests.
        case.validate_response(response, excluded_checks=OTHERS)
        sent = response.request.body or b""
        sent = sent.decode(errors="replace") if isinstance(sent, bytes) else str(sent)
        # An error names the fields of the request, whose names are generated.
        traces = [each[0] for each in TRACES.finditer(response.text) if each[0] not in sent]
        assert path == "/metrics" or not traces, response.text

    send()


def test_generated_requests_are_answered(server: ApiServer) -> None:
    assert len(set(kinds(server))) > 100
    send_all_kinds(server, A_FEW)


@pytest.mark.slow
def test_ten_thousand_generated_requests_are_answered(server: ApiServer) -> None:
    send_all_kinds(server, MANY)


# Requests that do not match the description.

JSON_VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=20,
)

DEEP: Final = st.integers(1, 30_000).map(lambda depth: b'{"content": "x", "metadata": ' + b'{"a":' * depth)

CONTENTS: Final = st.binary(max_size=200) | JSON_VALUES.map(lambda value: json.dumps(value).encode()) | DEEP

FIELDS: Final = st.fixed_dictionaries(
    {"content": st.text(st.characters(), min_size=1)},
    optional={
        "metadata": st.dictionaries(st.text(st.characters()), JSON_VALUES, max_size=3),
        "title": st.text(st.characters()),
        "context_url": st.text(st.characters()),
        "agent": st.sampled_from(["clerk", "other", "assistant"]),
    },
)

IDS: Final = st.text(st.characters(), min_size=1).map(
    lambda text: quote(text.encode(errors="replace"), safe="")
)

LINES: Final = settings(derandomize=True, database=None)


@LINES
@given(content=CONTENTS, path=st.sampled_from(["/agent/sessions", "/agent/messages", "/broadcasting/auth"]))
def test_any_body_is_answered(server: ApiServer, content: bytes, path: str) -> None:
    assert_described(server.request("POST", path, content))


@LINES
@given(fields=FIELDS)
def test_any_text_is_returned_unchanged(server: ApiServer, fields: dict[str, Any]) -> None:
    answer = server.request("POST", "/agent/messages", json.dumps(fields).encode())

    assert_described(answer)
    if answer.status_code < 300:
        message = answer.json()["message"]
        assert message["content"] == fields["content"]
        assert message["metadata"] == fields.get("metadata", {})


@LINES
@given(id_=IDS, path=st.sampled_from(["/agent/sessions/{}", "/agent/executions/{}/steps", "/{}", "/docs/{}"]))
def test_any_address_is_answered(server: ApiServer, id_: str, path: str) -> None:
    assert_described(server.request("GET", path.format(id_), b""))


@LINES
@given(
    name=st.sampled_from(
        ["Authorization", "Idempotency-Key", "X-Request-Id", "Origin", "Content-Type", "Host"]
    ),
    value=st.binary(max_size=60).filter(lambda value: not re.search(rb"[\x00-\x08\n-\x1f\x7f]", value)),
)
def test_any_header_is_answered(server: ApiServer, name: str, value: bytes) -> None:
    headers: dict[Any, Any] = {**server.headers, "Content-Type": "application/json", name: value.strip()}

    answer = httpx2.post(f"{server.url}/agent/messages", headers=headers, content=b'{"content": "x"}')

    if answer.status_code != 400 or answer.headers["content-type"].startswith("application"):
        assert_described(answer)


def assert_described(answer: httpx2.Response) -> None:
    """An error response is a valid problem document."""
    assert answer.status_code < 500, answer.text
    assert not TRACES.search(answer.text), answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["detail"]
