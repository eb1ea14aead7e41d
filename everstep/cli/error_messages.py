"""Error messages of the commands: one line that says what went wrong and what to do."""

from temporalio.service import RPCError

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.values import truncate
from everstep.client.outages import ErrorMeaning, meaning_of

MAX_LENGTH = 500


def error_message(error: Exception) -> str:
    """The line to print for an error; an unexpected error is marked as such."""
    match error:
        case EverstepError():
            # Written for users, and not cut: some end with the last lines of a server's log.
            return str(error)
        case RPCError():
            text = _temporal_message(error)
        case OSError(filename=filename) if filename and error.strerror:
            text = f"{filename}: {error.strerror}"
        case RuntimeError() if "Worker validation failed: Namespace" in str(error):
            text = "the Temporal namespace does not exist or is not visible; check TEMPORAL_NAMESPACE"
        case _:
            name = type(error).__name__
            text = f"unexpected error ({name}): {error}; run again with --traceback to see where"
    return truncate(" ".join(text.split()), MAX_LENGTH)


def _temporal_message(error: RPCError) -> str:
    meaning = meaning_of(error)
    if meaning is ErrorMeaning.TRANSIENT:
        return f"Temporal is unavailable: {error.message}; try again"
    if "amespace" in error.message:
        return f"Temporal refuses: {error.message.rstrip('.')}; check TEMPORAL_NAMESPACE"
    if meaning is ErrorMeaning.DENIED:
        return f"Temporal denies access: {error.message}; check TEMPORAL_API_KEY"
    return f"Temporal refuses: {error.message}"
