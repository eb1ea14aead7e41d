"""The port through which activities find the agents that they run."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from temporalio.exceptions import ApplicationError

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model, StepDriver
from everstep.agent_domain.errors import UnknownName
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.storage.sessions import Settled
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.agent_domain.tools.resources import Resources


class AgentProvider(Protocol):
    """The agents that a worker can run."""

    @property
    def resources(self) -> Resources:
        """The objects that the worker made for its tools, hooks and processors."""
        ...

    def definition(self, name: str) -> AgentDefinition:
        """Return the agent of that name.

        Raises:
            UnknownName: This worker does not have it.
        """
        ...

    def driver(self, name: str, preset: str | None) -> StepDriver:
        """Return the driver for steps of that agent, with the preset's model or the agent's default model."""
        ...

    def model(self, name: str, choice: ModelChoice = None) -> Model:
        """Return the model for questions that tools and processors of that agent ask."""
        ...


OnEnd: TypeAlias = Callable[[ExecutionRef, Settled | None], Awaitable[object]]
"""Called for every execution that has ended; without a settlement if an earlier attempt stored the end."""


async def ignore_end(_ended: ExecutionRef, _settled: Settled | None) -> None:
    """Do nothing, where there are no sessions."""


def find_agent(agents: AgentProvider, name: str) -> AgentDefinition:
    """Return the agent, or raise an error that Temporal retries if this worker does not have it."""
    try:
        return agents.definition(name)
    except UnknownName as error:
        # Another worker, or this one after the next deploy, may have it. The execution waits, visibly in
        # Temporal.
        raise ApplicationError(str(error), type="UnknownAgent") from None
