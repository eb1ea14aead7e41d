"""Approval: calls of some tools wait until a person has allowed them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from everstep.agent_domain.agents.builder import AgentBuilder

Wanted: TypeAlias = str | Sequence[Mapping[str, Any]]
"""`always`, `never`, or rules of which the first that matches decides."""


class UseApproval:
    """Lets people decide about calls: `UseApproval(bash="always")`, or with names that are no words.

    Whoever approves may say that it holds for more calls of this execution: see `remember` of a decision.
    """

    name = "approval"

    def __init__(self, tools: Mapping[str, Wanted] | None = None, **more: Wanted) -> None:
        self.tools = {**(tools or {}), **more}

    def install(self, builder: AgentBuilder) -> AgentBuilder:
        """Say for each tool what its calls wait for."""
        for tool, approval in self.tools.items():
            builder.with_approval(tool, approval)
        return builder
