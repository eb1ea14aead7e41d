"""Error messages of the commands: one line that says what went wrong and what to do."""

import re
from collections.abc import Iterable
from typing import Final

import click
from temporalio.service import RPCError

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.values import truncate
from everstep.client.outages import ErrorMeaning, is_failing_task, meaning_of

MAX_LENGTH = 500

_FIELDS: Final = {"receiver": "url"}
"""The fields of request bodies for parameters of another name."""
_OF_THE_API: Final = frozenset({"url", "token"})
"""Parameters that are no field of a body."""
_NAME: Final = re.compile(r"\b(body\.)?([a-z]+(?:_[a-z]+)*)\b")


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


def with_parameters(text: str, parameters: Iterable[click.Parameter]) -> str:
    """Replace the fields of the API in a message by the options and arguments that set them."""
    labels = {
        _FIELDS.get(each.name or "", each.name): _label(each)
        for each in parameters
        if each.name not in _OF_THE_API
    }

    def label(found: re.Match[str]) -> str:
        prefix, name = found.groups()
        # Without the prefix, a word such as "agent" is one of the sentence.
        return labels.get(name, found[0]) if prefix or "_" in name else found[0]

    return _NAME.sub(label, text)


def _label(parameter: click.Parameter) -> str:
    return (
        max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
    )


def _temporal_message(error: RPCError) -> str:
    if is_failing_task(error):
        return (
            f"the workflow cannot continue ({error.message.rstrip('.')}): what was sent is stored "
            "and carried out once it can; the worker's log and `everstep doctor` say more"
        )
    meaning = meaning_of(error)
    if meaning is ErrorMeaning.TRANSIENT:
        return f"Temporal is unavailable: {error.message}; try again"
    if "amespace" in error.message:
        return f"Temporal refuses: {error.message.rstrip('.')}; check TEMPORAL_NAMESPACE"
    if meaning is ErrorMeaning.DENIED:
        return f"Temporal denies access: {error.message}; check TEMPORAL_API_KEY"
    return f"Temporal refuses: {error.message}"
