"""Keeps tool arguments out of what a model says.

Some models repeat the arguments of their call as text. Such text is dropped, but only when
nothing else was said: prose that mentions arguments stays.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.tools.tools import ToolCall
from everstep.agent_domain.values import FrozenDict, FrozenList, parse_json

_FENCE = "```"
_INFO = re.compile(r"[\w-]*\s*")
_BEGINS = re.compile(r"\s*(?:```[\w-]*\s*)?[{\[]")
"""How arguments begin."""
_MAY_BEGIN = re.compile(r"\s*(?:`{0,3}|```[\w-]*\s*)")
"""Too little text to tell."""


def said(text: str, calls: Iterable[ToolCall]) -> str:
    """The text of a response, or empty text when it only repeats the arguments of one of its calls."""
    calls = tuple(calls)
    return "" if calls and _is_arguments(text, calls) else text


class Held:
    """Text on its way to a listener, who cannot unhear it: what begins like arguments waits."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._held = ""
        self._passes = self._waits = False

    def heard(self, text: str) -> None:
        """Some more text."""
        if self._passes:
            self._on_text(text)
            return
        self._held += text
        self._waits = self._waits or _BEGINS.match(self._held) is not None
        if not self._waits and not _MAY_BEGIN.fullmatch(self._held):
            self._passes = True
            self._on_text(self._held)

    def ended(self, text: str) -> None:
        """The response is whole, and this is what it says."""
        if text and self._held and not self._passes:
            self._on_text(self._held)


def _is_arguments(text: str, calls: tuple[ToolCall, ...]) -> bool:
    value = _parsed(_unfenced(text.strip()))
    return value is not None and any(_same(value, _arguments(call)) for call in calls)


def _unfenced(text: str) -> str:
    """What a code fence around the whole text holds."""
    if not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    inside = text.removeprefix(_FENCE).removesuffix(_FENCE)
    info, newline, lines = inside.partition("\n")
    return lines if newline and _INFO.fullmatch(info) else inside


def _arguments(call: ToolCall) -> Any:
    """What the model sent, which need not be an object."""
    return call.args if call.malformed is None else _parsed(call.malformed)


def _parsed(text: str) -> Any:
    """The JSON, or None for text that is none; nobody sends null as arguments."""
    try:
        return parse_json(text)
    except InvalidInput:
        return None


def _same(one: object, other: object) -> bool:
    """Deep equality of JSON, in which `true` is not 1."""
    match one, other:
        case FrozenDict(), FrozenDict():
            return one.keys() == other.keys() and all(_same(v, other[k]) for k, v in one.items())
        case FrozenList(), FrozenList():
            return len(one) == len(other) and all(map(_same, one, other))
        case bool(), _:
            return one is other
        case _, bool():
            return False
        case _:
            return one == other
