"""Erases a person: access first, then running work, then everything that is stored.

Each step can be repeated. What an interruption or a running execution left behind is erased by the next run.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from temporalio.service import RPCError

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.ids import ExecutionRef, Scope
from everstep.agent_domain.storage.sessions import SessionBusy
from everstep.client.errors import Ending, Refused
from everstep.client.execution import Execution
from everstep.client.outages import concerns_one_workflow
from everstep.client.schedules import Schedules
from everstep.client.sessions import Sessions

log = logging.getLogger(__name__)

CANCEL_SECONDS: Final = 30.0
"""How long to wait for cancelled executions to end, which needs a worker."""
POLL_SECONDS: Final = 0.2
CANCELS_AT_ONCE: Final = 20

KEY: Final = "erase"
"""The key of the cancels: a repeated run sends no other ones."""

RemoveExecution = Callable[[UUID], Awaitable[int]]


class PersonRows(Protocol):
    """The rows of one person; see `everstep.store.person_rows`."""

    async def open_executions(self) -> Sequence[tuple[UUID, UUID | None]]:
        """Return the ids and sessions of executions that are under way."""
        ...

    async def session_ids(self) -> Sequence[UUID]:
        """Return the person's sessions."""
        ...

    async def schedule_ids(self) -> Sequence[UUID]:
        """Return the person's schedules."""
        ...

    async def lone_execution_ids(self) -> Sequence[UUID]:
        """Return the person's executions without a session and without a parent."""
        ...

    async def erase_access(self) -> None:
        """Erase sign-ins and API keys."""
        ...

    async def erase_rest(self) -> None:
        """Erase what belongs to no session and no execution."""
        ...

    async def counts(self) -> Mapping[str, int]:
        """Return the number of rows in each table that has any."""
        ...

    async def count_decisions(self) -> int:
        """Return how many decisions of the person are in executions of others."""
        ...


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """What an erasure removed, and what is left."""

    removed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rows by table."""
    left: Mapping[str, int] = field(default_factory=dict[str, int])
    """Rows by table that could not be removed yet: of executions that run, or that others continue."""
    running: Sequence[UUID] = ()
    """The executions that have not ended in time."""
    decisions: int = 0
    """Decisions in executions of others, which are part of those."""


@dataclass(frozen=True)
class Erasure:
    """Erases one person of a tenant."""

    sessions: Sessions
    schedules: Schedules
    rows: PersonRows
    remove_execution: RemoveExecution
    tenant_id: str
    wait_seconds: float = CANCEL_SECONDS

    async def run(self) -> ErasureReport:
        """Erase all that can be erased now; repeat it until nothing is left."""
        before, scope = await self.rows.counts(), Scope(self.tenant_id)
        await self.rows.erase_access()
        for schedule_id in await self.rows.schedule_ids():
            # Another run of the command may be faster.
            with suppress(NotFound):
                await self.schedules.delete(scope, schedule_id)
        running = await self._end_executions()
        for session_id in await self.rows.session_ids():
            with suppress(SessionBusy):
                await self.sessions.delete(scope, session_id)
        for execution_id in await self.rows.lone_execution_ids():
            await self.remove_execution(execution_id)
        await self.rows.erase_rest()
        if files := self.sessions.client.attachments:
            while await files.remove_garbage():
                pass
        left = await self.rows.counts()
        removed = {table: count - left.get(table, 0) for table, count in before.items()}
        removed = {table: count for table, count in removed.items() if count > 0}
        return ErasureReport(removed, left, running, await self.rows.count_decisions())

    async def _end_executions(self) -> Sequence[UUID]:
        """Cancel what is under way; return the executions that have not ended in time."""
        cancelled = set[UUID]()
        deadline = asyncio.get_running_loop().time() + self.wait_seconds
        while found := await self.rows.open_executions():
            new = [each for each in found if each[0] not in cancelled]
            cancelled.update(execution_id for execution_id, _ in new)
            refs = [ExecutionRef(each, self.tenant_id, session_id) for each, session_id in new]
            await self._cancel([Execution(self.sessions.client, ref) for ref in refs], deadline)
            if asyncio.get_running_loop().time() > deadline:
                return tuple(execution_id for execution_id, _ in found)
            await asyncio.sleep(POLL_SECONDS)
        return ()

    async def _cancel(self, executions: Sequence[Execution], deadline: float) -> None:
        """Cancel executions together: without a worker, each takes all the time that there is."""
        for each in executions:
            # It has just ended, or another run of the command has removed it.
            with suppress(Refused, NotFound):
                await each.request_cancel(key=KEY)
        at_once = asyncio.Semaphore(CANCELS_AT_ONCE)

        async def deliver(execution: Execution) -> None:
            # A timeout: no worker takes the command in time; the reconciler delivers it.
            with suppress(Refused, NotFound, Ending, TimeoutError):
                try:
                    async with at_once, asyncio.timeout_at(deadline):
                        await execution.cancel(key=KEY)
                except RPCError as error:
                    if not concerns_one_workflow(error):
                        raise
                    log.warning("the execution %s takes no cancel yet: %s", execution.id, error)

        await asyncio.gather(*map(deliver, executions))
