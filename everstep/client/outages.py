"""The meaning of Temporal's status codes, in one table for the API, the client and the commands."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from temporalio.service import RPCError, RPCStatusCode


class Meaning(StrEnum):
    """How to treat a request that Temporal answered with an error."""

    PASSES = "passes"
    """The same request may succeed later."""
    NOT_NOW = "not now"
    """The workflow is missing, has ended or already runs, so it cannot accept the request."""
    LOCKED = "locked"
    """Access is denied, until an operator changes the process's key."""
    FAULT = "fault"
    """A bug: the server does not support the request."""


MEANINGS: Final[Mapping[RPCStatusCode, Meaning]] = {
    RPCStatusCode.OK: Meaning.FAULT,
    RPCStatusCode.CANCELLED: Meaning.PASSES,
    RPCStatusCode.UNKNOWN: Meaning.PASSES,
    RPCStatusCode.INVALID_ARGUMENT: Meaning.FAULT,
    RPCStatusCode.DEADLINE_EXCEEDED: Meaning.PASSES,
    RPCStatusCode.NOT_FOUND: Meaning.NOT_NOW,
    RPCStatusCode.ALREADY_EXISTS: Meaning.NOT_NOW,
    RPCStatusCode.PERMISSION_DENIED: Meaning.LOCKED,
    RPCStatusCode.RESOURCE_EXHAUSTED: Meaning.PASSES,
    # The workflow's last task failed and is retried ("workflow task in failed state"), or the namespace moves
    # to another cluster.
    RPCStatusCode.FAILED_PRECONDITION: Meaning.PASSES,
    RPCStatusCode.ABORTED: Meaning.PASSES,
    # Like INTERNAL and DATA_LOSS: lost shards, an unavailable database, streams that proxies reset.
    RPCStatusCode.OUT_OF_RANGE: Meaning.PASSES,
    RPCStatusCode.UNIMPLEMENTED: Meaning.FAULT,
    RPCStatusCode.INTERNAL: Meaning.PASSES,
    RPCStatusCode.UNAVAILABLE: Meaning.PASSES,
    RPCStatusCode.DATA_LOSS: Meaning.PASSES,
    RPCStatusCode.UNAUTHENTICATED: Meaning.LOCKED,
}

PASSING: Final = frozenset(status for status, meaning in MEANINGS.items() if meaning is Meaning.PASSES)
"""The status codes of Temporal, or of its connection, for which a retry may succeed."""


def meaning_of(error: RPCError) -> Meaning:
    """The meaning of an error; NOT_FOUND for a namespace means denied access, not a missing workflow."""
    meaning = MEANINGS.get(error.status, Meaning.FAULT)
    if meaning is Meaning.NOT_NOW and "amespace" in error.message:
        return Meaning.LOCKED
    return meaning
