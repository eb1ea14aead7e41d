"""Spans of traces, which cost nothing as long as no exporter is set.

The names and attributes follow OpenTelemetry's semantic conventions for generative AI. Texts of people, of
models and of tools are attributes only where that was asked for, and no span has the message of an exception:
providers quote prompts in theirs.

This module knows no library: `everstep.telemetry.otel` is the exporter where an endpoint is configured.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol

from everstep.agent_domain.ids import ExecutionRef
from everstep.telemetry.scope import conversation_id, current_execution, is_named_first

TRACEPARENT: Final = "traceparent"
"""The key of the trace with which an execution was accepted, in its stored plan."""

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]


class TraceSpan(Protocol):
    """An open span."""

    def set_attribute(self, key: str, value: Value) -> object:
        """Set an attribute."""
        ...

    def update_name(self, name: str) -> object:
        """Change the name."""
        ...


class Exporter(Protocol):
    """Records spans and measurements, and passes the context of traces on."""

    captures_content: bool
    """Whether spans have the texts of conversations."""

    def open_span(
        self, name: str, attributes: Attributes, kind: str, traceparent: str | None
    ) -> AbstractContextManager[TraceSpan]:
        """Open a span, as the current one of the block; an exception that leaves the block is its error."""
        ...

    def current_span(self) -> TraceSpan:
        """Return the current span, which may record nothing."""
        ...

    def traceparent(self) -> str | None:
        """Return the context of the current span as W3C header; None if there is none."""
        ...

    def continue_trace(self, traceparent: str | None) -> AbstractContextManager[object]:
        """Continue another trace within the block; None begins new ones."""
        ...

    def record(self, measure: str, value: float, attributes: Attributes) -> None:
        """Add a value to a histogram."""
        ...

    def fail_span(self, span: TraceSpan, error_type: str) -> None:
        """Mark a span as failed."""
        ...

    def redact(self, text: str) -> str:
        """Return the text without secrets."""
        ...


class _NoSpan:
    def set_attribute(self, key: str, value: Value) -> None:
        del key, value

    def update_name(self, name: str) -> None:
        del name

    def __enter__(self) -> TraceSpan:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


NO_SPAN: Final = _NoSpan()

_exporters: list[Exporter] = []


def exporter() -> Exporter | None:
    """Return the exporter of this process, if traces are on."""
    return _exporters[-1] if _exporters else None


@contextmanager
def exporting(to: Exporter) -> Generator[None]:
    """Record spans within the block."""
    _exporters.append(to)
    try:
        yield
    finally:
        _exporters.remove(to)


def open_span(
    name: str,
    attributes: Callable[[], Attributes],
    *,
    kind: str = "internal",
    traceparent: str | None = None,
) -> AbstractContextManager[TraceSpan]:
    """Open a span.

    Args:
        name: Its name.
        attributes: Returns its attributes; called only if spans are recorded.
        kind: `internal`, `client` or `server`.
        traceparent: The W3C context that it continues, as a caller sent it; without one in it, the span
            begins a trace. None: it continues the current span.
    """
    to = exporter()
    return NO_SPAN if to is None else to.open_span(name, attributes(), kind, traceparent)


def execution_attributes(ref: ExecutionRef) -> dict[str, Value]:
    """Return the attributes that name an execution."""
    return {
        "gen_ai.conversation.id": conversation_id(ref),
        "everstep.execution.id": str(ref.execution_id),
        "everstep.tenant.id": ref.tenant_id,
    }


def current_attributes() -> dict[str, Value]:
    """Return the attributes that name the execution of the current task."""
    ref = current_execution()
    return {} if ref is None else execution_attributes(ref)


def name_execution(ref: ExecutionRef) -> None:
    """Let the current request, or its span, name the execution that it is about; the first one counts."""
    to = exporter()
    if is_named_first(ref) and to is not None:
        span = to.current_span()
        for key, value in execution_attributes(ref).items():
            span.set_attribute(key, value)


def trace_to_store() -> dict[str, Any]:
    """Return the current trace, to be stored with the plan of an execution that is accepted now."""
    to = exporter()
    traceparent = to and to.traceparent()
    return {TRACEPARENT: traceparent} if traceparent else {}


def continue_trace_of(plan: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Continue the trace with which an execution was accepted: another process may start it, later.

    A process without an exporter, such as a command, passes the trace on: see `passed_traceparent`.
    """
    to, traceparent = exporter(), plan.get(TRACEPARENT)
    return _passing(traceparent) if to is None else to.continue_trace(traceparent)


_passed: Final[ContextVar[str | None]] = ContextVar("passed_traceparent", default=None)


def passed_traceparent() -> str | None:
    """Return the trace that a process without an exporter continues, as W3C header; None if there is none."""
    return _passed.get()


@contextmanager
def _passing(traceparent: str | None) -> Generator[None]:
    token = _passed.set(traceparent)
    try:
        yield
    finally:
        _passed.reset(token)
