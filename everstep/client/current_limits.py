"""The limits of tenants as a process knows them, which reads them again every few seconds."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.fairness.limit_waits import (
    LimitedUser,
    LimitUse,
    LimitWaits,
    has_call_limits,
    limit_waits,
    rate_names,
)
from everstep.agent_domain.fairness.shares import Claimant, ShareTerms
from everstep.agent_domain.fairness.tenant_limits import LimitBook, TenantLimits, TokenTerms
from everstep.agent_domain.storage.tenant_store import TenantStore

log = logging.getLogger(__name__)

REFRESH_SECONDS = 2.5


class CurrentLimits:
    """The limits of tenants. Without `run`, there are none until something reads them."""

    def __init__(self, store: TenantStore) -> None:
        self._store = store
        self._stored: Sequence[TenantLimits] = ()
        self._listeners = list[Callable[[], None]]()
        self._is_running = False
        self.book = LimitBook()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function after each change."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Read the limits until this is cancelled; while that fails, the last ones apply."""
        self._is_running = True
        while True:
            try:
                await self.refresh()
            except EverstepError as error:
                log.warning("the limits of tenants are not read: %s", error)
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Read the limits."""
        stored = await self._store.tenant_limits()
        if stored == self._stored:
            return
        self._stored, self.book = stored, LimitBook(stored)
        for listener in self._listeners:
            listener()

    async def find_waits(self, users: Collection[LimitedUser]) -> Mapping[LimitedUser, LimitWaits]:
        """Return what executions of these users wait for now because of limits.

        Only if there are limits of model calls or tokens for them, their use is read.
        """
        if users and not self._is_running:
            await self.refresh()
        limited, use = [user for user in users if has_call_limits(self.book, user)], LimitUse()
        if limited:
            use = await self._store.limit_use({tenant for tenant, _ in limited}, rate_names(limited))
        return {user: limit_waits(self.book, use, user) for user in users}

    def weight(self, tenant_id: str) -> float:
        """The weight of a tenant."""
        return self.book.weight(tenant_id)

    def place_terms(self, claimant: Claimant) -> ShareTerms:
        """The terms of the places of a worker."""
        return self.book.place_terms(claimant)

    def token_terms(self, claimant: Claimant) -> TokenTerms:
        """The tokens per minute of a tenant and of its user."""
        return self.book.token_terms(claimant)

    def model_call_terms(self, claimant: Claimant) -> ShareTerms:
        """The terms of the model calls of a worker."""
        return self.book.model_call_terms(claimant)
