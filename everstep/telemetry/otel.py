"""The exporter of OpenTelemetry: spans and measurements by OTLP over HTTP.

Imported only where an endpoint is configured. The library reads the standard variables (`OTEL_...`) itself.
Its processors work on their own threads with bounded queues, so a collector that is away costs spans, and
nothing else.
"""

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Final

from opentelemetry import context, metrics as otel_metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span as SdkSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio.contrib.opentelemetry import ReplaySafeTracerProvider, create_tracer_provider

from everstep.agent_domain.redaction import Redaction
from everstep.telemetry import metrics
from everstep.telemetry.instruments import Counter, Gauge, Instrument
from everstep.telemetry.tracing import Attributes, TraceSpan, current_attributes

NAME: Final = "everstep"
"""The instrumentation scope."""

CLOSE_SECONDS: Final = 3.0
"""How long a process that ends may take to send what it has recorded."""

_KINDS: Final = {
    "internal": trace.SpanKind.INTERNAL,
    "client": trace.SpanKind.CLIENT,
    "server": trace.SpanKind.SERVER,
}
_W3C: Final = TraceContextTextMapPropagator()

_SECONDS: Final[tuple[float, ...]] = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
"""The buckets that the semantic conventions advise."""
_COUNTS: Final[tuple[float, ...]] = tuple(float(4**power) for power in range(14))


class OpenTelemetryExporter:
    """Records with the SDK."""

    def __init__(
        self,
        resource: Mapping[str, str],
        spans: SpanProcessor | None,
        readers: Iterable[MetricReader],
        *,
        captures_content: bool = False,
        redaction: Redaction | None = None,
    ) -> None:
        """Prepare the providers.

        Args:
            resource: Attributes of this process; `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` win.
            spans: Receives the spans; None for no traces.
            readers: Read the measurements.
            captures_content: Whether spans have the texts of conversations.
            redaction: Removes secrets from these texts.
        """
        self.captures_content = captures_content
        self._redaction = redaction or Redaction()
        # The defaults, this process, and what the standard variables say, in rising precedence.
        merged = Resource.create(resource).merge(OTELResourceDetector().detect())
        # Its ids are the same in a replay, so that a workflow's span ends once, in any worker.
        self.tracers: ReplaySafeTracerProvider = create_tracer_provider(
            resource=merged, shutdown_on_exit=False
        )
        if spans is not None:
            self.tracers.add_span_processor(_ExecutionAttributes())
            self.tracers.add_span_processor(spans)
        self._tracer = self.tracers.get_tracer(NAME)
        self.meters = MeterProvider([*readers], resource=merged, shutdown_on_exit=False)
        self._histograms = _create_histograms(self.meters.get_meter(NAME))
        _observe_instruments(self.meters.get_meter(NAME), metrics.ALL)

    @contextmanager
    def open_span(
        self, name: str, attributes: Attributes, kind: str, traceparent: str | None
    ) -> Generator[TraceSpan]:
        """Open a span as the current one."""
        parent = None if traceparent is None else _remote_context(traceparent)
        span = self._tracer.start_span(name, parent, _KINDS[kind], attributes)
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                self.fail_span(span, type(error).__name__)
                raise
            finally:
                span.end()

    def current_span(self) -> TraceSpan:
        """Return the current span."""
        return trace.get_current_span()

    def traceparent(self) -> str | None:
        """Return the context of the current span."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get("traceparent")

    @contextmanager
    def continue_trace(self, traceparent: str | None) -> Generator[None]:
        """Continue another trace, or none."""
        token = context.attach(_remote_context(traceparent or ""))
        try:
            yield
        finally:
            context.detach(token)

    def record(self, measure: str, value: float, attributes: Attributes) -> None:
        """Add a value to a histogram."""
        self._histograms[measure].record(value, attributes)

    def fail_span(self, span: TraceSpan, error_type: str) -> None:
        """Mark a span as failed, without a message: it may quote a conversation."""
        span.set_attribute("error.type", error_type)
        if isinstance(span, trace.Span):
            span.set_status(trace.Status(trace.StatusCode.ERROR))

    def redact(self, text: str) -> str:
        """Return the text without secrets."""
        return self._redaction(text)

    def close(self) -> None:
        """Send what is recorded, within a few seconds."""

        def shut_down() -> None:
            self.tracers.shutdown()
            self.meters.shutdown(timeout_millis=CLOSE_SECONDS * 1000)

        # A collector that is away would delay the end by its own time limits.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        thread = threading.Thread(target=shut_down, daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS)


def _remote_context(traceparent: str) -> context.Context:
    """Return the context that a header names; an empty one if it names none."""
    return _W3C.extract({"traceparent": traceparent}, context.Context())


class RareLines(logging.Filter):
    """Lets a logger write one line a minute: a collector that is away fails every export and retry."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._next = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        del record
        if self._clock() < self._next:
            return False
        self._next = self._clock() + self._seconds
        return True


class WithoutTexts(SpanExporter):
    """Exports spans without events and messages of errors, which libraries fill with texts."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans."""
        return self._exporter.export([_without_texts(each) for each in spans])

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what waits."""
        return self._exporter.force_flush(timeout_millis)


def _without_texts(span: ReadableSpan) -> ReadableSpan:
    if not span.events and not span.status.description:
        return span
    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,
        span.attributes,
        (),
        span.links,
        span.kind,
        status=trace.Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


class _ExecutionAttributes(SpanProcessor):
    """Names the execution on each span that begins while code works for it."""

    def on_start(self, span: SdkSpan, parent_context: context.Context | None = None) -> None:
        del parent_context
        span.set_attributes(current_attributes())

    def on_end(self, span: ReadableSpan) -> None:
        del span


def _create_histograms(meter: otel_metrics.Meter) -> Mapping[str, otel_metrics.Histogram]:
    seconds = ("operation.duration", "operation.time_to_first_chunk")
    names: dict[str, tuple[str, tuple[float, ...]]] = {
        f"gen_ai.client.{name}": ("s", _SECONDS) for name in seconds
    }
    names["gen_ai.client.token.usage"] = ("{token}", _COUNTS)
    return {
        name: meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=bounds)
        for name, (unit, bounds) in names.items()
    }


def _observe_instruments(meter: otel_metrics.Meter, instruments: Iterable[Instrument]) -> None:
    """Export the instruments of this process, too, except histograms."""
    for each in instruments:
        match each:
            case Counter():
                meter.create_observable_counter(each.name, [_observations(each)], description=each.text)
            case Gauge():
                meter.create_observable_gauge(each.name, [_observations(each)], description=each.text)
            case _:
                pass


def _observations(instrument: Counter | Gauge) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        labels = instrument.labels
        return [
            Observation(value, dict(zip(labels, values, strict=True)))
            for values, value in list(instrument.values.items())
        ]

    return observe
