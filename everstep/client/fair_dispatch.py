"""Starts workflows for all tenants and users fairly.

Temporal dispatches the tasks of workflows fairly, by the tenants and users that are named to it here. But it
creates them, and schedules their first tasks, in the order of the requests. So a process lets few executions
of a tenant and of a user at once be between their start and their first step while others start some, and
tenants and users take turns.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from temporalio.common import Priority

from everstep.activities.worker_places import AdaptivePlaces
from everstep.agent_domain.fairness.concurrency import Concurrency
from everstep.agent_domain.fairness.fairness_keys import ActiveUsers, fairness_key, fairness_weight
from everstep.agent_domain.fairness.shares import Claimant, ShareTerms
from everstep.client.beginnings import BeginningPlaces, FindPending

LEAST_STARTS: Final = 32
"""With 8, 500 streaming executions began in more than a minute on two cores, and with 32 in 12 seconds: the
steps that stream make each beginning slower."""
LEAST_STARTS_OF_TENANT: Final = 2
"""While another tenant starts executions. A user of several has one less, so that one is left for another."""
SLOW_FOR_OTHERS: Final = 1.2
"""How many times as long as alone executions take to begin when these starts make others wait."""
SHARED_SECONDS: Final = 60.0
"""How long another tenant or user counts after the start of an execution."""
MOST_STARTS: Final = 64


def equal_weight(tenant_id: str) -> float:
    """Return the same weight for each tenant."""
    del tenant_id
    return 1.0


class FairDispatch:
    """The priorities of workflows that this process starts.

    Args:
        weight_of: Returns the weight of a tenant.
        find_pending: Finds which executions have not begun. Without it, an execution counts as begun when
            Temporal has created its workflow.
    """

    def __init__(
        self, weight_of: Callable[[str], float] = equal_weight, find_pending: FindPending | None = None
    ) -> None:
        self._weight_of = weight_of
        self._users = ActiveUsers()
        self._last: Claimant | None = None
        self._tenants_until = self._users_until = 0.0
        """Until when several tenants, and several users, start executions."""
        self._shared = Concurrency(LEAST_STARTS_OF_TENANT, MOST_STARTS, SLOW_FOR_OTHERS)
        """How many starts a tenant has at once while others start executions."""
        self._starts = (
            BeginningPlaces(LEAST_STARTS, MOST_STARTS, self._start_terms, find_pending, self._note_beginning)
            if find_pending
            else AdaptivePlaces(LEAST_STARTS, MOST_STARTS, self._start_terms)
        )

    @asynccontextmanager
    async def start(self, tenant_id: str, user_id: str | None, execution_id: UUID) -> AsyncGenerator[None]:
        """Wait for a place to start a workflow, which the body does."""
        claimant = Claimant(tenant_id, fairness_key(tenant_id, user_id))
        self._note_claimant(claimant, time.monotonic())
        if isinstance(self._starts, BeginningPlaces):
            async with self._starts.start(claimant, execution_id):
                yield
        else:
            async with self._starts.measured_place(claimant) as finish:
                yield
                finish()

    def _note_claimant(self, claimant: Claimant, now: float) -> None:
        """Note that several tenants or users start executions at this time."""
        last, self._last = self._last or claimant, claimant
        if now >= max(self._tenants_until, self._users_until):
            alone = self._shared.alone
            self._shared = Concurrency(LEAST_STARTS_OF_TENANT, MOST_STARTS, SLOW_FOR_OTHERS, alone=alone)
        if last.tenant != claimant.tenant:
            self._tenants_until = now + SHARED_SECONDS
        if last != claimant:
            self._users_until = now + SHARED_SECONDS

    def _note_beginning(self, seconds: float, at_once: int) -> None:
        self._shared.finished(seconds, at_once)

    def _start_terms(self, claimant: Claimant) -> ShareTerms:
        now, most = time.monotonic(), self._shared.places
        of_tenant = most if now < self._tenants_until else None
        of_user = most - 1 if now < self._users_until else None
        return ShareTerms(self._weight_of(claimant.tenant), of_tenant, of_user)

    def priority(self, tenant_id: str, user_id: str | None) -> Priority:
        """Return the priority of an execution that starts now."""
        users = self._users.started(tenant_id, user_id, time.monotonic())
        weight = fairness_weight(self._weight_of(tenant_id), users)
        return Priority(fairness_key=fairness_key(tenant_id, user_id), fairness_weight=weight)
