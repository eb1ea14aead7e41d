"""The models of a process: from its environment and `everstep.toml`, wherever agents run."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from everstep.agent_domain.agents.call_limits import unknown_prices_text
from everstep.agent_domain.agents.definition import AgentDefinition
from everstep.agent_domain.agents.drivers import StepDriver
from everstep.agent_domain.agents.token_counting import ContextWindow, window_of
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.fairness.shares import Claimant
from everstep.agent_domain.fairness.turns import equal_weights
from everstep.agent_domain.loop.usage import usd_number
from everstep.agent_domain.storage.rate_store import RateStore
from everstep.agent_domain.tools.inquiry import ModelChoice
from everstep.inference.context_windows import preset_window
from everstep.inference.models import Models
from everstep.inference.presets import DEMO, Driver, Preset, Presets, table_prices
from everstep.runtime import demo_agent
from everstep.runtime.local_model.model_server import find_endpoint, missing_part
from everstep.runtime.settings import Settings
from everstep.steps.paced_calls import FALLBACK_PATIENCE_SECONDS, PATIENCE_SECONDS, PacedCalls
from everstep.steps.shared_rates import LocalRates


def presets_of(settings: Settings) -> Presets:
    """Return the presets of an installation; the default one depends on the available keys."""
    return Presets.read(settings.presets, os.environ, settings.preset)


def demo_warning(settings: Settings, agents: Mapping[str, AgentDefinition]) -> str | None:
    """Return a warning if a script answers for agents that name no model, as no provider's key is set."""
    presets = presets_of(settings)
    is_chosen = settings.preset is not None or presets.default != DEMO
    own = {name: agent for name, agent in agents.items() if agent is not demo_agent.DEMO} or agents
    names = [name for name, agent in own.items() if agent.wants_model and agent.model_choice is None]
    if is_chosen or not names or presets.resolve().driver is not Driver.SCRIPTED:
        return None
    return (
        "neither OPENAI_API_KEY nor ANTHROPIC_API_KEY is set, so the scripted demo model answers for "
        f"{', '.join(names)}: set a key, or EVERSTEP_PRESET=demo if this is intended"
    )


def agent_window(presets: Presets, definition: AgentDefinition, model: str | None) -> ContextWindow | None:
    """Return the context window of an agent's model, or of the named one; None if it is not known."""
    if not definition.wants_model:
        driver = definition.driver
        return window_of(driver.model) if isinstance(driver, StepDriver) else None
    try:
        chain = presets.chain(presets.resolve(model or definition.model_choice))
    except InvalidInput:
        # The execution reports it, with what to do.
        return None
    windows = [window for preset in chain if (window := preset_window(preset))]
    return min(windows, key=lambda window: window.input_tokens, default=None)


def models_of(
    settings: Settings,
    rates: RateStore | None = None,
    weight_of: Callable[[Claimant], float] = equal_weights,
) -> Models:
    """Return the models of an installation, with the keys of this process.

    Args:
        settings: The settings.
        rates: Has the rates that all processes share; None: each process has its own.
        weight_of: The weights of tenants that wait for the limits of a preset.
    """
    shared = LocalRates() if rates is None else rates

    def gate_of(preset: Preset) -> PacedCalls | None:
        if preset.requests_per_minute is None and preset.tokens_per_minute is None:
            return None
        return PacedCalls(
            shared,
            preset.name,
            requests_per_minute=preset.requests_per_minute,
            tokens_per_minute=preset.tokens_per_minute,
            weight_of=weight_of,
            patience=FALLBACK_PATIENCE_SECONDS if preset.fallback else PATIENCE_SECONDS,
        )

    endpoint = partial(find_endpoint, settings)
    return Models(presets_of(settings), os.environ, local_endpoint=endpoint, gate_of=gate_of)


def require_prices(presets: Presets, choice: ModelChoice) -> None:
    """Refuse a model whose prices are not known, or one of whose fallbacks has unknown prices.

    Raises:
        InvalidInput: The prices are not known, or there is no such model.
    """
    for preset in presets.chain(presets.resolve(choice)):
        if not preset.prices.is_known:
            raise InvalidInput(unknown_prices_text(preset.model or preset.name))


def configured_models(settings: Settings) -> list[dict[str, Any]]:
    """Describe the model of each preset, and the default one, without their keys."""
    presets = presets_of(settings)
    usual = presets.resolve()
    listed = [*presets.by_name.values(), *([] if usual.name in presets.names else [usual])]
    return [
        _description(preset)
        | {
            "is_default": preset.name == usual.name,
            "missing": missing_part(settings) if preset.driver is Driver.LOCAL else None,
        }
        for preset in listed
    ]


def _description(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "driver": preset.driver.value,
        "model": preset.model,
        "base_url": preset.base_url,
        "api_key_env": preset.api_key_env,
        "has_key": _has_key(preset),
        "fallback": preset.fallback,
        **_prices(preset),
        "context_window": window.tokens if (window := preset_window(preset)) else None,
    }


def _prices(preset: Preset) -> dict[str, Any]:
    """Return the prices that apply, and where those come from that the preset does not set."""
    listed, known = preset.prices, table_prices(preset)
    prices = {field.name: getattr(listed.prices, field.name) for field in fields(listed.prices)}
    return {
        **{f"{name}_price": usd_number(price) for name, price in prices.items()},
        "prices_source": known and known.source,
        "prices_read_on": known and known.read_on.isoformat(),
    }


def _has_key(preset: Preset) -> bool | None:
    """Return whether the key is set; None if none is needed."""
    try:
        return None if preset.key(os.environ) is None else True
    except InvalidInput:
        return False
