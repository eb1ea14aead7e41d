"""Whose turn it is, among requests that wait for a shared rate."""

from collections import Counter
from collections.abc import Hashable
from typing import TypeVar

from everstep.agent_domain.fairness import turns
from everstep.agent_domain.fairness.shares import Claimant
from everstep.agent_domain.fairness.turns import Turns

Item = TypeVar("Item", bound=Hashable)

ANN, BOB, EVE = Claimant("acme", "ann"), Claimant("acme", "bob"), Claimant("globex", "eve")


def serve_all(waiting: Turns[Item]) -> list[Item]:
    served = list[Item]()
    while waiting:
        claimant, item, _ = waiting.first()
        waiting.serve(claimant, item)
        served.append(item)
    return served


def test_tenants_take_turns_and_so_do_the_users_of_a_tenant() -> None:
    """18.2.13"""
    waiting = Turns[str]()
    for number in range(4):
        waiting.add(ANN, f"ann {number}", 1)
    waiting.add(BOB, "bob 0", 1)
    for number in range(2):
        waiting.add(EVE, f"eve {number}", 1)
    assert serve_all(waiting) == ["ann 0", "eve 0", "bob 0", "eve 1", "ann 1", "ann 2", "ann 3"]


def test_a_turn_counts_by_its_amount_and_by_the_weight_of_the_tenant() -> None:
    """18.2.13"""
    waiting = Turns[int](lambda claimant: 2.0 if claimant.tenant == "globex" else 1.0)
    for number in range(40):
        waiting.add(ANN, number, 30)
        waiting.add(EVE, 100 + number, 10)
    first = list[int]()
    for _ in range(28):
        claimant, item, _ = waiting.first()
        waiting.serve(claimant, item)
        first.append(item)
    # Two thirds of what was given are of the tenant with twice the weight, in calls of a third of the size.
    assert Counter("globex" if item >= 100 else "acme" for item in first) == {"acme": 4, "globex": 24}


def test_a_pause_earns_no_advance() -> None:
    """18.2.13"""
    waiting = Turns[str]()
    for number in range(10):
        waiting.add(ANN, f"ann {number}", 1)
        claimant, item, _ = waiting.first()
        waiting.serve(claimant, item)
    for number in range(3):
        waiting.add(EVE, f"eve {number}", 1)
        waiting.add(ANN, f"again {number}", 1)
    # Without the present tag, eve would be given ten turns before ann is given one.
    assert serve_all(waiting)[:4] == ["eve 0", "eve 1", "again 0", "eve 2"]


def test_a_request_that_stops_waiting_leaves_no_trace() -> None:
    """18.2.13"""
    waiting = Turns[str]()
    waiting.add(ANN, "one", 5)
    waiting.add(ANN, "two", 1)
    waiting.remove(ANN, "one")
    waiting.remove(ANN, "one")
    waiting.remove(EVE, "unknown")
    assert waiting.first() == (ANN, "two", 1)
    waiting.remove(ANN, "two")
    assert not waiting


def test_a_crowd_of_tenants_and_users_is_forgotten() -> None:
    """18.2.13"""
    waiting = Turns[int]()
    for number in range(turns.MAX_TAGS + 10):
        waiting.add(Claimant(f"tenant {number}", "ann"), number, 1)
        waiting.add(Claimant("acme", f"user {number}"), -number, 1)
    assert len(serve_all(waiting)) == 2 * (turns.MAX_TAGS + 10)
    waiting.add(ANN, 1, 1)
    assert waiting.first() == (ANN, 1, 1)
