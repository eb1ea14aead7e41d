"""Responses when Temporal fails: for every status, at every endpoint that calls it."""
# ruff: noqa: A002 -- the names of the SDK's interceptors

from collections.abc import AsyncGenerator
from typing import Any, Final, NoReturn
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import text
from temporalio.client import Client, Interceptor, OutboundInterceptor
from temporalio.service import RPCError, RPCStatusCode

from everstep.client.outages import MEANINGS, TRANSIENT_CODES, ErrorMeaning, meaning_of
from tests.everstep.http_api.house import ApiCaller, ApiSetup, assert_problem, open_api_setup, open_callers
from tests.services import Servers
from tests.workflows.harness import connect_temporal

SECRET_PLACE = "temporal.internal:7233"  # noqa: S105 -- no secret

ANSWERED: Final = {
    ErrorMeaning.TRANSIENT: 503,
    ErrorMeaning.DENIED: 503,
    ErrorMeaning.NOT_NOW: 409,
    ErrorMeaning.FAULT: 500,
}


class RefusingTemporal(Interceptor):
    """A server that answers every call with one status, once it is set."""

    def __init__(self) -> None:
        self.status: RPCStatusCode | None = None
        self.message = f"{SECRET_PLACE} says no"
        self.asked = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _RefusingOutbound(self, next)


class _RefusingOutbound(OutboundInterceptor):
    def __init__(self, refusing: RefusingTemporal, next: OutboundInterceptor) -> None:
        super().__init__(next)
        self.refusing = refusing

    def _refuse(self) -> NoReturn:
        self.refusing.asked += 1
        assert self.refusing.status is not None
        raise RPCError(self.refusing.message, self.refusing.status, b"")

    async def start_workflow(self, input: Any) -> Any:
        return await super().start_workflow(input) if self.refusing.status is None else self._refuse()

    async def start_workflow_update(self, input: Any) -> Any:
        return self._refuse()

    async def cancel_workflow(self, input: Any) -> None:
        self._refuse()

    async def signal_workflow(self, input: Any) -> None:
        self._refuse()

    async def describe_workflow(self, input: Any) -> Any:
        self._refuse()


@pytest_asyncio.fixture
async def refusing() -> RefusingTemporal:
    """The status that Temporal returns."""
    return RefusingTemporal()


@pytest_asyncio.fixture
async def refused_house(
    http_database: str, services: Servers, refusing: RefusingTemporal
) -> AsyncGenerator[ApiSetup]:
    """An API whose Temporal refuses."""
    options: dict[str, Any] = {**(await connect_temporal(services)).config(), "interceptors": [refusing]}
    async with open_api_setup(http_database, Client(**options)) as api_setup:
        yield api_setup


@pytest_asyncio.fixture
async def caller(refused_house: ApiSetup) -> AsyncGenerator[ApiCaller]:
    """An authenticated caller."""
    async with open_callers(refused_house) as sign_in:
        yield await sign_in("ann")


ENDPOINTS: Final[dict[str, Any]] = {
    "/agent/messages": {"content": "Hello"},
    "/agent/sessions/{session}/messages": {"content": "Hello"},
    "/agent/executions": {"content": "Hello"},
    "/agent/executions/{execution}/steer": {"content": "Hurry"},
    "/agent/executions/{execution}/pause": None,
    "/agent/executions/{execution}/resume": None,
    "/agent/executions/{execution}/cancel": None,
    "/agent/executions/{execution}/fork": {"step": 0},
}
"""Requests that call Temporal in every state of the execution."""


async def mark_as_running(api_setup: ApiSetup, execution: str) -> None:
    """Mark the execution as running in the store: there is no worker to begin it."""
    async with api_setup.keys.engine.connect() as connection:
        values = {"id": execution}
        await connection.execute(
            text("UPDATE agent_executions SET status = 'running' WHERE id = :id"), values
        )


@pytest.mark.parametrize("status", RPCStatusCode)
async def test_every_status_is_answered_by_its_meaning_at_every_endpoint(
    refused_house: ApiSetup, caller: ApiCaller, refusing: RefusingTemporal, status: RPCStatusCode
) -> None:
    """1.3.5: a passing outage is 503 with Retry-After, also while a workflow task fails."""
    execution = await caller.start_execution("Hello")
    await mark_as_running(refused_house, execution)
    session = await caller.create_session()
    refusing.status = status

    for path, body in ENDPOINTS.items():
        before = refusing.asked
        answer = await caller.send_post(path.format(session=session, execution=execution), body)
        if refusing.asked == before:
            assert answer.status_code < 500, (path, answer.text)
            continue
        meaning = meaning_of(RPCError("", status, b""))
        if path.endswith("/steer") and meaning is ErrorMeaning.NOT_NOW:
            # The message is stored, and begins its own execution once the store has the end of this one.
            assert (answer.status_code, answer.json()["route"]) == (200, "queue")
            continue
        if path.endswith("/cancel") and status is RPCStatusCode.NOT_FOUND:
            # 8.2.13: it has no workflow. The message of the request before it begins another execution,
            # and this server refuses to start that.
            ended = await caller.get(f"/agent/executions/{execution}")
            assert (answer.status_code, ended["status"]) == (409, "cancelled")
            continue
        expected = ANSWERED[meaning]
        assert_problem(answer, expected)
        assert ("retry-after" in answer.headers) == (expected == 503), path
        assert SECRET_PLACE not in answer.text
    assert refusing.asked >= 5


async def test_a_failing_task_of_a_workflow_is_no_outage_of_temporal(
    refused_house: ApiSetup, caller: ApiCaller, refusing: RefusingTemporal
) -> None:
    """1.3.5: the response says what was stored, and where to look."""
    execution = await caller.start_execution("Hello")
    await mark_as_running(refused_house, execution)
    refusing.status = RPCStatusCode.FAILED_PRECONDITION
    refusing.message = "Unable to perform workflow execution update due to Workflow Task in failed state."
    answer = await caller.send_post(f"/agent/executions/{execution}/cancel", None)

    assert_problem(answer, 503)
    assert answer.json()["detail"].startswith(
        "The execution cannot continue, as the task of its workflow fails."
    )
    assert SECRET_PLACE not in answer.text


def test_every_status_has_a_meaning() -> None:
    """1.3.5."""
    assert {*MEANINGS} == {*RPCStatusCode}
    assert RPCStatusCode.FAILED_PRECONDITION in TRANSIENT_CODES


def test_a_missing_namespace_is_an_outage() -> None:
    """1.3.5: no caller can repair it."""
    error = RPCError(f"Namespace {uuid4()} is not found.", RPCStatusCode.NOT_FOUND, b"")

    assert meaning_of(error) is ErrorMeaning.DENIED
