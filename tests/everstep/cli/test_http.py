"""The commands of the HTTP API: its process, and its keys."""

import re
import signal
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.acceptance.harness import Nursery, until
from tests.everstep.cli.desk import CommandLine

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_key_is_created_listed_and_revoked(desk: CommandLine) -> None:
    made = await desk.output_of("keys", "create", "shop", "--scope", "sessions:all", "--tenant", "acme")
    secret = made.splitlines()[0]
    assert re.fullmatch(r"esk_[\w-]{43}", secret)

    listed = await desk.output_of("keys", "list", "--tenant", "acme")
    (key_id,) = re.findall(r"^(\S+)  shop \(sessions:all\)  never used$", listed, re.MULTILINE)
    assert f"everstep keys revoke {key_id}" in made
    assert secret not in listed
    assert await desk.output_of("keys", "list") == ""

    assert "no key" in await desk.error_of("keys", "revoke", key_id, "--tenant", "default")
    assert await desk.output_of("keys", "revoke", key_id, "--tenant", "acme") == "the key is revoked\n"
    assert "  revoked 20" in await desk.output_of("keys", "list", "--tenant", "acme")


UNKNOWN_SCOPE = (
    "unknown scope 'all'; use: sessions:all, read-only, approve, approve:edit, answer, steer, cancel, admin, "
    "or a scope of your agents, which contains a colon, such as shop:refund"
)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "x", "--scope", "all"), UNKNOWN_SCOPE),
        (("create", "x" * 201), "name has 201 characters; send at most 200"),
        (("revoke", "7"), "'7' is not a key id; `everstep keys list` lists them"),
    ],
)
async def test_the_limits_of_keys_are_reported(
    desk: CommandLine, arguments: tuple[str, ...], complaint: str
) -> None:
    assert await desk.error_of("keys", *arguments) == complaint


async def test_the_api_answers_until_it_is_stopped(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    key = (await desk.output_of("keys", "create", "curl", "--user", "ann")).splitlines()[0]
    log = tmp_path / "log"
    log.touch()
    process = await nursery.start("api", "--port", "0", log=log, environment=desk.environment)
    await until("it answers", lambda: process.ended.done() or "answering at" in log.read_text())
    assert process.code is None, log.read_text()
    url = re.findall(r"answering at (\S+),", log.read_text())[0]

    async with httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as ann:
        assert (await ann.get("/readyz")).json()["status"] == "ready"
        sent = (await ann.post("/agent/messages", json={"content": "hello"})).json()
        asked = f"/agent/executions/{sent['execution_id']}"

        async def has_ended() -> bool:
            return (await ann.get(asked)).json()["status"] == "completed"

        await until("it is answered", has_ended)
        await ann.get(f"/agent/sessions/{uuid4()}", headers={"X-Request-Id": "r-1"})
        counted = (await ann.get("/metrics")).text
    process.signal(signal.SIGTERM)

    assert await process.wait() == 0, log.read_text()
    assert 'everstep_repairs_total{repair="launched"}' in counted
    (line,) = [line for line in log.read_text().splitlines() if "request_id=r-1" in line]
    assert re.search(
        r"INFO \S+: GET /agent/sessions/\{session_id\}: 404, [\d.]+ ms request_id=r-1 tenant_id=", line
    )
    assert "Traceback" not in log.read_text()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url)


async def test_an_unusable_port_is_reported(desk: CommandLine, nursery: Nursery, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    given = {**desk.environment, "EVERSTEP_HTTP_HOST": "203.0.113.1"}
    process = await nursery.start("api", "--port", "1", log=log, environment=given)

    assert await process.wait() == 1
    assert log.read_text().splitlines()[-1].startswith("Error: port 1 of 203.0.113.1 cannot be used: ")


async def test_a_gateway_serves_until_it_is_stopped(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    given = {**desk.environment, "EVERSTEP_AUTH_SECRET": "s" * 40}
    process = await nursery.start("gateway", "--port", "0", log=log, environment=given)
    await until("it serves", lambda: process.ended.done() or "viewers watch at" in log.read_text())
    assert process.code is None, log.read_text()
    url = re.findall(r"viewers watch at ws(\S+);", log.read_text())[0]
    assert httpx2.get(f"http{url}/healthz").json() == {"status": "ok"}
    process.signal(signal.SIGTERM)
    assert await process.wait() == 0, log.read_text()
    assert log.read_text().splitlines()[-1] == "stopping; viewers are asked to reconnect"


async def test_a_gateway_without_a_secret_names_the_setting(
    desk: CommandLine, nursery: Nursery, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.touch()
    process = await nursery.start("gateway", "--port", "0", log=log, environment=desk.environment)
    assert await process.wait() == 1
    assert "set EVERSTEP_AUTH_SECRET or EVERSTEP_BROADCAST_SECRET" in log.read_text()
