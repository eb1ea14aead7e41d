"""What Temporal's answers mean: for each status one row, which the API, the client and the commands go by."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from temporalio.service import RPCError, RPCStatusCode


class Meaning(StrEnum):
    """What becomes of a request that Temporal answered with an error."""

    PASSES = "passes"
    """The same request may succeed later."""
    NOT_NOW = "not now"
    """The workflow is not in the state that the request needs: there is none, it has ended, or it runs."""
    LOCKED = "locked"
    """This process is not let in. It passes once an operator has changed its key."""
    FAULT = "fault"
    """Everstep asked for something that no server of this version answers."""


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
    # The workflow's last task failed, and is tried again ("workflow task in failed state"); or the namespace
    # moves to another cluster.
    RPCStatusCode.FAILED_PRECONDITION: Meaning.PASSES,
    RPCStatusCode.ABORTED: Meaning.PASSES,
    # Like INTERNAL and DATA_LOSS: lost shards, a database that is away, streams that proxies reset.
    RPCStatusCode.OUT_OF_RANGE: Meaning.PASSES,
    RPCStatusCode.UNIMPLEMENTED: Meaning.FAULT,
    RPCStatusCode.INTERNAL: Meaning.PASSES,
    RPCStatusCode.UNAVAILABLE: Meaning.PASSES,
    RPCStatusCode.DATA_LOSS: Meaning.PASSES,
    RPCStatusCode.UNAUTHENTICATED: Meaning.LOCKED,
}

PASSING: Final = frozenset(status for status, meaning in MEANINGS.items() if meaning is Meaning.PASSES)
"""What Temporal answers, or its connection says, when asking again may help."""


def meaning_of(error: RPCError) -> Meaning:
    """What an error of Temporal's means; one about the namespace is about no workflow."""
    meaning = MEANINGS.get(error.status, Meaning.FAULT)
    if meaning is Meaning.NOT_NOW and "amespace" in error.message:
        return Meaning.LOCKED
    return meaning
