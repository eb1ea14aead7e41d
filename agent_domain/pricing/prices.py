"""Prices of a model's tokens, and what a model call costs.

Amounts are `Decimal`s and are never rounded: each counter is multiplied by its price, in US dollars for a
million tokens. An unknown price makes the cost of a call that used such tokens unknown. It is then None, and
never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.loop.usage import Usage

MAX_PRICE = 1_000_000
"""A dollar for each token. Higher prices are refused, as they are a mistake in the unit."""

_MILLION_DIGITS = 6


def _first(price: Decimal | None, otherwise: Decimal | None) -> Decimal | None:
    return otherwise if price is None else price


def _price(name: str, given: object) -> Decimal | None:
    """The price as a `Decimal`; of a float, the shortest number that it is printed as."""
    if given is None:
        return None
    if isinstance(given, int | float | Decimal) and not isinstance(given, bool):
        price = given if isinstance(given, Decimal) else Decimal(str(given))
        if price.is_finite() and 0 <= price <= MAX_PRICE:
            return price
    problem = f"the price of {name} is {given!r}; pass US dollars for a million tokens, from 0 to {MAX_PRICE}"
    raise InvalidInput(problem)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in US dollars for a million tokens. None is unknown, unless the field says otherwise."""

    input: Decimal | None = None
    output: Decimal | None = None
    cached_input: Decimal | None = None
    """Input that is read from the provider's cache; None for the price of other input."""
    cache_write: Decimal | None = None
    """Input that is written to the provider's cache; None for the price of other input."""
    reasoning: Decimal | None = None
    """Output that is reasoning; None for the price of other output."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _price(field.name, getattr(self, field.name)))

    @property
    def is_known(self) -> bool:
        """Whether every call has a known cost."""
        return self.input is not None and self.output is not None

    def merged(self, others: "Prices") -> "Prices":
        """A copy in which prices that are None are those of `others`."""
        missing = {f.name: getattr(others, f.name) for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **missing)

    def cost(self, usage: Usage) -> Decimal | None:
        """What these tokens cost; None if the price of some of them is unknown."""
        amounts = (
            (usage.input, self.input),
            (usage.cache_read, _first(self.cached_input, self.input)),
            (usage.cache_write, _first(self.cache_write, self.input)),
            (usage.output, self.output),
            (usage.reasoning, _first(self.reasoning, self.output)),
        )
        total = Decimal(0)
        for tokens, price in amounts:
            if not tokens:
                continue
            if price is None:
                return None
            total += (tokens * price).scaleb(-_MILLION_DIGITS)
        return total

    def worst_case(self, input_tokens: int, output_tokens: int) -> Decimal | None:
        """The most that a request may cost: each token at its highest price. None if that is unknown."""
        if self.input is None or self.output is None:
            return None
        read = max(filter(None, (self.input, self.cached_input, self.cache_write)), default=Decimal(0))
        written = max(filter(None, (self.output, self.reasoning)), default=Decimal(0))
        return (input_tokens * read + output_tokens * written).scaleb(-_MILLION_DIGITS)


UNKNOWN_PRICES = Prices()


@dataclass(frozen=True, slots=True)
class PriceList:
    """The prices of a model. Some providers charge all of a long request at other prices."""

    prices: Prices = UNKNOWN_PRICES
    long_prices: Prices | None = None
    """The prices of a request with more than `long_above` tokens of input, cached ones included."""
    long_above: int = 0

    @property
    def is_known(self) -> bool:
        """Whether every call has a known cost."""
        return self.prices.is_known and (self.long_prices is None or self.long_prices.is_known)

    def with_own(self, own: Prices) -> "PriceList":
        """A copy in which the given prices replace those of the list, for requests of any length."""
        long_prices = self.long_prices and own.merged(self.long_prices)
        return replace(self, prices=own.merged(self.prices), long_prices=long_prices)

    def prices_for(self, input_tokens: int) -> Prices:
        """The prices of a request with this many tokens of input, cached ones included."""
        is_long = self.long_prices is not None and input_tokens > self.long_above
        return self.long_prices if is_long and self.long_prices else self.prices

    def cost(self, usage: Usage) -> Decimal | None:
        """What a call costs; None if a price is unknown, or if the provider counted no tokens.

        Every call uses tokens. Without counters, its cost is unknown at any price.
        """
        if not usage.total:
            return None
        return self.prices_for(usage.input + usage.cached).cost(usage)

    def worst_case(self, input_tokens: int, output_tokens: int) -> Decimal | None:
        """The most that a request may cost; None if a price is unknown."""
        return self.prices_for(input_tokens).worst_case(input_tokens, output_tokens)


UNKNOWN_PRICE_LIST = PriceList()


def call_cost(usage: Usage, prices: PriceList | None) -> Decimal | None:
    """What a model call costs in US dollars; None if that is unknown."""
    return prices.cost(usage) if prices else None


def prices_from(given: Mapping[str, Any]) -> Prices:
    """The prices among the settings of a preset: `input_price`, `output_price` and so on."""
    return Prices(**{f.name: given.get(f"{f.name}_price") for f in fields(Prices)})
