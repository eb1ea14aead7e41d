"""Asking models in the midst of a step, in this process."""

from collections.abc import Callable

from everstep.activities.inner_calls import log_pause
from everstep.activities.provider_retry import OnPause
from everstep.agent_domain.agents.drivers import CanUseTools, Model, StepDriver, unheard
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.local.patience import Patience


class Inquiry:
    """Asks, and counts what it cost; one for each call and each processor."""

    def __init__(
        self,
        model_of: Callable[[ModelChoice], Model],
        patience: Patience,
        on_pause: OnPause = log_pause,
    ) -> None:
        self.model_of = model_of
        self.patience = patience
        self.on_pause = on_pause
        self.usage = Usage()
        self.child_tokens = 0
        """What a subagent used that the call started."""

    async def __call__(self, request: InferenceRequest, model: ModelChoice = None) -> InferenceResponse:
        """What the model says."""
        chosen = self.model_of(model)
        response = await self.patience.within(chosen, lambda: chosen.respond(request, unheard), self.on_pause)
        self.usage += response.usage
        return response


def models_beside(
    driver: StepDriver | CanUseTools, presets: Callable[[ModelChoice], Model] | None
) -> Callable[[ModelChoice], Model]:
    """The driver's own model where none is named, else that of the preset."""

    def model_of(wanted: ModelChoice) -> Model:
        if wanted is None and isinstance(driver, StepDriver) and driver.model is not None:
            return driver.model
        if presets is None:
            raise InvalidInput(
                "this agent runs in-process without presets; pass them: builder.build(models=...), "
                "or run it on a worker"
            )
        return presets(wanted)

    return model_of
