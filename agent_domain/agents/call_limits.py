"""What bounds the worst case of a model call: the model's prices, and how long its answer may be."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol, runtime_checkable

from everstep.agent_domain.agents.token_counting import window_of
from everstep.agent_domain.pricing.prices import PriceList, Prices

LONGEST_OUTPUT: Final = 128_000
"""How long the answer of a model may be whose own limit is not known: no current model gives a longer one."""

LEAST_OUTPUT: Final = 1_000
"""A call whose answer has no set length is not worthwhile with fewer tokens of output."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of one model, or of several of which any may answer."""

    prices: tuple[PriceList, ...] = ()
    """The prices of each model; empty if they are not known."""
    max_output_tokens: int | None = None
    """The length that is set for each answer; None: not set."""
    most_output: int | None = None
    """The longest answer that the model gives; None: not known."""

    @property
    def has_prices(self) -> bool:
        """Whether the cost of a call is known."""
        return bool(self.prices) and all(prices.is_known for prices in self.prices)

    def worst_cost(self, input_tokens: int, output_tokens: int) -> Decimal:
        """The most that a call may cost, in US dollars, where prices are known."""
        costs = (prices.worst_case(input_tokens, output_tokens) for prices in self.prices)
        return max((cost for cost in costs if cost is not None), default=Decimal(0))

    def output_range(self, model: object, input_tokens: int, requested: int | None = None) -> tuple[int, int]:
        """The fewest and the most tokens of output to reserve for a call of the model.

        Args:
            model: The model.
            input_tokens: The tokens of the request.
            requested: The length that the request sets.
        """
        given = [length for length in (self.max_output_tokens, requested) if length is not None]
        if given:
            return min(given), min(given)
        window = window_of(model)
        room = max(1, window.tokens - input_tokens) if window else LONGEST_OUTPUT
        most = min(self.most_output or LONGEST_OUTPUT, room)
        return min(LEAST_OUTPUT, most), most


NO_CALL: Final = CallLimits((PriceList(Prices(Decimal(0), Decimal(0))),), most_output=1)
"""The limits of a model that sends nothing, because it cannot be used."""


def unknown_prices_text(model: str) -> str:
    """The refusal of a budget in money for a model whose prices are not known."""
    return (
        f"A budget in USD needs the prices of {model}, which are not known: set input_price and output_price "
        "in its preset, or use a budget in tokens"
    )


@runtime_checkable
class HasCallLimits(Protocol):
    """A model whose limits are known."""

    @property
    def call_limits(self) -> CallLimits:
        """The prices, and the length of answers."""
        ...


def call_limits_of(model: object) -> CallLimits:
    """The limits of a model; nothing is known of a model that does not say them."""
    return model.call_limits if isinstance(model, HasCallLimits) else CallLimits()


def limits_of_any(models: Iterable[object]) -> CallLimits:
    """The limits of a call that any of these models may answer."""
    limits = [call_limits_of(model) for model in models]
    set_lengths = [each.max_output_tokens for each in limits if each.max_output_tokens is not None]
    longest = [each.most_output for each in limits if each.most_output is not None]
    return CallLimits(
        tuple(prices for each in limits for prices in each.prices)
        if all(e.has_prices for e in limits)
        else (),
        max(set_lengths) if len(set_lengths) == len(limits) else None,
        max(longest) if len(longest) == len(limits) else None,
    )
