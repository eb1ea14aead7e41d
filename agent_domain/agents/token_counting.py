"""How many input tokens a request has, and how many fit into the window of a model.

An estimate comes first, because it costs nothing (`everstep.agent_domain.messages.token_estimate`). Some
providers count a request for free, at the price of a round trip: they are asked only if the estimate does not
fit.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from everstep.agent_domain.attachments import Attachment
from everstep.agent_domain.errors import RETRYABLE, InvalidInput, MessageTooLong, ModelError
from everstep.agent_domain.media_types import FileKind
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.readable_parts import described_messages
from everstep.agent_domain.messages.token_estimate import estimate_request, estimate_text

BYTES_OF_A_TOKEN = 8
"""More than in a usual text, whose files are not read to count them."""


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """How many tokens a model can process in one request, together with its answer."""

    tokens: int
    output_tokens: int
    """The part of it that is kept for the answer."""

    def __post_init__(self) -> None:
        if not 0 < self.output_tokens < self.tokens:
            raise InvalidInput(
                f"a context window of {self.tokens} tokens has no room for {self.output_tokens} of them as "
                "the answer; set a larger 'context_window', or a smaller 'max_output_tokens'"
            )

    @property
    def input_tokens(self) -> int:
        """How many tokens a request may have."""
        return self.tokens - self.output_tokens


def require_fit(text: str, window: ContextWindow | None, attachments: Iterable[Attachment] = ()) -> None:
    """Refuse a message that cannot fit into any request.

    Raises:
        MessageTooLong: Half of its estimate, which no usual text falls below, is more than what fits. Text
            files count as one token for 8 bytes.
    """
    if window is None:
        return
    least = estimate_text(text) // 2
    least += sum(each.size // BYTES_OF_A_TOKEN for each in attachments if each.kind is FileKind.TEXT)
    if least > window.input_tokens:
        raise MessageTooLong(least, window.input_tokens)


@runtime_checkable
class KnowsWindow(Protocol):
    """A model whose context window may be known."""

    @property
    def window(self) -> ContextWindow | None:
        """The context window; None: not known."""
        ...


@runtime_checkable
class CountsInput(Protocol):
    """A model whose provider can count the tokens of a request."""

    async def count_input(self, request: InferenceRequest) -> int | None:
        """Ask the provider for the input tokens of a request; None if it cannot count.

        Raises:
            ModelError: The provider cannot be reached, or refused the request.
        """
        ...


@runtime_checkable
class KnowsReadableFiles(Protocol):
    """A model of which it may be known what files it reads."""

    @property
    def readable_files(self) -> Collection[str] | None:
        """The kinds of files that it reads, besides text; None: not known."""
        ...


def readable_files_of(model: object) -> Collection[str] | None:
    """The kinds of files that a model reads, besides text; None: not known."""
    return model.readable_files if isinstance(model, KnowsReadableFiles) else None


def estimate_for(model: object, request: InferenceRequest) -> int:
    """The estimate of a request as the model receives it: files that it does not read are sent in words."""
    messages = described_messages(request.messages, readable_files_of(model))
    return estimate_request(replace(request, messages=messages))


def window_of(model: object) -> ContextWindow | None:
    """The context window of a model; None: not known."""
    return model.window if isinstance(model, KnowsWindow) else None


async def count_input(model: object, request: InferenceRequest, fits: int | None = None) -> int:
    """The input tokens of a request: estimated, or counted by the provider.

    Args:
        model: The model that will receive the request.
        request: The request.
        fits: The provider is asked only if the estimate is above this number; None: never.

    Returns:
        The provider's count if it was asked and could say, else the estimate.
    """
    estimate = estimate_for(model, request)
    if fits is None or estimate <= fits or not isinstance(model, CountsInput):
        return estimate
    return await provider_count(model, request) or estimate


async def provider_count(model: object, request: InferenceRequest) -> int | None:
    """The provider's count of a request; None if it has no counter, or cannot be asked now."""
    if not isinstance(model, CountsInput):
        return None
    try:
        return await model.count_input(request)
    except (*RETRYABLE, ModelError):
        # The request itself will meet the same failure, and reports it; until then the estimate has to do.
        return None
