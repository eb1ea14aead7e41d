"""Keeps tool arguments out of what a model says.

Some models repeat the arguments of their call as text. Such text is dropped, but only when
nothing else was said: prose that mentions arguments stays.
"""

import re
from collections.abc import Iterable
from typing import Any

from agent_domain.errors import InvalidInput
from agent_domain.tools import ToolCall
from agent_domain.values import FrozenDict, FrozenList, parse_json

_FENCE = "```"
_INFO = re.compile(r"[\w-]*\s*")


def said(text: str, calls: Iterable[ToolCall]) -> str:
    """The text of a response, or empty text when it only repeats the arguments of one of its calls."""
    calls = tuple(calls)
    return "" if calls and _is_arguments(text, calls) else text


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
