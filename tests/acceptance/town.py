"""An installation over its HTTP API: an API process, a worker, and a client that waits for them."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx2

from everstep.agent_domain.stream.envelopes import Envelope
from tests.acceptance.front import Front
from tests.acceptance.harness import Installation, until
from tests.acceptance.storm.programs import Calls, Program

ENDED = frozenset({"completed", "failed", "cancelled"})


@dataclass
class Town:
    """A service's operations on an installation."""

    front: Front
    http: httpx2.AsyncClient
    tenant: str

    @classmethod
    @asynccontextmanager
    async def open(cls, front: Front, tenant: str) -> AsyncGenerator["Town"]:
        """Open it with an API process that answers."""
        await front.api()
        headers = {"Authorization": f"Bearer {front.key}"}
        async with httpx2.AsyncClient(base_url=front.url, headers=headers, timeout=20) as http:
            yield cls(front, http, tenant)

    @property
    def installation(self) -> Installation:
        """The installation below it."""
        return self.front.installation

    async def post(self, path: str, *, expect: int | None = None, **body: Any) -> Any:
        """The response to a request; a status other than the expected one fails the test."""
        headers = {"Idempotency-Key": uuid4().hex}
        answer = await self.http.post(path, json=body, headers=headers)
        wanted = [expect] if expect else [200, 201]
        assert answer.status_code in wanted, answer.text
        return answer.json()

    async def get(self, path: str) -> Any:
        """Read an address."""
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def begin(self, *turns: Calls, agent: str = "citizen", **more: Any) -> dict[str, Any]:
        """Start a session with one program."""
        content = Program(f"[{uuid4().hex[:6]}]", turns).text()
        return await self.post("/agent/messages", content=content, agent=agent, **more)

    async def say(self, session: str, *turns: Calls, **more: Any) -> dict[str, Any]:
        """Send another program in the session."""
        content = Program(f"[{uuid4().hex[:6]}]", turns).text()
        return await self.post(f"/agent/sessions/{session}/messages", content=content, **more)

    async def execution(self, accepted: dict[str, Any]) -> dict[str, Any]:
        return await self.get(f"/agent/executions/{accepted.get('execution_id') or accepted['id']}")

    async def status(self, accepted: dict[str, Any], *wanted: str) -> dict[str, Any]:
        """Wait until the execution has one of these statuses."""
        found: dict[str, Any] = {}

        async def is_so() -> bool:
            found.update(await self.execution(accepted))
            return found["status"] in wanted

        await until(f"the execution is {' or '.join(wanted)}", is_so)
        return found

    async def wait_for_end(self, accepted: dict[str, Any]) -> dict[str, Any]:
        """Wait until the execution has ended."""
        return await self.status(accepted, *ENDED)

    async def request(self, accepted: dict[str, Any]) -> dict[str, Any]:
        await self.status(accepted, "paused")
        found = await self.get(f"/agent/executions/{accepted['execution_id']}/requests")
        return next(each for each in found["items"] if each["state"] == "open")

    async def steps(self, accepted: dict[str, Any]) -> list[dict[str, Any]]:
        """The steps of an execution."""
        execution = accepted.get("execution_id") or accepted["id"]
        return (await self.get(f"/agent/executions/{execution}/steps?limit=200"))["items"]

    async def results(self, accepted: dict[str, Any]) -> list[str]:
        """The results of each call as the model read them."""
        return [call["text"] for step in await self.steps(accepted) for call in step["calls"]]

    async def envelopes(self, accepted: dict[str, Any]) -> list[Envelope]:
        """Everything stored of the execution's stream, in order."""
        stream = UUID(accepted.get("session_id") or accepted["id"])
        found = await self.installation.store.envelopes(self.tenant, stream)
        return [Envelope.placed(each) for each in found]

    async def snapshots(self, accepted: dict[str, Any]) -> list[dict[str, Any]]:
        execution = accepted.get("execution_id") or accepted["id"]
        found = await self.get(f"/agent/executions/{execution}/snapshots?limit=200")
        return found["items"][::-1]


def state_of(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The state in a snapshot."""
    state = snapshot["state"]
    return json.loads(state) if isinstance(state, str) else state
