"""Approval: calls of selected tools wait until a person allows them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.capabilities.rights import APPROVE

ApprovalSetting: TypeAlias = str | Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""`always`, `never`, a list of rules of which the first match decides, or a map that has one of these as
`approval` and may have `approver`, `four_eyes` and `expires_after`.
"""


class UseApproval:
    """Requires people to approve calls: `UseApproval(bash="always")`, or a map if names are no identifiers.

    The approver may extend a decision to more calls of the execution; see `remember` of a decision.

    Args:
        tools: The approval of each tool.
        approver: Who may decide, where a tool names no other; see `AgentBuilder.with_approval`.
        four_eyes: Whether the user for whom a call was made may not decide about it.
        expires_after: Seconds after which a call without a decision is denied.
        more: The approval of each tool, by keyword.
    """

    name = "approval"

    def __init__(
        self,
        tools: Mapping[str, ApprovalSetting] | None = None,
        *,
        approver: str | Sequence[str] = APPROVE,
        four_eyes: bool = False,
        expires_after: float | None = None,
        **more: ApprovalSetting,
    ) -> None:
        self.tools = {**(tools or {}), **more}
        self.approver = approver
        self.four_eyes = four_eyes
        self.expires_after = expires_after

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Set the approval rule of each tool."""
        for tool, approval in self.tools.items():
            builder.with_approval(
                tool,
                approval,
                approver=self.approver,
                four_eyes=self.four_eyes,
                expires_after=self.expires_after,
            )
        return builder
