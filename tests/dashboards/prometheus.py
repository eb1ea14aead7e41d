"""Debian's Prometheus, and its answers to the queries of panels."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from shutil import which
from typing import Any

import httpx2

from tests.acceptance.ways import HOST, Address
from tests.servers.postgres import NotInstalled
from tests.servers.programs import Server, accepts

SCRAPE_SECONDS = 2
RATE_SECONDS = 20
"""What Grafana would put in for `$__rate_interval`, which depends on the width of the picture."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line of a panel."""

    name: str
    points: Sequence[Point]


def prometheus_server(folder: Path, port: int, targets: Mapping[str, Address]) -> Server:
    """Prometheus, which reads these pages.

    Raises:
        NotInstalled: It is not installed.
    """
    program = which("prometheus")
    if not program:
        raise NotInstalled("Prometheus is not installed. On Debian: apt-get install prometheus")
    config = folder / "prometheus.yml"
    static = [
        {"targets": [f"{host}:{number}"], "labels": {"instance": name}}
        for name, (host, number) in targets.items()
    ]
    # JSON is YAML.
    config.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": f"{SCRAPE_SECONDS}s"},
                "scrape_configs": [{"job_name": "everstep", "static_configs": static}],
            }
        )
    )
    command = (program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}")
    return Server(
        "Prometheus",
        (*command, f"--web.listen-address={HOST}:{port}"),
        folder / "prometheus.log",
        partial(accepts, HOST, port),
    )


async def read_series(
    http: httpx2.AsyncClient, target: Mapping[str, Any], began: float, ended: float
) -> list[Series]:
    """The lines that one query of a panel returns."""
    query = target["expr"].replace("$__rate_interval", f"{RATE_SECONDS}s")
    given = {"query": query, "start": str(began), "end": str(ended), "step": str(SCRAPE_SECONDS)}
    answer = await http.get("/api/v1/query_range", params=given)
    assert answer.status_code == 200, f"{query}: {answer.text}"
    return [
        Series(_name(target["legendFormat"], each["metric"]), _points(each["values"]))
        for each in answer.json()["data"]["result"]
    ]


def _name(template: str, labels: Mapping[str, str]) -> str:
    for label, value in labels.items():
        template = template.replace("{{" + label + "}}", value)
    return template


def _points(values: Sequence[tuple[float, str]]) -> list[Point]:
    return [(moment, number) for moment, text in values if isfinite(number := float(text))]
