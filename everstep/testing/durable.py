"""Durable agents in a test: a real Temporal server and a real worker, with executions in memory."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from temporalio.testing import TimeSkippingConfig, WorkflowEnvironment

from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.agents.spawning import needed_resources
from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.messages.messages import Message, Messages
from everstep.agent_domain.storage.requests import RequestRow
from everstep.agent_domain.stream.records import StoredEnvelope
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.client.client import Client, Execution
from everstep.local.local_agent import GivenResources
from everstep.runtime.agents import AgentBook, ModelSource
from everstep.runtime.embedded.temporal_server import temporal_executable
from everstep.runtime.settings import Settings
from everstep.runtime.temporal import data_converter
from everstep.runtime.worker import make_worker
from everstep.steps.resource_lifetimes import open_resources
from everstep.store.memory import MemoryStore
from everstep.streams.memory_bus import MemoryBus
from everstep.workflows.contracts import ExecutionResult

T = TypeVar("T")

PATIENCE_SECONDS = 30.0


class NotReached(EverstepError, AssertionError):
    """An execution did not come to where a test waited for it."""


class NoPresets:
    """The presets of a test: none, as its agents bring their own models."""

    def model(self, choice: ModelChoice = None) -> Model:
        """Refuse every name.

        Raises:
            InvalidInput: Always.
        """
        raise InvalidInput(
            f"the agent names the model {choice!r}; give it a model, such as ScriptedModel(...)"
        )


@asynccontextmanager
async def open_server(executable: Path | None = None) -> AsyncGenerator[WorkflowEnvironment]:
    """A Temporal server on which the time of a workflow can be skipped.

    Args:
        executable: A `temporal` command-line program; by default the one that `everstep[local]` brings.
    """
    async with await WorkflowEnvironment.start_time_skipping_v2(
        ts_config=TimeSkippingConfig(enabled=False),
        dev_server_existing_path=str(executable or temporal_executable()),
        dev_server_extra_args=["--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true"],
        dev_server_log_level="error",
        data_converter=data_converter(),
    ) as server:
        yield server


class DurableAgents:
    """Agents at work in a test; `open_agents` makes one."""

    def __init__(
        self,
        server: WorkflowEnvironment,
        agents: Sequence[AgentDefinition],
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.bus = MemoryBus()
        self.store = MemoryStore(bus=self.bus)
        self.patience = patience
        """Seconds that a test waits for an execution at most."""
        self._server = server
        self._agents = {agent.descriptor.name: agent for agent in agents}
        self._settings = Settings(task_queue=f"test-{uuid4().hex}", graceful_shutdown_seconds=0.2)
        self.client = Client(server.client, self.store, self._agents, self._settings.task_queue)
        """What a service would use."""

    @asynccontextmanager
    async def open_worker(
        self, models: ModelSource, resources: GivenResources | None = None
    ) -> AsyncGenerator[None]:
        """Run a worker while the body runs; it starts the resources that are not given."""
        agents = tuple(self._agents.values())
        async with open_resources(needed_resources(agents), resources) as opened:
            book = AgentBook(agents, models, opened)
            async with make_worker(self._server.client, self.store, book, self._settings, bus=self.bus):
                yield

    async def start(self, message: str | Message, agent: str | None = None, **options: Any) -> Execution:
        """Start an execution.

        Args:
            message: What the agent is asked.
            agent: Its name; the first agent by default.
            **options: As `Client.start` takes them, such as `execution_id` and `metadata`.
        """
        return await self.client.start(agent or next(iter(self._agents)), message, **options)

    async def wait_for_request(self, execution: Execution) -> RequestRow:
        """Wait until the execution asks for an answer or an approval.

        Returns:
            The oldest open request.

        Raises:
            NotReached: The execution ended, or asked for nothing in time.
        """

        async def open_request() -> RequestRow | None:
            requests = await self.store.open_requests(execution.ref)
            return requests[0] if requests else None

        return await self._wait(execution, "open request", open_request)

    async def wait_for_envelope(self, execution: Execution, kind: str) -> StoredEnvelope:
        """Wait until viewers were sent an envelope of this type.

        Returns:
            The first envelope of the type.

        Raises:
            NotReached: The execution ended without one, or there was none in time.
        """

        async def first() -> StoredEnvelope | None:
            return next((each for each in await self.envelopes(execution) if each.type == kind), None)

        return await self._wait(execution, f"envelope {kind}", first)

    async def wait_for_end(self, execution: Execution) -> ExecutionResult:
        """Wait until the execution ends.

        Raises:
            NotReached: It did not end in time, for instance because it waits for an answer.
        """
        try:
            async with asyncio.timeout(self.patience):
                return await execution.result()
        except TimeoutError:
            raise NotReached(await self._explain(execution, "its end")) from None

    async def skip(self, execution: Execution, duration: timedelta | float) -> None:
        """Move the clock of the execution's workflow forward; a number counts seconds.

        Timeouts of questions, pauses between attempts and limits on time pass as they would in production.
        """
        await self._server.fast_forward(execution.workflow, duration)

    async def messages(self, execution: Execution) -> Messages:
        """The conversation so far."""
        return await self.store.transcript(execution.ref)

    async def envelopes(self, execution: Execution) -> Sequence[StoredEnvelope]:
        """What viewers were sent so far, in order."""
        return await self.store.envelopes(execution.ref.tenant_id, execution.ref.stream_id)

    async def _wait(self, execution: Execution, what: str, look: Callable[[], Awaitable[T | None]]) -> T:
        try:
            async with asyncio.timeout(self.patience):
                while True:
                    # It listens before it looks, so that nothing happens unnoticed in between.
                    with self.bus.open_listener(execution.ref.stream_id) as listener:
                        has_ended = (await execution.get()).status.is_terminal
                        if (found := await look()) is not None:
                            return found
                        if has_ended:
                            raise NotReached(await self._explain(execution, what))
                        async for _ in listener:
                            break
        except TimeoutError:
            raise NotReached(await self._explain(execution, what)) from None

    async def _explain(self, execution: Execution, what: str) -> str:
        row = await execution.get()
        types = [each.type for each in await self.envelopes(execution)]
        return (
            f"{what} was not reached, waiting at most {self.patience:g} seconds: the execution is "
            f"{row.status}, and its envelopes are {', '.join(types) or 'none'}"
        )


@asynccontextmanager
async def open_agents(
    server: WorkflowEnvironment,
    *agents: DefinitionBuilder | AgentDefinition,
    models: ModelSource | None = None,
    resources: GivenResources | None = None,
    patience: float = PATIENCE_SECONDS,
) -> AsyncGenerator[DurableAgents]:
    """Run a worker with these agents while the body runs, on a task queue of their own.

    Args:
        server: What `open_server` gives.
        *agents: Builders or definitions.
        models: Presets for agents that name a model; by default agents bring their own.
        resources: Objects, by key or by type, to use instead of what the agents' resources make.
        patience: Seconds that a test waits for an execution at most.

    Raises:
        InvalidInput: There is no agent, or two have the same name.
    """
    definitions = [each.definition() if isinstance(each, DefinitionBuilder) else each for each in agents]
    names = [each.descriptor.name for each in definitions]
    if not names or len({*names}) < len(names):
        raise InvalidInput(f"pass agents with different names; these are {names}")
    opened = DurableAgents(server, definitions, patience=patience)
    async with opened.open_worker(models or NoPresets(), resources):
        yield opened
