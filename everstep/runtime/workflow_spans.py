"""The span of an execution, `invoke_agent`, which its workflow opens and ends.

Only imported where traces are on. The SDK's interceptor has attached the context of the start; the one here
opens the span in it, and everything that the workflow starts continues from there.
"""

from typing import Any

from opentelemetry import trace
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from everstep.telemetry.otel import NAME
from everstep.telemetry.tracing import Value, execution_attributes
from everstep.workflows.contracts import ExecutionInput, ExecutionResult


class WorkflowSpans(Interceptor):
    """Traces executions."""

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 -- the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        """Return the interceptor class of a workflow."""
        del input
        return _ExecutionSpan


class _ExecutionSpan(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 -- the SDK's name
        start = input.args[0] if input.args else None
        if not isinstance(start, ExecutionInput):
            return await super().execute_workflow(input)
        agent = start.plan.agent
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            **execution_attributes(start.ref),
        }
        span = trace.get_tracer(NAME).start_span(f"invoke_agent {agent}", attributes=attributes)
        # Not ended here: a workflow that leaves the cache ends its coroutine, and not its execution.
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                result = await super().execute_workflow(input)
            except workflow.ContinueAsNewError:
                span.set_attribute("everstep.continues", True)
                span.end()
                raise
            except Exception as error:
                if workflow.is_failure_exception(error):
                    _finish(span, _result_of(error))
                    span.set_attribute("error.type", getattr(error, "type", None) or type(error).__name__)
                    span.set_status(trace.Status(trace.StatusCode.ERROR))
                    span.end()
                raise
            _finish(span, result)
            span.end()
            return result


def _result_of(error: Exception) -> object:
    return error.details[0] if isinstance(error, ApplicationError) and error.details else None


def _finish(span: trace.Span, result: object) -> None:
    if isinstance(result, ExecutionResult):
        used = result.usage
        span.set_attributes(
            {
                "everstep.stop_reason": str(result.stop_reason),
                "everstep.steps": result.steps,
                "gen_ai.usage.input_tokens": used.input + used.cached,
                "gen_ai.usage.output_tokens": used.output + used.reasoning,
            }
        )
