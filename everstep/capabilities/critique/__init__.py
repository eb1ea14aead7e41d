"""Self-critique: a critic model reads each final answer, and may send it back."""

import logging

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.capabilities.critique import (
    CRITIC_PROMPT,
    CRITIC_RETRIES,
    MARK,
    Critique,
    CritiquePolicy,
    SelfCriticContinuationCheck,
    approval,
    iteration_of,
    parse_critique,
    review_text,
)
from everstep.agent_domain.errors import InvalidInput, ModelError
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import Message, assistant, system, user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.state.steps import AgentStep
from everstep.agent_domain.tools.inquiry import AskModel

LOGGER = logging.getLogger(__name__)

ASK_AGAIN = "That cannot be read: {problem}. Answer again, with the JSON object alone."


class SelfCritic:
    """Asks a model to review the answer. A critic that fails approves, as it must not stop the work."""

    def __init__(self, policy: CritiquePolicy) -> None:
        self.policy = policy

    async def process(self, state: AgentState, ask: AskModel) -> AgentState:
        """Add the critique to the state, and a request to revise if the critic rejects the answer."""
        step, iteration = state.current_step, iteration_of(state.metadata)
        answer = _answer(step)
        if step is None or not self.policy.due(step.step_type, answer, iteration):
            return state
        critique = await self._critique(review_text(state.task, _calls(state), answer), ask)
        if self.policy.verbose:
            verdict = "approved" if critique.approved else "rejected"
            LOGGER.info("critique %d: %s", iteration + 1, verdict)
        facts = critique.facts(iteration + 1)
        state = state.with_metadata(critique.to_metadata(iteration + 1)).with_mark(MARK, facts.to_mark())
        revision = critique.revision(iteration + 1, self.policy)
        return state.heard(user(revision)) if revision else state

    async def _critique(self, review: str, ask: AskModel) -> Critique:
        messages: list[Message] = [system(CRITIC_PROMPT), user(review)]
        problem = ""
        for _ in range(1 + CRITIC_RETRIES):
            try:
                response = await ask(InferenceRequest(tuple(messages), 1), self.policy.llm_preset)
            except ModelError as error:
                problem = f"the critic failed: {error}"
                continue
            try:
                return parse_critique(response.text)
            except InvalidInput as error:
                problem = str(error)
            messages += [assistant(response.text), user(ASK_AGAIN.format(problem=problem))]
        return approval(problem)


def _answer(step: AgentStep | None) -> str:
    """The last assistant message of the step."""
    texts = [message.text for message in step.output_messages if message.is_assistant] if step else []
    return texts[-1] if texts else ""


def _calls(state: AgentState) -> list[tuple[str, dict[str, object], str]]:
    executions = (execution for step in state.steps for execution in step.tool_executions)
    return [(each.call.name, dict(each.call.args), each.text) for each in executions]


class UseSelfCritique:
    """Lets a critic read each final answer."""

    name = "critique"

    def __init__(self, max_iterations: int = 2, verbose: bool = True, llm_preset: str | None = None) -> None:
        self.policy = CritiquePolicy(max_iterations, verbose, llm_preset)

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the critic, and the continuation criterion that acts on it."""
        builder.add_processor(SelfCritic(self.policy))
        return builder.add_continuation_criteria(SelfCriticContinuationCheck(self.policy.max_iterations))
