"""What the gateway counts, for Prometheus. No label names a tenant, a person or a stream."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from everstep.agent_domain.background import FAILURES
from everstep.broadcast_gateway.wires.closing import Closing


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_BackgroundFailures())
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
            "What writers pushed of watched streams",
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

    def pushed(self, *, is_chunk: bool) -> None:
        """A writer pushed something that somebody watches."""
        (self._chunks if is_chunk else self._envelopes).inc()

    def read(self, what: str) -> None:
        """The table was read."""
        self._reads.labels(what).inc()

    def closed(self, closing: Closing) -> None:
        """A connection was closed."""
        self._closed.labels(str(closing.native)).inc()

    def closed_by(self, code: int) -> float:
        """How many were closed with this code."""
        return self.registry.get_sample_value("everstep_gateway_closed_total", {"code": str(code)}) or 0

    def refused(self, status: int) -> None:
        """A handshake was refused."""
        self._refused.labels(str(status)).inc()

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _BackgroundFailures(Collector):
    """Counted where they happen."""

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "everstep_background_failures", "What failed in the background of this process", labels=("task",)
        )
        for task, count in FAILURES.counts.items():
            family.add_metric((task,), count)
        yield family
