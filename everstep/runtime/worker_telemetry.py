"""What a worker measures and traces: slots in use, attempts after the first, and the spans of executions.

A workflow is replayed, in any worker. The tracer of Temporal's SDK gives its span the same id in each replay,
and ends it only where the end is not a replay. So an execution has one span, however many workers ran it.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from everstep.activities.worker_places import Places
from everstep.agent_domain.ids import ExecutionRef
from everstep.telemetry import metrics, tracing
from everstep.telemetry.scope import working_for


@contextmanager
def slots_source(places: Places, count: int) -> Generator[None]:
    """Expose the slots of a worker within the block: its places, and the activities that wait for one."""

    def read() -> Mapping[tuple[str, ...], float]:
        free = max(count - places.held, 0)
        return {("used",): places.held, ("free",): free, ("waiting",): places.waiting}

    with metrics.ACTIVITY_SLOTS.source(read):
        yield


class ActivityTelemetry(Interceptor):
    """Counts and traces the activities of a worker."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 -- the SDK's name
        """Return the interceptor of an activity."""
        return _ActivityTelemetry(next)


class _ActivityTelemetry(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 -- the SDK's name
        info = activity.info()
        if info.attempt > 1:
            metrics.RETRIES.add(info.activity_type)
        ref = _execution_of(input.args)
        with (
            working_for(ref),
            tracing.open_span(_span_name(info.activity_type), lambda: _activity(input)),
        ):
            return await super().execute_activity(input)


def _span_name(activity_type: str) -> str:
    """Return the name of an activity's span: some types begin with `everstep.` already."""
    return f"everstep.{activity_type.removeprefix('everstep.')}"


def _execution_of(arguments: Sequence[Any]) -> ExecutionRef | None:
    given = arguments[0] if arguments else None
    ref = given if isinstance(given, ExecutionRef) else getattr(given, "ref", None)
    return ref if isinstance(ref, ExecutionRef) else None


def _activity(input: ExecuteActivityInput) -> dict[str, tracing.Value]:  # noqa: A002 -- the SDK's name
    number = getattr(input.args[0], "number", None) if input.args else None
    step: dict[str, tracing.Value] = {"everstep.step.number": number} if isinstance(number, int) else {}
    return {"everstep.activity.attempt": activity.info().attempt, **step}
