"""`todo_write`: the agent plans its work as a list of tasks, and is reminded of it."""

from typing import Any

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.processors import AgentHook
from everstep.agent_domain.capabilities.tasks import (
    METADATA_KEY,
    TOOL,
    TaskList,
    TaskStatus,
    TodoPolicy,
    due_listing,
    due_reminder,
    initial_reminder,
    parse_tasks,
    steps_since_call,
)
from everstep.agent_domain.messages.messages import user
from everstep.agent_domain.state.state import AgentState
from everstep.agent_domain.tools.tools import ToolContext, ToolOptions, ToolResult
from everstep.agent_domain.values import frozen_map

DESCRIPTION = (
    "Replace your list of tasks. Send all of them each time, with one in_progress at most; "
    "an empty list clears it."
)

SCHEMA = frozen_map(
    {
        "type": "object",
        "properties": {
            "todos": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {"type": "string", "description": "The task."},
                        "status": {"type": "string", "enum": [status.value for status in TaskStatus]},
                        "activeForm": {"type": "string", "description": "The task as it is being done."},
                    },
                    "required": ["content", "status", "activeForm"],
                },
            }
        },
        "required": ["todos"],
    }
)


class TodoWriteTool:
    """Replaces the list, which is stored under a key of the agent's metadata."""

    name = TOOL
    description = DESCRIPTION
    schema = SCHEMA
    options = ToolOptions(quick=True)

    def __init__(self, policy: TodoPolicy) -> None:
        self.policy = policy

    async def call(self, args: dict[str, Any], context: ToolContext) -> ToolResult:
        """Store the new list and return its text."""
        del context
        tasks = parse_tasks(args.get("todos"), self.policy)
        return ToolResult(tasks.to_dict(), frozen_map({METADATA_KEY: tasks.to_metadata()}), str(tasks))


class Reminders(AgentHook):
    """Adds reminders of the list before and after steps, as often as the policy says."""

    def __init__(self, policy: TodoPolicy) -> None:
        self.policy = policy

    def before_step(self, state: AgentState) -> AgentState:
        """Add a reminder to plan at the start, and later a reminder of the list."""
        recorded_steps = state.facts.recorded_steps
        texts = [message.text for message in state.messages if message.is_user]
        since = steps_since_call([{call.name for call in step.tool_calls} for step in state.steps])
        for text in (initial_reminder(recorded_steps, texts), due_reminder(since, self.policy)):
            state = state.heard(user(text)) if text else state
        return state

    def after_step(self, state: AgentState) -> AgentState:
        """Add the list from time to time."""
        step = state.current_step
        called = step is not None and any(call.name == TOOL for call in step.tool_calls)
        text = due_listing(
            TaskList.from_metadata(state.metadata),
            state.step_count,
            just_called=called,
            last_text=state.messages[-1].text if state.messages else "",
            policy=self.policy,
        )
        return state.heard(user(text)) if text else state


class UseTaskPlanning:
    """Lets an agent plan its work."""

    name = "tasks"

    def __init__(self, policy: TodoPolicy | None = None) -> None:
        self.policy = policy or TodoPolicy()

    def install(self, builder: DefinitionBuilder) -> DefinitionBuilder:
        """Add the tool and the reminders."""
        return builder.with_tools([TodoWriteTool(self.policy)]).add_hook(Reminders(self.policy))
