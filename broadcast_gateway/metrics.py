"""Prometheus metrics of the gateway. No label names a tenant, a user or a stream."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from everstep.agent_domain.background import FAILURES
from everstep.broadcast_gateway.wires.closing import Closing


class GatewayMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_TaskFailures())
        self.connections = Gauge(
            "everstep_gateway_connections", "Connections of viewers", registry=self.registry
        )
        self.streams = Gauge(
            "everstep_gateway_streams",
            "Streams that are watched, or were a moment ago",
            registry=self.registry,
        )
        self.links = Gauge("everstep_gateway_links", "Writers that are linked", registry=self.registry)
        pushed = Counter(
            "everstep_gateway_pushed",
            "Envelopes and chunks that writers pushed for watched streams",
            ("kind",),
            registry=self.registry,
        )
        self._envelopes, self._chunks = pushed.labels("envelope"), pushed.labels("chunk")
        self._reads = Counter(
            "everstep_gateway_reads", "Reads of the table", ("what",), registry=self.registry
        )
        self._closed = Counter(
            "everstep_gateway_closed",
            "Connections that the gateway closed",
            ("code",),
            registry=self.registry,
        )
        self._refused = Counter(
            "everstep_gateway_refused", "Handshakes that were refused", ("status",), registry=self.registry
        )

    def count_push(self, *, is_chunk: bool) -> None:
        """Count an envelope or chunk that a writer pushed."""
        (self._chunks if is_chunk else self._envelopes).inc()

    def count_read(self, what: str) -> None:
        """Count a read of the table."""
        self._reads.labels(what).inc()

    def count_close(self, closing: Closing) -> None:
        """Count a connection that the gateway closed."""
        self._closed.labels(str(closing.native)).inc()

    def close_count(self, code: int) -> float:
        """Return how many connections were closed with this code."""
        return self.registry.get_sample_value("everstep_gateway_closed_total", {"code": str(code)}) or 0

    def count_refusal(self, status: int) -> None:
        """Count a refused handshake."""
        self._refused.labels(str(status)).inc()

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _TaskFailures(Collector):
    """Reports the process's counter of failed background tasks."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "everstep_background_failures", "Failures of background tasks in this process", labels=("task",)
        )
        for task, count in FAILURES.counts.items():
            family.add_metric((task,), count)
        yield family
