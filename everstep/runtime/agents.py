"""The agents and models of a process.

Agents are named by location: a folder of files, one file, or `module:attribute`. No other place is searched:
a folder that others have filled, such as a cloned repository, adds no agents by its presence.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from os.path import isdir
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, Final, Protocol, cast

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.call_limits import NO_CALL
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model, OnText, StepDriver, ToolCallingDriver
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spawning import find_definition
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput, ModelError, UnknownName
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.state.steps import InferenceResponse
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.resources import (
    NO_RESOURCES,
    Resource,
    Resources,
    is_resource,
    require_resources,
)
from everstep.agent_domain.values import EMPTY, truncate
from everstep.agents.agent_files import SUFFIXES, agent_files, read_agent, skip
from everstep.capabilities.assembly import assemble_agent
from everstep.capabilities.catalogue import AgentLocation, Catalogue
from everstep.capabilities.standard import STANDARD
from everstep.inference.presets import Presets
from everstep.runtime.demo_agent import DEMO

BUILT_IN_PRESETS: Final = Presets.read({}, {})
"""The presets of an installation that configures none."""


McpServers = Mapping[str, Mapping[str, Any]]
"""The MCP servers that agent files may name."""


class ModelSource(Protocol):
    """The models of an installation."""

    def model(self, choice: ModelChoice = None, /) -> Model:
        """Return the model of a preset, the model with these settings, or the default model."""
        ...


class AgentBook:
    """Agents by name, with a driver for each step that uses the model its execution chose."""

    def __init__(
        self, agents: Iterable[AgentDefinition], models: ModelSource, resources: Resources = NO_RESOURCES
    ) -> None:
        self.models = models
        self.agents = by_name(agents)
        self.resources = resources

    def with_resources(self, resources: Resources) -> "AgentBook":
        """Return a copy whose tools use these objects."""
        return AgentBook(self.agents.values(), self.models, resources)

    @property
    def names(self) -> tuple[str, ...]:
        """Return all agent names."""
        return tuple(self.agents)

    def definition(self, name: str) -> AgentDefinition:
        """Return the agent with this name; `parent/name` is a subagent that a tool of the parent provides."""
        definition = find_definition(self.agents, name)
        if definition is None:
            raise UnknownName("agent", name, self.agents, verb="This process knows")
        return definition

    def driver(self, name: str, preset: str | None) -> StepDriver:
        """Return the agent's own driver, or native tool calls with the preset's model."""
        definition = self.definition(name)
        driver = definition.driver if isinstance(definition.driver, StepDriver) else None
        if driver and not driver.wants_model:
            return driver
        model = self._model_or_unusable(preset or definition.model_choice)
        driver = (driver or ToolCallingDriver()).with_model(model)
        return definition.equipped_driver(driver)

    def model(self, name: str, choice: ModelChoice = None) -> Model:
        """Return the model for the agent's tools and processors: the one they name, or the agent's own."""
        if choice is not None:
            return self._model_or_unusable(choice)
        definition = self.definition(name)
        own = self.driver(name, None).model
        return own or self._model_or_unusable(definition.model_choice)

    def _model_or_unusable(self, choice: ModelChoice) -> Model:
        """Return the model, or an `Unusable` one if its preset cannot be used.

        Drivers are also built where no model is called, for example to record a tool's result.
        """
        try:
            return self.models.model(choice)
        except InvalidInput as error:
            return UnusableModel(error)


class UnusableModel:
    """A model that cannot be called: its key is missing, or no preset has its name."""

    call_limits = NO_CALL
    counts_requests = True
    """It makes none."""

    def __init__(self, error: InvalidInput) -> None:
        self.error = error

    async def respond(self, request: InferenceRequest, on_text: OnText) -> InferenceResponse:
        """Raise a permanent `ModelError`, which ends the step at once: a retry cannot fix the settings."""
        del request, on_text
        raise ModelError(str(self.error), advice=str(self.error)) from self.error


def by_name(agents: Iterable[AgentDefinition]) -> dict[str, AgentDefinition]:
    """Return the agents by name.

    Raises:
        InvalidInput: Two agents have the same name.
    """
    named: dict[str, AgentDefinition] = {}
    for agent in agents:
        name = agent.descriptor.name
        if name in named:
            raise InvalidInput(f"two agents are named '{name}'{_sources_of(named[name], agent)}; rename one")
        named[name] = agent
    return named


def _sources_of(*agents: AgentDefinition) -> str:
    sources = [agent.source for agent in agents if agent.source]
    return f" ({' and '.join(sources)})" if sources else ""


def load_all_agents(
    sources: Iterable[str], presets: Presets = BUILT_IN_PRESETS, servers: McpServers = EMPTY
) -> dict[str, AgentDefinition]:
    """Load the agents of all sources, by name, with the demo agent if no agent has its name."""
    own = by_name(agent for where in sources for agent in load_agents(where, presets, servers=servers))
    return {**own} if DEMO.descriptor.name in own else {**own, DEMO.descriptor.name: DEMO}


def load_agents(
    where: str,
    presets: Presets = BUILT_IN_PRESETS,
    catalogue: Catalogue = STANDARD,
    servers: McpServers = EMPTY,
) -> list[AgentDefinition]:
    """Load the agents of a folder, a file, or a `module:attribute`."""
    path, having = Path(where), FileScope(presets, catalogue, servers)
    # `Path.is_dir` would raise for text that cannot be a path.
    if isdir(where):
        return list(_load_folder(path, having))
    if path.suffix.lower() in SUFFIXES:
        return [_assemble(path, read_agent(path), (), having)]
    return _load_module(where)


@dataclass(frozen=True, slots=True)
class FileScope:
    """The presets, components and servers that agent files can name."""

    presets: Presets
    catalogue: Catalogue
    servers: McpServers


def _load_folder(folder: Path, scope: FileScope) -> Iterator[AgentDefinition]:
    """Load the agent files of a folder; a file that cannot be used is skipped with a warning."""
    specs = dict(_specs(folder))
    count = 0
    for file, spec in specs.items():
        others = [other for other in specs.values() if other is not spec]
        try:
            definition = _assemble(file, spec, others, scope)
        except InvalidInput as error:
            skip(file, error)
        else:
            count += 1
            yield definition
    if not count:
        raise InvalidInput(
            f"no agent in the folder {folder} can be used; an agent is a file there that ends in "
            f"{' or '.join(SUFFIXES)}, and warnings say what is wrong with each"
        )


def _specs(folder: Path) -> Iterator[tuple[Path, AgentSpec]]:
    for file in agent_files(folder):
        try:
            yield file, read_agent(file)
        except InvalidInput as error:
            skip(file, error)


def _assemble(file: Path, spec: AgentSpec, others: Iterable[AgentSpec], scope: FileScope) -> AgentDefinition:
    skills = None if spec.skills is None else tuple(spec.skills)
    here = AgentLocation(
        file.parent, skills=skills, other_agents=AgentSpecRegistry(others), servers=scope.servers
    )
    try:
        return replace(assemble_agent(spec, here, scope.catalogue, scope.presets.resolve), source=str(file))
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from error


def _load_module(where: str) -> list[AgentDefinition]:
    module_name, _, attribute = where.partition(":")
    if not attribute:
        raise InvalidInput(
            f"'{truncate(where, 100)}' names no agents: there is no such folder, and it is not a file that "
            "ends "
            f"in {' or '.join(SUFFIXES)}; for a module write module:attribute, such as my_app.agents:agents"
        )
    found = import_attribute(module_name, attribute, where)
    entries: list[Any] = list(found) if isinstance(found, list | tuple) else [found]  # pyright: ignore[reportUnknownArgumentType] -- any module
    shared = _module_resources(module_name)
    agents = [replace(_definition(entry, where), source=where) for entry in entries]
    return [replace(agent, resources=(*agent.resources, *shared)) for agent in agents]


def _module_resources(module_name: str) -> tuple[Resource[Any], ...]:
    """Return the resources of an agents module: those with a name in it, and the list `resources`."""
    names = vars(sys.modules[module_name])
    found: list[object] = [each for each in names.values() if is_resource(each)]
    value = names.get("resources")
    listed = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    # Modules may use that name for something else.
    found.extend(listed if any(map(is_resource, listed)) else ())
    return require_resources(found, f"'resources' of the module {module_name}")


def import_attribute(module_name: str, attribute: str, where: str) -> Any:
    """Import an attribute of a module, which may be in the working folder.

    Args:
        module_name: The module.
        attribute: The attribute's name.
        where: The text of the setting, for error messages.
    """
    try:
        _search_here_for(module_name.partition(".")[0])
        module = import_module(module_name)
    except Exception as error:  # the module runs code of users, which may raise anything
        problem = f"the module of '{where}' cannot be imported: {_import_failure(error)}"
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module_name
        hint = did_you_mean(module_name, (file.stem for file in Path().glob("*.py"))) if is_missing else ""
        raise InvalidInput(f"{problem}{hint}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = did_you_mean(attribute, (name for name in vars(module) if not name.startswith("_")))
        raise InvalidInput(f"the module {module_name} has no '{attribute}'{hint}") from None


def _import_failure(error: Exception) -> str:
    """Return what an import raised, and the line of the project that raised it."""
    text = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        # Its text has file and line.
        return text
    here, installed = Path.cwd(), Path(sys.prefix)
    frames = [(Path(frame.filename), frame.lineno) for frame in extract_tb(error.__traceback__)]
    own = [place for place in frames if here in place[0].parents and installed not in place[0].parents]
    return f"{text} ({own[-1][0].relative_to(here)}, line {own[-1][1]})" if own else text


def _search_here_for(module: str) -> None:
    """Search the working folder for a module if it is there.

    Other modules are not searched there: a file could shadow an installed package that is imported later, and
    no setting names those.
    """
    here = str(Path.cwd())
    if here in sys.path or module in sys.modules:
        return
    found = PathFinder.find_spec(module, [here])
    if found and (found.origin or find_spec(module) is None):
        # At the end, so that files that agents write into the folder do not shadow installed packages.
        sys.path.append(here)
        sys.meta_path.insert(0, _FolderFinder(module, here))


class _FolderFinder(MetaPathFinder):
    """Finds the one module that a setting names in its own folder, ahead of installed ones."""

    def __init__(self, module: str, folder: str) -> None:
        self._module, self._folder = module, folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's spec, or None for all other modules."""
        return PathFinder.find_spec(fullname, [self._folder], target) if fullname == self._module else None


def _definition(entry: Any, where: str) -> AgentDefinition:
    if isinstance(entry, AgentDefinition):
        return entry
    if isinstance(entry, DefinitionBuilder):
        return entry.definition()
    definition = getattr(entry, "definition", None)
    if isinstance(definition, AgentDefinition):
        return definition
    raise InvalidInput(f"'{where}' holds {entry!r}; it should hold an AgentBuilder, or a list of them")
