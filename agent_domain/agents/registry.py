"""A registry of agents by name, for instance for a model that delegates work.

It is mutable on purpose: a program fills it at startup, from code and from files, and later
definitions replace earlier ones. Reading files is left to `everstep.agents`.
"""

from collections.abc import Iterable
from typing import cast

from everstep.agent_domain.agents.spec import AgentSpec
from everstep.agent_domain.errors import InvalidInput, UnknownName


class AgentSpecRegistry:
    """Agent specs by name, in the order of registration."""

    def __init__(self, specs: Iterable[AgentSpec] = ()) -> None:
        self._specs: dict[str, AgentSpec] = {}
        for spec in specs:
            self.register(spec)

    def register(self, spec: AgentSpec, parent_tools: Iterable[str] | None = None) -> None:
        """Add a spec, or replace the one of its name.

        Args:
            spec: The spec.
            parent_tools: The tools of the parent agent; given these, the spec may use no others.

        Raises:
            InvalidInput: It is not a spec, or it needs tools that the parent does not have.
        """
        if not isinstance(cast("object", spec), AgentSpec):
            raise InvalidInput(f"{spec!r} is not an AgentSpec; read one with from_markdown or from_json")
        problems = [] if parent_tools is None else spec.validate(parent_tools)
        if problems:
            raise InvalidInput("\n".join(problems))
        self._specs[spec.name] = spec

    def get(self, name: str) -> AgentSpec:
        """The spec of this name.

        Raises:
            UnknownName: There is none; the error lists the known names.
        """
        if name not in self._specs:
            raise UnknownName("agent", name, self._specs)
        return self._specs[name]

    def has(self, name: str) -> bool:
        """Whether an agent is registered under this name."""
        return name in self._specs

    def all(self) -> list[AgentSpec]:
        """All specs."""
        return list(self._specs.values())

    def names(self) -> list[str]:
        """All names."""
        return list(self._specs)

    def count(self) -> int:
        """The number of agents."""
        return len(self._specs)

    def remove(self, name: str) -> None:
        """Remove the agent, if it is registered."""
        self._specs.pop(name, None)

    def clear(self) -> None:
        """Remove all agents."""
        self._specs.clear()
