"""A running API reads lists from a standby, which falls behind, dies and comes back: `make deployment`."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from everstep.http_api.api_keys import create_key
from everstep.store.engine import create_engine
from everstep.store.keys import PostgresKeys
from everstep.store.migrate import upgrade
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, until
from tests.standby import Server, open_pair

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


@dataclass
class Lists:
    """A client of the API that writes and lists."""

    http: httpx2.AsyncClient

    async def contains_new(self) -> bool:
        """Whether the list has a session that was created right before, by a request of its own."""
        created = await self.http.post("/agent/sessions", json={})
        assert created.status_code == 201, created.text
        listed = await self.http.get("/agent/sessions", params={"limit": 100})
        assert listed.status_code == 200, listed.text
        return created.json()["id"] in [each["id"] for each in listed.json()["items"]]

    async def reads(self, outcome: str) -> float:
        """How many lists had this outcome."""
        page = (await self.http.get("/metrics")).text
        found = re.search(rf'^everstep_replica_reads_total{{outcome="{outcome}"}} (\S+)$', page, re.MULTILINE)
        return float(found[1]) if found else 0.0


@asynccontextmanager
async def open_api(
    installation: Installation, folder: Path, primary: Server, standby: Server
) -> AsyncGenerator[tuple[Front, Lists]]:
    """An API on this pair."""
    await upgrade(primary.url)
    engine = create_engine(primary.url)
    made = await create_key(PostgresKeys(engine), "people", tenant_id=f"t-{uuid4().hex}", user_id="ann")
    await engine.dispose()
    front = Front(replace(installation, database_url=primary.url), folder, made.secret, "standby")
    front.variables["DATABASE_REPLICA_URL"] = standby.url
    try:
        await front.api()
        headers = {"Authorization": f"Bearer {made.secret}"}
        async with httpx2.AsyncClient(base_url=front.url, headers=headers, timeout=30) as http:
            yield front, Lists(http)
    finally:
        for process in front.begun:
            await process.kill()


async def test_lists_of_an_api_are_read_from_a_standby(installation: Installation, tmp_path: Path) -> None:
    """Follows rule 1.3.7: what was written before is in each list, wherever it is read from."""
    async with (
        open_pair() as (primary, standby),
        open_api(installation, tmp_path, primary, standby) as (front, lists),
    ):
        for _ in range(10):
            assert await lists.contains_new()
        assert await lists.reads("replica") > 0
        assert await lists.reads("away") == 0

        # The sessions of the API on the standby, as the standby says.
        assert await standby.count_sessions("everstep api%") > 0

        await standby.execute("SELECT pg_wal_replay_pause()")
        before = await lists.reads("late")
        assert await lists.contains_new()
        assert await lists.reads("late") > before
        await standby.execute("SELECT pg_wal_replay_resume()")

        await standby.kill()
        for _ in range(3):
            assert await lists.contains_new()
        assert await lists.reads("away") >= 3
        assert (await lists.http.get("/healthz")).status_code == 200

        await standby.start()
        before = await lists.reads("replica")

        async def is_read_again() -> bool:
            assert await lists.contains_new()
            return await lists.reads("replica") > before

        await until("the standby is read again", is_read_again)
        log = front.begun[0].log.read_text()
        assert log.count("lists are read from the primary, as the replica cannot be used") == 1
        assert "Traceback" not in log
