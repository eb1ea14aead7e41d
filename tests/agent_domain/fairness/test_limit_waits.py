"""What executions wait for because of limits."""

from typing import Any

import pytest

from everstep.agent_domain.fairness.fairness_keys import fairness_key
from everstep.agent_domain.fairness.limit_waits import (
    LimitUse,
    RateLevel,
    has_call_limits,
    limit_waits,
    rate_names,
)
from everstep.agent_domain.fairness.tenant_limits import (
    LimitBook,
    TenantLimits,
    tenant_tokens_name,
    user_tokens_name,
)

ANN = "acme", "ann"
TOKENS_OF_TENANT, TOKENS_OF_ANN = tenant_tokens_name("acme"), user_tokens_name(fairness_key(*ANN))
NOTHING = LimitUse()
TWO_CALLS = LimitUse({ANN: 1, ("acme", None): 1, ("globex", "ann"): 9})


def a_book(user: str | None = None, tenant: str = "acme", **limits: Any) -> LimitBook:
    return LimitBook([TenantLimits(tenant, user, **limits)])


@pytest.mark.parametrize(
    ("book", "text"),
    [
        (a_book(), None),
        (a_book(max_running=0), "until max_running of the tenant 'acme' is raised from 0"),
        (a_book(max_running=0, tenant="*"), "until max_running of the tenant 'acme' is raised from 0"),
        (a_book("*", max_running=0), "until max_running of the user 'ann' is raised from 0"),
        (a_book(max_running=3), "as max_running of the tenant 'acme' is 3"),
        (
            LimitBook([TenantLimits("acme", max_running=3), TenantLimits("acme", "ann", max_running=1)]),
            "as max_running of the tenant 'acme' is 3 and max_running of the user 'ann' is 1",
        ),
    ],
)
def test_a_queued_execution_waits_for_a_place_of_its_tenant_or_user(book: LimitBook, text: str) -> None:
    """18.2.18"""
    assert limit_waits(book, NOTHING, ANN).start == text


@pytest.mark.parametrize(
    ("book", "use", "text"),
    [
        (a_book(max_running=0), TWO_CALLS, None),
        (a_book(max_model_calls=0), NOTHING, "until max_model_calls of the tenant 'acme' is raised from 0"),
        (
            a_book("ann", max_model_calls=0),
            NOTHING,
            "until max_model_calls of the user 'ann' is raised from 0",
        ),
        (a_book(max_model_calls=3), TWO_CALLS, None),
        (
            a_book(max_model_calls=2),
            TWO_CALLS,
            "until another model call ends, as max_model_calls of the tenant 'acme' is 2 in each worker",
        ),
        (a_book("ann", max_model_calls=2), TWO_CALLS, None),
        (
            a_book("ann", max_model_calls=1),
            TWO_CALLS,
            "until another model call ends, as max_model_calls of the user 'ann' is 1 in each worker",
        ),
        (a_book(tokens_per_minute=60), NOTHING, None),
        (
            a_book(tokens_per_minute=60),
            LimitUse(levels={TOKENS_OF_TENANT: RateLevel(-99.0, 10.0)}),
            "for about 90 s until tokens may be used again, as tokens_per_minute of the tenant 'acme' is 60",
        ),
        (a_book(tokens_per_minute=60), LimitUse(levels={TOKENS_OF_TENANT: RateLevel(-99.0, 100.0)}), None),
        (
            a_book("ann", tokens_per_minute=6),
            LimitUse(levels={TOKENS_OF_ANN: RateLevel(0.0, 0.0)}),
            "for about 10 s until tokens may be used again, as tokens_per_minute of the user 'ann' is 6",
        ),
    ],
)
def test_a_model_call_waits_for_the_limit_that_holds_it(
    book: LimitBook, use: LimitUse, text: str | None
) -> None:
    """18.2.18"""
    assert limit_waits(book, use, ANN).call == text


def test_an_execution_without_a_user_has_the_limits_of_each_user() -> None:
    """18.2.18"""
    waits = limit_waits(a_book("*", max_model_calls=0), NOTHING, ("acme", None))
    owner = "executions of the tenant 'acme' without a user"
    assert waits.call == f"until max_model_calls of {owner} is raised from 0"


def test_use_is_read_only_for_users_whose_model_calls_are_limited() -> None:
    """18.2.18"""
    limited = (a_book(max_model_calls=1), a_book("ann", tokens_per_minute=1))
    others = (
        a_book(max_running=1),
        a_book("bob", max_model_calls=1),
        a_book(tenant="globex", max_model_calls=1),
    )
    assert [has_call_limits(book, ANN) for book in (*limited, *others)] == [True] * 2 + [False] * 3
    assert rate_names([ANN]) == {TOKENS_OF_TENANT, TOKENS_OF_ANN}
