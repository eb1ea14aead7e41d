"""Error messages of the commands: one line that says what went wrong and what to do."""

from temporalio.service import RPCError

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.values import cut
from everstep.client.outages import Meaning, meaning_of

LENGTH = 500


def complaint(error: Exception) -> str:
    """The line to print for an error; an unexpected error is marked as such."""
    match error:
        case EverstepError():
            # Written for users, and not cut: some end with the last lines of a server's log.
            return str(error)
        case RPCError():
            text = _refusal(error)
        case OSError(filename=filename) if filename and error.strerror:
            text = f"{filename}: {error.strerror}"
        case RuntimeError() if "Worker validation failed: Namespace" in str(error):
            text = "the Temporal namespace does not exist or is not visible; check TEMPORAL_NAMESPACE"
        case _:
            name = type(error).__name__
            text = f"unexpected error ({name}): {error}; run again with --traceback to see where"
    return cut(" ".join(text.split()), LENGTH)


def _refusal(error: RPCError) -> str:
    meaning = meaning_of(error)
    if meaning is Meaning.PASSES:
        return f"Temporal is unavailable: {error.message}; try again"
    if "amespace" in error.message:
        return f"Temporal refuses: {error.message.rstrip('.')}; check TEMPORAL_NAMESPACE"
    if meaning is Meaning.LOCKED:
        return f"Temporal denies access: {error.message}; check TEMPORAL_API_KEY"
    return f"Temporal refuses: {error.message}"
