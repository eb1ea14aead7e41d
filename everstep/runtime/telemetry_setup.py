"""Logs, traces and metrics of a process that runs until it is stopped."""

import logging
import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from everstep.agent_domain.redaction import Redaction
from everstep.runtime.secrets import secrets
from everstep.runtime.settings import Settings
from everstep.telemetry import tracing
from everstep.telemetry.log_lines import configure_logs

if TYPE_CHECKING:
    from temporalio.client import Interceptor
    from temporalio.worker import Interceptor as WorkerInterceptor

    from everstep.telemetry.otel import OpenTelemetryExporter

log = logging.getLogger(__name__)

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP{}_ENDPOINT"
_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def configure_process_logs(
    settings: Settings, environ: Mapping[str, str] = os.environ, *, is_quiet: bool = False
) -> None:
    """Write the log of this process as its settings say, without its secrets.

    Args:
        settings: The settings.
        environ: The variables of this process.
        is_quiet: Whether to leave out what went well, but for ends of executions.
    """
    redaction = Redaction(tuple(secrets(settings, environ)))
    configure_logs(settings.log_format, settings.log_level, redaction, is_quiet=is_quiet)


@contextmanager
def open_telemetry(
    settings: Settings, role: str, environ: Mapping[str, str] = os.environ, *, logs_requests: bool = True
) -> Generator[None]:
    """Log and export within the block.

    Args:
        settings: The settings.
        role: The part of an installation, such as `worker`; the name of the service is `everstep-{role}`.
        environ: The standard variables of OpenTelemetry.
        logs_requests: Whether to log lines about what went well: requests, and ends of executions.
    """
    configure_process_logs(settings, environ, is_quiet=not logs_requests)
    with ExitStack() as stack:
        if exporter := _create_exporter(settings, role, environ):
            stack.callback(exporter.close)
            stack.enter_context(tracing.exporting(exporter))
        yield


def temporal_interceptors() -> "list[Interceptor]":
    """Return the interceptors of connections to Temporal, which pass the context of traces on."""
    if tracing.exporter() is None:
        from everstep.runtime.trace_header import TraceHeader  # noqa: PLC0415 -- commands need no Temporal

        return [TraceHeader()]
    from temporalio.contrib.opentelemetry import OpenTelemetryInterceptor  # noqa: PLC0415 -- needs the extra

    return [OpenTelemetryInterceptor()]


def workflow_spans() -> "list[WorkerInterceptor]":
    """Return the interceptors of a worker that trace executions."""
    if tracing.exporter() is None:
        return []
    from everstep.runtime.workflow_spans import WorkflowSpans  # noqa: PLC0415 -- needs the extra

    return [WorkflowSpans()]


def _create_exporter(
    settings: Settings, role: str, environ: Mapping[str, str]
) -> "OpenTelemetryExporter | None":
    """Return the exporter that the standard variables ask for, if it can be used."""
    exports_traces, exports_metrics = _is_wanted(environ, "TRACES"), _is_wanted(environ, "METRICS")
    if not (exports_traces or exports_metrics):
        return None
    for signal in ("", "_TRACES", "_METRICS"):
        protocol = environ.get(name := f"OTEL_EXPORTER_OTLP{signal}_PROTOCOL", "http/protobuf")
        if protocol != "http/protobuf":
            log.warning(
                "nothing is exported: %s is %s; use http/protobuf, and the port of the collector for HTTP, "
                "which is usually 4318",
                name,
                protocol,
            )
            return None
    try:
        from everstep.runtime.otlp import create_exporter  # noqa: PLC0415 -- needs the extra
    except ImportError:
        log.warning("nothing is exported: OTEL_EXPORTER_OTLP_ENDPOINT is set, and everstep[otel] is missing")
        return None
    resource = {"service.name": f"everstep-{role}", "service.version": version("everstep")}
    return create_exporter(
        resource,
        exports_traces=exports_traces,
        exports_metrics=exports_metrics,
        captures_content=environ.get(_CONTENT, "").lower() in {"true", "1", "span_only", "span_and_event"},
        redaction=Redaction(tuple(secrets(settings, environ))),
    )


def _is_wanted(environ: Mapping[str, str], signal: str) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    has_endpoint = environ.get(_ENDPOINT.format("")) or environ.get(_ENDPOINT.format(f"_{signal}"))
    return bool(has_endpoint) and environ.get(f"OTEL_{signal}_EXPORTER", "otlp") == "otlp"
