"""The exceptions of agents and their callers, sorted by their readers.

    EverstepError
    ├── InvalidInput (ValueError)      the caller: an argument is wrong; the text says what to change
    │   ├── UnknownName (LookupError)  ... nothing is registered under this name
    │   └── MessageTooLong             ... no request to the agent's model can contain it
    ├── ResourceFailed                 the operator: a resource of the tools cannot be started
    ├── NotPermitted                   the caller: a right is missing; the text says which, or who has it
    ├── ListenerFailed                 the operator: a listener raised while handling an event
    └── AgentError                     the error policy: it becomes a step's error
        ├── ModelError                 the model call failed
        │   ├── RateLimited            ... the provider asks to slow down
        │   ├── ModelTimeout           ... no answer in time (TimeoutError)
        │   ├── ModelUnavailable       ... it cannot be reached, or the connection broke during the answer
        │   │   └── UnreadableAnswer   ... the answer does not have the form of its API
        │   ├── ContextTooLong         ... the request has more tokens than the model's context window
        │   ├── WrongApi               ... the server implements another API than the driver
        │   └── InvalidModelOutput     ... it answered, but not in the agreed form
        ├── HookFailed                 a hook of a tool call raised, or requested something impossible
        ├── Escaped                    a tool or hook raised a `BaseException` that is not an `Exception`
        └── ToolFailed, ToolError      the model and the viewers: the text is the tool's result
            └── ToolTimedOut           ... the call exceeded its time limit (TimeoutError)

The errors of one adapter or process are defined next to it, such as those in `everstep.store.errors`. All are
`EverstepError`s.

An error that the model should read is never raised through the loop: a tool's exception becomes the
result of its call.
"""

from collections.abc import Iterable

from everstep.agent_domain.nearest import did_you_mean


class EverstepError(Exception):
    """The base of all errors of this project."""


class InvalidInput(EverstepError, ValueError):
    """An argument cannot be used; the message says what to change."""


class UnknownName(InvalidInput, LookupError):
    """Nothing is registered under a name; the message lists the known names, and the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, verb: str = "Choose from") -> None:
        self.name = name
        names = list(known)
        super().__init__(f"{unknown_name_text(kind, name, names, verb=verb)}{did_you_mean(name, names)}")


class MessageTooLong(InvalidInput):
    """A message does not fit into any request to the agent's model."""

    def __init__(self, tokens: int, fits: int) -> None:
        super().__init__(
            f"The message is too long for the agent's model: it has at least {tokens} tokens, and {fits} "
            "fit. Send a shorter one, or use a model with a larger context window"
        )


def unknown_name_text(kind: str, name: str, known: Iterable[str], *, verb: str = "Choose from") -> str:
    """Return the text for a name that is not known, as models read it as the result of a call."""
    return f"No {kind} named '{name}'. {verb}: {', '.join(known)}"


class NotPermitted(EverstepError):
    """The caller may not do this; the message says which right it needs, or who may."""


class ResourceFailed(EverstepError):
    """A resource of the tools, such as a database pool, cannot be started; the message names it."""


class ListenerFailed(EverstepError):
    """A listener raised; its exception is the cause. The agent did not cause it, so the run ends here."""

    def __init__(self, event: str) -> None:
        super().__init__(f"A listener raised while handling {event}; see the cause")


class AgentError(EverstepError):
    """A failure inside a step; the error policy decides what follows."""


class ModelError(AgentError):
    """A model call failed, and an immediate retry would not help.

    `advice` says what to change about the installation, where that is the reason. It is written by Everstep
    and contains no text of the provider or of a tool, so it may be shown to every viewer. `usage` is what the
    call used (`Usage`), if the provider has charged it.
    """

    usage: object = None

    def __init__(self, message: str = "", *, advice: str | None = None) -> None:
        self.advice = advice
        super().__init__(message)


class RateLimited(ModelError):
    """The provider refuses for now; `retry_after` is the delay that it requested, in seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ModelTimeout(ModelError, TimeoutError):
    """The model did not answer in time."""


class ModelUnavailable(ModelError):
    """The provider cannot be reached, failed, or closed the connection during the answer.

    `retry_after` is the delay that it requested, in seconds.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class UnreadableAnswer(ModelUnavailable):
    """The provider's answer does not have the form of its API; only a few more attempts are worthwhile."""


class ContextTooLong(ModelError):
    """The request has more tokens than fit into the model's context window."""


class WrongApi(ModelError):
    """The server implements another API than the driver; the message says which driver fits."""


RETRYABLE = (RateLimited, ModelTimeout, ModelUnavailable)
"""Transient failures: the owner of a model call's retries retries these, and no others."""


class InvalidModelOutput(ModelError):
    """The model answered, but not in the agreed form."""


class HookFailed(AgentError):
    """A hook of a tool call raised: that ends the step, not only the call."""


class Escaped(AgentError):
    """User code raised an exception that would have ended the process or looked like a cancellation.

    That exception is the cause.
    """


class ToolFailed(AgentError):
    """Raised by a tool to say why the call failed, in a text that the model and all viewers may read."""


ToolError = ToolFailed


class ToolTimedOut(ToolFailed, TimeoutError):
    """A call exceeded its time limit."""


class NotFound(EverstepError, LookupError):
    """The tenant has nothing of that kind under that name; another tenant may."""

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(f"There is no {kind} {name}")


class StoreUnavailable(EverstepError):
    """The store cannot be reached or cannot serve this call now; the same call can be retried."""
