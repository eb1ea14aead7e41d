"""Checks of models: each is asked for a single token, and a failure says what to do."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from time import monotonic

from everstep.agent_domain.agents.drivers import ignore_text
from everstep.agent_domain.errors import (
    EverstepError,
    ModelTimeout,
    ModelUnavailable,
    RateLimited,
    UnreadableAnswer,
)
from everstep.agent_domain.messages.cached_context import InferenceRequest
from everstep.agent_domain.messages.messages import user
from everstep.inference.models import Models
from everstep.inference.presets import BUILT_IN, Driver, Preset
from everstep.runtime.models import models_of
from everstep.runtime.settings import Settings

CHECK_SECONDS = 30.0
"""The longest pause of an answer; a preset may set a shorter one."""
LEAST_TOKENS = {Driver.OPENAI: 16}
"""The Responses API refuses a smaller limit."""
QUESTION = user("Answer with one word: ok")


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The result of a check."""

    name: str
    model: str
    problem: str | None = None
    """What is wrong, and what to do."""
    seconds: float | None = None
    """How long the answer took; None: the model was not asked."""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong; a model that is not configured is not wrong."""
        return self.problem is None or self.seconds is None


async def check_models(settings: Settings, names: Iterable[str] = ()) -> AsyncGenerator[ModelCheck]:
    """Ask models for one token each, at the same time.

    Args:
        settings: The settings.
        names: The presets or models to check. Without any, all presets are checked but built-in ones that
            nothing configures: those have no key, are not the default, and no section changes them.

    Raises:
        InvalidInput: A name is unknown, or a setting is wrong.
    """
    models = models_of(settings)
    presets, wanted = models.presets, list(dict.fromkeys(names))
    needed = {preset.name for preset in presets.chain(presets.resolve())} | settings.presets.keys()
    chosen = [presets.resolve(name) for name in wanted or presets.names]
    checks = [
        asyncio.create_task(
            _check(models, preset, is_optional=not wanted and preset.name in BUILT_IN.keys() - needed)
        )
        for preset in chosen
    ]
    try:
        for check in checks:
            yield await check
    finally:
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        await models.aclose()


async def _check(models: Models, preset: Preset, *, is_optional: bool) -> ModelCheck:
    limits = {
        "max_output_tokens": LEAST_TOKENS.get(preset.driver, 1),
        "timeout_seconds": min(CHECK_SECONDS, preset.timeout_seconds),
    }
    began = monotonic()
    try:
        model = models.single(preset.model_copy(update=limits))
    except EverstepError as error:
        return ModelCheck(preset.name, preset.model, str(error), None if is_optional else 0.0)
    try:
        await model.respond(InferenceRequest((QUESTION,)), ignore_text)
    except EverstepError as error:
        return ModelCheck(preset.name, preset.model, _problem(error, preset), monotonic() - began)
    return ModelCheck(preset.name, preset.model, None, monotonic() - began)


def _problem(error: EverstepError, preset: Preset) -> str:
    """The failure, with what to do where its text does not say it."""
    text = str(error).rstrip(".")
    match error:
        case RateLimited():
            return f"{text}. The provider asks to slow down: try again later, or raise the account's limits"
        case UnreadableAnswer():
            return text
        case ModelTimeout() | ModelUnavailable():
            check = f"check the network and 'base_url' of preset '{preset.name}', and try again"
            return f"{text}: {check}"
        case _:
            return text
