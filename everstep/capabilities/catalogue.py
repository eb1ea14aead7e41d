"""The catalogue of capabilities that an agent file can name: description, tools and factory of each.

To add one, write a factory and an entry in `everstep.capabilities.standard`:

    def _notes(here: Surroundings, *, max_keys: int = 50) -> AgentCapability:
        return UseNotes(max_keys)

    Entry("notes", "Keeps notes.", ("note_read", "note_write"), _notes)

The factory's keyword arguments are the options. They are checked against their types, so the types are plain:
text, numbers, lists and maps. `here` describes the place of the agent's file. An entry with required options
has an `example` of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

from everstep.agent_domain.agents.builder import AgentCapability, DefinitionBuilder
from everstep.agent_domain.agents.model_name import require_no_address
from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.checks import faults
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.tools.tools import Tool
from everstep.agent_domain.values import EMPTY, thaw

CheckPreset = Callable[[str | Mapping[str, Any]], object]
"""Raises `InvalidInput` if the preset does not exist, or if the settings cannot be used."""


def _accept_any_preset(preset: str | Mapping[str, Any]) -> None:
    """The default: accept any preset, as none are known."""
    del preset


@dataclass(frozen=True, slots=True)
class AgentLocation:
    """The place of an agent's file, and what is available there."""

    folder: Path
    """The folder of the file; the agent's own files, such as its skills, are relative to it."""
    working_dir: Path = field(default_factory=Path.cwd)
    """The working directory of the agent: the folder in which the process runs."""
    skills: tuple[str, ...] | None = None
    """The skills that the file names; None for all."""
    other_agents: AgentSpecRegistry = field(default_factory=AgentSpecRegistry)
    """The other agents of the folder."""
    servers: Mapping[str, Mapping[str, Any]] = EMPTY
    """The MCP servers of the installation, `[mcp.NAME]` in everstep.toml."""
    resolve: CheckPreset = _accept_any_preset
    """Checks that a preset exists."""

    def require_preset(self, name: str | None) -> None:
        """Refuse a preset that is unknown, or names an address, before a run needs it."""
        require_no_address(name, "llm_preset")
        if name is not None:
            self.resolve(name)


CapabilityFactory = Callable[..., AgentCapability]


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One capability of the catalogue."""

    name: str
    about: str
    """One sentence, for people."""
    tools: tuple[str, ...]
    """The tools that it brings."""
    make: CapabilityFactory
    example: Mapping[str, Any] = EMPTY
    """Options that the factory accepts; needed where options are required."""

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the capability's options."""
        parameters = signature(self.make).parameters.values()
        return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)

    def default(self, option: str) -> Any:
        """The default of an option; `Parameter.empty` if the option is required."""
        return signature(self.make).parameters[option].default

    def install(self, builder: DefinitionBuilder, options: Mapping[str, Any], here: AgentLocation) -> None:
        """Make the capability and add it to an agent.

        Raises:
            InvalidInput: The options do not fit; the message names the option.
        """
        make = validate_call(config=ConfigDict(strict=True))(partial(self.make, here))
        try:
            builder.with_capability(make(**thaw(options)))
        except ValidationError as error:
            option_names = ", ".join(self.options) or "none"
            raise self._error(f"{faults(error, self.options)} (its options: {option_names})") from None
        except (ImportError, OSError, ValueError) as error:
            raise self._error(error) from error

    def _error(self, reason: object) -> InvalidInput:
        return InvalidInput(f"the capability '{self.name}' cannot be made with these options: {reason}")


class Catalogue:
    """Capabilities, by name and by the tools that they have."""

    def __init__(self, entries: Iterable[CatalogueEntry]) -> None:
        self._entries: dict[str, CatalogueEntry] = {}
        self._by_tool: dict[str, CatalogueEntry] = {}
        for entry in entries:
            if entry.name in self._entries:
                raise InvalidInput(f"two capabilities are named '{entry.name}'; rename one")
            self._entries[entry.name] = entry
            for tool in entry.tools:
                self._add_tool(tool, entry)

    def _add_tool(self, tool: str, entry: CatalogueEntry) -> None:
        if tool in self._by_tool:
            other = self._by_tool[tool].name
            raise InvalidInput(f"the capabilities '{other}' and '{entry.name}' both bring the tool '{tool}'")
        self._by_tool[tool] = entry

    def __iter__(self) -> Iterator[CatalogueEntry]:
        return iter(self._entries.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all capabilities."""
        return tuple(self._entries)

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools of all capabilities."""
        return tuple(self._by_tool)

    def get(self, name: str) -> CatalogueEntry:
        """The capability with this name.

        Raises:
            UnknownName: There is none.
        """
        if name not in self._entries:
            raise UnknownName("capability", name, self._entries)
        return self._entries[name]

    def find_by_tool(self, tool: str) -> CatalogueEntry | None:
        """The capability that has this tool, or None."""
        return self._by_tool.get(tool)


class CapabilityGroup:
    """Several capabilities and tools that are installed under one name."""

    def __init__(self, *parts: AgentCapability | Tool) -> None:
        self.parts = parts

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Install all parts."""
        for part in self.parts:
            if isinstance(part, AgentCapability):
                part.install(builder)
            else:
                builder.with_tools([part])
        return builder
