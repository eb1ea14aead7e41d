"""Whose turn it is, among requests of tenants and users that wait for a shared rate.

Start-time fair queuing (Goyal, Vin and Cheng 1996), between tenants and then between the users of a tenant:
each has a tag, which grows with what it was given, divided by its weight. The smallest tag is next. A tenant
that comes back after a pause starts at the present tag, so a pause earns nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from everstep.agent_domain.fairness.shares import Claimant

ItemT = TypeVar("ItemT", bound=Hashable)

MAX_TAGS: Final = 1_000
"""Tags of claimants that do not wait are forgotten beyond this number."""


def equal_weights(claimant: Claimant) -> float:
    """Return the same weight for each tenant."""
    del claimant
    return 1.0


class _Tags:
    """The tags of tenants, or of the users of one."""

    def __init__(self) -> None:
        self._present = 0.0
        self._tags = dict[str, float]()

    def start(self, name: str) -> float:
        """The tag at which the next request of this name starts."""
        return max(self._present, self._tags.get(name, 0.0))

    def served(self, name: str, cost: float) -> None:
        """Note what a name was given."""
        self._present = self.start(name)
        self._tags[name] = self._present + cost
        if len(self._tags) > MAX_TAGS:
            self._tags = {each: tag for each, tag in self._tags.items() if tag > self._present}


class Turns(Generic[ItemT]):
    """The requests that wait, with their amounts."""

    def __init__(self, weight_of: Callable[[Claimant], float] = equal_weights) -> None:
        self._weight_of = weight_of
        self._tenants = _Tags()
        self._users = dict[str, _Tags]()
        # By tenant and user, in the order of arrival.
        self._waiting = OrderedDict[str, OrderedDict[Claimant, OrderedDict[ItemT, float]]]()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, claimant: Claimant, item: ItemT, amount: float) -> None:
        """Let a request wait."""
        users = self._waiting.setdefault(claimant.tenant, OrderedDict())
        users.setdefault(claimant, OrderedDict())[item] = amount

    def first(self) -> tuple[Claimant, ItemT, float]:
        """The request whose turn it is, with its amount; there has to be one."""
        tenant = min(self._waiting, key=self._tenants.start)
        tags = self._users.get(tenant) or _Tags()
        claimant = min(self._waiting[tenant], key=lambda each: tags.start(each.user))
        item, amount = next(iter(self._waiting[tenant][claimant].items()))
        return claimant, item, amount

    def serve(self, claimant: Claimant, item: ItemT) -> None:
        """Give a request what it waits for."""
        amount = self._waiting[claimant.tenant][claimant][item]
        self._tenants.served(claimant.tenant, amount / self._weight_of(claimant))
        self._users.setdefault(claimant.tenant, _Tags()).served(claimant.user, amount)
        self.remove(claimant, item)

    def remove(self, claimant: Claimant, item: ItemT) -> None:
        """Remove a request, if it waits."""
        users = self._waiting.get(claimant.tenant, OrderedDict())
        items = users.get(claimant)
        if items is None or item not in items:
            return
        del items[item]
        if not items:
            del users[claimant]
        if not users:
            del self._waiting[claimant.tenant]
            if len(self._users) > MAX_TAGS:
                self._users = {name: tags for name, tags in self._users.items() if name in self._waiting}
