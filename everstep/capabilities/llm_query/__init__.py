"""`llm_query`: the agent asks a model a single question, beside its own conversation."""

from typing import Any, Self

from everstep.agent_domain.capabilities.llm_query import answer_text, call_error_text, query_problem
from everstep.agent_domain.errors import ModelError
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.tools import ToolContext, ToolOptions
from everstep.agent_domain.values import frozen_map, valid_text


class LlmQueryTool:
    """Asks a model a single question. The model is the agent's own unless `model` names another."""

    name = "llm_query"
    description = "Ask a language model a single question. It sees nothing of this conversation."
    schema = frozen_map(
        {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "The question, with all it needs."}},
            "required": ["query"],
        }
    )
    options = ToolOptions()

    def __init__(self, model: ModelChoice = None) -> None:
        self.model = model

    @classmethod
    def using(cls, preset: str) -> Self:
        """The tool that asks the model of this preset."""
        return cls(preset)

    async def call(self, args: dict[str, Any], context: ToolContext) -> str:
        """Return the model's answer, or an error text."""
        query = valid_text(args["query"], "query")
        if problem := query_problem(query):
            return problem
        try:
            response = await context.ask(InferenceRequest((user(query),)), self.model)
        except ModelError as error:
            return call_error_text(str(error))
        return answer_text(response.text)
