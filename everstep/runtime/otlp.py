"""Export by OTLP over HTTP."""

import logging
from collections.abc import Mapping
from uuid import uuid4

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from everstep.agent_domain.redaction import Redaction
from everstep.telemetry.otel import OpenTelemetryExporter, RareLines, WithoutTexts


def create_exporter(
    resource: Mapping[str, str],
    *,
    exports_traces: bool,
    exports_metrics: bool,
    captures_content: bool,
    redaction: Redaction,
) -> OpenTelemetryExporter:
    """Create an exporter whose endpoints, headers and times the standard variables set."""
    for module in (metric_exporter, trace_exporter):
        logging.getLogger(module.__name__).addFilter(RareLines())
    spans = BatchSpanProcessor(_span_exporter(captures_content)) if exports_traces else None
    exporter = OpenTelemetryExporter(
        {**resource, "service.instance.id": str(uuid4())},
        spans,
        [PeriodicExportingMetricReader(OTLPMetricExporter())] if exports_metrics else [],
        captures_content=captures_content,
        redaction=redaction,
    )
    # Temporal's interceptor requires the global one; libraries of agents find it there, too.
    trace.set_tracer_provider(exporter.tracers)
    return exporter


def _span_exporter(captures_content: bool) -> SpanExporter:
    exporter = OTLPSpanExporter()
    return exporter if captures_content else WithoutTexts(exporter)
