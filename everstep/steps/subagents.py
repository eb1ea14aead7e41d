"""The start and the end of a subagent: what its tool returns, and which agent it starts."""

from collections.abc import Callable
from typing import TypeVar, cast

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.spawning import CanSpawn, Spawn, find_private_agent, private_agent_name
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.child_end import ChildEnd
from everstep.agent_domain.tools.tools import Toolbox, ToolCall, ToolContext, result_value
from everstep.agent_domain.values import thaw
from everstep.steps.isolation import error_boundary, run_in_thread
from everstep.steps.tool_calls import Outcome, context_of_call, outcome_of_error, run_within

T = TypeVar("T")

CANNOT_SPAWN = "The tool declares need=SUBAGENT, so it needs the methods spawn and report"

SPAWN_SECONDS = 20.0
"""Time limit of `spawn` and `report`, which should return at once. Their activities have a minute; without
this limit Temporal would retry them forever.
"""


async def spawn_child(tools: Toolbox, call: ToolCall, context: ToolContext) -> Spawn | Outcome:
    """Call a tool's `spawn`; returns the child to start, or the outcome of the call if there is none."""
    context = context_of_call(context, call)

    def call_spawn(tool: CanSpawn) -> Spawn | Outcome:
        value = cast("object", tool.spawn(thaw(call.args), context))
        if isinstance(value, str):
            return Outcome(value)
        if not isinstance(value, Spawn):
            raise InvalidInput(
                f"the method spawn returned {value!r}; return a Spawn, or a text if none starts"
            )
        return value

    return await _call_in_thread(tools, call, call_spawn)


async def report_child(tools: Toolbox, call: ToolCall, end: ChildEnd) -> Outcome:
    """Call a tool's `report`; returns the text about the child for the parent's model."""
    return await _call_in_thread(
        tools, call, lambda tool: Outcome(result_value(tool.report(thaw(call.args), end), call.name))
    )


async def _call_in_thread(tools: Toolbox, call: ToolCall, work: Callable[[CanSpawn], T]) -> T | Outcome:
    """Call `spawn` or `report` in a thread, as they may read files."""
    try:
        tool = tools.get(call.name)
        if not isinstance(tool, CanSpawn):
            raise InvalidInput(CANNOT_SPAWN)  # noqa: TRY301 -- the model reads it like an exception of the tool
        with error_boundary():
            return await run_within(call, SPAWN_SECONDS, lambda: run_in_thread(lambda: work(tool)))
    except Exception as error:  # noqa: BLE001 -- the model reads the exceptions of a tool
        return outcome_of_error(call, error)


def find_child(
    parent: AgentDefinition, parent_name: str, name: str, find_agent: Callable[[str], AgentDefinition]
) -> tuple[str, AgentDefinition]:
    """Return the full name of the agent that a call starts, and its definition.

    Args:
        parent: The agent whose call it is.
        parent_name: Its full name.
        name: The name that `spawn` returned: of a private agent of one of the tools, or else another name.
        find_agent: Finds that other agent.
    """
    private = find_private_agent(parent, name)
    return (private_agent_name(parent_name, name), private) if private else (name, find_agent(name))
