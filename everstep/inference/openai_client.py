"""OpenAI's SDK, for both of its APIs."""

import openai

from everstep.inference.presets import Preset
from everstep.inference.provider_model import SdkErrors, timeouts

ADDRESS = "https://api.openai.com/v1"

ERRORS = SdkErrors(
    openai.OpenAIError, openai.APIStatusError, openai.APITimeoutError, openai.APIConnectionError
)


def client(preset: Preset, key: str | None) -> openai.AsyncOpenAI:
    """A client that does not retry, and takes its address and key only from the preset.

    The SDK requires a key; servers that need none ignore it.
    """
    return openai.AsyncOpenAI(
        api_key=key or "none",
        base_url=preset.base_url or ADDRESS,
        max_retries=0,
        timeout=timeouts(),
        default_headers=dict(preset.extra_headers),
    )
