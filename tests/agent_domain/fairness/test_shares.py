"""The places of a worker, shared by tenants and users."""

import random
from collections import Counter

import pytest

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.fairness.shares import Claimant, Shares, ShareTerms, Ticket


def granted(tickets: list[Ticket]) -> Counter[str]:
    """How many places each tenant has."""
    return Counter(ticket.claimant.tenant for ticket in tickets if ticket.is_granted)


def test_a_tenant_that_floods_leaves_places_for_others():
    """18.2.2"""
    shares = Shares(90)
    flood = [shares.take(Claimant("flooding", str(number % 50))) for number in range(1000)]
    assert shares.held == granted(flood)["flooding"] == 1000 - shares.waiting
    assert 78 <= shares.held <= 80
    assert shares.take(Claimant("quiet", "bob")).is_granted


def test_two_tenants_that_flood_have_equal_shares_and_leave_places_for_a_third():
    """18.2.2"""
    shares = Shares(90)
    flood = [shares.take(Claimant("first", str(number % 50))) for number in range(500)]
    flood += [shares.take(Claimant("second", str(number % 50))) for number in range(500)]
    while granted(flood)["second"] < granted(flood)["first"]:
        shares.give_back(next(each for each in flood if each.is_granted and each.claimant.tenant == "first"))
    assert abs(granted(flood)["first"] - granted(flood)["second"]) <= 1
    assert shares.take(Claimant("third", "bob")).is_granted


@pytest.mark.parametrize("places", [3, 4, 5, 10, 20, 37, 100, 1000])
def test_a_user_who_floods_leaves_places_for_others_of_the_tenant_and_for_other_tenants(places: int):
    """18.2.2"""
    shares = Shares(places)
    flood = [shares.take(Claimant("acme", "ann")) for _ in range(2 * places)]
    assert granted(flood)["acme"] >= 0.8 * places - 2
    assert shares.take(Claimant("acme", "eve")).is_granted
    assert shares.take(Claimant("other", "bob")).is_granted


def test_the_tenant_with_the_fewest_places_for_its_weight_is_next():
    """18.2.2"""
    weights = {"large": 2.0}
    shares = Shares(30, lambda claimant: ShareTerms(weights.get(claimant.tenant, 1.0)))
    flood = [shares.take(Claimant("first", "ann")) for _ in range(200)]
    flood += [shares.take(Claimant(tenant, str(n % 9))) for tenant in ("large", "small") for n in range(200)]
    for _ in range(200):
        first = next(each for each in flood if each.is_granted)
        shares.give_back(first)
    assert granted(flood)["large"] == pytest.approx(2 * granted(flood)["small"], abs=2)


def test_tickets_of_one_user_are_granted_in_the_order_of_arrival():
    """18.2.2"""
    shares = Shares(1)
    tickets = [shares.take(Claimant("acme", "ann")) for _ in range(4)]
    order = [tickets.index(each) for held in tickets for each in shares.give_back(held)]
    assert order == [1, 2, 3]
    assert (shares.held, shares.waiting) == (0, 0)


def test_limits_hold_also_where_places_are_free_and_changed_ones_apply_at_once():
    """18.2.2"""
    terms = {"acme": ShareTerms(tenant_limit=2), "paused": ShareTerms(tenant_limit=0)}
    shares = Shares(100, lambda claimant: terms.get(claimant.tenant, ShareTerms(user_limit=1)))
    tickets = [shares.take(Claimant("acme", str(number))) for number in range(3)]
    tickets += [shares.take(Claimant("paused", "ann")), *(shares.take(Claimant("else", "ann")) for _ in "12")]
    assert granted(tickets) == {"acme": 2, "else": 1}
    terms["paused"] = ShareTerms()
    assert [each.claimant.tenant for each in shares.grant_waiting()] == ["paused"]


def test_a_ticket_that_stops_waiting_is_never_granted():
    """18.2.2"""
    shares = Shares(1)
    held, left, last = (shares.take(Claimant("acme", "ann")) for _ in range(3))
    assert not shares.give_back(left)
    assert shares.give_back(held) == [last]
    assert not left.is_granted
    assert not shares.give_back(left)
    assert shares.held == 1


def test_places_are_never_lost_whatever_comes_and_goes():
    """18.2.2"""
    dice = random.Random(1)  # noqa: S311 -- not a secret
    shares, tickets = Shares(12), list[Ticket]()
    for _ in range(3000):
        if tickets and dice.random() < 0.5:
            shares.give_back(tickets.pop(dice.randrange(len(tickets))))
        else:
            tickets.append(shares.take(Claimant(dice.choice("abc"), dice.choice("xyz"))))
        assert shares.held == sum(each.is_granted for each in tickets) <= 12
        assert shares.waiting == len(tickets) - shares.held
    for ticket in tickets:
        shares.give_back(ticket)
    assert (shares.held, shares.waiting) == (0, 0)


def test_a_worker_without_places_is_refused():
    with pytest.raises(InvalidInput, match="give it at least 1"):
        Shares(0)
