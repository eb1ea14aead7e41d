"""Model calls of a run in this process: of its steps, and of tools and processors during a step."""

from collections.abc import Callable
from functools import partial

from everstep.agent_domain.agents.drivers import CanUseTools, Model, StepDriver, ignore_text
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.loop.retries import LOCAL_SECONDS
from everstep.agent_domain.loop.usage import Usage, take_usage
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.local.clock import Clock, sleep_on_clock
from everstep.steps.budgeted_calls import BudgetedCalls
from everstep.steps.provider_retry import ModelRetry, OnPause, log_pause


class LocalInquiry:
    """Asks models and adds up their usage; one per call and per processing."""

    def __init__(
        self,
        model_of: Callable[[ModelChoice], Model],
        model_retry: ModelRetry,
        on_pause: OnPause = log_pause,
        budgeted: Callable[[], BudgetedCalls | None] = lambda: None,
    ) -> None:
        self.model_of = model_of
        self.model_retry = model_retry
        self.on_pause = on_pause
        self.budgeted = budgeted
        self.usage = Usage()

    async def __call__(self, request: InferenceRequest, model: ModelChoice = None) -> InferenceResponse:
        """Return the model's reply."""
        own, calls = self.model_of(model), self.budgeted()
        asked_model = calls.around(own) if calls else own
        try:
            response = await self.model_retry.retry(
                own, lambda: asked_model.respond(request, ignore_text), self.on_pause
            )
        except ModelError as error:
            self.usage += take_usage(error)
            raise
        finally:
            if calls:
                await calls.settle()
        self.usage += response.usage
        return response


def local_model_retry(plan: ExecutionPlan, clock: Clock) -> ModelRetry:
    """Return the retries of model calls for a caller who waits for the run."""
    return ModelRetry(plan, LOCAL_SECONDS, sleep=partial(sleep_on_clock, clock), clock=clock.seconds)


def model_lookup(
    driver: StepDriver | CanUseTools, presets: Callable[[ModelChoice], Model] | None
) -> Callable[[ModelChoice], Model]:
    """Return a lookup for models: the driver's own where none is named, else a preset's."""

    def model_of(choice: ModelChoice) -> Model:
        if choice is None and isinstance(driver, StepDriver) and driver.model is not None:
            return driver.model
        if presets is None:
            raise InvalidInput(
                "this agent runs in-process without presets; pass them: builder.build(models=...), "
                "or run it on a worker"
            )
        return presets(choice)

    return model_of
