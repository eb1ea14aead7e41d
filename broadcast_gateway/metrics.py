"""Prometheus metrics of the gateway. No label names a tenant, a user or a stream."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from everstep.broadcast_gateway.wires.closing import Closing
from everstep.telemetry import exposition


class GatewayMetrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
        """Return all metrics of the process in Prometheus' text format."""
        return exposition.render(self.registry)
