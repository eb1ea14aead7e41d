"""ReAct: the agent decides in JSON, for models without tool calls."""

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.react import ReActDriver


class UseReAct:
    """Lets a model without tool calls use tools; the model is that of the agent's preset."""

    name = "react"

    def __init__(self, max_retries: int = 2, final_via_inference: bool = False) -> None:
        self.max_retries = max_retries
        self.final_via_inference = final_via_inference

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Use its driver."""
        return builder.with_driver(ReActDriver(None, self.max_retries, self.final_via_inference))
