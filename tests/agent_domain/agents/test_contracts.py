"""Agents defined in code."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest

from everstep.agent_domain.agents.contracts import (
    AbstractAgentDefinition,
    AgentContract,
    AgentContractRegistry,
    AgentDescriptor,
    AgentFactory,
    NameList,
)
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.result import Failure
from everstep.agent_domain.state.events import AgentFinished, E, EventBus, Listener
from everstep.agent_domain.state.state import AgentState

BEFORE = AgentState.empty()
AFTER = BEFORE.with_metadata("greeted", True)
BUS = EventBus()


class Runner:
    """Turns BEFORE into AFTER, and records its listeners."""

    def __init__(self) -> None:
        self.attached: list[tuple[object, ...]] = []

    def run(self, state: AgentState) -> AgentState:
        return AFTER if state is BEFORE else state

    next_step = final_step = run

    def has_next_step(self, state: AgentState) -> bool:
        return state is BEFORE

    def iterator(self, state: AgentState) -> Iterator[AgentState]:
        yield self.run(state)

    def with_event_handler(self, handler: EventBus | None) -> "Runner":
        return self._with("handler", handler)

    def wiretap(self, fn: Listener | None) -> "Runner":
        return self._with("all", fn)

    def on_event(self, cls: type[E], fn: Callable[[E], object] | None) -> "Runner":
        return self._with(cls, fn)

    def _with(self, *attached: object) -> "Runner":
        """The protocol allows `with` methods to return another agent."""
        changed = Runner()
        changed.attached = [*self.attached, attached]
        return changed


class Greeter(AbstractAgentDefinition):
    def __init__(self, greeting: str = "Hello") -> None:
        self.greeting = greeting
        self.built = 0

    def descriptor(self) -> AgentDescriptor:
        return AgentDescriptor("greeter", "Greets")

    def build_agent(self) -> Runner:
        self.built += 1
        return Runner()


class Configured(Greeter):
    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Configured":
        return cls(config["words"]["hi"])


def attached_listeners(definition: AbstractAgentDefinition) -> list[tuple[object, ...]]:
    return cast("Runner", definition.build()).attached


def test_a_definition_is_an_agent_contract() -> None:
    """10.3.1."""
    contract: AgentContract = Greeter()
    assert isinstance(contract, AgentContract)
    assert not isinstance(Runner(), AgentContract)


def test_a_definition_is_built_once_and_on_first_use() -> None:
    """10.3.1."""
    greeter = Greeter()
    greeter.descriptor()
    greeter.wiretap(print)
    assert greeter.built == 0
    greeter.has_next_step(BEFORE)
    assert greeter.build() is greeter.build()
    assert greeter.built == 1


def test_a_definition_runs_what_it_built() -> None:
    """10.3.1."""
    greeter = Greeter()
    assert greeter.run(BEFORE) is AFTER
    assert greeter.next_step(BEFORE) is AFTER
    assert greeter.final_step(BEFORE) is AFTER
    assert list(greeter.iterator(BEFORE)) == [AFTER]
    assert (greeter.has_next_step(BEFORE), greeter.has_next_step(AFTER)) == (True, False)


def test_listeners_registered_before_the_build_are_attached_by_it() -> None:
    """10.3.1: event handlers first, the rest in order."""
    greeter = Greeter().wiretap(print).on_event(AgentFinished, repr).with_event_handler(BUS)
    assert attached_listeners(greeter) == [("handler", BUS), ("all", print), (AgentFinished, repr)]


def test_listeners_registered_after_the_build_are_attached_at_once() -> None:
    """10.3.1."""
    greeter = Greeter()
    greeter.build()
    greeter.on_event(AgentFinished, repr).with_event_handler(BUS).wiretap(print)
    assert attached_listeners(greeter) == [(AgentFinished, repr), ("handler", BUS), ("all", print)]


def test_none_is_not_a_listener() -> None:
    """4.6.3, 10.3.1."""
    greeter = Greeter()
    assert (
        greeter.wiretap(None)
        is greeter.on_event(AgentFinished, None)
        is greeter.with_event_handler(None)
        is greeter
    )
    assert attached_listeners(greeter) == []


def test_definitions_share_no_listeners() -> None:
    """10.3.1."""
    Greeter().wiretap(print)
    assert attached_listeners(Greeter()) == []


def test_registering_gives_a_new_registry() -> None:
    """10.3.2."""
    empty = AgentContractRegistry()
    filled = empty.register("greeter", Greeter)
    assert (empty.names(), filled.names()) == ([], ["greeter"])
    assert (empty.has("greeter"), filled.has("greeter")) == (False, True)
    assert filled.register("greeter", Configured).agents == {"greeter": Configured}


@pytest.mark.parametrize("other", [Runner, int, "Greeter", None, print, Greeter()])
def test_only_classes_of_agents_can_be_registered(other: Any) -> None:
    """10.3.2."""
    with pytest.raises(InvalidInput) as refused:
        AgentContractRegistry().register("greeter", other)
    assert str(refused.value) == "'greeter' is not an AgentContract"


def test_an_agent_is_made_from_keyword_arguments() -> None:
    """10.3.2."""
    registry = AgentContractRegistry().register("greeter", Greeter)
    assert cast("Greeter", registry.create("greeter", {"greeting": "Hi"}).unwrap()).greeting == "Hi"
    assert cast("Greeter", registry.create("greeter").unwrap()).greeting == "Hello"


def test_an_agent_that_reads_its_configuration_itself_gets_it_whole() -> None:
    """10.3.2."""
    registry = AgentContractRegistry().register("greeter", Configured)
    factory: AgentFactory = registry
    made = factory.create("greeter", {"words": {"hi": "Hi"}})
    assert made.is_success
    assert cast("Configured", made.unwrap()).greeting == "Hi"


def test_an_unknown_name_is_a_failure() -> None:
    """10.3.2."""
    result = AgentContractRegistry().register("greeter", Greeter).create("x", {})
    assert isinstance(result, Failure)
    assert str(result.error) == "No agent named 'x'"


@pytest.mark.parametrize(("agent", "error"), [(Greeter, TypeError), (Configured, KeyError)])
def test_an_error_of_construction_is_a_failure(agent: type[Greeter], error: type[Exception]) -> None:
    """10.3.2."""
    result = AgentContractRegistry().register("greeter", agent).create("greeter", {"unknown": 1})
    assert isinstance(result, Failure)
    assert isinstance(result.error, error)


def test_a_descriptor_describes() -> None:
    """10.3.3."""
    descriptor = AgentDescriptor("a", "b", tools=["bash", "bash", ""], capabilities=("UseBash",))
    assert descriptor.tools == ["bash"]
    assert descriptor.capabilities == ["UseBash"]
    assert AgentDescriptor("a", "b").tools == []


@pytest.mark.parametrize(("name", "description", "missing"), [("", "b", "name"), ("a", " ", "description")])
def test_a_descriptor_needs_a_name_and_a_description(name: str, description: str, missing: str) -> None:
    """10.3.3."""
    with pytest.raises(InvalidInput, match=f"An agent's descriptor needs a '{missing}'"):
        AgentDescriptor(name, description)


def test_a_name_list_keeps_the_first_of_each_name_and_drops_invalid_ones() -> None:
    """10.3.3."""
    assert NameList(["b", "", "a", None, 3, "b", " ", ["c"], "c"]) == ["b", "a", "c"]
    assert NameList() == []
    assert NameList("bash") == ["bash"]


def test_a_name_list_does_not_change_and_can_be_copied() -> None:
    """0.8, 10.3.3."""
    names = NameList(["a"])
    with pytest.raises(TypeError):
        names.append("b")
    for copied in (copy.copy(names), copy.deepcopy(names)):
        assert isinstance(copied, NameList)
        assert copied == names
