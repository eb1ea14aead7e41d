"""Creates models from presets.

Clients keep connections, so each preset has one model during the lifetime of `Models`. A model can be used in
any number of event loops (see `everstep.inference.loop_clients`).
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from everstep.agent_domain.agents.drivers import Model
from everstep.agent_domain.errors import InvalidInput
from everstep.inference.call_gates import CallGate
from everstep.inference.context_windows import preset_limits, preset_window
from everstep.inference.fallback import FallbackModel
from everstep.inference.local_endpoint import FindEndpoint
from everstep.inference.presets import Driver, Preset, Presets
from everstep.inference.provider_model import ProviderModel, utc_now
from everstep.inference.scripted import ScenarioModel, Script, Sleep

DEMO_SCRIPT = Script.of(
    "I am the scripted demo model of this installation: I always say the same. "
    "Set OPENAI_API_KEY or ANTHROPIC_API_KEY, or write a preset, and a real model answers instead."
)


@runtime_checkable
class ClosableModel(Protocol):
    """A model that holds connections."""

    async def aclose(self) -> None:
        """Close the connections."""
        ...


def without_gate(preset: Preset) -> None:
    """Limit nothing."""
    del preset


class Models:
    """The models of an installation, by preset."""

    def __init__(
        self,
        presets: Presets,
        environ: Mapping[str, str],
        *,
        now: Callable[[], datetime] = utc_now,
        sleep: Sleep = asyncio.sleep,
        local_endpoint: Callable[[Preset], FindEndpoint] | None = None,
        gate_of: Callable[[Preset], CallGate | None] = without_gate,
    ) -> None:
        """Make models of presets.

        Args:
            presets: The presets.
            environ: The variables with the keys.
            now: The clock.
            sleep: Waits, for scripted models.
            local_endpoint: Finds the server of a preset with the driver `local`; raises `InvalidInput` if the
                extra or the weights are missing.
            gate_of: The limits of a preset, if it has some.
        """
        self._gate_of = gate_of
        self._local_endpoint = local_endpoint
        self.presets = presets
        self._environ = environ
        self._now = now
        self._sleep = sleep
        self._models: dict[Preset, Model] = {}

    def model(self, wanted: str | Mapping[str, Any] | None = None) -> Model:
        """The model for an agent, with its fallbacks: by name, by settings, or the default."""
        chain = self.presets.chain(self.presets.resolve(wanted))
        models = [self.single(preset) for preset in chain]
        return models[0] if len(models) == 1 else FallbackModel(models)

    def single(self, preset: Preset) -> Model:
        """The model of a preset, without its fallbacks.

        Raises:
            InvalidInput: Its key is missing.
        """
        if preset not in self._models:
            model = self._models[preset] = self._create(preset)
            model.gate = self._gate_of(preset)
        return self._models[preset]

    def _create(self, preset: Preset) -> ProviderModel | ScenarioModel:
        # Imported on demand: an SDK takes up to a second to import, and few processes need both.
        match preset.driver:
            case Driver.SCRIPTED:
                script = Script.load(preset.scenario) if preset.scenario else DEMO_SCRIPT
                return ScenarioModel(
                    script,
                    self._sleep,
                    preset_window(preset),
                    preset_limits(preset),
                    prices=preset.prices,
                    name=preset.model,
                    preset=preset.name,
                )
            case Driver.OPENAI:
                from everstep.inference.openai_responses import OpenAIResponses  # noqa: PLC0415 -- see above

                return OpenAIResponses(preset, preset.key(self._environ), self._now)
            case Driver.OPENAI_CHAT:
                from everstep.inference.openai_chat import OpenAIChat  # noqa: PLC0415 -- see above

                return OpenAIChat(preset, preset.key(self._environ), self._now)
            case Driver.LOCAL:
                from everstep.inference.local_chat import LocalChat  # noqa: PLC0415 -- see above

                if self._local_endpoint is None:
                    raise InvalidInput("this process has no local model; run the agent on a worker")
                return LocalChat(preset, self._local_endpoint(preset), self._now)
            case Driver.ANTHROPIC:
                from everstep.inference.anthropic_messages import AnthropicMessages  # noqa: PLC0415 -- see above

                return AnthropicMessages(preset, preset.key(self._environ), self._now)

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        models, self._models = list(self._models.values()), {}
        for model in models:
            if isinstance(model, ClosableModel):
                await model.aclose()
