"""The places of executions between their start and their first step.

Temporal answers as soon as it has created a workflow, and most of the work until the first step comes after
that. So an execution holds its place until it has begun, as its row says. The rows are read only while
another start waits for a place.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias
from uuid import UUID

from everstep.activities.worker_places import AdaptivePlaces
from everstep.agent_domain.background import note_failure
from everstep.agent_domain.fairness.shares import Claimant, FindTerms, Ticket

log = logging.getLogger(__name__)

FindPending: TypeAlias = Callable[[Collection[UUID]], Awaitable[Collection[UUID]]]
"""Returns those executions of these ids that have not begun."""

LOOK_SECONDS: Final = 0.02
"""The pause between two looks at the rows."""
LEAST_PATIENCE: Final = 0.25
"""The seconds after which an execution that has not begun gives its place back. Perhaps no worker runs, or
all places of its tenant in the workers are taken: then it waits in Temporal, which dispatches fairly. If
several in a row do not begin, these seconds become fewer."""
PATIENCE: Final = 4.0
"""The same as a multiple of the seconds that executions take to begin, if that is longer."""
SMOOTHING: Final = 0.1
SLOW: Final = 1.5
"""How many times as long as alone an execution takes to begin on busy servers."""


def ignore_beginning(seconds: float, at_once: int) -> None:
    """Do nothing when an execution has begun."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    ticket: Ticket
    since: float


class BeginningPlaces(AdaptivePlaces):
    """The places of the executions that this process starts, each until its execution has begun."""

    def __init__(
        self,
        least: int,
        most: int,
        terms: FindTerms,
        find_pending: FindPending,
        on_begun: Callable[[float, int], None] = ignore_beginning,
    ) -> None:
        super().__init__(least, most, terms, SLOW)
        self._find_pending = find_pending
        self._on_begun = on_begun
        self._started = dict[UUID, _Beginning]()
        self._watching: asyncio.Task[None] | None = None
        self._usual = 0.0
        self._overdue = 0
        """How many have lost patience one after the other."""

    @asynccontextmanager
    async def start(self, claimant: Claimant, execution_id: UUID) -> AsyncGenerator[None]:
        """Wait for a place; the body starts the execution, which holds the place until it has begun."""
        ticket = await self.claim(claimant)
        since = monotonic()
        try:
            yield
        except BaseException:
            self.release(ticket)
            raise
        if earlier := self._started.pop(execution_id, None):
            self.release(earlier.ticket)
        self._started[execution_id] = _Beginning(ticket, since)

    def on_wait(self) -> None:
        """Find places that are free by now."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        watching_since = monotonic()
        while self.waiting:
            try:
                await self._look(watching_since)
            except Exception as error:  # noqa: BLE001 -- without the rows, starts do not wait for each other
                note_failure("beginnings of executions", error, log)
                for identity in [*self._started]:
                    self.release(self._started.pop(identity).ticket)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, watching_since: float) -> None:
        """Release the places of executions that have begun, or that take too long."""
        looked_at = {**self._started}
        pending = set(await self._find_pending(looked_at)) if looked_at else set[UUID]()
        patience = max(LEAST_PATIENCE, PATIENCE * self._usual) / (1 + self._overdue)
        now = monotonic()
        for identity, beginning in looked_at.items():
            seconds = now - beginning.since
            if identity in pending and seconds < patience:
                continue
            if self._started.get(identity) is beginning:
                del self._started[identity]
            self._overdue = self._overdue + 1 if identity in pending else 0
            if identity not in pending and beginning.since > watching_since:
                self._usual += SMOOTHING * (seconds - self._usual)
                self._on_begun(seconds, self.held)
                self.finish(beginning.ticket, beginning.since)
            else:
                # It is not known when it began.
                self.release(beginning.ticket)
