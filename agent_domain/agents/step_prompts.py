"""The request of a step to the model, built again from what is stored of the step."""

from dataclasses import dataclass

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver, ToolCallingDriver
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.compaction import Compaction
from everstep.agent_domain.messages.compaction_planning import compacted_messages
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.storage.steps import StepInput


@dataclass(frozen=True, slots=True)
class StepPrompt:
    """What the model read in a step."""

    request: InferenceRequest
    compaction: Compaction | None
    """What the request contains in place of the beginning of the conversation."""
    is_current: bool
    """Whether the agent is still defined as when the execution was accepted. If not, what its driver adds may
    differ; its instructions and its own tools are those of the execution in any case."""


def step_prompt(material: StepInput, number: int, definition: AgentDefinition | None) -> StepPrompt:
    """Build the request of a step.

    Messages that a hook put before the conversation in a later step are among its messages, as the store does
    not have their step.

    Args:
        material: The input of the execution, with all of its messages.
        number: The number of the step.
        definition: The agent, with the tools that its toolsets listed; None if this process does not have it.
    """
    messages = material.before_reply(number).messages
    compaction = _compaction_of(material, number, len(messages))
    cached = material.spec.context
    if definition is not None and definition.toolsets:
        cached = cached.with_tools(definition.tools.schemas)
    state = AgentState().with_cached_context(cached)
    state = state.with_messages(compacted_messages(messages, compaction))
    is_current = definition is not None and definition.digest == material.spec.definition_hash
    return StepPrompt(_driver_of(definition).request(state), compaction, is_current)


def _driver_of(definition: AgentDefinition | None) -> StepDriver:
    if definition is None:
        return ToolCallingDriver()
    own = definition.driver if isinstance(definition.driver, StepDriver) else ToolCallingDriver()
    return definition.equipped_driver(own)


def _compaction_of(material: StepInput, number: int, count: int) -> Compaction | None:
    """The compaction in force in a step that read this many messages."""
    if material.plan.get("compaction") is None:
        return None
    own = [each for each in material.compactions if each.step <= number]
    is_last = len(own) == len(material.compactions)
    # The last one may be that of an earlier execution. Its positions count what hooks have since put before
    # the conversation.
    latest = material.compaction if is_last else next(reversed(own), None)
    return latest if latest is not None and latest.replaced <= count else None
