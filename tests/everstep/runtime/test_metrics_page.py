"""The page of metrics of a process: what waits in the database, and Temporal's SDK."""

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.storage.overview import Backlog
from everstep.runtime import metrics_page
from everstep.runtime.metrics_page import MetricsPage
from everstep.telemetry import metrics


class FixedBacklog:
    """What waits, or an outage."""

    def __init__(self, pending: Mapping[str, int] | None) -> None:
        self.pending = pending
        self.reads = 0

    async def read(self) -> Backlog:
        self.reads += 1
        if self.pending is None:
            raise StoreUnavailable("the database is away")
        return Backlog({"approval": (2, 61.5)}, self.pending)


async def test_what_waits_is_read_once_for_all_scrapes() -> None:
    """18.3.1"""
    backlog = FixedBacklog({"default": 3})
    page = MetricsPage(backlog, 10)

    async with page.open_sources():
        await page.render()
        text = (await page.render()).decode()

    assert backlog.reads == 1
    assert 'everstep_open_requests{kind="approval"} 2.0' in text
    assert 'everstep_open_requests{kind="input"} 0.0' in text
    assert 'everstep_open_requests_age_seconds{kind="approval"} 61.5' in text
    assert 'everstep_queue_depth{tenant="default"} 3.0' in text


@pytest.mark.parametrize(
    ("most", "depths"),
    [
        (3, {("default",): 0, ("a",): 1, ("b",): 2, ("other",): 3}),
        (0, {("other",): 6}),
    ],
)
async def test_the_number_of_tenants_with_a_label_is_bounded(
    most: int, depths: Mapping[tuple[str, ...], float]
) -> None:
    """18.3.3"""
    page = MetricsPage(FixedBacklog({"a": 1, "b": 2, "c": 3}), most)

    async with page.open_sources():
        await page.render()
        assert metrics.QUEUE_DEPTH.values == depths


async def test_a_page_is_served_without_the_database() -> None:
    """18.3.4: it says nothing about what it does not know, and counts the failure."""
    page, failures = MetricsPage(FixedBacklog(None), 10), metrics.SCRAPE_FAILURES
    before = failures.values.get(("database",), 0)

    async with page.open_sources():
        text = (await page.render()).decode()

    assert "everstep_steps_total" in text
    assert "everstep_queue_depth{" not in text
    assert failures.values["database",] == before + 1


async def test_the_metrics_of_the_sdk_are_on_the_same_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """18.3.1"""

    class Sdk(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"temporal_request_total 3\n")

        def log_message(self, *_arguments: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            pass

    with HTTPServer(("127.0.0.1", 0), Sdk) as server:
        monkeypatch.setattr(metrics_page, "sdk_metrics_port", lambda: server.server_port)
        thread = Thread(target=server.handle_request)
        thread.start()
        assert (await MetricsPage(FixedBacklog({}), 1).render()).endswith(b"\ntemporal_request_total 3\n")
        thread.join()
    failures = metrics.SCRAPE_FAILURES.values.get(("temporal_sdk",), 0)
    assert b"temporal_request_total" not in await MetricsPage(FixedBacklog({}), 1).render()
    assert metrics.SCRAPE_FAILURES.values["temporal_sdk",] == failures + 1
