"""The places of a worker, in which activities run: fair between tenants, and between users of a tenant.

An activity that waits for a place holds a slot of Temporal's, so a worker has `WAITING_PER_PLACE` more slots
for each place. They cost little: a waiting activity has read nothing yet. Otherwise the calls of one tenant
would fill all slots, and a call of another one would wait in Temporal until one of them ends, however fair
the server dispatches.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from temporalio import activity

from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.fairness.shares import (
    DEFAULT_PLACES,
    Claimant,
    FindTerms,
    Shares,
    Ticket,
    equal_terms,
)
from everstep.agent_domain.fairness.tenant_limits import LARGEST_LIMIT

WAITING_PER_PLACE: Final = 4


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
    async def place(self, tenant_id: str) -> AsyncGenerator[None]:
        """Wait for a place for the running activity, and hold it while the body runs."""
        info = activity.info()
        if info.is_local:
            # It runs in a slot of its own kind, and is short.
            yield
            return
        # Tasks of older releases, and of workflows that services start themselves, have no key.
        key = (info.priority.fairness_key if info.priority else None) or fairness_key(tenant_id, None)
        async with self.claimed_place(Claimant(tenant_id, key)):
            yield

    @asynccontextmanager
    async def claimed_place(self, claimant: Claimant) -> AsyncGenerator[None]:
        """Wait for a place, and hold it while the body runs."""
        ticket = self._shares.take(claimant)
        try:
            if not ticket.is_granted:
                self._waiters[ticket] = asyncio.get_running_loop().create_future()
                await self._waiters[ticket]
            yield
        finally:
            self._waiters.pop(ticket, None)
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


@dataclass(frozen=True)
class WorkerPlaces:
    """The places of a worker, and its model calls, which tenants and users may have limits for."""

    places: Places
    model_calls: Places
    """Shared by limits only; a call waits for its limit before it waits for a place."""

    @asynccontextmanager
    async def place(self, tenant_id: str, *, is_model_call: bool = False) -> AsyncGenerator[None]:
        """Wait for a place for the running activity, and hold it while the body runs."""
        limit = self.model_calls.place(tenant_id) if is_model_call else nullcontext()
        async with limit, self.places.place(tenant_id):
            yield

    def grant_waiting(self) -> None:
        """Grant places after terms have changed."""
        self.model_calls.grant_waiting()
        self.places.grant_waiting()


def equal_places(count: int = DEFAULT_PLACES) -> WorkerPlaces:
    """The places of a worker whose tenants have no limits."""
    return WorkerPlaces(Places(count), Places(LARGEST_LIMIT))
