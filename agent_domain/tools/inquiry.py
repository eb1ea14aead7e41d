"""Model calls during a step, by tools and processors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from everstep.agent_domain.errors import InvalidInput

if TYPE_CHECKING:
    # Imported for types only: responses hold tool calls, and the context of a tool call holds `AskModel`.
    from everstep.agent_domain.messages.cached_context import InferenceRequest
    from everstep.agent_domain.state.steps import InferenceResponse

ModelChoice: TypeAlias = str | Mapping[str, Any] | None
"""The name of a preset, settings, or None for the model of the agent."""


class AskModel(Protocol):
    """Calls a model once, and adds its usage to the execution.

    In a durable execution the answer is recorded: an attempt after a crash makes the same requests in the
    same order, and receives the same answers. A failure of the model is raised.
    """

    async def __call__(self, request: "InferenceRequest", model: ModelChoice = None) -> "InferenceResponse":
        """Return the model's response."""
        ...


async def refuse_model_call(request: "InferenceRequest", model: ModelChoice = None) -> "InferenceResponse":
    """Refuse the request, in a context that has no model."""
    del request, model
    raise InvalidInput("no model is available here; run the tool as part of an agent")
