"""The registry of agent specs."""

import pytest

from everstep.agent_domain.agents.registry import AgentSpecRegistry
from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput, UnknownName


def an_agent(name: str, description: str = "Helps", tools: list[str] | None = None) -> AgentSpec:
    return AgentSpec(name, description, "You help.", tools=tools)


def test_a_registry_keeps_the_order_of_registration() -> None:
    """10.2.1."""
    registry = AgentSpecRegistry([an_agent("b"), an_agent("a")])
    assert registry.names() == ["b", "a"]
    assert registry.all() == [an_agent("b"), an_agent("a")]
    assert registry.count() == 2
    assert registry.has("a")
    assert not registry.has("c")
    assert registry.get("a") == an_agent("a")


def test_the_last_of_a_name_wins() -> None:
    """10.2.1."""
    registry = AgentSpecRegistry([an_agent("a", "old")])
    registry.register(an_agent("a", "new"))
    assert registry.count() == 1
    assert registry.get("a").description == "new"


@pytest.mark.parametrize(("names", "listed"), [(("a", "b"), "a, b"), ((), "")])
def test_an_unknown_name_raises_and_lists_the_known_ones(names: tuple[str, ...], listed: str) -> None:
    """10.2.1."""
    registry = AgentSpecRegistry(map(an_agent, names))
    with pytest.raises(UnknownName) as unknown:
        registry.get("x")
    assert str(unknown.value) == f"No agent named 'x'. Choose from: {listed}"


def test_given_parent_tools_an_agent_that_needs_others_is_refused() -> None:
    """10.2.1."""
    registry = AgentSpecRegistry()
    with pytest.raises(InvalidInput) as refused:
        registry.register(an_agent("a", tools=["bash", "fly", "swim"]), parent_tools=["bash"])
    assert str(refused.value) == (
        "Agent 'a' asks for tool 'fly', which its parent lacks\n"
        "Agent 'a' asks for tool 'swim', which its parent lacks"
    )
    assert registry.count() == 0
    with pytest.raises(InvalidInput):
        registry.register(an_agent("a", tools=["bash"]), parent_tools=[])


def test_without_parent_tools_any_agent_may_be_registered() -> None:
    """10.2.1."""
    registry = AgentSpecRegistry([an_agent("a", tools=["fly"])])
    registry.register(an_agent("b", tools=["bash"]), parent_tools=["bash"])
    assert registry.names() == ["a", "b"]


def test_agents_can_be_removed() -> None:
    """10.2.1."""
    registry = AgentSpecRegistry(map(an_agent, "abc"))
    registry.remove("b")
    registry.remove("unknown")
    assert registry.names() == ["a", "c"]
    registry.clear()
    assert registry.count() == 0


def test_the_lists_given_out_are_copies() -> None:
    """10.2.1."""
    registry = AgentSpecRegistry([an_agent("a")])
    registry.all().clear()
    registry.names().clear()
    assert registry.count() == 1
