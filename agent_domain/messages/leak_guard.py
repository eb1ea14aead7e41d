"""Removes tool arguments that a model repeats as text.

Some models repeat the arguments of their call as text. Such text is dropped, but only if the response
contains no other text: prose that mentions arguments is kept.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.messages import Messages
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import FrozenDict, FrozenList, parse_json

_FENCE = "```"
_INFO = re.compile(r"[\w-]*\s*")
_BEGINS = re.compile(r"\s*(?:```[\w-]*\s*)?[{\[]")
"""Matches text that begins like arguments."""
_MAY_BEGIN = re.compile(r"\s*(?:`{0,3}|```[\w-]*\s*)")
"""Matches text that is too short to decide."""


def without_repeated_arguments(text: str, calls: Iterable[ToolCall]) -> str:
    """The text of a response, or an empty text if it only repeats the arguments of one of its calls."""
    calls = tuple(calls)
    return "" if calls and _is_arguments(text, calls) else text


def calls_in(messages: Messages) -> list[ToolCall]:
    """The tool calls of a conversation."""
    entries = [entry for message in messages for entry in message.calls]
    return [ToolCall.from_text(e["id"], e["function"]["name"], e["function"]["arguments"]) for e in entries]


def final_response(messages: Messages, calls: Sequence[ToolCall]) -> str | None:
    """The last answer of a conversation in which these calls were made."""
    answers = (m.text for m in reversed(messages) if m.is_assistant and not m.calls)
    return next((text for text in answers if without_repeated_arguments(text, calls).strip()), None)


class TextGuard:
    """Buffers streamed text that begins like arguments, because sent text cannot be retracted."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._held = ""
        self._passes = self._waits = False

    def feed(self, text: str) -> None:
        """Receive a chunk of text; pass it on unless it may be arguments."""
        if self._passes:
            self._on_text(text)
            return
        self._held += text
        self._waits = self._waits or _BEGINS.match(self._held) is not None
        if not self._waits and not _MAY_BEGIN.fullmatch(self._held):
            self._passes = True
            self._on_text(self._held)

    def finish(self, text: str) -> None:
        """Receive the text of the complete response; send the buffer unless the text was dropped."""
        if text and self._held and not self._passes:
            self._on_text(self._held)


def _is_arguments(text: str, calls: tuple[ToolCall, ...]) -> bool:
    value = _parse_or_none(_strip_fence(text.strip()))
    return value is not None and any(_equal_json(value, _arguments(call)) for call in calls)


def _strip_fence(text: str) -> str:
    """Remove a code fence around the whole text."""
    if not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    inside = text.removeprefix(_FENCE).removesuffix(_FENCE)
    info, newline, lines = inside.partition("\n")
    return lines if newline and _INFO.fullmatch(info) else inside


def _arguments(call: ToolCall) -> Any:
    """The arguments as the model sent them, which need not be an object."""
    return call.args if call.malformed is None else _parse_or_none(call.malformed)


def _parse_or_none(text: str) -> Any:
    """Parse JSON, or return None for other text; models do not send null as arguments."""
    try:
        return parse_json(text)
    except InvalidInput:
        return None


def _equal_json(one: object, other: object) -> bool:
    """Deep equality of JSON, in which `true` is not 1."""
    match one, other:
        case FrozenDict(), FrozenDict():
            return one.keys() == other.keys() and all(_equal_json(v, other[k]) for k, v in one.items())
        case FrozenList(), FrozenList():
            return len(one) == len(other) and all(map(_equal_json, one, other))
        case bool(), _:
            return one is other
        case _, bool():
            return False
        case _:
            return one == other
