"""`make dashboards`: people use an installation for some minutes, and the dashboards of that time are drawn.

Two workers, two APIs and two gateways run on PostgreSQL and Temporal, and one worker is killed. Debian's
Prometheus reads their metrics. The pictures are in docs/screens, and panels without data are listed.

    EVERSTEP_DASHBOARD_MINUTES=4 make dashboards
"""

import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx2

from everstep.runtime.embedded import EmbeddedConfig, open_services
from tests.acceptance.front import a_free_port
from tests.acceptance.harness import ROOT, Nursery, open_installation
from tests.acceptance.storm.local import add_roles
from tests.acceptance.storm.scene import Force, Person, Scene
from tests.acceptance.storm.weather import Option, Weather
from tests.acceptance.ways import HOST, Address
from tests.dashboards.drawing import draw_dashboard
from tests.dashboards.prometheus import prometheus_server, read_series
from tests.programs import open_programs
from tests.servers.postgres import NotInstalled

DASHBOARDS: Final = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
PICTURES: Final = ROOT / "docs" / "screens"
PEOPLE: Final = (("acme", "ann"), ("acme", "bob"), ("globex", "cat"))


class OneKill(Weather):
    """One worker is killed in the middle, and returns after some seconds."""

    def options(self) -> list[Option]:
        (worker, *_) = [role for role in self.scene.roles if role.name.startswith("worker")]
        return [(1, "a worker is killed", lambda: worker.crash(10))]


def give_metrics_ports(scene: Scene) -> dict[str, Address]:
    """Let workers serve their metrics, and return the addresses of all pages."""
    pages = dict[str, Address]()
    apis, gateways = list(scene.apis), list(scene.gateways)
    for role in scene.roles:
        if role.name.startswith("worker"):
            port = a_free_port()
            role.environment = {**role.environment, "EVERSTEP_METRICS_PORT": str(port)}
            pages[role.name] = (HOST, port)
        else:
            pages[role.name] = (apis if role.name.startswith("api") else gateways).pop(0)
    return pages


async def draw(prometheus: str, began: float, ended: float) -> list[str]:
    """Draw all dashboards; return the titles of panels without data."""
    empty = list[str]()
    async with httpx2.AsyncClient(base_url=prometheus, timeout=30) as http:
        for path in DASHBOARDS:
            panels: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
            found = [
                (
                    panel,
                    [
                        each
                        for target in panel["targets"]
                        for each in await read_series(http, target, began, ended)
                    ],
                )
                for panel in panels
            ]
            empty += [f"{path.stem}: {panel['title']}" for panel, lines in found if not lines]
            name = path.stem.replace("everstep-", "dashboard-")
            (PICTURES / f"{name}.svg").write_text(draw_dashboard(found, began, ended))
    return empty


async def main() -> None:
    seconds = 60 * float(os.environ.get("EVERSTEP_DASHBOARD_MINUTES", "4"))
    measure = Force(
        talks=8, viewers=10, seconds=seconds, faults=1, patience=120, limit=0, pause=2, talk_seconds=45
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="everstep-dashboards-")))
        programs = stack.enter_context(open_programs(folder / "programs"))
        nursery = await stack.enter_async_context(Nursery.open(programs))
        config = EmbeddedConfig(folder / "data", temporal_port=0, ui_port=0)
        services = await stack.enter_async_context(open_services(config))
        installation = await stack.enter_async_context(
            open_installation(nursery, services, services.database_url)
        )
        people = [await Person.create(installation.store, tenant, user) for tenant, user in PEOPLE]
        scene = Scene(measure, "dashboards", installation.store, folder, people)
        add_roles(scene, nursery, services.database_url, services.temporal_address)
        port = a_free_port()
        prometheus = prometheus_server(folder, port, give_metrics_ports(scene))
        await stack.enter_async_context(scene.running())
        stack.push_async_callback(prometheus.stop)
        await prometheus.start()
        began = time.time()
        await scene.play(OneKill(scene, scene.dice("weather")))
        for fault in scene.faults:
            print(fault)
        for title in await draw(f"http://{HOST}:{port}", began, began + seconds):
            print(f"no data: {title}")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except NotInstalled as error:
        sys.exit(str(error))
