"""Detects answers of another API than the driver's, and advises how to fix the preset.

Servers that call themselves compatible differ in the fields that they leave out. A driver that guessed would
read half of an answer, so a sign of another API ends the step at once, with the name of the driver that fits.
"""

from collections.abc import Mapping
from typing import Any

from everstep.agent_domain.errors import ModelUnavailable, UnreadableAnswer, WrongApi
from everstep.inference.presets import Driver, Preset

_APIS = {
    Driver.OPENAI: "the Responses API",
    Driver.OPENAI_CHAT: "Chat Completions",
    Driver.ANTHROPIC: "the Messages API",
}
_MESSAGES_EVENTS = ("message_", "content_block_")


def driver_for(event: Mapping[str, Any]) -> Driver | None:
    """The driver whose API an event belongs to; None if it shows no sign of any."""
    kind = event.get("type")
    if isinstance(kind, str):
        if kind.startswith("response."):
            return Driver.OPENAI
        return Driver.ANTHROPIC if kind.startswith(_MESSAGES_EVENTS) else None
    return Driver.OPENAI_CHAT if isinstance(event.get("choices"), list) else None


def wrong_api(preset: Preset, actual: Driver) -> WrongApi:
    """The server uses another API than the preset's driver."""
    return _wrong(
        preset,
        f"answers in {_APIS[actual]}, and driver '{preset.driver}' expects "
        f"{_APIS[preset.driver]}. Set driver = \"{actual}\" in preset '{preset.name}'.",
    )


def incomplete_api(preset: Preset, missing: str) -> WrongApi:
    """The server imitates the Responses API, but its events lack required fields."""
    return _wrong(
        preset,
        f"does not support the whole Responses API: an event has no '{missing}'. "
        f'If the server supports Chat Completions, set driver = "{Driver.OPENAI_CHAT}" '
        f"in preset '{preset.name}'.",
    )


def _wrong(preset: Preset, what: str) -> WrongApi:
    """Every user may read what to change; only the operator's text names the server's address."""
    return WrongApi(f"{_place(preset)} {what}", advice=f"{preset.model} {what}")


def no_events(preset: Preset, content_type: str) -> ModelUnavailable:
    """The response had no event at all."""
    if content_type.startswith("text/event-stream"):
        return ModelUnavailable(f"{_place(preset)} sent an empty answer")
    is_page = content_type.startswith("text/html")
    what = "a web page" if is_page else content_type or "something"
    check = f"Check 'base_url' and 'driver' of preset '{preset.name}'.{also_chat(preset)}"
    error = UnreadableAnswer(f"{_place(preset)} sent {what} instead of a stream of events. {check}")
    error.advice = f"{preset.model} sent {'a web page' if is_page else 'no stream of events'}. {check}"
    return error


def unreadable(preset: Preset, error: Exception) -> UnreadableAnswer:
    """An event, or the whole answer, has a shape that the API does not have."""
    match error:
        case KeyError():
            what = f"a field '{error.args[0]}' is missing" if error.args else "a field is missing"
        case UnicodeDecodeError():
            what = "an event is not in UTF-8"
        case ValueError() if type(error) is not ValueError:
            what = "an event is not JSON, or holds a value that does not fit"
        case RecursionError():
            what = "an event is nested too deeply"
        case _:
            what = "a field has another type than expected"
    return UnreadableAnswer(f"{_place(preset)} sent an answer that cannot be read: {what}")


def also_chat(preset: Preset) -> str:
    """The advice for a server other than OpenAI's that may not support the Responses API."""
    if preset.driver is not Driver.OPENAI or not preset.base_url:
        return ""
    return f' A server that supports only Chat Completions needs driver = "{Driver.OPENAI_CHAT}".'


def _place(preset: Preset) -> str:
    return f"{preset.model} at {preset.base_url}" if preset.base_url else preset.model
