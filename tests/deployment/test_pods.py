"""The pods of the chart, as processes on the real servers: `make deployment`."""

import asyncio
import json
import re
import secrets
from contextlib import aclosing
from pathlib import Path
from uuid import UUID

import httpx2
import pytest

from everstep.agent_domain.stream.reader import Position
from everstep.streams.client_events import Happened, Wrote
from everstep.streams.gateway_client import stream
from tests.deployment.chart import render
from tests.deployment.pods import POD_IP, Cluster, Pod, open_database_port
from tests.services import Servers, make_database

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]

API, GATEWAY = "agents.example.com", "watch.example.com"


def chart_installation(services: Servers, database_url: str, folder: Path) -> Cluster:
    """The chart with an agent, for the servers of the tests."""
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
    )
    secret = {"DATABASE_URL": database_url, "EVERSTEP_BROADCAST_SECRET": secrets.token_hex(32)}
    return Cluster(manifests, folder, {"everstep": secret, "providers": {"OPENAI_API_KEY": "unused"}})


async def watched_text(gateway: Pod, key: str, session: str, execution: str) -> str:
    """What a viewer reads of an execution, to its end."""
    url, text = f"ws://{POD_IP}:{gateway.ports['gateway']}", ""
    async with aclosing(stream(url, f"agent.session.{session}", token=key, since=Position())) as events:
        async for event in events:
            match event:
                case Wrote():
                    text = event.text
                case Happened() if event.ends(UUID(execution)):
                    return text
                case _:
                    pass
    raise AssertionError("the stream ended before the execution")


async def test_the_pods_of_the_chart_work_together(services: Servers, tmp_path: Path) -> None:
    """18.5.3: in the order in which Helm starts them, without rights, on a read-only file system."""
    async with open_database_port(make_database(services, "chart", "template0")) as database_url:
        await run_the_installation(chart_installation(services, database_url, tmp_path))


async def run_the_installation(cluster: Cluster) -> None:
    """Migrate, start the processes, make the build current, send a message, and stop."""
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
            sent = (await http.post("/agent/messages", json={"content": "Hello"})).json()
            text = await asyncio.wait_for(
                watched_text(gateway, key, sent["session_id"], sent["execution_id"]), 60
            )
            ended = (await http.get(f"/agent/executions/{sent['execution_id']}")).json()
        assert ended["status"] == "completed"
        assert text == ended["output"]["response"]

        # Prometheus reads pods by their addresses; a name that a web page chose is refused.
        for pod, port in ((worker, "metrics"), (api, "http"), (gateway, "gateway")):
            page = await pod.get(port, "/metrics")
            assert page.status_code == 200, page.text
            assert "everstep_" in page.text
            assert (await pod.get(port, "/metrics", host="attacker.example")).status_code in {403, 404, 421}
        await cluster.run("prod-everstep-prune")
        # The worker and the API link to the gateway at the address and the port of its pod.
        [links] = re.findall(r"^everstep_gateway_links (\S+)$", page.text, re.MULTILINE)
        assert float(links) >= 2
        assert [await pod.stop() for pod in started] == [0, 0, 0], [pod.log.read_text() for pod in started]
    finally:
        for pod in started:
            if pod.process.returncode is None:
                pod.process.kill()
                await pod.process.wait()


def deployments(cluster: Cluster) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.manifests if each["kind"] == "Deployment"]
