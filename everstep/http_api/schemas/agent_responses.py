"""Response models of what an agent is made of."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.capabilities.approvals import Approval, ApprovalMode
from everstep.agent_domain.tools.tools import Tool, options_of, tool_schema
from everstep.http_api.schemas.responses import AgentResponse
from everstep.http_api.schemas.text import ResponseModel

NEVER = ApprovalMode.NEVER


class ToolResponse(ResponseModel):
    """A tool of an agent."""

    name: str
    description: str
    schema_: Mapping[str, Any] = Field(alias="schema", description="The JSON schema of its arguments.")
    effect: str = Field(description="What a repeated call does: see docs/tools.md.")
    approver: list[str] = Field(description="Who decides about its calls; empty if no approval is needed.")

    @classmethod
    def from_tool(cls, tool: Tool, definition: AgentDefinition) -> Self:
        """Describe a tool of an agent."""
        described = tool_schema(tool)
        function = described.get("function", described)
        approval: Approval | None = definition.approvals.get(tool.name)
        return cls(
            name=tool.name,
            description=tool.description,
            schema=function.get("parameters", {}),
            effect=str(options_of(tool).effect),
            approver=list(approval.policy.approver) if approval and approval.waits != NEVER else [],
        )


class AgentDetail(AgentResponse):
    """What an agent is made of."""

    tool_details: list[ToolResponse] = Field(
        description="Its own tools; those of MCP servers and other toolsets are known once it runs."
    )
    plan: Mapping[str, Any] = Field(description="The limits and policies of its executions.")
    preset: str | None = Field(description="The preset of its model; null for the default one.")
    instructions: list[str] | None = Field(
        description="The messages before every conversation; null without the right to read them."
    )

    @classmethod
    def from_definition(cls, definition: AgentDefinition, *, in_full: bool) -> Self:
        """Describe an agent; `in_full` includes its instructions."""
        messages = definition.cached_context.messages
        return cls(
            **AgentResponse.of(definition).model_dump(),
            tool_details=[ToolResponse.from_tool(tool, definition) for tool in definition.tools],
            plan=definition.base_plan.model_dump(mode="json"),
            preset=definition.llm_preset,
            instructions=[message.text for message in messages] if in_full else None,
        )
