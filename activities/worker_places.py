"""The places of a worker, in which activities run: fair between tenants, and between users of a tenant.

An activity that waits for a place holds a slot of Temporal's, so a worker has `WAITING_PER_PLACE` more slots
for each place. They cost little: a waiting activity has read nothing yet. Otherwise the calls of one tenant
would fill all slots, and a call of another one would wait in Temporal until one of them ends, however fair
the server dispatches.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final, TypeAlias

from temporalio import activity

from everstep.activities.token_limits import TokenLimits
from everstep.agent_domain.fairness.concurrency import SLOW, Concurrency
from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.fairness.shares import (
    DEFAULT_PLACES,
    HEADROOM,
    Claimant,
    FindTerms,
    Shares,
    Ticket,
    equal_terms,
)
from everstep.agent_domain.fairness.tenant_limits import LARGEST_LIMIT
from everstep.steps.current_claimant import working_as

WAITING_PER_PLACE: Final = 4

LEAST_OPENINGS: Final = 16
"""With fewer, executions of one user begin slowly on a busy machine."""
MOST_OPENINGS: Final = 64
KEPT_FREE: Final = 2
"""While the number of places falls: one place for another user, and one for another tenant. If many are held,
as many as let a tenant take more places.
"""


class Places:
    """The places of this worker."""

    def __init__(self, count: int = DEFAULT_PLACES, terms: FindTerms = equal_terms) -> None:
        self._shares = Shares(count, terms)
        self._waiters = dict[Ticket, asyncio.Future[None]]()

    @property
    def held(self) -> int:
        """The number of places in use."""
        return self._shares.held

    @property
    def waiting(self) -> int:
        """The number of activities that wait for a place."""
        return self._shares.waiting

    @asynccontextmanager
    async def claimed_place(self, claimant: Claimant) -> AsyncGenerator[None]:
        """Wait for a place, and hold it while the body runs."""
        ticket = await self.claim(claimant)
        try:
            yield
        finally:
            self.release(ticket)

    async def claim(self, claimant: Claimant) -> Ticket:
        """Wait for a place; the caller releases it."""
        ticket = self._shares.take(claimant)
        if not ticket.is_granted:
            self._waiters[ticket] = asyncio.get_running_loop().create_future()
            self.on_wait()
            try:
                await self._waiters[ticket]
            except asyncio.CancelledError:
                self._waiters.pop(ticket, None)
                self.release(ticket)
                raise
        return ticket

    def on_wait(self) -> None:
        """React to a claim that has to wait; does nothing here."""

    def release(self, ticket: Ticket) -> None:
        """Release a place; releasing it again changes nothing."""
        self._wake(self._shares.give_back(ticket))

    def grant_waiting(self) -> None:
        """Grant places after terms have changed."""
        self._wake(self._shares.grant_waiting())

    def _wake(self, granted: list[Ticket]) -> None:
        for ticket in granted:
            waiter = self._waiters.pop(ticket)
            # A cancelled activity gives its place back when it runs.
            if not waiter.done():
                waiter.set_result(None)


TokenCount: TypeAlias = Callable[[int], None]


class AdaptivePlaces(Places):
    """Places for short work, fewer while many at once make it slow: see `Concurrency`."""

    def __init__(self, least: int, most: int, terms: FindTerms = equal_terms, slow: float = SLOW) -> None:
        super().__init__(least, terms)
        self._concurrency = Concurrency(least, most, slow)

    @asynccontextmanager
    async def measured_place(self, claimant: Claimant) -> AsyncGenerator[Callable[[], None]]:
        """Wait for a place, and hold it until the work is done, at the latest while the body runs.

        Yields:
            A function to call when the work is done.
        """
        ticket = await self.claim(claimant)
        began = monotonic()

        try:
            yield partial(self.finish, ticket, began)
        finally:
            self.release(ticket)

    def finish(self, ticket: Ticket, began: float) -> None:
        """Release a place whose work is done, and note how long it took; repeating it changes nothing."""
        if ticket.is_granted:
            self._concurrency.finished(monotonic() - began, self.held)
            self.release(ticket)

    def release(self, ticket: Ticket) -> None:
        """Release a place; releasing it again changes nothing."""
        if ticket.is_granted:
            self._adapt(self.held - 1)
        super().release(ticket)

    def _adapt(self, held: int) -> None:
        # Fewer places at once would make others wait for those that are held.
        kept_free = max(KEPT_FREE, int(held / HEADROOM) + 1)
        self._shares.places = max(self._concurrency.places, min(self._shares.places, held + kept_free))


@dataclass(frozen=True)
class WorkerPlaces:
    """The places of a worker, and its model calls, which tenants and users may have limits for."""

    places: Places
    model_calls: Places
    """Shared by limits only; a call waits for its limit before it waits for a place."""

    tokens: TokenLimits = field(default_factory=TokenLimits)
    openings: AdaptivePlaces = field(default_factory=lambda: AdaptivePlaces(LEAST_OPENINGS, MOST_OPENINGS))
    """For steps that are loaded, which takes the time of this process. Then they wait for the model."""

    @asynccontextmanager
    async def place(self, tenant_id: str) -> AsyncGenerator[TokenCount]:
        """Wait for a place for the running activity, and hold it while the body runs.

        Yields:
            Counts the tokens that the activity uses.
        """
        claimant = _running_claimant(tenant_id)
        with working_as(claimant):
            async with self._own_place(claimant):
                yield partial(self.tokens.count, claimant)

    @asynccontextmanager
    async def model_place(self, tenant_id: str) -> AsyncGenerator[tuple[TokenCount, Callable[[], None]]]:
        """Wait until the running activity may make a model call, and hold its place while the body runs.

        Yields:
            Counts the tokens that it uses; and a function to call when the step is loaded.
        """
        claimant = _running_claimant(tenant_id)
        with working_as(claimant):
            await self.tokens.wait(claimant)
            async with (
                self._own_place(claimant, self.model_calls),
                self.openings.measured_place(claimant) as finish,
            ):
                yield partial(self.tokens.count, claimant, is_model_call=True), finish

    @asynccontextmanager
    async def _own_place(self, claimant: Claimant, limit: Places | None = None) -> AsyncGenerator[None]:
        if activity.info().is_local:
            # It runs in a slot of its own kind, and is short.
            yield
            return
        limited = limit.claimed_place(claimant) if limit else nullcontext()
        async with limited, self.places.claimed_place(claimant):
            yield

    def grant_waiting(self) -> None:
        """Grant places after terms have changed."""
        self.model_calls.grant_waiting()
        self.places.grant_waiting()


def _running_claimant(tenant_id: str) -> Claimant:
    """The user for whom the running activity works."""
    priority = activity.info().priority
    # Tasks of older releases, and of workflows that services start themselves, have no key.
    key = (priority.fairness_key if priority else None) or fairness_key(tenant_id, None)
    return Claimant(tenant_id, key)


def equal_places(count: int = DEFAULT_PLACES) -> WorkerPlaces:
    """The places of a worker whose tenants have no limits."""
    return WorkerPlaces(Places(count), Places(LARGEST_LIMIT))
