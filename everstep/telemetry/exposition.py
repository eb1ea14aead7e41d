"""The metrics of this process in the text format of Prometheus."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from everstep.agent_domain.background import FAILURES
from everstep.telemetry import metrics
from everstep.telemetry.instruments import Counter, Gauge, Histogram, Instrument

CONTENT_TYPE = CONTENT_TYPE_LATEST

_published: list[CollectorRegistry] = []


@contextmanager
def publish_registry(registry: CollectorRegistry) -> Generator[None]:
    """Add the metrics of a part of this process to its page within the block."""
    _published.append(registry)
    try:
        yield
    finally:
        _published.remove(registry)


def render(*registries: CollectorRegistry) -> bytes:
    """Return the metrics of this process, and those of the given registries that are not published."""
    others = [each for each in registries if each not in _published]
    return b"".join(generate_latest(each) for each in (*others, *_published, _registry))


class _Instruments(Collector):
    """Exposes the instruments."""

    def __init__(self, instruments: Sequence[Instrument]) -> None:
        self._instruments = instruments

    def collect(self) -> Iterator[Metric]:
        for each in self._instruments:
            yield _family(each)
        failures = CounterMetricFamily(
            "everstep_background_failures", "Failures of background tasks in this process", labels=("task",)
        )
        for task, count in FAILURES.counts.items():
            failures.add_metric((task,), count)
        yield failures


def _family(instrument: Instrument) -> Metric:
    match instrument:
        case Counter():
            family = CounterMetricFamily(instrument.name, instrument.text, labels=instrument.labels)
            for labels, value in instrument.values.items():
                family.add_metric(labels, value)
        case Histogram():
            family = HistogramMetricFamily(instrument.name, instrument.text, labels=instrument.labels)
            for labels, distribution in instrument.values.items():
                bounds = [*map(repr, instrument.bounds), "+Inf"]
                buckets = list(zip(bounds, map(float, accumulate(distribution.counts)), strict=True))
                family.add_metric(labels, buckets, distribution.total)
        case Gauge():
            family = GaugeMetricFamily(instrument.name, instrument.text, labels=instrument.labels)
            for labels, value in instrument.values.items():
                family.add_metric(labels, value)
        case _:
            raise TypeError(f"{instrument.name} is a {type(instrument).__name__}")
    return family


_registry = CollectorRegistry()
_registry.register(_Instruments(metrics.ALL))
ProcessCollector(registry=_registry)
