"""Starts workflows for all tenants and users fairly.

Temporal dispatches the tasks of workflows fairly, by the tenants and users that are named to it here. But it
creates them, and schedules their first tasks, in the order of the requests. So a process makes few requests
at once if Temporal is busy, and its tenants and users take turns.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from temporalio.common import Priority

from everstep.activities.worker_places import AdaptivePlaces
from everstep.agent_domain.fairness.fairness_keys import ActiveUsers, fairness_key, fairness_weight
from everstep.agent_domain.fairness.shares import Claimant, ShareTerms

LEAST_STARTS: Final = 8
"""One user starts six of eight: one place is kept for another user, and one for another tenant."""
MOST_STARTS: Final = 64


def equal_weight(tenant_id: str) -> float:
    """Return the same weight for each tenant."""
    del tenant_id
    return 1.0


class FairDispatch:
    """The priorities of workflows that this process starts."""

    def __init__(self, weight_of: Callable[[str], float] = equal_weight) -> None:
        self._weight_of = weight_of
        self._users = ActiveUsers()
        self._starts = AdaptivePlaces(LEAST_STARTS, MOST_STARTS, self._start_terms)

    @asynccontextmanager
    async def start(self, tenant_id: str, user_id: str | None) -> AsyncGenerator[None]:
        """Wait for a place to start a workflow, and hold it while the body starts it."""
        claimant = Claimant(tenant_id, fairness_key(tenant_id, user_id))
        async with self._starts.measured_place(claimant) as finish:
            yield
            finish()

    def _start_terms(self, claimant: Claimant) -> ShareTerms:
        return ShareTerms(self._weight_of(claimant.tenant))

    def priority(self, tenant_id: str, user_id: str | None) -> Priority:
        """Return the priority of an execution that starts now."""
        users = self._users.started(tenant_id, user_id, time.monotonic())
        weight = fairness_weight(self._weight_of(tenant_id), users)
        return Priority(fairness_key=fairness_key(tenant_id, user_id), fairness_weight=weight)
