"""The dashboards of Grafana and the alerts of Prometheus: what they say can be read, and exists."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from everstep.broadcast_gateway.metrics import GatewayMetrics
from everstep.http_api.metrics import Metrics
from everstep.telemetry import exposition

ROOT = Path(__file__).parent.parent
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
INCIDENTS = (ROOT / "docs" / "incidents.md").read_text()

NAME = re.compile(r"\b(?:everstep|temporal|process)_\w+|\bup\b")


def dashboard_expressions() -> Iterator[str]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield target["expr"]


def all_expressions() -> list[str]:
    return [*dashboard_expressions(), *(rule["expr"] for rule in RULES)]


def named_metrics() -> set[str]:
    """The names of samples that dashboards and alerts read, without those that Prometheus makes."""
    return {name for each in all_expressions() for name in NAME.findall(each)} - {"up"}


def sample_names(page: str) -> set[str]:
    """The names that a page can have samples of, also where it has none yet."""
    names = set[str]()
    for family in text_string_to_metric_families(page):
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        names |= {f"{family.name}{end}" for end in ends.get(family.type, ("",))}
    return names


def registry_names(registry: CollectorRegistry) -> set[str]:
    return sample_names(generate_latest(registry).decode())


@pytest.mark.parametrize("expression", all_expressions())
def test_each_expression_is_valid(expression: str) -> None:
    """18.3.12"""
    promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def test_each_metric_of_dashboards_and_alerts_is_exposed() -> None:
    """18.3.12: those of Temporal's SDK are compared with real pages, in `tests/acceptance/test_traces.py`."""
    exposed = (
        sample_names(exposition.render().decode())
        | registry_names(Metrics().registry)
        | registry_names(GatewayMetrics().registry)
    )

    assert {name for name in named_metrics() if not name.startswith("temporal_")} <= exposed


def test_each_alert_has_a_page() -> None:
    """18.3.12: it says what it means, where to look and what to do."""
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", INCIDENTS, re.MULTILINE | re.DOTALL))

    assert sections.keys() == {rule["alert"] for rule in RULES}
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/incidents.md#{rule['alert'].lower()}"
        assert "- **Look**:" in sections[rule["alert"]]
        assert "- **Do**:" in sections[rule["alert"]]


def test_dashboards_can_be_imported() -> None:
    """18.3.12: ids are unique, panels do not overlap, and any data source can be chosen."""
    assert len(DASHBOARDS) == 3
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        assert dashboard["uid"] == path.stem
        assert [each["name"] for each in dashboard["templating"]["list"]] == ["datasource"]
        panels = dashboard["panels"]
        assert len({each["id"] for each in panels}) == len(panels)
        cells = [
            (x, y)
            for each in panels
            for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
            for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < 24
        assert all(each["title"] and each["datasource"]["uid"] == "${datasource}" for each in panels)
