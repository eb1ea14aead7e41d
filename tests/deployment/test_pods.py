"""The pods of the chart, as processes on the real servers: `make deployment`."""

import asyncio
import json
import re
import secrets
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path

import httpx2
import pytest

from everstep.agent_domain.stream.reader import Position
from everstep.streams.client_events import Happened, Wrote
from everstep.streams.gateway_client import stream
from tests.acceptance.harness import until
from tests.deployment.chart import render
from tests.deployment.pods import POD_IP, Cluster, Pod, open_database_port
from tests.nats_credentials import NatsOperator
from tests.nats_server import open_nats
from tests.pgbouncer import needs_pgbouncer, open_pgbouncer
from tests.services import Servers, make_database
from tests.standby import open_pair

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]

API, GATEWAY = "agents.example.com", "watch.example.com"


def chart_installation(services: Servers, folder: Path, secret: Mapping[str, str], *values: str) -> Cluster:
    """The chart with an agent, for the servers of the tests, and these values."""
    build = secrets.token_hex(4)
    agent = "---\nname: greeter\ndescription: Greets\n---\nYou greet."
    manifests = render(
        f"temporal.address={services.temporal_address}",
        f"temporal.taskQueue={folder.name}",
        f"worker.buildId={build}",
        f"hosts.api={API}",
        f"hosts.gateway={GATEWAY}",
        "workerSecrets.name=providers",
        "workerSecrets.variables={OPENAI_API_KEY}",
        f"agentFiles.greeter\\.md={agent}",
        'config=preset = "demo"',
        "worker.gracefulShutdownSeconds=1",
        "gateway.drainSeconds=1",
        *values,
    )
    own = {"EVERSTEP_BROADCAST_SECRET": secrets.token_hex(32), **secret}
    return Cluster(manifests, folder, {"everstep": own, "providers": {"OPENAI_API_KEY": "unused"}})


async def watched_text(gateway: Pod, key: str, session: str) -> str:
    """What a viewer reads of the next execution in a session, to its end."""
    url, text = f"ws://{POD_IP}:{gateway.ports['gateway']}", ""
    async with aclosing(stream(url, f"agent.session.{session}", token=key, since=Position())) as events:
        async for event in events:
            match event:
                case Wrote():
                    text = event.text
                case Happened() if event.ends(event.envelope.execution_id):
                    return text
                case _:
                    pass
    raise AssertionError("the stream ended before the execution")


async def test_the_pods_of_the_chart_work_together(services: Servers, tmp_path: Path) -> None:
    """18.5.3: in the order in which Helm starts them, without rights, on a read-only file system."""
    async with open_database_port(make_database(services, "chart", "template0")) as database_url:
        secret = {"DATABASE_URL": database_url}
        metrics = await run_the_installation(chart_installation(services, tmp_path, secret))
    # The worker and the API link to the gateway at the address and the port of its pod.
    [links] = re.findall(r"^everstep_gateway_links (\S+)$", metrics["gateway"], re.MULTILINE)
    assert float(links) >= 2


@needs_pgbouncer
async def test_the_pods_work_with_pgbouncer_a_standby_and_nats(services: Servers, tmp_path: Path) -> None:
    """18.5.3: by the values of the chart and the keys of its Secret, the credentials of NATS as a file."""
    operator, configuration, credentials = NatsOperator(), tmp_path / "nats.json", tmp_path / "creds"
    operator.write_configuration(configuration)
    operator.write_credentials(credentials)
    async with (
        open_pair() as (primary, standby),
        open_pgbouncer(primary.url.replace("@", ":of-the-pooler@"), size=10) as pooler,
        open_nats("-c", str(configuration)) as nats,
    ):
        secret = {
            "DATABASE_URL": pooler.url,
            "DATABASE_DIRECT_URL": primary.url,
            "DATABASE_REPLICA_URL": standby.url,
            "everstep.creds": credentials.read_text(),
        }
        values = (
            *("database.pooled=true", "database.replica=true"),
            *("nats.enabled=true", f"nats.url={nats.url}", "nats.credentialsKey=everstep.creds"),
        )
        metrics = await run_the_installation(chart_installation(services, tmp_path, secret, *values))
    for page in metrics.values():
        assert "\neverstep_bus_connected 1" in page
    assert re.search(r'^everstep_replica_reads_total{outcome="replica"} [1-9]', metrics["api"], re.MULTILINE)


async def run_the_installation(cluster: Cluster) -> dict[str, str]:
    """Migrate, start the processes, make a build current, send a message, and stop; return their metrics."""
    await cluster.run("prod-everstep-migration")
    [worker_name] = [name for name in deployments(cluster) if "-worker-" in name]
    started = await asyncio.gather(
        *(cluster.start(name) for name in (worker_name, "prod-everstep-api", "prod-everstep-gateway"))
    )
    worker, api, gateway = started
    try:
        await asyncio.gather(*(pod.until_ready() for pod in started))
        await cluster.run("prod-everstep-build")

        key = (await cluster.run("prod-everstep-api", ["everstep", "keys", "create", "chart"])).strip()
        url = f"http://{POD_IP}:{api.ports['http']}"
        headers = {"Authorization": f"Bearer {key}", "Host": API}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
            agents = (await http.get("/agent/agents")).json()
            assert "greeter" in json.dumps(agents)
            session = (await http.post("/agent/sessions", json={})).json()["id"]
            watching = asyncio.create_task(watched_text(gateway, key, session))

            async def is_watched() -> bool:
                assert not watching.done(), watching
                page = (await gateway.get("gateway", "/metrics")).text
                return "\neverstep_gateway_streams 1" in page

            # Text is not stored, so the viewer has to be there before it is written.
            await until("the session is watched", is_watched)
            sent = (await http.post(f"/agent/sessions/{session}/messages", json={"content": "Hello"})).json()
            text = await asyncio.wait_for(watching, 60)
            ended = (await http.get(f"/agent/executions/{sent['execution_id']}")).json()
            assert (await http.get("/agent/sessions")).json()["items"]
        assert ended["status"] == "completed"
        assert text == ended["output"]["response"]

        # Prometheus reads pods by their addresses; a name that a web page chose is refused.
        pages = dict[str, str]()
        ports = {"worker": (worker, "metrics"), "api": (api, "http"), "gateway": (gateway, "gateway")}
        for name, (pod, port) in ports.items():
            page = await pod.get(port, "/metrics")
            assert page.status_code == 200, page.text
            assert "everstep_" in page.text
            pages[name] = page.text
            assert (await pod.get(port, "/metrics", host="attacker.example")).status_code in {403, 404, 421}
        await cluster.run("prod-everstep-prune")
        assert [await pod.stop() for pod in started] == [0, 0, 0], [pod.log.read_text() for pod in started]
        return pages
    finally:
        for pod in started:
            if pod.process.returncode is None:
                pod.process.kill()
                await pod.process.wait()


def deployments(cluster: Cluster) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.manifests if each["kind"] == "Deployment"]
