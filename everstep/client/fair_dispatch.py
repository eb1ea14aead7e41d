"""Names tenants and users to Temporal, which dispatches the tasks of all of them fairly."""

import time
from collections.abc import Callable

from temporalio.common import Priority

from everstep.agent_domain.fairness.fairness_keys import ActiveUsers, fairness_key, fairness_weight


def equal_weight(tenant_id: str) -> float:
    """Return the same weight for each tenant."""
    del tenant_id
    return 1.0


class FairDispatch:
    """The priorities of workflows that this process starts."""

    def __init__(self, weight_of: Callable[[str], float] = equal_weight) -> None:
        self._weight_of = weight_of
        self._users = ActiveUsers()

    def priority(self, tenant_id: str, user_id: str | None) -> Priority:
        """Return the priority of an execution that starts now."""
        users = self._users.started(tenant_id, user_id, time.monotonic())
        weight = fairness_weight(self._weight_of(tenant_id), users)
        return Priority(fairness_key=fairness_key(tenant_id, user_id), fairness_weight=weight)
