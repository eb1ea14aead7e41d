"""The agents that can be named, for instance by a model that wants to delegate.

Mutable on purpose: it is filled while a program starts, from code and from files, and later
definitions replace earlier ones. Reading files is left to whoever has a file system.
"""

from collections.abc import Iterable
from typing import cast

from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput, UnknownName


class AgentRegistry:
    """Agent specs by name, in the order in which the names came."""

    def __init__(self, specs: Iterable[AgentSpec] = ()) -> None:
        self._specs: dict[str, AgentSpec] = {}
        for spec in specs:
            self.register(spec)

    def register(self, spec: AgentSpec, parent_tools: Iterable[str] | None = None) -> None:
        """Add the spec, or replace the one of its name; given parent tools, it must get by with those."""
        if not isinstance(cast("object", spec), AgentSpec):
            raise InvalidInput(f"{spec!r} is no AgentSpec; read one with from_markdown or from_json")
        problems = [] if parent_tools is None else spec.validate(parent_tools)
        if problems:
            raise InvalidInput("\n".join(problems))
        self._specs[spec.name] = spec

    def get(self, name: str) -> AgentSpec:
        """The spec; `UnknownName` lists what there is."""
        if name not in self._specs:
            raise UnknownName("agent", name, self._specs)
        return self._specs[name]

    def has(self, name: str) -> bool:
        """Whether an agent has the name."""
        return name in self._specs

    def all(self) -> list[AgentSpec]:
        """Every spec."""
        return list(self._specs.values())

    def names(self) -> list[str]:
        """Every name."""
        return list(self._specs)

    def count(self) -> int:
        """How many there are."""
        return len(self._specs)

    def remove(self, name: str) -> None:
        """Forget the agent, if there is one."""
        self._specs.pop(name, None)

    def clear(self) -> None:
        """Forget all agents."""
        self._specs.clear()
