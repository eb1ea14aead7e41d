"""The meaning of Temporal's status codes, in one table for the API, the client and the commands."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from temporalio.service import RPCError, RPCStatusCode


class ErrorMeaning(StrEnum):
    """How to treat a request that Temporal answered with an error."""

    TRANSIENT = "passes"
    """The same request may succeed later."""
    NOT_NOW = "not now"
    """The workflow is missing, has ended or already runs, so it cannot accept the request."""
    DENIED = "locked"
    """Access is denied, until an operator changes the process's key."""
    FAULT = "fault"
    """A bug: the server does not support the request."""


MEANINGS: Final[Mapping[RPCStatusCode, ErrorMeaning]] = {
    RPCStatusCode.OK: ErrorMeaning.FAULT,
    RPCStatusCode.CANCELLED: ErrorMeaning.TRANSIENT,
    RPCStatusCode.UNKNOWN: ErrorMeaning.TRANSIENT,
    RPCStatusCode.INVALID_ARGUMENT: ErrorMeaning.FAULT,
    RPCStatusCode.DEADLINE_EXCEEDED: ErrorMeaning.TRANSIENT,
    RPCStatusCode.NOT_FOUND: ErrorMeaning.NOT_NOW,
    RPCStatusCode.ALREADY_EXISTS: ErrorMeaning.NOT_NOW,
    RPCStatusCode.PERMISSION_DENIED: ErrorMeaning.DENIED,
    RPCStatusCode.RESOURCE_EXHAUSTED: ErrorMeaning.TRANSIENT,
    # The workflow's last task failed and is retried ("workflow task in failed state"), or the namespace moves
    # to another cluster.
    RPCStatusCode.FAILED_PRECONDITION: ErrorMeaning.TRANSIENT,
    RPCStatusCode.ABORTED: ErrorMeaning.TRANSIENT,
    # Like INTERNAL and DATA_LOSS: lost shards, an unavailable database, streams that proxies reset.
    RPCStatusCode.OUT_OF_RANGE: ErrorMeaning.TRANSIENT,
    RPCStatusCode.UNIMPLEMENTED: ErrorMeaning.FAULT,
    RPCStatusCode.INTERNAL: ErrorMeaning.TRANSIENT,
    RPCStatusCode.UNAVAILABLE: ErrorMeaning.TRANSIENT,
    RPCStatusCode.DATA_LOSS: ErrorMeaning.TRANSIENT,
    RPCStatusCode.UNAUTHENTICATED: ErrorMeaning.DENIED,
}

TRANSIENT_CODES: Final = frozenset(
    status for status, meaning in MEANINGS.items() if meaning is ErrorMeaning.TRANSIENT
)
"""The status codes of Temporal, or of its connection, for which a retry may succeed."""


_OF_ONE_WORKFLOW: Final = frozenset(
    {
        RPCStatusCode.NOT_FOUND,
        RPCStatusCode.ALREADY_EXISTS,
        RPCStatusCode.INVALID_ARGUMENT,
        # Its last task failed.
        RPCStatusCode.FAILED_PRECONDITION,
        # Too many updates wait for its worker.
        RPCStatusCode.RESOURCE_EXHAUSTED,
        # Its history cannot be read.
        RPCStatusCode.OUT_OF_RANGE,
        RPCStatusCode.DATA_LOSS,
    }
)


def concerns_one_workflow(error: RPCError) -> bool:
    """Whether the same request may succeed now for another workflow, so that work on many can continue."""
    return error.status in _OF_ONE_WORKFLOW and meaning_of(error) is not ErrorMeaning.DENIED


def meaning_of(error: RPCError) -> ErrorMeaning:
    """The meaning of an error; NOT_FOUND for a namespace means denied access, not a missing workflow."""
    meaning = MEANINGS.get(error.status, ErrorMeaning.FAULT)
    if meaning is ErrorMeaning.NOT_NOW and "amespace" in error.message:
        return ErrorMeaning.DENIED
    return meaning


def is_missing(error: RPCError) -> bool:
    """Whether Temporal does not have the workflow: it was never started, deleted, or removed for its age."""
    return error.status is RPCStatusCode.NOT_FOUND and meaning_of(error) is ErrorMeaning.NOT_NOW


def is_failing_task(error: RPCError) -> bool:
    """Whether a workflow took no update because its task fails, which Temporal retries."""
    return error.status is RPCStatusCode.FAILED_PRECONDITION and "workflow task" in error.message.lower()
