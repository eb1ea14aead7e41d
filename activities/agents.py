"""The agents that activities work for, as a port."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from temporalio.exceptions import ApplicationError

from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model, StepDriver
from everstep.agent_domain.errors import UnknownName
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.tools.inquiry import ModelChoice


class Agents(Protocol):
    """The agents that a worker can run."""

    def definition(self, name: str) -> AgentDefinition:
        """The agent of that name; `UnknownName` if this worker has none."""
        ...

    def driver(self, name: str, preset: str | None) -> StepDriver:
        """How steps of that agent talk to a model: the preset's, or the agent's default."""
        ...

    def model(self, name: str, wanted: ModelChoice = None) -> Model:
        """The model that the tools and processors of that agent ask."""
        ...


Ended: TypeAlias = Callable[[ExecutionRef], Awaitable[object]]
"""Told of every execution that has ended."""


async def nobody_waits(_ended: ExecutionRef) -> None:
    """Where there are no sessions."""


def known(agents: Agents, name: str) -> AgentDefinition:
    """The agent, if this worker has it."""
    try:
        return agents.definition(name)
    except UnknownName as error:
        # Another worker, or the next deploy, may know it: the execution waits, visibly.
        raise ApplicationError(str(error), type="UnknownAgent") from None
