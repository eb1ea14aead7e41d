"""Two APIs and two gateways behind nginx, configured as `docs/deployment.md` says: `make deployment`."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from everstep.http_api.api_keys import create_key
from everstep.http_api.attempt_limits import PER_ADDRESS
from everstep.store.keys import PostgresKeys
from tests.acceptance.front import Front, a_free_port
from tests.acceptance.harness import Installation, Process, until
from tests.nginx import API_NAME, GATEWAY_NAME, Nginx, open_nginx

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]

MOST_BYTES = 10_000_000
"""The largest attachment, by default."""
SIGN_IN = {"provider": {"code": "c", "verifier": "v" * 43, "redirect_uri": f"https://{API_NAME}/console/"}}


@dataclass
class Site:
    """An installation behind the proxy."""

    front: Front
    nginx: Nginx
    apis: list[Process]
    gateways: list[Process]

    def client(self, address: str = "127.0.0.1") -> httpx2.AsyncClient:
        """A client at this address, which sends requests to the proxy under the name of the API."""
        return httpx2.AsyncClient(
            base_url=f"https://127.0.0.1:{self.nginx.port}",
            headers={"Authorization": f"Bearer {self.front.key}", "Host": API_NAME},
            transport=OfOneName(verify=self.nginx.tls, local_address=address),
            timeout=30,
        )

    async def viewer(self, session: str) -> ClientConnection:
        """A subscriber to a session, over the proxy."""
        socket = await connect(
            f"wss://{GATEWAY_NAME}/v1",
            host="127.0.0.1",
            port=self.nginx.port,
            ssl=self.nginx.tls,
            subprotocols=[Subprotocol("everstep.v1")],
            proxy=None,
        )
        await socket.send(json.dumps({"type": "hello", "token": self.front.key}))
        await socket.send(json.dumps({"type": "sub", "channel": f"agent.session.{session}"}))
        await until_frame(socket, "sub_ok")
        return socket


class OfOneName(httpx2.AsyncHTTPTransport):
    """Checks the certificate of the name under which requests are sent."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.extensions["sni_hostname"] = API_NAME
        return await super().handle_async_request(request)


async def until_frame(socket: ClientConnection, kind: str) -> None:
    async with asyncio.timeout(30):
        while json.loads(await socket.recv())["type"] != kind:
            pass


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Site]:
    folder: Path = tmp_path_factory.mktemp("nginx")
    tenant = f"nginx-{uuid4().hex}"
    made = await create_key(
        PostgresKeys(installation.store.engine), "people", tenant_id=tenant, user_id="ann"
    )
    front = Front(installation, folder, made.secret, tenant)
    nobody = f"https://127.0.0.1:{a_free_port()}"
    front.variables |= {
        "EVERSTEP_BROADCAST_SECRET": "of the test of nginx, of the test of nginx",
        "EVERSTEP_ALLOWED_HOSTS": f"{API_NAME},{GATEWAY_NAME}",
        "EVERSTEP_PUBLIC_URL": f"https://{API_NAME}",
        "FORWARDED_ALLOW_IPS": "127.0.0.1",
        # An identity provider that does not answer: failed attempts are limited by address.
        "EVERSTEP_AUTH_JWKS_URL": f"{nobody}/keys",
        "EVERSTEP_AUTH_ISSUER": nobody,
        "EVERSTEP_AUTH_AUDIENCE": "any",
        "EVERSTEP_CONSOLE_CLIENT_ID": "console",
    }
    apis, gateways = [[a_free_port(), a_free_port()] for _ in range(2)]
    try:
        *started, _ = await asyncio.gather(
            *(front.process("api", "--port", str(port), says="answering at") for port in apis),
            *(front.process("gateway", "--port", str(port), says="viewers watch at") for port in gateways),
            front.process("worker", says="working on"),
        )
        addresses = [[f"127.0.0.1:{port}" for port in ports] for ports in (apis, gateways)]
        async with open_nginx(folder / "proxy", *addresses) as nginx:
            yield Site(front, nginx, started[:2], started[2:])
    finally:
        for process in front.begun:
            await process.kill()


