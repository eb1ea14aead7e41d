"""Approval: calls of selected tools wait until a person allows them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from everstep.agent_domain.agents.builder import DefinitionBuilder

ApprovalSetting: TypeAlias = str | Sequence[Mapping[str, Any]]
"""`always`, `never`, or a list of rules of which the first match decides."""


class UseApproval:
    """Requires people to approve calls: `UseApproval(bash="always")`, or a map if names are no identifiers.

    The approver may extend a decision to more calls of the execution; see `remember` of a decision.
    """

    name = "approval"

    def __init__(self, tools: Mapping[str, ApprovalSetting] | None = None, **more: ApprovalSetting) -> None:
        self.tools = {**(tools or {}), **more}

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Set the approval rule of each tool."""
        for tool, approval in self.tools.items():
            builder.with_approval(tool, approval)
        return builder
