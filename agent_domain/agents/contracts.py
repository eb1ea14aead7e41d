"""Agents defined in code: their interface, their construction, and a registry by name.

Most agents derive from `AbstractAgentDefinition`, which needs only a description and a method
that builds the runner. Their classes go into an `AgentContractRegistry`, from which services
create agents by name and configuration.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.result import Failure, Result, attempt
from everstep.agent_domain.state.events import E, EventBus, Listener
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.values import EMPTY, FrozenDict, FrozenList, as_list, valid_text

RunnerT = TypeVar("RunnerT", bound="RunsAgent")
DefinitionT = TypeVar("DefinitionT", bound="AbstractAgentDefinition")


class NameList(FrozenList):
    """Names in their order, without duplicates; entries that are blank or not text are left out."""

    def __init__(self, entries: Iterable[object] = ()) -> None:
        given = [entries] if isinstance(entries, str) else as_list(entries, "names")
        names = [valid_text(name, "a name") for name in given if isinstance(name, str) and name.strip()]
        super().__init__(dict.fromkeys(names))

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return NameList, (list(self),)


@dataclass(frozen=True, slots=True)
class AgentDescriptor:
    """The public description of an agent."""

    name: str
    description: str
    tools: Sequence[str] = ()
    capabilities: Sequence[str] = ()

    def __post_init__(self) -> None:
        for key in ("name", "description"):
            if not valid_text(getattr(self, key), f"'{key}'").strip():
                raise InvalidInput(f"An agent's descriptor needs a '{key}'")
        object.__setattr__(self, "tools", NameList(self.tools))
        object.__setattr__(self, "capabilities", NameList(self.capabilities))


@runtime_checkable
class RunsAgent(Protocol):
    """Runs an agent, at once or step by step, and publishes events to listeners."""

    def run(self, state: AgentState) -> AgentState:
        """Run the agent until it stops, and return the last state."""
        ...

    def next_step(self, state: AgentState) -> AgentState:
        """Run one more step and return the state; unchanged if there is no further step."""
        ...

    def has_next_step(self, state: AgentState) -> bool:
        """Whether the agent would take another step."""
        ...

    def final_step(self, state: AgentState) -> AgentState:
        """The same as `run`."""
        ...

    def iterator(self, state: AgentState) -> Iterator[AgentState]:
        """Run the agent, and yield the state after each step."""
        ...

    def with_event_handler(self: RunnerT, handler: EventBus | None) -> RunnerT:
        """Send events to this bus; None changes nothing."""
        ...

    def wiretap(self: RunnerT, fn: Listener | None) -> RunnerT:
        """Call `fn` with every event; None changes nothing."""
        ...

    def on_event(self: RunnerT, cls: type[E], fn: Callable[[E], object] | None) -> RunnerT:
        """Call `fn` with every event of one class; None changes nothing."""
        ...


@runtime_checkable
class AgentContract(RunsAgent, Protocol):
    """An agent that describes itself and can be built and run."""

    def descriptor(self) -> AgentDescriptor:
        """The agent's description; does not build the agent."""
        ...

    def build(self) -> RunsAgent:
        """The runner of the agent."""
        ...


