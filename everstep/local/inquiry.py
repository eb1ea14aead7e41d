"""Asking models in the midst of a step, in this process."""

from collections.abc import Callable

from activities.inquiry import log_pause
from activities.retrying import OnPause
from agent_domain.cached_context import InferenceRequest
from agent_domain.drivers import CanUseTools, Model, StepDriver, unheard
from agent_domain.errors import InvalidInput
from agent_domain.inquiry import ModelChoice
from agent_domain.steps import InferenceResponse
from agent_domain.usage import Usage
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
