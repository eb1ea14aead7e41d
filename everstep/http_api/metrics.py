"""Prometheus metrics of the API. No label contains a tenant or a user."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from everstep.agent_domain.background import FAILURES

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


RepairCounts = Callable[[], Mapping[str, int]]
"""Returns the number of repairs by kind that the reconciler of this process has made."""


class Metrics:
    """The counters of one process."""

    def __init__(self, repairs: RepairCounts | None = None) -> None:
        self.registry = CollectorRegistry()
        self.in_progress = Gauge(
            "everstep_http_requests_in_progress", "Requests in progress", registry=self.registry
        )
        self._requests = Counter(
            "everstep_http_requests",
            "Requests answered",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "everstep_http_request_seconds",
            "Duration of requests in seconds",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._replayed = Counter(
            "everstep_http_answers_replayed",
            "Responses that were replayed for an Idempotency-Key",
            registry=self.registry,
        )
        self._accepted = Counter(
            "everstep_messages_accepted",
            "Accepted messages of users, by route",
            ("route",),
            registry=self.registry,
        )
        self.registry.register(_FailureCollector())
        if repairs is not None:
            self.registry.register(_RepairCollector(repairs))

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def count_replay(self) -> None:
        """Count a replayed response."""
        self._replayed.inc()

    def count_message(self, route: str) -> None:
        """Count an accepted message."""
        self._accepted.labels(route).inc()

    def render(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class _RepairCollector(Collector):
    """Exports the reconciler's own counters."""

    def __init__(self, repairs: RepairCounts) -> None:
        self.repairs = repairs

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily("everstep_repairs", "Repairs of the reconciler", labels=("repair",))
        for repair, count in self.repairs().items():
            family.add_metric((repair,), count)
        yield family


class _FailureCollector(Collector):
    """Exports the counters of failed background tasks."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "everstep_background_failures", "Failures of background tasks in this process", labels=("task",)
        )
        for task, count in FAILURES.counts.items():
            family.add_metric((task,), count)
        yield family
