"""Processes that start while PostgreSQL or Temporal is away."""

import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import make_url

from everstep.runtime.embedded import EmbeddedServices, open_services
from everstep.store.migrate import upgrade
from tests.acceptance.front import a_free_port
from tests.acceptance.harness import Nursery, Process, environment, until
from tests.databases import Databases
from tests.services import careless, data_directory

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "s" * 40


@dataclass(frozen=True)
class Site:
    """Servers that can be stopped, and processes that use them."""

    services: EmbeddedServices
    nursery: Nursery
    folder: Path

    async def start(self, *arguments: str, **more: str) -> Process:
        """Start a process in any state of the servers."""
        log = self.folder / f"{arguments[0]}.log"
        log.touch()
        given = {
            "DATABASE_URL": self.services.database_url,
            "TEMPORAL_ADDRESS": self.services.temporal_address,
            "EVERSTEP_AUTH_SECRET": SECRET,
            **more,
        }
        return await self.nursery.start(*arguments, log=log, environment=environment(**given))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@asynccontextmanager
async def a_site(nursery: Nursery, folder: Path) -> AsyncGenerator[Site]:
    """A site with tables on which nothing runs yet."""
    with data_directory() as data:
        async with open_services(careless(data)) as services:
            await upgrade(services.database_url)
            await services.stop()
            yield Site(services, nursery, folder)


async def until_in_log(process: Process, words: str) -> None:
    """Wait until the process logs this."""
    await until(f"it says '{words}'", lambda: words in process.log.read_text() or process.ended.done())
    assert words in process.log.read_text()


async def fetch(port: int, path: str) -> tuple[int, Any]:
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{port}{path}")
    return answer.status_code, answer.json()


async def missing(port: int) -> list[str]:
    """The parts that `/readyz` reports missing; a port that is handed over may refuse for a moment."""
    try:
        _, body = await fetch(port, "/readyz")
    except httpx2.RequestError:
        return ["?"]
    return [check["name"] for check in body["checks"] if not check["ok"]]


async def lacks(port: int, names: list[str]) -> bool:
    return await missing(port) == names


async def test_processes_wait_and_report_what_they_wait_for(nursery: Nursery, folder: Path) -> None:
    """13.4.1 and 13.4.2: the API, a gateway and a worker."""
    async with a_site(nursery, folder) as site:
        port, gateway_port = a_free_port(), a_free_port()
        api = await site.start("api", "--port", str(port))
        worker = await site.start("worker")
        gateway = await site.start("gateway", "--port", str(gateway_port))
        await until_in_log(
            api, "waiting for PostgreSQL: PostgreSQL at postgresql+psycopg://everstep:***@/everstep?"
        )
        await until_in_log(api, "waiting for Temporal: no Temporal server answers at")
        for process in (worker, gateway):
            await until_in_log(process, "waiting for PostgreSQL")

        for each in (port, gateway_port):
            assert await fetch(each, "/healthz") == (200, {"status": "ok"})
        assert await missing(gateway_port) == ["database"]
        status, body = await fetch(port, "/readyz")
        assert (status, body["status"]) == (503, "not ready")
        assert body["checks"] == [
            {"name": "database", "ok": False, "detail": "waiting for PostgreSQL; the log says why"},
            {"name": "temporal", "ok": False, "detail": "waiting for Temporal; the log says why"},
        ]
        status, problem = await fetch(port, "/agent/sessions")
        assert status == 503
        assert problem["detail"].startswith(
            "This process is waiting for PostgreSQL and Temporal, and is unavailable"
        )

        await site.services.postgres.start()
        await until("PostgreSQL is there", lambda: lacks(port, ["temporal"]))
        await until_in_log(gateway, "viewers watch at")
        await until("the gateway is ready", lambda: lacks(gateway_port, []))
        await until_in_log(worker, "waiting for Temporal")

        await site.services.temporal.start()
        await until_in_log(api, "all that was waited for is there")
        await until_in_log(api, f"answering at http://127.0.0.1:{port}")
        await until_in_log(worker, "working on 'everstep'")
        await until("the API is ready", lambda: lacks(port, []))
        assert (await fetch(port, "/agent/sessions"))[0] == 401
        password = make_url(site.services.database_url).password
        assert str(password) not in api.log.read_text()
        for process in (api, gateway, worker):
            await process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_waiting_process_stops_on_request(
    nursery: Nursery, folder: Path, number: signal.Signals
) -> None:
    """13.4.1"""
    nowhere = {"DATABASE_URL": "postgresql://me:hush@127.0.0.1:9/x", "TEMPORAL_ADDRESS": "127.0.0.1:9"}
    nowhere["EVERSTEP_AUTH_SECRET"] = SECRET
    for arguments in (("api", "--port", "0"), ("gateway", "--port", "0"), ("worker",)):
        log = folder / f"{arguments[0]}.log"
        log.touch()
        process = await nursery.start(*arguments, log=log, environment=environment(**nowhere))
        await until_in_log(process, "waiting for PostgreSQL")
        process.signal(number)
        assert await process.wait() == 0, log.read_text()
        assert "Traceback" not in log.read_text()
        assert "hush" not in log.read_text()


async def test_tables_that_do_not_exist_yet_are_waited_for(
    services: EmbeddedServices, databases: Databases, nursery: Nursery, folder: Path
) -> None:
    """13.4.1"""
    url = databases.create()
    worker = await Site(services, nursery, folder).start(
        "worker", DATABASE_URL=url, EVERSTEP_TASK_QUEUE="tables"
    )
    await until_in_log(
        worker, "waiting for the database's tables: they are out of date: run `everstep db upgrade`"
    )
    await upgrade(url)
    await until_in_log(worker, "working on 'tables'")
    await worker.kill()


async def test_a_server_that_refuses_is_not_waited_for(
    services: EmbeddedServices, nursery: Nursery, folder: Path
) -> None:
    """13.4.3"""
    url = make_url(services.database_url)
    for wrong in (url.set(password="wrong"), url.set(database="nowhere")):  # noqa: S106 -- it is wrong
        given = {"DATABASE_URL": wrong.render_as_string(hide_password=False)}
        worker = await Site(services, nursery, folder).start("worker", **given)
        assert await worker.wait() == 1
        assert "Traceback" not in worker.log.read_text()
        assert "waiting for" not in worker.log.read_text()
