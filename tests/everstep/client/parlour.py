"""Sessions on a real Temporal server, a real worker and a real PostgreSQL, with models that are scripted."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID, uuid4

from temporalio.client import Client as TemporalClient
from temporalio.worker import Worker

from everstep.activities.agents import nobody_waits
from everstep.agent_domain.agents.builder import AgentBuilder
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.executions import ExecutionRow
from everstep.agent_domain.storage.sessions import (
    ExecutionFilter,
    NewSession,
    SessionMessageRow,
    SessionStore,
)
from everstep.client.client import Client, Execution
from everstep.client.reconciler import Reconciler
from everstep.client.sessions import Said, Sent, Sessions
from everstep.runtime.agents import AgentBook
from everstep.runtime.settings import Settings
from everstep.runtime.worker import make_worker
from everstep.store.sessions import PostgresSessions
from tests.workflows.harness import NoModels, WatchedStore

USER = "ann"


@dataclass
class Parlour:
    """A tenant's sessions, and a user who speaks in them."""

    sessions: Sessions
    store: WatchedStore
    scope: Scope
    settings: Settings

    @property
    def port(self) -> SessionStore:
        """The store, as everybody else sees it."""
        return cast("SessionStore", self.store)

    def worker(self, *, forgetful: bool = False) -> Worker:
        """One that gives the next message its turn, unless it forgets to."""
        client = self.sessions.client
        book = AgentBook(client.agents.values(), NoModels())
        ended = nobody_waits if forgetful else self.sessions.advance
        return make_worker(client.temporal, client.store, book, self.settings, ended=ended)

    @property
    def reconciler(self) -> Reconciler:
        """One that gives nobody time."""
        return Reconciler(self.sessions, grace=0)

    async def session(self, **fields: Any) -> UUID:
        """A new one."""
        new = NewSession(uuid4(), self.scope.tenant_id, USER, **fields)
        return (await self.sessions.create(self.scope, new)).id

    async def say(self, session_id: UUID, content: str = "Hello", **fields: Any) -> Sent:
        """Say something."""
        return await self.sessions.send(self.scope, session_id, said(content, **fields))

    def execution(self, sent: Sent | UUID) -> Execution:
        """What it began."""
        execution_id = sent if isinstance(sent, UUID) else sent.execution_id
        return self.sessions.client.execution(execution_id)

    async def until(self, sent: Sent | UUID, status: ExecutionStatus) -> ExecutionRow:
        """Come back once it stands like this."""
        execution = self.execution(sent)

        async def stands() -> bool:
            return (await execution.get()).status is status

        await self.store.until(stands)
        return await execution.get()

    async def over(self, sent: Sent | UUID) -> ExecutionRow:
        """Come back once it is completed."""
        return await self.until(sent, ExecutionStatus.COMPLETED)

    async def over_once_there(self, execution_id: UUID) -> None:
        """Come back once an execution is completed, which somebody else begins."""

        async def stands() -> bool:
            row = await self.store.execution(self.execution(execution_id).ref)
            return row is not None and row.status is ExecutionStatus.COMPLETED

        await self.store.until(stands)

    async def messages(self, session_id: UUID) -> list[SessionMessageRow]:
        """All of them, oldest first."""
        found, cursor = list[SessionMessageRow](), None
        while True:
            page = await self.port.messages(self.scope, session_id, cursor=cursor, limit=500)
            found += page.rows
            cursor = page.cursor
            if cursor is None:
                return found[::-1]

    async def contents(self, session_id: UUID, *roles: str) -> list[str]:
        """What was said, by these."""
        return [m.content for m in await self.messages(session_id) if not roles or m.role in roles]

    async def executions(self, session_id: UUID) -> list[ExecutionRow]:
        """All of them, oldest first."""
        page = await self.port.executions_of(self.scope, ExecutionFilter(session_id), limit=500)
        return list(page.rows[::-1])

    async def heard(self, sent: Sent | UUID) -> list[str]:
        """The conversation, as its agent knows it."""
        return [message.text for message in await self.store.transcript(self.execution(sent).ref)]


def said(content: str = "Hello", **fields: Any) -> Said:
    """What she says."""
    return Said(content, USER, **fields)


def a_parlour(temporal: TemporalClient, store: PostgresSessions, *agents: AgentBuilder) -> Parlour:
    """On a task queue and with a tenant of its own, with nobody at work yet."""
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
    return Parlour(sessions, watched, Scope(name, USER), settings)


@asynccontextmanager
async def receiving(
    temporal: TemporalClient, store: PostgresSessions, *agents: AgentBuilder
) -> AsyncGenerator[Parlour]:
    """A parlour with a worker."""
    parlour = a_parlour(temporal, store, *agents)
    async with parlour.worker():
        yield parlour
