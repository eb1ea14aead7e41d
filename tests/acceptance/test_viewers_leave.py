"""Viewers of a running installation do not outlive the token or the key that they use."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from everstep.http_api.api_keys import create_key
from everstep.http_api.tokens import sign_token
from everstep.store.keys import PostgresKeys
from tests.acceptance.front import Front, a_free_port
from tests.acceptance.harness import Installation

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "a secret of the tests, which everybody knows"  # noqa: S105 -- no secret
MINUTE = 60.0


class Theatre:
    """An API, a gateway, and a session to watch."""

    def __init__(self, front: Front, gateway: int) -> None:
        self.front = front
        self.gateway = f"ws://127.0.0.1:{gateway}"
        self.tenant = f"tenant-{uuid4().hex}"
        self.session = ""

    def http(self, credential: str) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {credential}"}
        return httpx2.AsyncClient(base_url=self.front.url, headers=headers, timeout=90)

    def token(self, seconds: float) -> str:
        return sign_token(SECRET, "ann", self.tenant, days=seconds / 86_400)

    async def native(self, credential: str, ready: asyncio.Event) -> int:
        """Watch, and return the close code."""
        async with connect(f"{self.gateway}/v1", subprotocols=[Subprotocol("everstep.v1")]) as ws:
            await ws.send(json.dumps({"type": "hello", "token": credential}))
            assert json.loads(await ws.recv())["type"] == "welcome"
            await ws.send(json.dumps({"type": "sub", "channel": f"agent.session.{self.session}"}))
            assert json.loads(await ws.recv())["type"] == "sub_ok"
            ready.set()
            return await _code(ws)

    async def pusher(self, credential: str, ready: asyncio.Event) -> int:
        """Watch, and return the close code."""
        channel = f"private-agent.session.{self.session}"
        async with connect(f"{self.gateway}/app/everstep?protocol=7") as ws, self.http(credential) as http:
            socket_id = json.loads(json.loads(await ws.recv())["data"])["socket_id"]
            sent = {"socket_id": socket_id, "channel_name": channel}
            answer = (await http.post("/broadcasting/auth", data=sent)).json()
            await ws.send(json.dumps({"event": "pusher:subscribe", "data": {"channel": channel, **answer}}))
            assert json.loads(await ws.recv())["event"] == "pusher_internal:subscription_succeeded"
            ready.set()
            return await _code(ws)

    async def sse(self, credential: str, ready: asyncio.Event) -> str:
        """Watch, and return the last event."""
        last, path = "", f"/agent/streams/{self.session}"
        async with self.http(credential) as http, http.stream("GET", path) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                ready.set()
                last = line or last
        return last

    async def all_end(self, credential: str, then: Any = None) -> tuple[float, list[Any]]:
        """How long viewers of all wires last after an action, and how they end."""
        wires = (self.native, self.pusher, self.sse)
        ready = [asyncio.Event() for _ in wires]
        async with asyncio.timeout(MINUTE + 30):
            ends = asyncio.gather(*(wire(credential, each) for wire, each in zip(wires, ready, strict=True)))
            for each in ready:
                await each.wait()
            if then:
                await then()
            began = time.time()
            ended = await ends
        return time.time() - began, ended


async def _code(ws: Any) -> int:
    try:
        while True:
            await ws.recv()
    except ConnectionClosed:
        return ws.close_code or 0


@pytest_asyncio.fixture(loop_scope="session")
async def theatre(installation: Installation, tmp_path: Path) -> AsyncGenerator[Theatre]:
    front = Front(installation, tmp_path, "", f"theatre-{uuid4().hex}")
    front.variables = {"EVERSTEP_AUTH_SECRET": SECRET}
    gateway = a_free_port()
    await front.process("gateway", "--port", str(gateway), says="viewers watch at")
    await front.api()
    theatre = Theatre(front, gateway)
    async with theatre.http(theatre.token(60)) as http:
        theatre.session = (await http.post("/agent/sessions", json={})).json()["id"]
    yield theatre
    for process in front.begun:
        await process.kill()


async def test_viewers_of_all_wires_leave_when_their_token_expires(theatre: Theatre) -> None:
    """8.10.1, 8.10.2, 8.10.3"""
    lasts = 5.0
    began = time.time()
    _, (native, pusher, last) = await theatre.all_end(theatre.token(lasts))

    assert (native, pusher) == (3003, 4200)
    assert "The token has expired" in last
    # The claim has whole seconds, and the sweeper runs once a second; clocks may differ by much more.
    assert lasts - 1 <= time.time() - began < 30


async def test_viewers_of_all_wires_leave_when_their_key_is_revoked(
    theatre: Theatre, installation: Installation
) -> None:
    """8.10.1, 8.10.2, 8.10.3: within a minute."""
    keys = PostgresKeys(installation.store.engine)
    made = await create_key(keys, "screen", tenant_id=theatre.tenant, user_id="ann")

    async def revoke() -> None:
        assert await keys.revoke_key(theatre.tenant, made.key.id)

    seconds, (native, pusher, last) = await theatre.all_end(made.secret, revoke)

    assert (native, pusher) == (3502, 4009)
    assert "no longer" in last
    assert seconds < MINUTE
