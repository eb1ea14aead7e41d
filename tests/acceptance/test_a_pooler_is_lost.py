"""A worker and an API reach PostgreSQL through PgBouncer in transaction mode, which dies and comes back."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio

from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.http_api.api_keys import create_key
from everstep.store.keys import PostgresKeys
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, account, site, until
from tests.pgbouncer import PgBouncer, keeps_statements, needs_pgbouncer, open_pgbouncer

pytestmark = [needs_pgbouncer, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def pgbouncer(installation: Installation) -> AsyncGenerator[PgBouncer]:
    """With few sessions, so that transactions of one process use all of them."""
    async with open_pgbouncer(installation.database_url, size=3) as running:
        yield running


async def test_executions_continue_after_pgbouncer_was_killed(
    installation: Installation, pgbouncer: PgBouncer, tmp_path: Path
) -> None:
    """Follows rule 1.3.6: a booking is made once, and the account has no gap."""
    pooled = replace(installation, database_url=pgbouncer.url)
    async with site("pooled", pooled, tmp_path / "site") as place:
        await place.worker(gates="turn 2")
        execution = await place.start("book")
        await place.until_entry("waiting", "turn 2")
        await pgbouncer.kill()
        place.open_gates()
        log = place.workers[0].log
        await until("the worker misses it", lambda: "the store is unavailable, retrying" in log.read_text())
        await pgbouncer.start()
        ended = await place.final_account(execution)
        assert ended.status is ExecutionStatus.COMPLETED
        assert (place.count("asked", "turn 2"), place.count("ran", "book")) == (1, 1)
        assert (await account(installation, execution)).rows == ended.rows
        assert "Traceback" not in log.read_text()


async def test_processes_know_that_a_pooler_is_in_between(
    installation: Installation, pgbouncer: PgBouncer, tmp_path: Path
) -> None:
    """Follows rule 1.3.6: they start, answer, and say so; an upgrade asks for the server itself."""
    keys, tenant = PostgresKeys(installation.store.engine), f"pooled-{uuid4().hex}"
    made = await create_key(keys, "people", tenant_id=tenant, user_id="ann")
    front = Front(replace(installation, database_url=pgbouncer.url), tmp_path, made.secret, tenant)
    try:
        await asyncio.gather(front.process("worker", says="working on"), front.api())
        headers = {"Authorization": f"Bearer {front.key}"}
        async with httpx2.AsyncClient(base_url=front.url, headers=headers, timeout=20) as http:
            sent = await http.post("/agent/messages", json={"content": "Hello"})
            assert sent.status_code == 201, sent.text
            path = f"/agent/executions/{sent.json()['execution_id']}"

            async def has_ended() -> bool:
                return (await http.get(path)).json()["status"] == "completed"

            await until("it has ended", has_ended)
            assert (await http.get("/agent/sessions")).json()["items"]
        words = "with" if keeps_statements() else "without"
        assert f"through a pooler, {words} prepared statements" in await run(front, "doctor", code=0)
        assert "set DATABASE_DIRECT_URL" in await run(front, "db", "upgrade", code=1)
        front.variables["DATABASE_DIRECT_URL"] = installation.database_url
        await run(front, "db", "upgrade", code=0)
    finally:
        for process in front.begun:
            await process.kill()


async def run(front: Front, *command: str, code: int) -> str:
    """The output of a command that ends by itself."""
    log = front.folder / f"{uuid4().hex}.log"
    log.touch()
    given = {"EVERSTEP_TASK_QUEUE": front.queue, **front.variables}
    environment = front.installation.environment(**given)
    process = await front.installation.nursery.start(*command, log=log, environment=environment)
    assert await process.wait() == code, log.read_text()
    return log.read_text()
