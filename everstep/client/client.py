"""Start executions and deal with running ones, from any service.

What people and services say goes to the store first and is then pointed at through Temporal, so
that no text stands in a workflow's history. Every call can be repeated: the same execution id, the
same key and the same answer change nothing the second time.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4, uuid5

from temporalio.client import (
    Client as TemporalClient,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from everstep.activities.failpoints import Failpoint, Strike, inert
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.plan import ExecutionPlan
from everstep.agent_domain.errors import InvalidInput, UnknownName
from everstep.agent_domain.ids import DEFAULT_TENANT, ExecutionRef
from everstep.agent_domain.loop.facts import StateInfo
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.messages.messages import Message, Messages, as_messages, user
from everstep.agent_domain.storage.execution_store import ExecutionStore
from everstep.agent_domain.storage.executions import ExecutionRow, NewExecution, Page
from everstep.agent_domain.stream.broadcast_config import BroadcastConfig
from everstep.agent_domain.values import EMPTY, frozen_map, json_text
from everstep.client.errors import Taken
from everstep.client.execution import Execution
from everstep.workflows.agent_execution import AgentExecution
from everstep.workflows.contracts import ExecutionInput, workflow_id
from everstep.workflows.search_attributes import at_start

_KEYS = UUID("6f2c1f0e-0d0b-4d7e-9a53-7b1f1c5f6a10")
"""The namespace of ids that derive from callers' keys; it must never change."""

REQUEST = "request_digest"
"""Where an execution's metadata says which request it was accepted for."""


@dataclass(frozen=True)
class Client:
    """Everstep, as a service uses it."""

    temporal: TemporalClient
    store: ExecutionStore
    agents: Mapping[str, AgentDefinition] = field(default_factory=dict[str, AgentDefinition])
    """The agents that can be started from here."""
    task_queue: str = "everstep"
    tenant_id: str = DEFAULT_TENANT
    search_attributes: bool = False
    strike: Strike = inert
    """Where crash tests let this process die."""

    async def start(
        self,
        agent: str,
        message: str | Message | Iterable[Message | Mapping[str, Any] | str],
        *,
        execution_id: UUID | None = None,
        session_id: UUID | None = None,
        user_id: str | None = None,
        metadata: Mapping[str, Any] = EMPTY,
        request: str | None = None,
        debug: bool = False,
        broadcast: BroadcastConfig | None = None,
    ) -> Execution:
        """Accept a message and start an execution for it; an id that was used before starts nothing new.

        `request` is a digest of what the caller was asked for: under the same id, another one is `Taken`.
        `debug` keeps the full state after each step, also where the agent does not; `broadcast` says how much
        viewers are told, instead of what the agent says.
        """
        definition = self.agent(agent)
        messages: Messages = (user(message),) if isinstance(message, str) else as_messages(message)
        ref = ExecutionRef(execution_id or uuid4(), self.tenant_id, session_id)
        # Criteria that no worker could find are refused here, before anything is stored.
        plan = definition.plan().debugged(debug).told(broadcast)
        plan.rules()
        row = await self.store.accept(
            NewExecution(
                ref,
                definition.spec(),
                messages,
                user_id=user_id,
                metadata=frozen_map(metadata, "metadata"),
                plan=frozen_map(plan.model_dump(mode="json")),
                task_queue=self.task_queue,
                notes=frozen_map({REQUEST: request} if request else {}),
            )
        )
        if request and row.metadata.get(REQUEST, request) != request:
            raise Taken(ref.execution_id)
        self.strike(Failpoint.API_AFTER_COMMIT)
        if row.status is not ExecutionStatus.PENDING:
            # It has begun, perhaps so long ago that Temporal does not remember.
            return Execution(self, ref)
        return await self.launch(ref, plan, clocks=row.clocks)

    async def launch(
        self,
        ref: ExecutionRef,
        plan: ExecutionPlan,
        task_queue: str | None = None,
        *,
        clocks: StateInfo | None = None,
    ) -> Execution:
        """Start the workflow of an accepted execution; one that was started before is left alone.

        Its `clocks` begin where those of its session are.
        """
        start = ExecutionInput(ref, plan, self.search_attributes, clocks=clocks)
        session = f" · session {ref.session_id}" if ref.session_id else ""
        # It may have run, and be over: the same message was accepted before.
        with suppress(WorkflowAlreadyStartedError):
            await self.temporal.start_workflow(
                AgentExecution.run,
                start,
                id=workflow_id(ref),
                task_queue=task_queue or self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                search_attributes=at_start(start),
                static_summary=f"{plan.agent}{session}",
            )
        return Execution(self, ref)

    def derived_id(self, key: str) -> UUID:
        """The execution id that a key of the caller's stands for, the same each time."""
        # A tenant with a slash may read like another one and the beginning of its key.
        tenant = json_text([self.tenant_id]) if "/" in self.tenant_id else self.tenant_id
        return uuid5(_KEYS, f"{tenant}/{key}")

    async def run(self, agent: str, message: str | Message, **given: Any) -> ExecutionRow:
        """Start an execution and wait for its end."""
        execution = await self.start(agent, message, **given)
        await execution.result()
        return await execution.get()

    def execution(self, execution_id: UUID | str, session_id: UUID | None = None) -> Execution:
        """An execution that was started before, here or elsewhere."""
        try:
            parsed = UUID(str(execution_id))
        except ValueError:
            raise InvalidInput(f"{execution_id!r} is no execution id; it looks like {uuid4()}") from None
        return Execution(self, ExecutionRef(parsed, self.tenant_id, session_id))

    async def list(
        self, *, status: ExecutionStatus | None = None, cursor: str | None = None, limit: int = 50
    ) -> Page[ExecutionRow]:
        """Executions, newest first."""
        return await self.store.executions(self.tenant_id, status=status, cursor=cursor, limit=limit)

    def agent(self, name: str) -> AgentDefinition:
        """An agent that can be started from here; `UnknownName` lists them."""
        if name not in self.agents:
            raise UnknownName("agent", name, self.agents)
        return self.agents[name]
