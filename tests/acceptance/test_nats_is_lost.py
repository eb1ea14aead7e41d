"""NATS carries events between processes, and dies while text streams."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import httpx2
import pytest

from everstep.http_api.api_keys import create_key
from everstep.store.keys import PostgresKeys
from tests.acceptance.front import Front, a_free_port
from tests.acceptance.harness import Installation, Process, until
from tests.acceptance.onlookers import Endpoints, ManualViewer, NativeViewer, SseViewer
from tests.acceptance.ways import HOST, Way
from tests.nats_credentials import NatsOperator
from tests.nats_server import NatsServer, open_nats

pytestmark = pytest.mark.asyncio(loop_scope="session")

PASSWORD = "p@ss word"  # noqa: S105 -- of the test's server


class Scene:
    """A worker, an API and a gateway on NATS, and viewers of one stream."""

    def __init__(self, front: Front, nats: NatsServer, endpoints: Endpoints, gateway_port: int) -> None:
        self.front = front
        self.nats = nats
        self.endpoints = endpoints
        self.gateway_port = gateway_port

    async def gateway(self) -> Process:
        arguments = ("gateway", "--port", str(self.gateway_port))
        return await self.front.process(*arguments, says="viewers watch at")

    def viewer(self, kind: type[ManualViewer], stream_id: UUID, port: int) -> ManualViewer:
        way = Way(lambda: (HOST, port))
        way.port = port
        return kind(kind.__name__, stream_id, True, way, self.endpoints, Random(1))  # noqa: S311 -- no secret

    async def bus_state(self, port: int) -> str:
        """What a process says of NATS; it is ready in any case."""
        async with httpx2.AsyncClient() as http:
            answer = await http.get(f"http://{HOST}:{port}/readyz")
        assert answer.status_code == 200, answer.text
        (bus,) = [each for each in answer.json()["checks"] if each["name"] == "bus"]
        assert bus["ok"]
        return bus["detail"]


@asynccontextmanager
async def open_scene(installation: Installation, folder: Path) -> AsyncGenerator[Scene]:
    keys, tenant = PostgresKeys(installation.store.engine), f"nats-{uuid4().hex}"
    made = await create_key(keys, "people", tenant_id=tenant, user_id="ann")
    async with open_nats("--user", "ann", "--pass", PASSWORD) as nats:
        front = Front(installation, folder, made.secret, tenant)
        front.variables |= {
            "EVERSTEP_AGENTS": "tests.acceptance.storytellers:agents",
            "EVERSTEP_DEFAULT_AGENT": "teller",
            "EVERSTEP_TEST_FOLDER": str(folder),
            "EVERSTEP_BROADCAST_SECRET": "of the test of NATS, of the test of NATS",
            "EVERSTEP_BUS": "nats",
            "EVERSTEP_NATS_URL": f"nats://ann:p%40ss%20word@{HOST}:{nats.port}",
        }
        try:
            yield Scene(front, nats, Endpoints(front.url, made.secret), a_free_port())
        finally:
            for process in front.begun:
                await process.kill()


async def test_viewers_see_all_although_nats_and_a_gateway_are_killed(
    installation: Installation, tmp_path: Path
) -> None:
    """Follows rules 7.8.5 and 7.8.6: over WebSocket and server-sent events, each envelope once, in order."""
    async with open_scene(installation, tmp_path) as scene:
        gateway, _, _ = await asyncio.gather(
            scene.gateway(), scene.front.process("worker", says="working on"), scene.front.api()
        )
        headers = {"Authorization": f"Bearer {scene.front.key}"}
        async with httpx2.AsyncClient(base_url=scene.front.url, headers=headers, timeout=20) as http:
            session = (await http.post("/agent/sessions", json={})).json()["id"]
            viewers = [
                scene.viewer(NativeViewer, UUID(session), scene.gateway_port),
                scene.viewer(SseViewer, UUID(session), scene.front.port),
            ]
            watching = [asyncio.create_task(each.watch()) for each in viewers]
            path = f"/agent/sessions/{session}/messages"
            sent = (await http.post(path, json={"content": "Story 1"})).json()

            await until("text streams", lambda: all(each.received.words > 3 for each in viewers))
            await scene.nats.kill()
            for port in (scene.gateway_port, scene.front.port):
                await until("NATS is missed", is_missed(scene, port))
            await scene.nats.start()
            before = [each.received.words for each in viewers]
            await until(
                "text streams again",
                lambda: all(each.received.words > n for each, n in zip(viewers, before, strict=True)),
            )
            await gateway.kill()
            await scene.gateway()

            async def has_ended() -> bool:
                found = await http.get(f"/agent/executions/{sent['execution_id']}")
                return found.json()["status"] == "completed"

            await until("the story has ended", has_ended)
        stored = await installation.store.envelopes(scene.front.queue, UUID(session))
        await until("all was seen", lambda: all(len(each.received.stored) == len(stored) for each in viewers))
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        assert await scene.bus_state(scene.gateway_port) == ""
    for each in viewers:
        assert each.received.faults == []
        assert [seen.id for seen in each.received.stored] == [row.id for row in stored]
    assert "Traceback" not in "".join(process.log.read_text() for process in scene.front.begun)


def is_missed(scene: Scene, port: int) -> Callable[[], object]:
    async def is_so() -> bool:
        return "NATS is away" in await scene.bus_state(port)

    return is_so


async def test_a_bus_that_cannot_be_used_is_named(installation: Installation, tmp_path: Path) -> None:
    """Follows rule 7.8.7: at the start, or by the doctor and in the log."""
    async with open_scene(installation, tmp_path) as scene:
        url = scene.front.variables["EVERSTEP_NATS_URL"]
        wrong = {
            "EVERSTEP_BUS": ("pigeons", "'direct' or 'nats'"),
            "EVERSTEP_NATS_URL": ("http://host", "EVERSTEP_NATS_URL cannot be used: write nats://"),
            "EVERSTEP_NATS_CREDENTIALS": ("/nowhere", "names '/nowhere', which cannot be read"),
        }
        for name, (value, sentence) in wrong.items():
            log = await run(scene, "gateway", **{name: value})
            assert sentence in log
            assert "Traceback" not in log
            assert log.count("\n") <= 2
        assert "set EVERSTEP_NATS_URL=nats://" in await run(scene, "gateway", EVERSTEP_NATS_URL="")

        refused = "refuses the credentials; check the user and password in EVERSTEP_NATS_URL"
        log = await run(scene, "doctor", EVERSTEP_NATS_URL=url.replace("ann", "eve"))
        assert refused in log
        assert "p%40ss" not in log
        assert (
            "expired at 2020-05-17 08:00:00 UTC, so create new ones"
            in await doctor_with_expired_credentials(scene, tmp_path)
        )
        scene.front.variables["EVERSTEP_NATS_URL"] = url.replace("ann", "eve")
        gateway = await scene.gateway()
        await until("the log names it", lambda: refused in gateway.log.read_text())
        assert "NATS is away" in await scene.bus_state(scene.gateway_port)


async def doctor_with_expired_credentials(scene: Scene, folder: Path) -> str:
    """What the doctor says of expired credentials of an account."""
    operator, configuration, expired = NatsOperator(), folder / "nats.json", folder / "expired.creds"
    operator.write_configuration(configuration)
    operator.write_credentials(expired, datetime(2020, 5, 17, 8, tzinfo=UTC))
    async with open_nats("-c", str(configuration)) as nats:
        given = {"EVERSTEP_NATS_URL": nats.url, "EVERSTEP_NATS_CREDENTIALS": str(expired)}
        return await run(scene, "doctor", **given)


async def run(scene: Scene, command: str, **more: str) -> str:
    """The output of a command that ends by itself."""
    log = scene.front.folder / f"{command}-{uuid4().hex}.log"
    log.touch()
    given = {"EVERSTEP_TASK_QUEUE": scene.front.queue, **scene.front.variables, **more}
    environment = scene.front.installation.environment(**given)
    process = await scene.front.installation.nursery.start(command, log=log, environment=environment)
    assert await process.wait() == 1, log.read_text()
    return log.read_text()
