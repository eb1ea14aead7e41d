"""Response models of what the model of an agent read in a step."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from everstep.agent_domain.agents.step_prompts import StepPrompt
from everstep.agent_domain.messages.disclosure import public_document
from everstep.http_api.schemas.step_responses import CompactionDone
from everstep.http_api.schemas.text import ResponseModel


class OfferedTool(ResponseModel):
    """A tool that the model could call."""

    name: str
    description: str
    schema_: Mapping[str, Any] = Field(alias="schema", description="The JSON schema of its arguments.")

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self:
        """Convert the description of a tool as the model reads it."""
        function = schema.get("function", schema)
        return cls(
            name=function.get("name", ""),
            description=function.get("description", ""),
            schema=function.get("parameters", {}),
        )


class PromptResponse(ResponseModel):
    """What the model read in a step: the whole request, not only what the step added."""

    step_number: int
    instructions: list[str] | None = Field(
        description="The messages before the conversation; null without the right to read them."
    )
    messages: list[dict[str, Any]] = Field(description="A page of the conversation, oldest first.")
    total: int = Field(description="How many messages the conversation had.")
    first: int = Field(
        description="The index of the page's first message: the `before` of the previous page."
    )
    tools: list[OfferedTool]
    response_format: Mapping[str, Any] | None = Field(
        description="The form of the result, if one was requested."
    )
    compaction: CompactionDone | None = Field(
        description="The compaction in force: messages at the beginning are summaries."
    )
    is_current: bool = Field(
        description="Whether the agent is still defined as for this execution. Otherwise the instructions "
        "that its driver adds may have been different."
    )

    @classmethod
    def of(
        cls, number: int, prompt: StepPrompt, *, before: int | None, limit: int, in_full: bool = False
    ) -> Self:
        """Convert a page of a prompt.

        Args:
            number: The number of the step.
            prompt: What the model read.
            before: The index of the message that follows the page; None for the end.
            limit: The maximum number of messages.
            in_full: Whether to include the instructions, and the texts of errors.
        """
        request = prompt.request
        conversation = request.messages[request.cached_messages :]
        end = len(conversation) if before is None else min(before, len(conversation))
        first = max(0, end - limit)
        messages = [message.to_dict() for message in conversation[first:end]]
        instructions = [message.text for message in request.messages[: request.cached_messages]]
        return cls(
            step_number=number,
            instructions=instructions if in_full else None,
            messages=messages if in_full else public_document(messages),
            total=len(conversation),
            first=first,
            tools=list(map(OfferedTool.of, request.tools)),
            response_format=request.response_format.to_dict() if request.response_format else None,
            compaction=CompactionDone.of(prompt.compaction) if prompt.compaction else None,
            is_current=prompt.is_current,
        )
