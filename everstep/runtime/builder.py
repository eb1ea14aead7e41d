"""The builder of agents that run in this process, with the models that a worker would use."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.local.clock import Clock
from everstep.local.local_agent import Agent

if TYPE_CHECKING:
    from everstep.inference.models import Models


class AgentBuilder(DefinitionBuilder):
    """Collects the parts of an agent; `build()` returns one that runs in this process."""

    def build(
        self, *, models: Callable[[ModelChoice], Model] | None = None, clock: Clock | None = None
    ) -> Agent:
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
        return self._apply_on_build(Agent(definition, models=models or own, clock=clock))


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
    return (definition.model_settings or definition.llm_preset) if definition.wants_model else None