class AbstractAgentDefinition(ABC):
    """An agent that is built on first use, once.

    Handlers and listeners that are added earlier are kept and attached when the agent is built: event
    handlers first, so that attaching one does not replace a listener.
    """

    # Class attributes, so that a subclass with an `__init__` need not call this one's.
    _agent: RunsAgent | None = None
    _handlers: tuple[EventBus, ...] = ()
    _listeners: tuple[tuple[type[Any] | None, Callable[[Any], object]], ...] = ()

    @abstractmethod
    def descriptor(self) -> AgentDescriptor:
        """The agent's description."""

    @abstractmethod
    def build_agent(self) -> RunsAgent:
        """Create the runner; called once."""

    def build(self) -> RunsAgent:
        """The runner of the agent, created on the first call."""
        if self._agent is None:
            agent = self.build_agent()
            for handler in self._handlers:
                agent = agent.with_event_handler(handler)
            for cls, fn in self._listeners:
                agent = _attach_listener(agent, cls, fn)
            self._agent = agent
        return self._agent

    def run(self, state: AgentState) -> AgentState:
        """Run the agent until it stops, and return the last state."""
        return self.build().run(state)

    def next_step(self, state: AgentState) -> AgentState:
        """Run one more step and return the state; unchanged if there is no further step."""
        return self.build().next_step(state)

    def has_next_step(self, state: AgentState) -> bool:
        """Whether the agent would take another step."""
        return self.build().has_next_step(state)

    def final_step(self, state: AgentState) -> AgentState:
        """The same as `run`."""
        return self.build().final_step(state)

    def iterator(self, state: AgentState) -> Iterator[AgentState]:
        """Run the agent, and yield the state after each step."""
        return self.build().iterator(state)

    def with_event_handler(self: DefinitionT, handler: EventBus | None) -> DefinitionT:
        """Send events to this bus; None changes nothing."""
        if handler is None:
            return self
        if self._agent is None:
            self._handlers = (*self._handlers, handler)
        else:
            self._agent = self._agent.with_event_handler(handler)
        return self

    def wiretap(self: DefinitionT, fn: Listener | None) -> DefinitionT:
        """Call `fn` with every event; None changes nothing."""
        return self._add_listener(None, fn)

    def on_event(self: DefinitionT, cls: type[E], fn: Callable[[E], object] | None) -> DefinitionT:
        """Call `fn` with every event of one class; None changes nothing."""
        return self._add_listener(cls, fn)

    def _add_listener(
        self: DefinitionT, cls: type[Any] | None, fn: Callable[[Any], object] | None
    ) -> DefinitionT:
        if fn is None:
            return self
        if self._agent is None:
            self._listeners = (*self._listeners, (cls, fn))
        else:
            self._agent = _attach_listener(self._agent, cls, fn)
        return self


def _attach_listener(agent: RunsAgent, cls: type[Any] | None, fn: Callable[[Any], object]) -> RunsAgent:
    return agent.wiretap(fn) if cls is None else agent.on_event(cls, fn)


@runtime_checkable
class AgentFactory(Protocol):
    """Creates agents by name; `AgentContractRegistry` is one implementation."""

    def create(self, name: str, config: Mapping[str, Any] = EMPTY) -> Result[AgentContract]:
        """Create an agent by name; a `Failure` says why that is not possible."""
        ...


def _is_contract(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, AgentContract)


@dataclass(frozen=True, slots=True)
class AgentContractRegistry:
    """Agent classes by name; immutable, so registering returns a new registry."""

    agents: FrozenDict = field(default_factory=FrozenDict)

    def register(self, name: str, agent: type[AgentContract]) -> "AgentContractRegistry":
        """A registry with this class added; it replaces an earlier class of the same name.

        Raises:
            InvalidInput: The class does not implement `AgentContract`.
        """
        if not _is_contract(agent):
            raise InvalidInput(f"'{name}' is not an AgentContract")
        return AgentContractRegistry(FrozenDict({**self.agents, name: agent}))

    def has(self, name: str) -> bool:
        """Whether a class is registered under this name."""
        return name in self.agents

    def names(self) -> list[str]:
        """All names, in the order of registration."""
        return list(self.agents)

    def create(self, name: str, config: Mapping[str, Any] = EMPTY) -> Result[AgentContract]:
        """Create an agent by name; a `Failure` says why that is not possible.

        Args:
            name: The name of a registered class.
            config: Passed to the class's `from_config` if it has one, or else as keyword arguments to
                the class itself.
        """
        if name not in self.agents:
            return Failure(InvalidInput(f"No agent named '{name}'"))
        agent: Any = self.agents[name]
        if hasattr(agent, "from_config"):
            return attempt(lambda: agent.from_config(config))
        return attempt(lambda: agent(**config))
