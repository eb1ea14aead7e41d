"""The builder of agents that run in this process, with the models that a worker would use."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.messages.output_schema import WHERE
from everstep.agent_domain.messages.response_format import OutputT_co, ResponseFormat
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.local.clock import Clock
from everstep.local.local_agent import Agent
from everstep.steps.json_schema import require_usable

if TYPE_CHECKING:
    from everstep.inference.models import Models


NewT = TypeVar("NewT")


class AgentBuilder(DefinitionBuilder, Generic[OutputT_co]):
    """Collects the parts of an agent; `build()` returns one that runs in this process."""

    @overload
    def with_output(self, output: type[NewT], *, max_retries: int | None = None) -> "AgentBuilder[NewT]": ...
    @overload
    def with_output(self, output: Any, *, max_retries: int | None = None) -> "AgentBuilder[Any]": ...
    def with_output(self, output: Any, *, max_retries: int | None = None) -> "AgentBuilder[Any]":
        """Let executions end with a result of this type, which is validated.

        The model is asked for it in the provider's own way, or else by a tool. A result that does not fit is
        an error of type `validation`, which the model reads and corrects. The result is `run(...).output`
        in this process, and `output.data` over HTTP.

        Args:
            output: A pydantic model or another type that pydantic reads, or a JSON schema.
            max_retries: How often the model may correct the result; by default three times, at most ten.

        Raises:
            InvalidInput: There is no usable schema.
        """
        super().with_output(output, max_retries=max_retries)
        if isinstance(output, Mapping | ResponseFormat) and self._response_format:
            require_usable(self._response_format.schema, WHERE)
        return self

    def build(
        self, *, models: Callable[[ModelChoice], Model] | None = None, clock: Clock | None = None
    ) -> Agent[OutputT_co]:
        """Build the agent and apply the `on_build` callbacks.

        An agent without a model of its own uses the preset or the model that it names, or else the default
        preset, as on a worker: from the environment and `everstep.toml`. The key is read when it first runs.

        Args:
            models: Returns the models that the agent and its capabilities name, instead of those presets.
            clock: Supplies the time and waits between retries of model calls; the machine's clock by default.

        Raises:
            InvalidInput: The settings do not fit together, or name a model that does not exist.
        """
        definition, own = self.definition(), _ProcessModels()
        choice = _named_model(definition)
        if models is None and choice is not None:
            own.require(choice)
        return self._apply_on_build(Agent[OutputT_co](definition, models=models or own, clock=clock))


class _ProcessModels:
    """The models of this process; its settings are read on first use."""

    @cached_property
    def _models(self) -> "Models":
        # Imported on demand: an agent that has its model needs no settings.
        from everstep.runtime.models import models_of  # noqa: PLC0415 -- see above
        from everstep.runtime.settings import Settings  # noqa: PLC0415 -- see above

        return models_of(Settings.read())

    def require(self, choice: ModelChoice) -> None:
        """Refuse a model that does not exist; its key is not needed yet."""
        self._models.presets.resolve(choice)

    def __call__(self, choice: ModelChoice = None) -> Model:
        return self._models.model(choice)


def _named_model(definition: AgentDefinition) -> ModelChoice:
    """Return the model that the agent names and will use, if there is one."""
    return definition.model_choice if definition.wants_model else None
