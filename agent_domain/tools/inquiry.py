"""Asking a model in the midst of a step: what tools and processors need of whoever runs them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from everstep.agent_domain.errors import InvalidInput

if TYPE_CHECKING:
    # Responses hold calls, and what calls are given holds this.
    from everstep.agent_domain.messages.cached_context import InferenceRequest
    from everstep.agent_domain.state.steps import InferenceResponse

ModelChoice: TypeAlias = str | Mapping[str, Any] | None
"""The name of a preset, settings, or None for the model of the agent."""


class AskModel(Protocol):
    """Asks a model once, and counts what that costs.

    In a durable execution the answer is recorded: an attempt that comes after a crash asks the same questions
    in the same order, and is given the same answers. What a model does wrong is raised.
    """

    async def __call__(self, request: "InferenceRequest", model: ModelChoice = None) -> "InferenceResponse":
        """What the model says."""
        ...


async def nobody_answers(request: "InferenceRequest", model: ModelChoice = None) -> "InferenceResponse":
    """Where there is no model to ask."""
    del request, model
    raise InvalidInput("there is no model to ask here; run the tool as part of an agent")
