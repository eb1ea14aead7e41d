"""The part of a state that belongs to one execution."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from everstep.agent_domain.loop.run_context import NO_RUN_CONTEXT, RunContext
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.state.steps import AgentStep, StepExecution
from everstep.agent_domain.tools.resources import NO_RESOURCES, Resources
from everstep.agent_domain.values import FrozenDict


@dataclass(frozen=True, slots=True, repr=False)
class ExecutionData:
    """The data of one execution of the agent, discarded when the next one begins."""

    execution_id: UUID | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    step_executions: tuple[StepExecution, ...] = ()
    current_step: AgentStep | None = None
    hook_context: FrozenDict | None = None
    """Data that hooks pass from the beginning of a step to its end; None outside of steps."""
    task: str | None = None
    """The message that started it; None until it starts."""
    run: RunContext = NO_RUN_CONTEXT
    """Its user and its request."""
    is_last_turn: bool = False
    """Whether the model has to answer in this step, without tools."""
    output: Any = None
    """Its structured result in the agent's type, as JSON in a state that was read; None without one."""
    output_data: Any = None
    """The result as JSON."""
    resources: Resources = field(default=NO_RESOURCES, compare=False)
    """The objects of the worker or the run that tools, hooks and processors share; never stored."""

    def __repr__(self) -> str:
        return f"<ExecutionData {self.execution_id}, {len(self.step_executions)} steps recorded>"


def last_user_text(messages: Messages) -> str:
    """The text of the last message of a user."""
    return next((message.text for message in reversed(messages) if message.is_user), "")
