"""Reads what the model of an agent read in a step."""

from everstep.agent_domain.agents.spawning import find_definition
from everstep.agent_domain.agents.step_prompts import StepPrompt, step_prompt
from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.values import EMPTY
from everstep.client.client import Client


async def read_prompt(client: Client, ref: ExecutionRef, number: int) -> StepPrompt:
    """Build the request of a step to the model again.

    Args:
        client: The client, with the agents of this process.
        ref: The execution.
        number: The number of the step.

    Raises:
        NotFound: There is no such execution, or it has no such step.
    """
    page = await client.store.steps_after(ref, number - 1, 1)
    if not any(row.number == number for row in page.rows):
        raise NotFound("step", number)
    material = await client.store.material(ref)
    definition = find_definition(client.agents, material.spec.agent)
    if definition is not None and definition.toolsets:
        definition = definition.with_listed(await client.store.recorded_tools(ref) or EMPTY)
    return step_prompt(material, number, definition)
