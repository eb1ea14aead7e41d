"""Maps failures of model calls to the domain's errors: transient ones, and those that need a fix.

SDKs and providers report failures in many ways: a status, a code in the error's body, an event in the middle
of a stream with neither. One table here reads all of them. Messages name the fix, and never contain a key.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, cast

from everstep.agent_domain.errors import ContextTooLong, ModelError, ModelUnavailable, RateLimited
from everstep.agent_domain.values import truncate
from everstep.inference.foreign import also_chat
from everstep.inference.presets import Preset
from everstep.inference.spoken import storable

MAX_MESSAGE = 500
"""The limit for the provider's message: some repeat the whole request."""

_NO_CREDIT = re.compile(r"insufficient_quota|billing|spend_limit|credit_balance")
_TOO_LONG = re.compile(
    r"context_length_exceeded|maximum context length|context window|context length|context size"
    r"|prompt is too long|input is too long|maximum (?:model|prompt) length|input token count"
    r"|tokens.? \+ .?max_new_tokens"
)
_SLOW_DOWN = re.compile(r"rate_limit|too_many_requests|ramp_limit")
_TRANSIENT = re.compile(r"overloaded|server_error|api_error|timeout|unavailable|internal_error")
_REFUSED = re.compile(
    r"invalid|authentication|permission|not_found|unsupported|policy|too_large|too_small|image"
    r"|data_residency|moderation"
)

_TRANSIENT_STATUSES = frozenset({408, 409, 425})
_ABOUT_THE_REQUEST = frozenset({None, 400, 413, 422})


@dataclass(frozen=True, slots=True)
class ProviderComplaint:
    """An error that a provider returned."""

    message: str
    status: int | None = None
    """None if it came in the middle of a stream that had begun with success."""
    words: str = ""
    """Codes and types, which do not change as messages do."""
    retry_after: float | None = None

    @classmethod
    def parse(
        cls, body: object, message: str = "", status: int | None = None, retry_after: float | None = None
    ) -> "ProviderComplaint":
        """Read an error's body in any of the known shapes."""
        layers = list(_layers(body))
        message = body if isinstance(body, str) and body else message
        words = [str(word) for word in _values(layers, "code", "type", "error_code")]
        numbers = [int(word) for word in words if re.fullmatch(r"[45]\d\d", word)]
        texts = [text for text in _values(layers, "error", "detail", "message") if isinstance(text, str)]
        reason = texts[-1] if texts else message
        # Some gateways put the upstream status into the body of a stream that began with 200.
        return cls(reason, status or next(iter(numbers), None), " ".join(words).lower(), retry_after)


def _layers(body: object) -> Iterator[Mapping[str, Any]]:
    """The body, the error inside it, and the details inside that."""
    while isinstance(body, Mapping):
        layer = cast("Mapping[str, Any]", body)
        yield layer
        body = layer.get("error") or layer.get("details")


def _values(layers: Iterable[Mapping[str, Any]], *keys: str) -> Iterator[Any]:
    return (layer[key] for layer in layers for key in keys if layer.get(key))


def failure(complaint: ProviderComplaint, preset: Preset, key: str | None = None) -> ModelError:
    """The error for a complaint, with advice if it can be fixed."""
    status, words = complaint.status, complaint.words
    reason = _without(key, truncate(storable(complaint.message).strip() or "no reason given", MAX_MESSAGE))
    problem = f"{preset.model}: {reason}" if status is None else f"{preset.model} ({status}): {reason}"
    if _NO_CREDIT.search(words) or "credit balance" in reason.lower():
        fix = f"Raise the limit or the credit of the account behind {_key_of(preset)}"
        return ModelError(_with_fix(problem, fix), advice=_only_advice(fix, preset, status))
    if _TOO_LONG.search(f"{words} {reason.lower()}") and status in _ABOUT_THE_REQUEST:
        fix = "The conversation is too long for this model: start a new one, or use a larger model"
        return ContextTooLong(_with_fix(problem, fix), advice=_only_advice(fix, preset, status))
    if status == HTTPStatus.TOO_MANY_REQUESTS or _SLOW_DOWN.search(words):
        return RateLimited(problem, complaint.retry_after)
    if status != HTTPStatus.NOT_IMPLEMENTED and _is_transient(status, words):
        return ModelUnavailable(problem, complaint.retry_after)
    fix = _fix(status, words, reason.lower(), preset)
    return ModelError(_with_fix(problem, fix), advice=_only_advice(fix, preset, status))


def _with_fix(problem: str, fix: str) -> str:
    return f"{problem.rstrip('.')}. {fix}." if fix else problem


def _only_advice(fix: str, preset: Preset, status: int | None) -> str | None:
    """The fix without the provider's message and without the address."""
    if not fix:
        return None
    fix = fix.replace(preset.base_url, "the provider") if preset.base_url else fix
    return f"{preset.model} refused the request{f' ({status})' if status else ''}. {fix}."


def _is_transient(status: int | None, words: str) -> bool:
    if status is not None and (status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRANSIENT_STATUSES):
        return True
    if status is not None and status >= HTTPStatus.BAD_REQUEST:
        return False
    # A stream that began well and broke off is the provider's failure, unless its error code says otherwise.
    return bool(_TRANSIENT.search(words)) or not _REFUSED.search(words)


def _fix(status: int | None, words: str, reason: str, preset: Preset) -> str:
    match status:
        case 401:
            return f"Check the key in {_key_of(preset)}"
        case 403:
            return f"The key in {_key_of(preset)} may not use this model"
        case 404:
            where = preset.base_url or "the provider"
            advice = f"Check 'model' and 'base_url' of preset '{preset.name}': {where} does not know it"
            return f"{advice}.{also_chat(preset)}".rstrip(".")
        case 400 | 405 | 422 | 501 if status in {405, 501} or "messages" in reason:
            return also_chat(preset).strip().rstrip(".")
        case None if "authentication" in words:
            return f"Check the key in {_key_of(preset)}"
        case _:
            return ""


def _key_of(preset: Preset) -> str:
    return preset.api_key_env or f"'api_key_env' of preset '{preset.name}' (it has none)"


def _without(key: str | None, text: str) -> str:
    return text.replace(key, "[key]") if key else text


def retry_after(headers: Mapping[str, str], now: Callable[[], datetime]) -> float | None:
    """How many seconds the provider asks to wait: a number, or the time until an HTTP date."""
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if value is None:
        return None
    seconds = _seconds(value)
    return seconds if seconds is not None else _until(value, now)


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _until(text: str, now: Callable[[], datetime]) -> float | None:
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now()).total_seconds())


def causes(error: BaseException) -> Iterable[BaseException]:
    """The error and its causes: SDKs raise 'Connection error.' and keep the reason inside."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__
