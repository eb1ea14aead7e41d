"""A model with fallbacks: if the first cannot be reached, the next one is asked.

Only transient failures (rate limits, timeouts, outages) lead to another model; a refused request or a wrong
key is raised to the caller. And a fallback is only used before any text was published: text that was passed
on cannot be taken back here, and the caller has to know that an answer broke off. So a failure in the middle
of an answer is raised, and the caller's retry is a new attempt that supersedes the published text. The text
published within one call of `respond` is always exactly the text of the response that it returns.
"""

from collections.abc import Sequence

from everstep.agent_domain.agents.call_limits import CallLimits, limits_of_any
from everstep.agent_domain.agents.drivers import Model, OnText
from everstep.agent_domain.agents.structured_result import has_native_output
from everstep.agent_domain.agents.token_counting import (
    ContextWindow,
    provider_count,
    readable_files_of,
    window_of,
)
from everstep.agent_domain.errors import RETRYABLE, InvalidInput, ModelError
from everstep.agent_domain.loop.retries import IsScripted, retry_seconds_of
from everstep.agent_domain.loop.usage import Usage, take_usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.state.steps import InferenceResponse


class FallbackModel:
    """Asks the models in order until one answers."""

    counts_requests = True
    """Each of its models counts its own."""

    def __init__(self, models: Sequence[Model]) -> None:
        if not models:
            raise InvalidInput("a fallback chain needs at least one model")
        self.models = tuple(models)

    @property
    def retry_seconds(self) -> float | None:
        """How long the chain is retried: the setting of the first model's preset."""
        return retry_seconds_of(self.models[0])

    @property
    def is_scripted(self) -> bool:
        """Whether no provider is behind it at all."""
        return all(isinstance(model, IsScripted) and model.is_scripted for model in self.models)

    @property
    def window(self) -> ContextWindow | None:
        """The smallest window that is known, because any of the models may receive the request."""
        known = [window for model in self.models if (window := window_of(model)) is not None]
        return min(known, key=lambda window: window.input_tokens, default=None)

    @property
    def readable_files(self) -> frozenset[str] | None:
        """The kinds of files that one of the models reads; None if that is not known of one."""
        known = [kinds for model in self.models if (kinds := readable_files_of(model)) is not None]
        return frozenset[str]().union(*known) if len(known) == len(self.models) else None

    @property
    def call_limits(self) -> CallLimits:
        """The limits of a call that any of the models may answer."""
        return limits_of_any(self.models)

    async def count_input(self, request: InferenceRequest) -> int | None:
        """The largest count of the models; None if one of them cannot count."""
        counts = [await provider_count(model, request) for model in self.models]
        known = [tokens for tokens in counts if tokens is not None]
        return max(known) if len(known) == len(counts) else None

    def has_native_output(self, response_format: ResponseFormat) -> bool:
        """Whether each of the models has a structured output of its own: any of them may answer."""
        return all(has_native_output(model, response_format) for model in self.models)

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Return the first answer.

        Raises:
            ModelError: All models failed; the failure with the longest requested wait is raised.
        """
        has_text = False

        def forward(text: str) -> None:
            nonlocal has_text
            has_text = True
            on_text(text)

        failures: list[ModelError] = []
        used = Usage()
        for model in self.models:
            try:
                response = await model.respond(request, forward)
                return response.charged(used) if failures else response
            except ModelError as failure:
                used += take_usage(failure)
                if not isinstance(failure, RETRYABLE):
                    failure.usage = used
                    raise
                failures.append(failure)
                if has_text:
                    break
        worst = _worst(failures)
        worst.usage = used
        raise worst


def _worst(failures: Sequence[ModelError]) -> ModelError:
    """One failure for all: after its wait, each of the models may be asked again."""
    worst = max(failures, key=_wait)
    for other in failures:
        if other is not worst:
            worst.add_note(f"Also: {other}")
    return worst


def _wait(failure: Exception) -> float:
    return getattr(failure, "retry_after", None) or 0.0
