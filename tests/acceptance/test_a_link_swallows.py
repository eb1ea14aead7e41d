"""The link to PostgreSQL acknowledges but never answers: every process notices and recovers.

Worker, API, gateway and doctor are processes. Between them and the database is a link that relays nothing
from some moment on and closes nothing, so TCP finds no error.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.http_api.api_keys import create_key
from everstep.store.engine import ANSWER_SECONDS, CHECKOUT_SECONDS, STATEMENT_SECONDS
from everstep.store.keys import PostgresKeys
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, until
from tests.swallowing import SwallowingLink, swallowing_link

pytestmark = pytest.mark.asyncio(loop_scope="session")

DEADLINE = STATEMENT_SECONDS + ANSWER_SECONDS + CHECKOUT_SECONDS
"""Seconds within which a request is answered, in any state of the database: a connection, and one answer."""
SLACK = 30
"""Additional seconds for a machine under load."""


@pytest_asyncio.fixture(loop_scope="session")
async def link(installation: Installation) -> AsyncGenerator[SwallowingLink]:
    """The link to the database."""
    async with swallowing_link(installation.database_url) as link:
        yield link


@pytest_asyncio.fixture(loop_scope="session")
async def far(installation: Installation, link: SwallowingLink, tmp_path: Path) -> AsyncGenerator[Front]:
    """Processes that reach the database over that link only."""
    keys = PostgresKeys(installation.store.engine)
    made = await create_key(keys, "people", tenant_id=f"far-{uuid4().hex}", user_id="ann")
    front = Front(replace(installation, database_url=link.url), tmp_path, made.secret, f"far-{uuid4().hex}")
    yield front
    for process in front.begun:
        await process.kill()


async def test_an_execution_continues_while_old_connections_are_swallowed(
    far: Front, link: SwallowingLink, installation: Installation
) -> None:
    """1.3.2: the worker sends heartbeats throughout, and does not wait for an answer that never comes."""
    worker = await far.process("worker", says="working on")
    client = installation.client(far.queue, "tests.everstep.http_api.clerk:agents")
    first = await client.start("clerk", "Hello")
    async with asyncio.timeout(DEADLINE + SLACK):
        await first.result()

    link.swallow(new=False)
    second = await client.start("clerk", "Hello again")
    async with asyncio.timeout(2 * DEADLINE + SLACK):
        await second.result()

    assert link.swallowed
    assert (await second.get()).status is ExecutionStatus.COMPLETED
    assert worker.code is None


async def test_an_execution_that_waits_for_the_link_ends_once_the_link_flows(
    far: Front, link: SwallowingLink, installation: Installation
) -> None:
    """1.3.2: its activities fail and are retried, and any doctor reports that."""
    worker = await far.process("worker", says="working on")
    client = installation.client(far.queue, "tests.everstep.http_api.clerk:agents")
    link.swallow()
    execution = await client.start("clerk", "Hello")

    async def is_tried_again() -> bool:
        described = await execution.workflow.describe()
        return any(each.attempt > 1 for each in described.raw_description.pending_activities)

    async with asyncio.timeout(DEADLINE + SLACK):
        await until("its activity is tried again", is_tried_again)
    link.flow()
    async with asyncio.timeout(DEADLINE + SLACK):
        await execution.result()
    assert worker.code is None


async def test_the_api_answers_in_time_and_recovers(far: Front, link: SwallowingLink) -> None:
    """1.3.2: 503 with Retry-After, and /readyz names what is missing."""
    await far.process("worker", says="working on")
    api = await far.api()
    headers = {"Authorization": f"Bearer {far.key}"}
    async with httpx2.AsyncClient(base_url=far.url, headers=headers, timeout=120) as ann:
        assert (await ann.post("/agent/messages", json={"content": "Hello"})).status_code == 201
        link.swallow()

        began = monotonic()
        answers = await asyncio.gather(
            *(ann.post("/agent/messages", json={"content": f"Hello {i}"}) for i in range(30)),
            *(ann.get("/agent/sessions") for _ in range(5)),
        )
        assert {answer.status_code for answer in answers} == {503}
        assert all("retry-after" in answer.headers for answer in answers)
        assert monotonic() - began < 2 * DEADLINE + SLACK
        ready = await ann.get("/readyz")
        assert ready.status_code == 503
        assert "database" in ready.text
        assert (await ann.get("/healthz")).status_code == 200

        link.flow()

        async def answers_again() -> bool:
            return (await ann.post("/agent/messages", json={"content": "And now"})).status_code == 201

        await until("it answers again", answers_again)
    assert api.code is None


async def test_the_doctor_reports_a_silent_link_and_does_not_hang(
    far: Front, link: SwallowingLink, tmp_path: Path
) -> None:
    """1.3.2."""
    link.swallow()
    log = tmp_path / "doctor"
    environment = far.installation.environment(EVERSTEP_TASK_QUEUE=far.queue)
    doctor = await far.installation.nursery.start("doctor", log=log, environment=environment)

    async with asyncio.timeout(DEADLINE + SLACK):
        assert await doctor.wait() == 1
    assert "WRONG  PostgreSQL at" in log.read_text()
    assert "cannot be reached" in log.read_text()


async def test_the_doctor_finds_a_worker_whose_database_is_silent(
    far: Front, link: SwallowingLink, installation: Installation, tmp_path: Path
) -> None:
    """1.3.2: although the doctor itself reaches the database."""
    await far.process("worker", says="working on")
    link.swallow()
    log = tmp_path / "doctor"
    environment = installation.environment(EVERSTEP_TASK_QUEUE=far.queue)
    doctor = await installation.nursery.start("doctor", log=log, environment=environment)

    async with asyncio.timeout(2 * DEADLINE + SLACK):
        assert await doctor.wait() == 1
    assert f"WRONG  a worker answers on '{far.queue}' that it cannot work" in log.read_text()
    assert "cannot be reached" in log.read_text()


async def test_a_gateway_survives_a_silent_link(far: Front, link: SwallowingLink, tmp_path: Path) -> None:
    """1.3.2."""
    secret = {"EVERSTEP_AUTH_SECRET": "s" * 40, "EVERSTEP_GATEWAY_PORT": "0"}
    far.variables.update(secret)
    gateway = await far.process("gateway", says="ws://")
    link.swallow()

    await until("it says so", lambda: "cannot be reached" in gateway.log.read_text())
    link.flow()
    assert gateway.code is None
    assert await gateway.stop() == 0
