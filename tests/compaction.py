"""A model with a small context window, which checks each request that it receives."""

from collections.abc import Callable, Collection, Sequence

from everstep.agent_domain.agents.drivers import OnText
from everstep.agent_domain.agents.token_counting import ContextWindow, estimate_for
from everstep.agent_domain.errors import ContextTooLong
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.compaction_planning import SUMMARY_RULES
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.testing import says

SUMMARY_BEGIN = SUMMARY_RULES[:40]


def is_for_summary(request: InferenceRequest) -> bool:
    """Whether a request asks for a summary."""
    return request.messages[0].text.startswith(SUMMARY_BEGIN)


def assert_complete(messages: Messages) -> None:
    """Each call is followed by its result, and each result follows its call."""
    waiting: list[object] = []
    for message in messages:
        if message.is_tool:
            assert message.answers in waiting
            waiting.remove(message.answers)
        else:
            assert not waiting, "a call has no result"
            waiting = [call["id"] for call in message.calls]
    assert not waiting


class NarrowModel:
    """A model that answers from a script, and refuses what exceeds its window.

    Args:
        script: The answers, in order; the last one repeats. A function receives the request.
        window: How many tokens fit; None: any number.
        summary: The answer to requests for a summary.
        hidden: A window that the model does not tell, and enforces.
        summary_usage: The usage of each summary.
        is_estimating: Whether the estimate of each request has to fit, and not only its real count.
    """

    is_scripted = True

    def __init__(
        self,
        *script: InferenceResponse | str | Callable[[InferenceRequest], InferenceResponse],
        window: ContextWindow | None = None,
        summary: str = "They talked.",
        hidden: int | None = None,
        summary_usage: Usage = Usage(40, 2),
        is_estimating: bool = True,
    ) -> None:
        self.script = script or ("ok",)
        self.window = window
        self.summary = summary
        self.hidden = hidden
        self.summary_usage = summary_usage
        self.is_estimating = is_estimating
        self.readable_files: Collection[str] | None = None
        self.requests: list[InferenceRequest] = []
        self.summaries: list[InferenceRequest] = []
        self.refused = 0

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Check the request, and answer."""
        tokens = estimate_for(self, request)
        assert self.window is None or not self.is_estimating or tokens <= self.window.input_tokens
        if self.hidden is not None and tokens > self.hidden:
            self.refused += 1
            raise ContextTooLong(f"prompt is too long: {tokens} tokens > {self.hidden} maximum")
        if is_for_summary(request):
            self.summaries.append(request)
            return says(self.summary, self.summary_usage)
        assert_complete(request.messages)
        entry = self.script[min(len(self.requests), len(self.script) - 1)]
        self.requests.append(request)
        if callable(entry):
            return entry(request)
        response = says(entry) if isinstance(entry, str) else entry
        if response.text:
            on_text(response.text)
        return response


def texts(messages: Sequence[Message]) -> list[str]:
    """The text of each message."""
    return [message.text for message in messages]