async def test_events_arrive_while_the_stream_is_open(site: Site) -> None:
    """18.5.10: server-sent events are not buffered, and a viewer of a gateway gets the same."""
    async with site.client() as http:
        session = (await http.post("/agent/sessions", json={})).json()["id"]
        viewer = await site.viewer(session)
        async with http.stream("GET", f"/agent/streams/{session}") as events:
            assert events.status_code == HTTPStatus.OK
            lines = events.aiter_lines()
            async with asyncio.timeout(30):
                async for line in lines:
                    if line == "event: joined":
                        break
                sent = await http.post(f"/agent/sessions/{session}/messages", json={"content": "Hello"})
                assert sent.status_code == HTTPStatus.CREATED, sent.text
                async for line in lines:
                    if line == "event: agent.step.completed":
                        break
        await until_frame(viewer, "agent.step.completed")
        await viewer.close()


async def test_metrics_are_not_public(site: Site) -> None:
    """18.5.10: under no spelling, of no process."""
    async with site.client() as http:
        for name in (API_NAME, GATEWAY_NAME):
            for path in ("/metrics", "/%6Detrics"):
                refused = await http.get(path, headers={"Host": name})
                assert (refused.status_code, "everstep_" in refused.text) == (404, False), (name, path)


async def test_attachments_of_the_largest_size_pass(site: Site) -> None:
    """18.5.10: what is larger is refused by Everstep, in its words, and by the proxy far above."""
    async with site.client() as http:
        headers = {"Content-Type": "text/plain"}
        for size, status in ((MOST_BYTES, 201), (MOST_BYTES + 1, 413), (11 * 2**20, 413)):
            answer = await http.post("/agent/attachments", content=b"a" * size, headers=headers)
            assert answer.status_code == status, answer.text
            is_ours = answer.headers["content-type"].startswith("application/")
            assert is_ours is (size <= MOST_BYTES + 1)


async def test_apis_see_the_address_of_the_client(site: Site) -> None:
    """18.5.10: not that of the proxy, and none that the client claims."""

    async def sign_in(http: httpx2.AsyncClient, **headers: str) -> int:
        origin = {"Origin": f"https://{API_NAME}", **headers}
        return (await http.post("/sign-in", json=SIGN_IN, headers=origin)).status_code

    async with site.client("127.0.0.2") as one, site.client("127.0.0.3") as other:
        statuses = [await sign_in(one) for _ in range(2 * PER_ADDRESS + 4)]
        assert set(statuses) == {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}
        assert await sign_in(one, **{"X-Forwarded-For": "127.0.0.3"}) == HTTPStatus.TOO_MANY_REQUESTS
        assert await sign_in(other) == HTTPStatus.SERVICE_UNAVAILABLE


async def test_the_other_process_takes_over(site: Site) -> None:
    """18.5.10: of an API that was killed, and of a gateway, without an error for requests that are safe."""
    async with site.client() as http:
        session = (await http.post("/agent/sessions", json={})).json()["id"]
        viewers = [await site.viewer(session) for _ in range(2)]
        await site.apis[0].kill()
        await site.gateways[0].kill()
        statuses = {(await http.get(f"/agent/sessions/{session}")).status_code for _ in range(10)}
        assert statuses == {HTTPStatus.OK}
        lost = 0
        for viewer in viewers:
            try:
                async with asyncio.timeout(1):
                    await viewer.recv()
            except ConnectionClosed:
                lost += 1
            except TimeoutError:
                pass
            await viewer.close()
        # Connections are shared between the gateways.
        assert lost == 1
        again = await site.viewer(session)
        sent = await http.post(f"/agent/sessions/{session}/messages", json={"content": "Hello"})
        assert sent.status_code == HTTPStatus.CREATED, sent.text
        await until_frame(again, "agent.step.completed")
        await again.close()
    await until("the worker still works", lambda: site.front.begun[-1].code is None)
