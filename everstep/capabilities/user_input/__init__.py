"""`user_input`: the agent asks a person and waits for the answer, without holding a worker."""

from collections.abc import Mapping
from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.capabilities.questions import TOOL, Question, UserInputPolicy
from everstep.agent_domain.errors import InvalidInput, ToolTimedOut
from everstep.agent_domain.loop.step_facts import CallNeed
from everstep.agent_domain.tools.tools import Effect, ToolContext, ToolOptions
from everstep.agent_domain.values import FrozenDict, frozen_map
from everstep.steps import json_schema

DESCRIPTION = "Ask the user a question and wait for the answer. Use it when only the user can know or decide."

SCHEMA: FrozenDict = frozen_map(
    {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "description": "The question."},
            "choices": {
                "type": "array",
                "items": {"type": "string"},
                "description": "The answers to choose from. With choices, leave `schema` out.",
            },
            "schema": {
                "type": "object",
                "description": "The JSON schema of a form to fill in. Ignored if there are `choices`.",
            },
        },
        "required": ["prompt"],
    }
)


class UserInputTool:
    """Called when the question timed out; an answer becomes the result directly."""

    name = TOOL
    description = DESCRIPTION
    schema = SCHEMA

    def __init__(self, policy: UserInputPolicy) -> None:
        self.policy = policy
        self.options = ToolOptions(
            effect=Effect.IDEMPOTENT, need=CallNeed.INPUT, wait_seconds=policy.timeout_seconds
        )

    def refusal(self, args: Mapping[str, Any]) -> str | None:
        """Refuse a question that cannot be answered."""
        try:
            Question.parse(args)
        except InvalidInput as error:
            return str(error)
        return None

    def call(self, args: dict[str, Any], context: ToolContext) -> Any:
        """The default answer.

        Raises:
            ToolTimedOut: There is no default; the message contains the waiting time.
        """
        del context
        result = self.policy.default_result(Question.parse(args), json_schema.check)
        if result is None:
            raise ToolTimedOut(self.policy.no_answer)
        return result


class UseUserInput:
    """Lets an agent ask its user."""

    name = "user_input"

    def __init__(self, timeout_seconds: float | None = None, default_answer: Any = None) -> None:
        self.policy = UserInputPolicy(timeout_seconds, default_answer)

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the tool."""
        return builder.with_tools([UserInputTool(self.policy)])
