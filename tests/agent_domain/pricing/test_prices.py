"""What a model call costs: each counter at its price, exactly, and unknown rather than guessed."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.usage import Usage
from everstep.agent_domain.pricing.known_prices import KNOWN_PRICES, known_prices
from everstep.agent_domain.pricing.prices import MAX_PRICE, PriceList, Prices, call_cost, prices_from

ALL = Prices(Decimal(5), Decimal(30), Decimal("0.5"), Decimal("6.25"), Decimal(40))
TWO = Prices(Decimal(5), Decimal(30))
USED = Usage(input=1000, output=100, cache_write=200, cache_read=3000, reasoning=50)

counts = st.integers(0, 10**9)
usages = st.builds(Usage, counts, counts, counts, counts, counts)


@pytest.mark.parametrize(
    ("prices", "usage", "cost"),
    [
        (ALL, USED, "0.01275"),
        # Cached input at the price of input, reasoning at that of output.
        (TWO, USED, "0.0255"),
        (Prices(Decimal(0), Decimal(0)), USED, "0"),
        (Prices(Decimal("0.1"), Decimal("0.2")), Usage(input=1, output=1), "0.0000003"),
        # A price is needed only for tokens that were used.
        (Prices(input=Decimal(5)), Usage(input=1000), "0.005"),
        (Prices(input=Decimal(5)), Usage(input=1000, output=1), None),
        (Prices(output=Decimal(5)), Usage(cache_read=1, output=1), None),
        (Prices(cached_input=Decimal(1)), Usage(cache_read=10**6), "1"),
        (Prices(), USED, None),
        # Every call uses tokens: without counters its cost is unknown.
        (ALL, Usage(), None),
    ],
)
def test_a_call_costs_each_of_its_tokens_at_its_price(prices: Prices, usage: Usage, cost: str | None) -> None:
    """4.7.1"""
    assert call_cost(usage, PriceList(prices)) == (None if cost is None else Decimal(cost))


def test_a_model_without_prices_has_an_unknown_cost() -> None:
    """4.7.1"""
    assert call_cost(USED, None) is None
    assert known_prices("qwen3") is None


def test_long_requests_have_their_own_prices() -> None:
    """4.7.1: for all of the request; cached input counts."""
    prices = PriceList(TWO, Prices(Decimal(10), Decimal(45)), long_above=100)

    assert prices.cost(Usage(input=60, cache_read=40, output=1)) == Decimal("0.00053")
    assert prices.cost(Usage(input=60, cache_read=41, output=1)) == Decimal("0.001055")
    assert prices.worst_case(101, 1) == Decimal("0.001055")


@given(usages, st.booleans())
def test_no_call_costs_more_than_the_worst_case_of_its_tokens(usage: Usage, is_short: bool) -> None:
    """4.7.1: for any numbers."""
    prices = PriceList(ALL, TWO, long_above=10**12 if is_short else 0)
    cost = prices.prices_for(usage.input + usage.cached).cost(usage)
    worst = prices.worst_case(usage.input + usage.cached, usage.output + usage.reasoning)

    assert cost is not None
    assert worst is not None
    assert cost <= worst


def test_the_worst_case_is_unknown_if_a_price_is() -> None:
    assert PriceList(Prices(input=Decimal(5))).worst_case(1, 0) is None
    assert not PriceList(Prices(output=Decimal(5))).is_known
    assert not PriceList(TWO, Prices()).is_known
    assert PriceList(TWO).is_known


def test_own_prices_replace_listed_ones_at_any_length() -> None:
    """4.7.2"""
    listed = PriceList(ALL, TWO, long_above=100)
    own = prices_from({"input_price": 1.1, "output_price": None})

    mixed = listed.with_own(own)

    assert (mixed.prices.input, mixed.prices.output) == (Decimal("1.1"), Decimal(30))
    assert mixed.long_prices == Prices(Decimal("1.1"), Decimal(30))
    assert PriceList().with_own(own).prices == own


@pytest.mark.parametrize(
    "price", [-1, -0.1, float("nan"), float("inf"), "5", True, MAX_PRICE + 1, Decimal(-1)]
)
def test_a_price_is_a_number_of_dollars(price: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"the price of output is .*; pass US dollars for a million tokens"
    ):
        Prices(output=price)


def test_known_prices_have_a_source_and_a_date_and_no_model_twice() -> None:
    """4.7.2"""
    names = [model for row in KNOWN_PRICES for model in row.models]

    assert len(set(names)) == len(names)
    for row in KNOWN_PRICES:
        assert row.prices.is_known, row.models
        is_openai = row.models[0].startswith("gpt-")
        assert row.source.startswith(
            "https://developers.openai.com/" if is_openai else "https://platform.claude.com/docs/"
        )
        assert row.second_source is None or row.second_source.startswith("https://")
        assert row.read_on.year >= 2026


def test_known_prices_are_those_of_the_providers() -> None:
    """4.7.2: the models of the built-in presets, and a model whose long requests cost more."""
    usage = Usage(input=50_000, output=50_000, cache_write=50_000, cache_read=50_000)
    expected = {"gpt-5.5": "2.025", "claude-opus-5-5": "1.46", "gpt-5.6-luna": "0.0835"}

    for model, cost in expected.items():
        row = known_prices(model)
        assert row is not None
        assert row.prices.cost(usage) == Decimal(cost)
