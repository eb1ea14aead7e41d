"""The exceptions that agents and their callers meet, sorted by who reads them.

    EverstepError
    ├── InvalidInput (ValueError)      the caller: what was passed is wrong, and what to change
    │   └── UnknownName (LookupError)  ... a name that nothing is registered under
    ├── ListenerFailed                 the operator: a listener raised while it was told about an event
    └── AgentError                     the error policy: it becomes a step's error
        ├── ModelError                 the model call failed
        │   ├── RateLimited            ... the provider asks to slow down
        │   ├── ModelTimeout           ... no answer in time (TimeoutError)
        │   ├── ModelUnavailable       ... it cannot be reached, or broke off while answering
        │   │   └── UnreadableAnswer   ... what it sent is no answer in the form of its API
        │   ├── WrongApi               ... the server speaks another API than the driver
        │   └── InvalidModelOutput     ... it answered, but not in the agreed form
        ├── HookFailed                 a hook of a tool call raised, or asked for what cannot be
        ├── Escaped                    somebody's code raised what is no `Exception`
        └── ToolFailed, ToolError      the model and its viewers: the text is the tool's result
            └── ToolTimedOut           ... the call took longer than it may (TimeoutError)

The errors of one adapter or process are defined beside it, such as those in `everstep.store.errors`. All are
`EverstepError`s.

What the model should read is never raised through the loop: a tool's exception becomes the
result of its call.
"""

from collections.abc import Iterable


class EverstepError(Exception):
    """The base of all errors of this project."""


class InvalidInput(EverstepError, ValueError):
    """What the caller passed cannot be used; the message says what to change."""


class UnknownName(InvalidInput, LookupError):
    """Nothing is registered under a name; the message lists what is."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, verb: str = "Choose from") -> None:
        self.name = name
        super().__init__(f"No {kind} named '{name}'. {verb}: {', '.join(known)}")


class ListenerFailed(EverstepError):
    """A listener raised; the cause is what it raised. The agent is not to blame, so the run ends here."""

    def __init__(self, event: str) -> None:
        super().__init__(f"A listener raised while it was told about {event}; see the cause")


class AgentError(EverstepError):
    """Something went wrong inside a step; the error policy decides what follows."""


class ModelError(AgentError):
    """A model call failed and trying again at once would not help.

    `advice` is what to change about the installation, where that is the reason: a sentence of ours, in which
    neither the provider nor a tool has a word, so that it may be shown to anyone.
    """

    def __init__(self, message: str = "", *, advice: str | None = None) -> None:
        self.advice = advice
        super().__init__(message)


class RateLimited(ModelError):
    """The provider refuses for now; `retry_after` is what it asked for, in seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class ModelTimeout(ModelError, TimeoutError):
    """The model did not answer in time."""


class ModelUnavailable(ModelError):
    """The provider cannot be reached, fails, or broke off; `retry_after` is what it asked for, in seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class UnreadableAnswer(ModelUnavailable):
    """The provider sent what is no answer in the form of its API; only a few more attempts are worth it."""


class WrongApi(ModelError):
    """The server speaks another API than the driver; the message says which driver fits."""


RETRYABLE = (RateLimited, ModelTimeout, ModelUnavailable)
"""What may pass by itself: whoever owns the retries of a model call tries these again, and no others."""


class InvalidModelOutput(ModelError):
    """The model answered, but not in the form that was agreed."""


class HookFailed(AgentError):
    """A hook raised around a tool call: that ends the step, and not the call alone."""


class Escaped(AgentError):
    """What somebody's code raised would have ended the process, or looked like a cancel: the cause."""


class ToolFailed(AgentError):
    """Raised by a tool to say why the call failed, in words that the model and all who watch may read."""


ToolError = ToolFailed


class ToolTimedOut(ToolFailed, TimeoutError):
    """A call took longer than it may."""


class NotFound(EverstepError, LookupError):
    """The tenant has nothing of that kind under that name; somebody else may."""

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(f"There is no {kind} {name}")


class StoreUnavailable(EverstepError):
    """The store cannot be reached or serve this now; the same call can be made again."""
