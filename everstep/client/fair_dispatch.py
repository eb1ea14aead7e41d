"""Starts workflows for all tenants and users fairly.

Temporal dispatches the tasks of workflows fairly, by the tenants and users that are named to it here. But it
creates them, and schedules their first tasks, in the order of the requests. So a process lets few executions
at once be between their start and their first step if that takes longer than it could, and its tenants and
users take turns.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from temporalio.common import Priority

from everstep.activities.worker_places import AdaptivePlaces
from everstep.agent_domain.fairness.fairness_keys import ActiveUsers, fairness_key, fairness_weight
from everstep.agent_domain.fairness.shares import Claimant, ShareTerms
from everstep.client.beginnings import BeginningPlaces, FindPending

LEAST_STARTS: Final = 3
"""One user starts two of four: one place is kept for another user, and one for another tenant."""
LEAST_STARTS_ALONE: Final = 32
"""The same while only one user of this process starts executions. With 8, 500 streaming executions began in
more than a minute on two cores, and with 32 in 12 seconds: the steps that stream make each beginning slower.
"""
SHARED_SECONDS: Final = 60.0
"""How long another user counts after the start of an execution."""
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
        self._shared_until = 0.0
        if find_pending is None:
            self._starts = AdaptivePlaces(LEAST_STARTS_ALONE, MOST_STARTS, self._start_terms)
        else:
            self._starts = BeginningPlaces(LEAST_STARTS_ALONE, MOST_STARTS, self._start_terms, find_pending)

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
        """Make fewer starts at once while several users start executions."""
        if self._last not in {None, claimant}:
            self._shared_until = now + SHARED_SECONDS
        self._last = claimant
        self._starts.use_least(LEAST_STARTS if now < self._shared_until else LEAST_STARTS_ALONE)

    def _start_terms(self, claimant: Claimant) -> ShareTerms:
        return ShareTerms(self._weight_of(claimant.tenant))

    def priority(self, tenant_id: str, user_id: str | None) -> Priority:
        """Return the priority of an execution that starts now."""
        users = self._users.started(tenant_id, user_id, time.monotonic())
        weight = fairness_weight(self._weight_of(tenant_id), users)
        return Priority(fairness_key=fairness_key(tenant_id, user_id), fairness_weight=weight)
