"""Sessions on a real Temporal server, a real worker and a real PostgreSQL, with scripted models."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID, uuid4

from temporalio.client import Client as TemporalClient
from temporalio.worker import Worker

from everstep.activities.agents import ignore_end
from everstep.agent_domain.agents.builder import DefinitionBuilder
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.session_store import SessionStore
from everstep.agent_domain.storage.sessions import (
    ExecutionFilter,
    NewSession,
    SessionMessageRow,
)
from everstep.client.client import Client, Execution
from everstep.client.reconciler import Reconciler
from everstep.client.sessions import SendResult, Sessions, UserMessage
from everstep.runtime.agents import AgentBook
from everstep.runtime.settings import Settings
from everstep.runtime.worker import make_worker
from everstep.store.sessions import PostgresSessions
from tests.workflows.harness import NoModels, WatchedStore

USER = "ann"


@dataclass
class SessionSetup:
    """A tenant's sessions, and a user who posts messages to them."""

    sessions: Sessions
    store: WatchedStore
    scope: Scope
    settings: Settings

    @property
    def port(self) -> SessionStore:
        """The store, through the port that other processes use."""
        return cast("SessionStore", self.store)

    def worker(self, *, forgetful: bool = False) -> Worker:
        """A worker that starts the session's next execution, unless that is disabled."""
        client = self.sessions.client
        book = AgentBook(client.agents.values(), NoModels())
        ended = ignore_end if forgetful else self.sessions.on_end
        return make_worker(client.temporal, client.store, book, self.settings, ended=ended)

    @property
    def reconciler(self) -> Reconciler:
        """A reconciler without a grace period."""
        return Reconciler(self.sessions, grace=0)

    async def session(self, **fields: Any) -> UUID:
        """A new session."""
        new = NewSession(uuid4(), self.scope.tenant_id, USER, **fields)
        return (await self.sessions.create(self.scope, new)).id

    async def post(self, session_id: UUID, content: str = "Hello", **fields: Any) -> SendResult:
        """Post a message."""
        return await self.sessions.send(self.scope, session_id, message_with(content, **fields))

    def execution(self, sent: SendResult | UUID) -> Execution:
        """The execution that the message began."""
        execution_id = sent if isinstance(sent, UUID) else sent.execution_id
        return self.sessions.client.execution(execution_id)

    async def wait_for_status(self, sent: SendResult | UUID, status: ExecutionStatus) -> ExecutionRow:
        """Wait until the execution has this status."""
        execution = self.execution(sent)

        async def has_status() -> bool:
            return (await execution.get()).status is status

        await self.store.until(has_status)
        return await execution.get()

    async def wait_for_completion(self, sent: SendResult | UUID) -> ExecutionRow:
        """Wait until the execution is completed."""
        return await self.wait_for_status(sent, ExecutionStatus.COMPLETED)

    async def wait_for_other_completion(self, execution_id: UUID) -> None:
        """Wait until an execution is completed that another process begins."""

        async def is_completed() -> bool:
            row = await self.store.execution(self.execution(execution_id).ref)
            return row is not None and row.status is ExecutionStatus.COMPLETED

        await self.store.until(is_completed)

    async def messages(self, session_id: UUID) -> list[SessionMessageRow]:
        """All messages, oldest first."""
        found, cursor = list[SessionMessageRow](), None
        while True:
            page = await self.port.messages(self.scope, session_id, cursor=cursor, limit=500)
            found += page.rows
            cursor = page.cursor
            if cursor is None:
                return found[::-1]

    async def message_texts(self, session_id: UUID, *roles: str) -> list[str]:
        """The texts of messages with these roles."""
        return [m.content for m in await self.messages(session_id) if not roles or m.role in roles]

    async def executions(self, session_id: UUID) -> list[ExecutionRow]:
        """All executions, oldest first."""
        page = await self.port.executions_of(self.scope, ExecutionFilter(session_id), limit=500)
        return list(page.rows[::-1])

    async def conversation(self, sent: SendResult | UUID) -> list[str]:
        """The conversation that the agent gets."""
        return [message.text for message in await self.store.transcript(self.execution(sent).ref)]


def message_with(content: str = "Hello", **fields: Any) -> UserMessage:
    """The user's message."""
    return UserMessage(content, USER, **fields)


def a_session_setup(
    temporal: TemporalClient, store: PostgresSessions, *agents: DefinitionBuilder
) -> SessionSetup:
    """With its own task queue and tenant, without a worker."""
    definitions = [agent.definition() for agent in agents]
    name = f"test-{uuid4().hex}"
    watched: Any = WatchedStore(cast("Any", store))
    client = Client(
        temporal,
        watched,
        {agent.descriptor.name: agent for agent in definitions},
        task_queue=name,
        tenant_id=name,
    )
    sessions = Sessions(client, watched, definitions[0].descriptor.name)
    settings = Settings(task_queue=name, graceful_shutdown_seconds=0.2)
    return SessionSetup(sessions, watched, Scope(name, USER), settings)


@asynccontextmanager
async def open_session_setup(
    temporal: TemporalClient, store: PostgresSessions, *agents: DefinitionBuilder
) -> AsyncGenerator[SessionSetup]:
    """Sessions with a worker."""
    parlour = a_session_setup(temporal, store, *agents)
    async with parlour.worker():
        yield parlour
