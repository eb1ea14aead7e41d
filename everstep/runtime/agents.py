"""The agents that a process knows, and the models they talk to."""

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from agent_domain.builder import AgentBuilder
from agent_domain.definition import AgentDefinition
from agent_domain.drivers import Model, StepDriver, ToolCallingDriver
from agent_domain.errors import InvalidInput, UnknownName
from agent_domain.inquiry import ModelChoice
from agent_domain.spawning import brought, split


class Models(Protocol):
    """The models of an installation."""

    def model(self, wanted: ModelChoice = None) -> Model:
        """The model of that preset, the one of these settings, or the default one."""
        ...


class AgentBook:
    """Agents by name; each step's driver is given the model that its execution asked for."""

    def __init__(self, agents: Iterable[AgentDefinition], models: Models) -> None:
        self.models = models
        self.agents: dict[str, AgentDefinition] = {}
        for agent in agents:
            name = agent.descriptor.name
            if name in self.agents:
                raise InvalidInput(f"two agents are named '{name}'; rename one: AgentBuilder.with_name(...)")
            self.agents[name] = agent

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self.agents)

    def definition(self, name: str) -> AgentDefinition:
        """The agent of that name; `parent/name` is one that a tool of the parent brings along."""
        if name in self.agents:
            return self.agents[name]
        if of := split(name):
            definition = brought(self.definition(of[0]), of[1])
            if definition:
                return definition
        raise UnknownName("agent", name, self.agents, verb="This process knows")

    def driver(self, name: str, preset: str | None) -> StepDriver:
        """The agent's own driver, or native tool calls with the preset's model."""
        definition = self.definition(name)
        driver = definition.driver if isinstance(definition.driver, StepDriver) else None
        if driver and (driver.model or not driver.asks_preset):
            return driver
        driver = (driver or ToolCallingDriver()).with_model(
            self.models.model(preset or definition.llm_preset)
        )
        driver.equip(definition.tools, parallel_tools=definition.base_plan.parallel_tools)
        return driver

    def model(self, name: str, wanted: ModelChoice = None) -> Model:
        """The model that the agent's tools and processors ask: the one they name, or the agent's own."""
        if wanted is not None:
            return self.models.model(wanted)
        own = self.driver(name, None).model
        return own or self.models.model(self.definition(name).llm_preset)


def load_agents(where: str) -> list[AgentDefinition]:
    """The agents that `module:attribute` holds: builders, agents or definitions, one or several."""
    module_name, _, attribute = where.partition(":")
    if not attribute:
        raise InvalidInput(f"'{where}' names no agents; write module:attribute, such as my_app.agents:agents")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = getattr(import_module(module_name), attribute)
    except ImportError as error:
        raise InvalidInput(f"the module of '{where}' cannot be imported: {error}") from error
    except AttributeError:
        raise InvalidInput(f"the module {module_name} has no '{attribute}'") from None
    entries: list[Any] = list(found) if isinstance(found, list | tuple) else [found]  # pyright: ignore[reportUnknownArgumentType] -- anybody's module
    return [_definition(entry, where) for entry in entries]


def _definition(entry: Any, where: str) -> AgentDefinition:
    if isinstance(entry, AgentDefinition):
        return entry
    if isinstance(entry, AgentBuilder):
        return entry.definition()
    definition = getattr(entry, "definition", None)
    if isinstance(definition, AgentDefinition):
        return definition
    raise InvalidInput(f"'{where}' holds {entry!r}; it should hold an AgentBuilder, or a list of them")
