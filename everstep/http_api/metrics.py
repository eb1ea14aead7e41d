"""What is counted, for Prometheus. No label names a tenant or a person."""

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


Repairs = Callable[[], Mapping[str, int]]
"""How many of each kind the reconciler of this process has made."""


class Metrics:
    """The counters of one process."""

    def __init__(self, repairs: Repairs | None = None) -> None:
        self.registry = CollectorRegistry()
        self.in_progress = Gauge(
            "everstep_http_requests_in_progress", "Requests being answered", registry=self.registry
        )
        self._requests = Counter(
            "everstep_http_requests",
            "Requests answered",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "everstep_http_request_seconds",
            "How long answers took",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._replayed = Counter(
            "everstep_http_answers_replayed",
            "Answers given again for the same Idempotency-Key",
            registry=self.registry,
        )
        self._accepted = Counter(
            "everstep_messages_accepted",
            "Messages of people, by what they did",
            ("route",),
            registry=self.registry,
        )
        self.registry.register(_BackgroundFailures())
        if repairs is not None:
            self.registry.register(_Repairs(repairs))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def replayed(self) -> None:
        """An answer was given again."""
        self._replayed.inc()

    def accepted(self, route: str) -> None:
        """A message was taken."""
        self._accepted.labels(route).inc()

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _Repairs(Collector):
    """Counted elsewhere."""

    def __init__(self, repairs: Repairs) -> None:
        self.repairs = repairs

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily("everstep_repairs", "What the reconciler put right", labels=("repair",))
        for repair, count in self.repairs().items():
            family.add_metric((repair,), count)
        yield family


class _BackgroundFailures(Collector):
    """Counted where they happen."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "everstep_background_failures", "What failed in the background of this process", labels=("task",)
        )
        for task, count in FAILURES.counts.items():
            family.add_metric((task,), count)
        yield family
