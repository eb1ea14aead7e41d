"""What went wrong, in one line that says what to do."""

from temporalio.service import RPCError

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.values import cut
from everstep.client.outages import Meaning, meaning_of

LENGTH = 500


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
    meaning = meaning_of(error)
    if meaning is Meaning.PASSES:
        return f"Temporal does not do this now: {error.message}; try again"
    if "amespace" in error.message:
        return f"Temporal refuses: {error.message.rstrip('.')}; check TEMPORAL_NAMESPACE"
    if meaning is Meaning.LOCKED:
        return f"Temporal does not let this process in: {error.message}; check TEMPORAL_API_KEY"
    return f"Temporal refuses: {error.message}"
