"""Prometheus metrics of the API. No label contains a tenant or a user."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
)

from everstep.telemetry import exposition

CONTENT_TYPE = exposition.CONTENT_TYPE

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
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
        """All metrics of the process in the text format of Prometheus."""
        return exposition.render(self.registry)
