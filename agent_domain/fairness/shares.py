"""Who gets a place on a worker: a protocol without a clock or an event loop.

A worker runs a number of activities at once, each in a *place*. A tenant may take another place only while it
has fewer than `HEADROOM` times as many as are free. So one tenant that floods the worker holds 8 of 9 places
and two hold 8 of 17 each; some places always remain free for a tenant that has none, and no limit has to be
configured. The same rule applies to the users of a tenant, within the places that the tenant may take.
(Precedent: dynamic thresholds of the ports of a switch that share one memory, Choudhury and Hahne 1998.)

Of those who wait, the tenant with the fewest places for its weight is next, and of its users the one with the
fewest places; of one user the first who came.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from everstep.agent_domain.errors import InvalidInput

KeyT = TypeVar("KeyT")

DEFAULT_PLACES: Final = 1000
HEADROOM: Final = 8.0
"""How many times the free places a tenant may hold; larger leaves fewer places free."""


class Claimant(NamedTuple):
    """A user of a tenant."""

    tenant: str
    user: str


class ShareTerms(NamedTuple):
    """The weight of a claimant's tenant, and the most places of the tenant and of the user."""

    weight: float = 1.0
    tenant_limit: int | None = None
    user_limit: int | None = None


FindTerms: TypeAlias = Callable[[Claimant], ShareTerms]
"""Returns the terms of a claimant; called for each decision, so changed terms apply at once."""


def equal_terms(claimant: Claimant) -> ShareTerms:
    """Return the same terms for every claimant, without limits."""
    del claimant
    return ShareTerms()


@dataclass(eq=False, slots=True)
class Ticket:
    """A claim for one place: granted, waiting, or neither after it was returned."""

    claimant: Claimant
    is_granted: bool = False


class Shares:
    """The places of a worker and the tickets that wait for one."""

    def __init__(self, places: int, terms: FindTerms = equal_terms, headroom: float = HEADROOM) -> None:
        if places < 1:
            raise InvalidInput(f"a worker cannot have {places} places; give it at least 1")
        self.places = places
        self._terms = terms
        self._headroom = headroom
        self._held = 0
        # How many places each tenant, and each user, has.
        self._of_tenant = Counter[str]()
        self._of_user = Counter[Claimant]()
        # The tenants whose tickets wait, their users, and the tickets of each, all in the order of arrival.
        self._queues = OrderedDict[str, OrderedDict[Claimant, OrderedDict[Ticket, None]]]()
        self._waiting = 0

    @property
    def held(self) -> int:
        """The number of places in use."""
        return self._held

    @property
    def waiting(self) -> int:
        """The number of tickets that wait."""
        return self._waiting

    def take(self, claimant: Claimant) -> Ticket:
        """Return a ticket, which is granted at once or waits."""
        ticket = Ticket(claimant)
        if claimant not in self._queues.get(claimant.tenant, ()) and self._may_take(claimant):
            self._grant(ticket)
        else:
            users = self._queues.setdefault(claimant.tenant, OrderedDict())
            users.setdefault(claimant, OrderedDict())[ticket] = None
            self._waiting += 1
        return ticket

    def give_back(self, ticket: Ticket) -> list[Ticket]:
        """Return a place, or stop waiting for one; return the tickets that are granted now."""
        if not ticket.is_granted:
            self._withdraw(ticket)
            return []
        ticket.is_granted = False
        self._held -= 1
        _decrement(self._of_tenant, ticket.claimant.tenant)
        _decrement(self._of_user, ticket.claimant)
        return self.grant_waiting()

    def grant_waiting(self) -> list[Ticket]:
        """Grant what the terms allow now; return the granted tickets."""
        granted = list[Ticket]()
        while (following := self._next()) is not None:
            self._withdraw(following)
            self._grant(following)
            granted.append(following)
        return granted

    def _may_take(self, claimant: Claimant) -> bool:
        """Whether a place is free that this claimant may take."""
        free = self.places - self._held
        terms = self._terms(claimant)
        held, own = self._of_tenant[claimant.tenant], self._of_user[claimant]
        if _reaches(held, terms.tenant_limit) or _reaches(own, terms.user_limit):
            return False
        # The last place is for a tenant that has none, and the one before it for a user who has none.
        if free < 1 + (held > 0) + (own > 0):
            return False
        share = self._headroom * terms.weight * free
        if held == 0 or own == 0:
            return held == 0 or held < share
        # After this place, a user of the tenant who has none can still take one.
        left = self._headroom * terms.weight * (free - 1) - held - 1
        return left > 0 and own < self._headroom * (share - held)

    def _next(self) -> Ticket | None:
        """The waiting ticket to grant next, or None if no one may take a place."""
        if self._held >= self.places:
            return None
        best: tuple[float, int] | None = None
        found: Ticket | None = None
        for tenant, users in self._queues.items():
            for claimant, tickets in users.items():
                rank = self._of_tenant[tenant] / self._terms(claimant).weight, self._of_user[claimant]
                if (best is None or rank < best) and self._may_take(claimant):
                    best, found = rank, next(iter(tickets))
        return found

    def _grant(self, ticket: Ticket) -> None:
        ticket.is_granted = True
        self._held += 1
        self._of_tenant[ticket.claimant.tenant] += 1
        self._of_user[ticket.claimant] += 1

    def _withdraw(self, ticket: Ticket) -> None:
        """Remove a ticket from its queue, if it is in one."""
        users = self._queues.get(ticket.claimant.tenant, OrderedDict())
        tickets = users.get(ticket.claimant, OrderedDict())
        if ticket not in tickets:
            return
        self._waiting -= 1
        del tickets[ticket]
        if not tickets:
            del users[ticket.claimant]
        if not users:
            del self._queues[ticket.claimant.tenant]


def _reaches(held: int, limit: int | None) -> bool:
    return limit is not None and held >= limit


def _decrement(counts: "Counter[KeyT]", key: KeyT) -> None:
    # Without this, a counter would keep every tenant that ever had a place.
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
