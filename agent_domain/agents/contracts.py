"""Agents defined in code: what one can do, how it is built, and how it is found by name.

Most agents derive from `AbstractAgentDefinition`, which asks for no more than a description
and a way to build what runs. Their classes go into an `AgentContractRegistry`, from which
services make agents by name and configuration.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.result import Failure, Result, attempt
from everstep.agent_domain.state.events import E, EventBus, Listener
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.values import EMPTY, FrozenDict, FrozenList, listed, valid_text

RunnerT = TypeVar("RunnerT", bound="RunsAgent")
DefinitionT = TypeVar("DefinitionT", bound="AbstractAgentDefinition")


class NameList(FrozenList):
    """Names in their order, without repeats; what is empty or no text is left out."""

    def __init__(self, entries: Iterable[object] = ()) -> None:
        given = [entries] if isinstance(entries, str) else listed(entries, "names")
        names = [valid_text(name, "a name") for name in given if isinstance(name, str) and name.strip()]
        super().__init__(dict.fromkeys(names))

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return NameList, (list(self),)


@dataclass(frozen=True, slots=True)
class AgentDescriptor:
    """What others are told about an agent before they use it."""

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
    """What runs an agent, at once or step by step, and tells listeners about it."""

    def run(self, state: AgentState) -> AgentState:
        """The state when the agent stopped."""
        ...

    def next_step(self, state: AgentState) -> AgentState:
        """The state after one more step; unchanged when there is none."""
        ...

    def has_next_step(self, state: AgentState) -> bool:
        """Whether the agent would take another step."""
        ...

    def final_step(self, state: AgentState) -> AgentState:
        """The same as `run`."""
        ...

    def iterator(self, state: AgentState) -> Iterator[AgentState]:
        """The state after each step."""
        ...

    def with_event_handler(self: RunnerT, handler: EventBus | None) -> RunnerT:
        """Send events to this bus; None changes nothing."""
        ...

    def wiretap(self: RunnerT, fn: Listener | None) -> RunnerT:
        """Tell this one about every event; None changes nothing."""
        ...

    def on_event(self: RunnerT, cls: type[E], fn: Callable[[E], object] | None) -> RunnerT:
        """Tell this one about events of one class; None changes nothing."""
        ...


@runtime_checkable
class AgentContract(RunsAgent, Protocol):
    """An agent that describes itself and can be built and run."""

    def descriptor(self) -> AgentDescriptor:
        """What others are told about the agent; nothing is built for it."""
        ...

    def build(self) -> RunsAgent:
        """What runs the agent."""
        ...


class AbstractAgentDefinition(ABC):
    """An agent that is built on first use, once.

    What listens before then is kept, and attached when the agent is built: event handlers
    first, so that none of them takes the place of a listener.
    """

    # Defaults of the class, so that a definition's own `__init__` need not call this one's.
    _agent: RunsAgent | None = None
    _handlers: tuple[EventBus, ...] = ()
    _listeners: tuple[tuple[type[Any] | None, Callable[[Any], object]], ...] = ()

    @abstractmethod
    def descriptor(self) -> AgentDescriptor:
        """What others are told about the agent."""

    @abstractmethod
    def build_agent(self) -> RunsAgent:
        """Make what runs the agent; called once."""

    def build(self) -> RunsAgent:
        """What runs the agent, the same each time."""
        if self._agent is None:
            agent = self.build_agent()
            for handler in self._handlers:
                agent = agent.with_event_handler(handler)
            for cls, fn in self._listeners:
                agent = _attached(agent, cls, fn)
            self._agent = agent
        return self._agent

    def run(self, state: AgentState) -> AgentState:
        """The state when the agent stopped."""
        return self.build().run(state)

    def next_step(self, state: AgentState) -> AgentState:
        """The state after one more step; unchanged when there is none."""
        return self.build().next_step(state)

    def has_next_step(self, state: AgentState) -> bool:
        """Whether the agent would take another step."""
        return self.build().has_next_step(state)

    def final_step(self, state: AgentState) -> AgentState:
        """The same as `run`."""
        return self.build().final_step(state)

    def iterator(self, state: AgentState) -> Iterator[AgentState]:
        """The state after each step."""
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
        """Tell this one about every event; None changes nothing."""
        return self._heard_by(None, fn)

    def on_event(self: DefinitionT, cls: type[E], fn: Callable[[E], object] | None) -> DefinitionT:
        """Tell this one about events of one class; None changes nothing."""
        return self._heard_by(cls, fn)

    def _heard_by(
        self: DefinitionT, cls: type[Any] | None, fn: Callable[[Any], object] | None
    ) -> DefinitionT:
        if fn is None:
            return self
        if self._agent is None:
            self._listeners = (*self._listeners, (cls, fn))
        else:
            self._agent = _attached(self._agent, cls, fn)
        return self


def _attached(agent: RunsAgent, cls: type[Any] | None, fn: Callable[[Any], object]) -> RunsAgent:
    return agent.wiretap(fn) if cls is None else agent.on_event(cls, fn)


@runtime_checkable
class AgentFactory(Protocol):
    """Makes agents by name; an `AgentContractRegistry` is one, and applications may write others."""

    def create(self, name: str, config: Mapping[str, Any] = EMPTY) -> Result[AgentContract]:
        """A new agent of that name, or why there is none."""
        ...


def _is_contract(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, AgentContract)


@dataclass(frozen=True, slots=True)
class AgentContractRegistry:
    """Classes of agents by name; registering gives a new registry."""

    agents: FrozenDict = field(default_factory=FrozenDict)

    def register(self, name: str, agent: type[AgentContract]) -> "AgentContractRegistry":
        """This class as well, or instead of the one of its name."""
        if not _is_contract(agent):
            raise InvalidInput(f"'{name}' is not an AgentContract")
        return AgentContractRegistry(FrozenDict({**self.agents, name: agent}))

    def has(self, name: str) -> bool:
        """Whether a class has the name."""
        return name in self.agents

    def names(self) -> list[str]:
        """Every name, in the order in which they came."""
        return list(self.agents)

    def create(self, name: str, config: Mapping[str, Any] = EMPTY) -> Result[AgentContract]:
        """A new agent of that name, or why there is none.

        A class that defines `from_config` is given the configuration, any other its entries
        as keyword arguments.
        """
        if name not in self.agents:
            return Failure(InvalidInput(f"No agent named '{name}'"))
        agent: Any = self.agents[name]
        if hasattr(agent, "from_config"):
            return attempt(lambda: agent.from_config(config))
        return attempt(lambda: agent(**config))
