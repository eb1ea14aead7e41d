"""Passes stored traces on to Temporal from processes that export none, such as a command.

Needs no library of OpenTelemetry: it writes the header that the interceptor of Temporal's SDK reads in
a worker.
"""

from typing import Any, Final

from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle
from temporalio.converter import PayloadConverter

from everstep.telemetry.tracing import TRACEPARENT, passed_traceparent

HEADER: Final = "_tracer-data"
"""The header's name in Temporal's SDK."""


class TraceHeader(Interceptor):
    """Adds the stored trace of an execution to the start of its workflow."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 -- the SDK's name
        """Return the interceptor of a client."""
        return _TraceHeader(next)


class _TraceHeader(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002 -- the SDK's name
        traceparent = passed_traceparent()
        if traceparent is not None:
            (payload,) = PayloadConverter.default.to_payloads([{TRACEPARENT: traceparent}])
            input.headers = {**input.headers, HEADER: payload}
        return await super().start_workflow(input)
