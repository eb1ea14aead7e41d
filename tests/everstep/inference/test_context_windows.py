"""The context window of a preset's model, and what of it a request may fill."""

from typing import Any

import pytest

from everstep.agent_domain.agents.token_counting import ContextWindow, window_of
from everstep.inference.context_windows import KNOWN, preset_window
from everstep.inference.fallback import FallbackModel
from everstep.inference.presets import Preset
from everstep.inference.scripted import ScenarioModel, Script


def window(**settings: Any) -> tuple[int, int] | None:
    found = preset_window(Preset.read("tested", settings))
    return None if found is None else (found.tokens, found.input_tokens)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # OpenAI always subtracts the longest answer, Anthropic what the request asks for.
        ({"driver": "openai", "model": "gpt-5.5"}, (1_050_000, 922_000)),
        ({"driver": "openai", "model": "gpt-5.5-2026-04-23"}, (1_050_000, 922_000)),
        ({"driver": "openai", "model": "gpt-5.4-mini", "max_output_tokens": 100}, (400_000, 272_000)),
        ({"driver": "openai-chat", "model": "gpt-4o", "base_url": "http://x"}, (128_000, 111_616)),
        ({"driver": "anthropic", "model": "claude-opus-5-5"}, (1_000_000, 983_616)),
        ({"driver": "anthropic", "model": "claude-haiku-4-5-20251001"}, (200_000, 183_616)),
        ({"driver": "anthropic", "model": "claude-haiku-4-5", "max_output_tokens": 50}, (200_000, 199_950)),
        # A preset's own number takes precedence.
        ({"driver": "openai", "model": "gpt-5.5", "context_window": 9000}, (9000, 6750)),
        ({"driver": "openai-chat", "model": "m", "context_window": 200_000}, (200_000, 183_616)),
        (
            {"driver": "openai-chat", "model": "m", "context_window": 9000, "max_output_tokens": 1000},
            (9000, 8000),
        ),
        ({"driver": "scripted", "context_window": 2}, (2, 1)),
        ({"driver": "openai-chat", "model": "qwen3"}, None),
        ({"driver": "scripted"}, None),
    ],
)
def test_the_window_is_that_of_the_preset_or_of_the_table(
    settings: dict[str, Any], expected: tuple[int, int] | None
) -> None:
    """14.2"""
    assert window(**settings) == expected


def test_each_row_of_the_table_says_where_it_comes_from() -> None:
    for name, row in KNOWN.items():
        assert row.source.startswith("https://"), name
        assert 0 < row.most_output < row.tokens, name


def test_a_chain_has_the_smallest_known_window() -> None:
    script = Script.of("ok")
    small, large = ContextWindow(100, 10), ContextWindow(1000, 10)
    models = [ScenarioModel(script), ScenarioModel(script, window=large), ScenarioModel(script, window=small)]
    assert FallbackModel(models).window == small
    assert FallbackModel(models[:1]).window is None
    assert window_of(object()) is None
