"""Response models of what an agent is made of."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.capabilities.approvals import Approval, ApprovalMode
from everstep.agent_domain.storage.definition_uses import DefinitionUse
from everstep.agent_domain.tools.tools import Tool, options_of, tool_schema
from everstep.http_api.schemas.responses import AgentResponse
from everstep.http_api.schemas.text import Moment, ResponseModel

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


class DefinitionUseResponse(ResponseModel):
    """A definition of an agent, and the executions that began with it."""

    definition_hash: str | None = Field(description="Null for executions of an older release.")
    executions: int
    first_at: Moment
    last_at: Moment


class AgentDetail(AgentResponse):
    """What an agent is made of."""

    tool_details: list[ToolResponse] = Field(
        description="Its own tools; those of MCP servers and other toolsets are known once it runs."
    )
    plan: Mapping[str, Any] = Field(description="The limits and policies of its executions.")
    preset: str | None = Field(description="The preset of its model; null for the default one.")
    definitions: list[DefinitionUseResponse] = Field(
        description="The definitions with which the caller's newest executions of the agent began, at most "
        "1,000 of them; the latest definition first."
    )
    instructions: list[str] | None = Field(
        description="The messages before every conversation; null without the right to read them."
    )

    @classmethod
    def from_definition(
        cls, definition: AgentDefinition, uses: Sequence[DefinitionUse], *, in_full: bool
    ) -> Self:
        """Describe an agent; `in_full` includes its instructions."""
        messages = definition.cached_context.messages
        return cls(
            **AgentResponse.of(definition).model_dump(),
            tool_details=[ToolResponse.from_tool(tool, definition) for tool in definition.tools],
            plan=definition.base_plan.model_dump(mode="json"),
            preset=definition.llm_preset,
            definitions=[
                DefinitionUseResponse(
                    definition_hash=each.definition_hash,
                    executions=each.executions,
                    first_at=each.first_at,
                    last_at=each.last_at,
                )
                for each in uses
            ],
            instructions=[message.text for message in messages] if in_full else None,
        )
