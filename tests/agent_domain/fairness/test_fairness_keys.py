"""The keys and weights of Temporal's dispatch."""

from everstep.agent_domain.fairness.fairness_keys import (
    ACTIVE_SECONDS,
    LARGEST_WEIGHT,
    LEAST_WEIGHT,
    MAX_TENANTS,
    MAX_USERS,
    ActiveUsers,
    fairness_key,
    fairness_weight,
)

MOST_BYTES = 64


def test_a_key_names_a_user_of_a_tenant_without_the_names():
    """18.2.1"""
    keys = {fairness_key(tenant, user) for tenant in ("acme", "a" * 500) for user in (None, "ann", "ö@x.org")}
    assert len(keys) == 6
    assert all(len(key.encode()) <= MOST_BYTES and "acme" not in key for key in keys)
    assert fairness_key("a/b", "c") != fairness_key("a", "b/c")
    assert fairness_key("acme", "ann") == fairness_key("acme", "ann")


def test_the_users_of_a_tenant_share_its_weight():
    """18.2.1"""
    users = ActiveUsers()
    counts = [users.started("acme", user, 0.0) for user in ("ann", "bob", "ann", None)]
    assert counts == [1, 2, 2, 3]
    assert users.started("other", "ann", 0.0) == 1
    assert fairness_weight(3.0, 2) == 1.5
    assert fairness_weight(1.0, 5000) == LEAST_WEIGHT
    assert fairness_weight(5000.0, 1) == LARGEST_WEIGHT


def test_a_user_counts_for_some_minutes_after_a_start():
    """18.2.1"""
    users = ActiveUsers()
    users.started("acme", "ann", 0.0)
    assert users.started("acme", "bob", ACTIVE_SECONDS) == 2
    assert users.started("acme", "bob", ACTIVE_SECONDS + 1) == 1


def test_counting_users_needs_a_bounded_memory():
    """18.2.1"""
    users = ActiveUsers()
    counts = [users.started("acme", str(number), 0.0) for number in range(MAX_USERS + 5)]
    assert counts[-1] == MAX_USERS
    for number in range(MAX_TENANTS):
        users.started(str(number), "ann", 0.0)
    assert users.started("acme", "ann", 0.0) == 1
