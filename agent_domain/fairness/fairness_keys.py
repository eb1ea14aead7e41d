"""The keys and weights by which Temporal dispatches tasks fairly.

Temporal knows one level of keys, and tenants share with each other as well as users within a tenant. So a key
names a user of a tenant, and its weight is that of the tenant, divided by the number of its active users.
"""

from base64 import urlsafe_b64encode
from collections import OrderedDict
from hashlib import blake2b
from typing import Final

ACTIVE_SECONDS: Final = 300.0
"""How long a user counts as active after the start of an execution."""
MAX_TENANTS: Final = 10_000
MAX_USERS: Final = 1_000
"""The most users of a tenant that are counted: Temporal's smallest weight is a thousandth."""
LEAST_WEIGHT: Final = 0.001
LARGEST_WEIGHT: Final = 1000.0
"""Temporal clamps weights to this range."""
_DIGEST_BYTES: Final = 6


def fairness_key(tenant_id: str, user_id: str | None) -> str:
    """The key of a tenant's user in Temporal; opaque, as names may be long, secret or addresses of people."""
    return f"{_digest(tenant_id)}.{_digest(user_id or '')}"


def _digest(name: str) -> str:
    # Short: it is in each activity's event of the history.
    return urlsafe_b64encode(blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()).decode()


class ActiveUsers:
    """Counts the users of each tenant who started something recently, as seen by this process."""

    def __init__(self) -> None:
        self._tenants = OrderedDict[str, OrderedDict[str, float]]()

    def started(self, tenant_id: str, user_id: str | None, now: float) -> int:
        """Note a start; return the number of active users of the tenant, at least 1."""
        users = self._tenants.setdefault(tenant_id, OrderedDict())
        self._tenants.move_to_end(tenant_id)
        users[user_id or ""] = now
        users.move_to_end(user_id or "")
        while len(users) > MAX_USERS or next(iter(users.values())) < now - ACTIVE_SECONDS:
            users.popitem(last=False)
        while len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)
        return len(users)


def fairness_weight(tenant_weight: float, active_users: int) -> float:
    """The weight of one of the active users of a tenant."""
    return min(LARGEST_WEIGHT, max(LEAST_WEIGHT, tenant_weight / active_users))
