"""The context windows of known models, by name, whatever the address that serves them.

Numbers that could not be verified are left out: the window of another model is unknown until its preset says
it (`context_window`). The rows were compared with the providers' pages and with the table of LiteLLM in
November 2026. A name with a date (`gpt-5.5-2026-04-23`) has the window of the name without it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType

from everstep.agent_domain.agents.call_limits import CallLimits
from everstep.agent_domain.agents.token_counting import ContextWindow
from everstep.inference.presets import Driver, Preset

MAX_OUTPUT_TOKENS = 16_384
"""How long an answer may be where neither the preset nor the API sets a limit."""

_ANTHROPIC = "https://platform.claude.com/docs/en/models/opus-5/overview"
_LITELLM = "https://github.com/BerriAI/litellm/blob/main/model_prices_and_context_window.json"
_VERCEL = "https://vercel.com/ai-gateway/models/gpt-6.1-sol"
_RUNWARE = "https://runware.ai/docs/models/openai-gpt-6-sol"


@dataclass(frozen=True, slots=True)
class KnownWindow:
    """A row of the table."""

    tokens: int
    most_output: int
    """The longest answer that the model can give."""
    source: str
    verified: date


def _rows(source: str, verified: date, tokens: int, most_output: int, *names: str) -> dict[str, KnownWindow]:
    return dict.fromkeys(names, KnownWindow(tokens, most_output, source, verified))


_READ = date(2026, 11, 19)

KNOWN: Mapping[str, KnownWindow] = MappingProxyType(
    _rows(_ANTHROPIC, _READ, 1_000_000, 128_000, "claude-fable-5-1", "claude-opus-5-5", "claude-opus-5")
    | _rows(_ANTHROPIC, _READ, 1_000_000, 128_000, "claude-sonnet-5-5", "claude-sonnet-5", "claude-haiku-5-5")
    | _rows(_ANTHROPIC, _READ, 1_000_000, 128_000, "claude-fable-5")
    | _rows(_ANTHROPIC, _READ, 200_000, 64_000, "claude-haiku-4-5")
    | _rows(_LITELLM, _READ, 1_000_000, 128_000, "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6")
    | _rows(_LITELLM, _READ, 1_000_000, 64_000, "claude-sonnet-4-6")
    | _rows(_LITELLM, _READ, 200_000, 64_000, "claude-opus-4-5", "claude-sonnet-4-5")
    | _rows(_LITELLM, _READ, 200_000, 32_000, "claude-opus-4-1")
    | _rows(_VERCEL, _READ, 1_050_000, 128_000, "gpt-6.1-sol")
    | _rows(_RUNWARE, _READ, 1_050_000, 128_000, "gpt-6-sol")
    | _rows(_LITELLM, _READ, 1_050_000, 128_000, "gpt-5.6-sol", "gpt-5.6-terra", "gpt-5.6-luna")
    | _rows(_LITELLM, _READ, 1_050_000, 128_000, "gpt-5.5", "gpt-5.5-pro", "gpt-5.4", "gpt-5.4-pro")
    | _rows(_LITELLM, _READ, 400_000, 128_000, "gpt-5.4-mini", "gpt-5.4-nano", "gpt-5.2", "gpt-5.2-pro")
    | _rows(_LITELLM, _READ, 400_000, 128_000, "gpt-5.1", "gpt-5", "gpt-5-mini", "gpt-5-nano")
    | _rows(_LITELLM, _READ, 1_047_576, 32_768, "gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano")
    | _rows(_LITELLM, _READ, 128_000, 16_384, "gpt-4o", "gpt-4o-mini")
    | _rows(_LITELLM, _READ, 200_000, 100_000, "o1", "o3", "o3-mini", "o4-mini")
)

_DATE = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2})$")


def known_window(model: str) -> KnownWindow | None:
    """The row of a model; None: not known."""
    return KNOWN.get(_DATE.sub("", model))


def preset_window(preset: Preset) -> ContextWindow | None:
    """The context window of a preset's model: as the preset says, else as the table says; None: unknown."""
    known = known_window(preset.model)
    tokens = preset.context_window or (known.tokens if known else None)
    if tokens is None:
        return None
    return ContextWindow(tokens, _kept_for_output(preset, tokens, known))


def preset_limits(preset: Preset) -> CallLimits:
    """What bounds the worst case of a call of a preset's model."""
    known = known_window(preset.model)
    most = default_output(preset) if preset.driver is Driver.ANTHROPIC else known and known.most_output
    prices = preset.prices
    return CallLimits((prices,) if prices.is_known else (), preset.max_output_tokens, most)


def default_output(preset: Preset) -> int:
    """The longest answer to ask for where an API needs a limit and the preset sets none."""
    known = known_window(preset.model)
    tokens = preset.context_window or (known.tokens if known else None)
    return MAX_OUTPUT_TOKENS if tokens is None else _share_for_output(tokens)


def _kept_for_output(preset: Preset, tokens: int, known: KnownWindow | None) -> int:
    if preset.driver is not Driver.ANTHROPIC and known is not None and preset.context_window is None:
        # OpenAI subtracts the longest possible answer from the window, whatever the request asks for.
        return known.most_output
    return min(preset.max_output_tokens or _share_for_output(tokens), tokens - 1)


def _share_for_output(tokens: int) -> int:
    return max(1, min(MAX_OUTPUT_TOKENS, tokens // 4))
