"""Temporal search attributes of executions. They hold ids and fixed words only."""

from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    SearchAttributeUpdate,
    TypedSearchAttributes,
)
from temporalio.service import RPCError, RPCStatusCode

from everstep.agent_domain.loop.status import ExecutionStatus, StopReason
from everstep.workflows.contracts import ExecutionInput

TENANT = SearchAttributeKey.for_keyword("EverstepTenant")
AGENT = SearchAttributeKey.for_keyword("EverstepAgent")
STATUS = SearchAttributeKey.for_keyword("EverstepStatus")
STOP_REASON = SearchAttributeKey.for_keyword("EverstepStopReason")
SESSION = SearchAttributeKey.for_keyword("EverstepSession")

ALL = (TENANT, AGENT, STATUS, STOP_REASON, SESSION)


def initial_attributes(start: ExecutionInput) -> TypedSearchAttributes:
    """Return the search attributes of a new execution; empty if the server has none registered."""
    if not start.search_attributes:
        return TypedSearchAttributes.empty
    session = start.ref.session_id
    return TypedSearchAttributes(
        [
            SearchAttributePair(TENANT, start.ref.tenant_id),
            SearchAttributePair(AGENT, start.plan.agent),
            SearchAttributePair(STATUS, ExecutionStatus.RUNNING.value),
            *([SearchAttributePair(SESSION, str(session))] if session else []),
        ]
    )


def status_updates(status: ExecutionStatus, reason: StopReason | None) -> list[SearchAttributeUpdate[str]]:
    """Return the updates for a new status."""
    return [STATUS.value_set(status.value), *([STOP_REASON.value_set(reason.value)] if reason else [])]


def is_unknown_attribute(error: RPCError) -> bool:
    """Return whether the server refuses a start because it does not have a search attribute."""
    return error.status is RPCStatusCode.INVALID_ARGUMENT and any(key.name in str(error) for key in ALL)
