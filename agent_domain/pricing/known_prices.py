"""Prices of known models, by the name of the model, each with its source and the date of reading it.

The prices are those of the provider for calls at its standard speed. A model has the same row at any
address. The prices of a preset replace them. A model whose price could not be verified has no row, so its
calls have an unknown cost until a preset sets prices.

To add a row, read the price on a page of the provider, and write down where and when. A price that this page
does not have needs two independent pages that agree: one of them is the row's second source. Replace the
prices of a row that changed: calls that were recorded keep their cost.
"""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from everstep.agent_domain.pricing.prices import PriceList, Prices
from everstep.agent_domain.values import FrozenDict


@dataclass(frozen=True, slots=True)
class KnownPrices:
    """A row of the table."""

    models: tuple[str, ...]
    """The names of the model, with those of its dated versions."""
    prices: PriceList
    source: str
    """The address of the provider's page with the prices."""
    read_on: date
    second_source: str | None = None
    """A page of another with a price that the provider's page did not have, or had before a change."""


_CLAUDE: Final = "https://platform.claude.com/docs/en/about-claude/pricing"
_CLAUDE_MODELS: Final = "https://platform.claude.com/docs/zh-CN/models"
_OPENAI: Final = "https://developers.openai.com/api/docs/models"
_OPENAI_LIST: Final = "https://developers.openai.com/docs/models"
_COPILOT: Final = "https://github.com/github/docs/blob/main/data/tables/copilot/models-and-pricing.yml"
"""Prices of OpenAI for cached input and long requests; other pages of resellers agree."""
"""A price of Anthropic that was lowered after its page had been stored; other price tables agree."""
_READ_ON: Final = date(2026, 11, 19)


def _row(models: str, prices: PriceList, source: str, second_source: str | None = None) -> KnownPrices:
    return KnownPrices(tuple(models.split()), prices, source, _READ_ON, second_source)


def _claude(given: str) -> PriceList:
    """Prices in the order of the provider's table: input, cache write for 5 minutes, cache read, output."""
    base, write, read, output = map(Decimal, given.split())
    return PriceList(Prices(base, output, read, write))


def _openai(given: str, *, long_above: int | None = None) -> PriceList:
    """Prices in the order of the provider's table: input, cached input, output; then cache write, if any.

    A long request costs twice as much for input and 1.5 times as much for output.
    """
    base, read, output, *written = map(Decimal, given.split())
    write = written[0] if written else None
    prices = Prices(base, output, read, write)
    if long_above is None:
        return PriceList(prices)
    long_prices = Prices(2 * base, output * Decimal("1.5"), 2 * read, None if write is None else 2 * write)
    return PriceList(prices, long_prices, long_above)


_LONG = 272_000

_HAIKU_5_5: Final = PriceList(
    _claude("0.10 0.125 0.01 0.50").prices, _claude("0.50 0.625 0.05 2.50").prices, long_above=100_000
)

KNOWN_PRICES: Final = (
    _row("gpt-6.1-sol", _openai("2 0.10 10 2.50", long_above=_LONG), f"{_OPENAI}/gpt-6.1-sol"),
    _row("gpt-6-astra", _openai("10 1 50 12.50", long_above=_LONG), f"{_OPENAI}/compare"),
    _row("gpt-6-sol", _openai("2 0.20 10 2.50", long_above=_LONG), f"{_OPENAI}/gpt-6-sol"),
    _row("gpt-6-luna", _openai("0.10 0.01 0.50 0.125", long_above=_LONG), f"{_OPENAI}/gpt-6-luna"),
    _row("gpt-5.6-luna", _openai("0.20 0.02 1.20 0.25", long_above=_LONG), f"{_OPENAI}/gpt-5.6-luna"),
    _row("gpt-5.5", _openai("5 0.50 30", long_above=_LONG), _OPENAI_LIST, _COPILOT),
    _row("gpt-5.4", _openai("2.50 0.25 15", long_above=_LONG), _OPENAI_LIST, _COPILOT),
    _row("gpt-5.4-mini", _openai("0.75 0.075 4.50"), _OPENAI_LIST, _COPILOT),
    _row("gpt-5.4-nano", _openai("0.20 0.02 1.25"), f"{_OPENAI}/gpt-5.4-nano"),
    _row("gpt-5-mini gpt-5-mini-2025-08-07", _openai("0.25 0.025 2"), f"{_OPENAI}/gpt-5-mini"),
    _row("gpt-5-nano gpt-5-nano-2025-08-07", _openai("0.05 0.005 0.40"), f"{_OPENAI}/gpt-5-nano"),
    _row("claude-fable-5-1", _claude("10 12.50 0.25 50"), _CLAUDE),
    _row("claude-fable-5", _claude("10 12.50 1 50"), _CLAUDE),
    _row("claude-opus-5-5", _claude("4 5 0.20 20"), f"{_CLAUDE_MODELS}/opus-5-5/overview"),
    _row("claude-opus-5", _claude("5 6.25 0.50 25"), f"{_CLAUDE_MODELS}/opus-5/overview"),
    _row("claude-opus-4-8 claude-opus-4-7 claude-opus-4-6", _claude("5 6.25 0.50 25"), _CLAUDE),
    _row("claude-opus-4-5 claude-opus-4-5-20251101", _claude("5 6.25 0.50 25"), _CLAUDE),
    _row("claude-sonnet-5-5", _claude("2 2.50 0.20 10"), f"{_CLAUDE_MODELS}/sonnet-5-5/overview"),
    _row("claude-sonnet-5", _claude("2 2.50 0.20 10"), f"{_CLAUDE_MODELS}/sonnet-5/overview"),
    _row("claude-sonnet-4-6", _claude("3 3.75 0.30 15"), _CLAUDE),
    _row("claude-haiku-5-5", _HAIKU_5_5, f"{_CLAUDE_MODELS}/haiku-5-5/overview"),
    _row("claude-haiku-4-5 claude-haiku-4-5-20251001", _claude("1 1.25 0.10 5"), _CLAUDE),
)
"""The table; each name is in one row."""

_BY_MODEL: Final = FrozenDict({model: row for row in KNOWN_PRICES for model in row.models})


def known_prices(model: str) -> KnownPrices | None:
    """The row of a model; None if its prices are not known."""
    return _BY_MODEL.get(model)
