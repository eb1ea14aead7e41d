"""What went wrong, in one line that says what to do."""

from temporalio.service import RPCError, RPCStatusCode

from agent_domain.errors import EverstepError
from agent_domain.values import cut

LENGTH = 500

_MAY_PASS = {
    RPCStatusCode.ABORTED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.UNKNOWN,
}
_KEY = {RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED}


def complaint(error: Exception) -> str:
    """What to tell whoever gave the command; what nobody foresaw says so."""
    match error:
        case EverstepError():
            # Written for people, and with the end of a server's log where that says why.
            return str(error)
        case RPCError():
            said = _refusal(error)
        case OSError(filename=filename) if filename and error.strerror:
            said = f"{filename}: {error.strerror}"
        case RuntimeError() if "Worker validation failed: Namespace" in str(error):
            said = "Temporal knows no such namespace, or does not show it here; check TEMPORAL_NAMESPACE"
        case _:
            name = type(error).__name__
            said = f"this was not foreseen ({name}): {error}; --traceback says where it happened"
    return cut(" ".join(said.split()), LENGTH)


def _refusal(error: RPCError) -> str:
    if error.status in _MAY_PASS:
        return f"Temporal does not do this now: {error.message}; try again"
    if error.status in _KEY:
        return f"Temporal does not let this process in: {error.message}; check TEMPORAL_API_KEY"
    if "amespace" in error.message:
        return f"Temporal refuses: {error.message.rstrip('.')}; check TEMPORAL_NAMESPACE"
    return f"Temporal refuses: {error.message}"
