"""The places and texts of validation errors, in the terms of JSON: pydantic's are those of Python."""

from collections.abc import Mapping, Sequence, Sized
from typing import Any, Final

from everstep.agent_domain.values import escape_unstorable

_OBJECT: Final = "send an object"
_LIST: Final = "send a list"
_WHOLE_NUMBER: Final = "send a whole number"
_NUMBER: Final = "send a number"
_TRUTH: Final = "send true or false"
_ID: Final = "send a UUID"
_TIME: Final = "it is not a time; send one such as 2026-01-16T10:05:00Z"

_TEXTS: Final[Mapping[str, str]] = {
    "model_attributes_type": _OBJECT,
    "model_type": _OBJECT,
    "dict_type": _OBJECT,
    "dataclass_type": _OBJECT,
    "mapping_type": _OBJECT,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "set_type": _LIST,
    "sequence_str": _LIST,
    "int_type": _WHOLE_NUMBER,
    "int_parsing": _WHOLE_NUMBER,
    "int_from_float": _WHOLE_NUMBER,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "string_type": "send text",
    "uuid_type": _ID,
    "uuid_parsing": _ID,
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "datetime_object_invalid": _TIME,
    "timezone_aware": "the time has no time zone; send one such as 2026-01-16T10:05:00Z",
}
"""By pydantic's type of the error."""


def described_faults(details: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the place and the text of each invalid part of a request, without the input.

    Args:
        details: The errors as pydantic lists them.
    """
    return [
        {"at": escape_unstorable(_place(each)), "message": escape_unstorable(_text(each))}
        for each in details
        if not _is_consequence(each)
    ]


def _place(detail: Mapping[str, Any]) -> str:
    # For text that is not JSON, `loc` ends with the position of the fault, which is no part of the request.
    if detail["type"] == "json_invalid":
        return "body"
    # Of a value of one of several types, `loc` names the one that was tried: a function, or `list[str]`.
    named = [str(part) for part in detail["loc"] if not (isinstance(part, str) and part.endswith(("]", ")")))]
    return ".".join(named) or "body"


def _is_consequence(detail: Mapping[str, Any]) -> bool:
    """Whether a list is too short only because its items are invalid, which have errors of their own."""
    match detail:
        case {"type": "too_short", "input": Sized() as given, "ctx": {"min_length": least}}:
            return len(given) >= least
        case _:
            return False


def _text(detail: Mapping[str, Any]) -> str:
    match detail:
        case {"type": "json_invalid", "loc": (*_, int(at)), "ctx": {"error": str(reason)}}:
            return f"Invalid JSON: {reason} (at character {at + 1})"
        # Pydantic reports these also for text that is validated before its length is checked.
        case {"type": "too_long" | "too_short" as kind, "input": Sized() as given, "ctx": limits}:
            limit = f"most {limits['max_length']}" if kind == "too_long" else f"least {limits['min_length']}"
            return f"it has {_length_text(given)}; send at {limit}"
        case {"type": "model_attributes_type", "loc": ("body",), "input": bytes()}:
            return "it is not sent as JSON; add the header Content-Type: application/json"
        case {"type": "is_instance_of", "ctx": {"class": "Sequence"}}:
            return _LIST
        case {"type": "value_error", "ctx": {"error": error}}:
            return str(error)
        case _:
            return _TEXTS.get(detail["type"], str(detail["msg"]))


def _length_text(given: Sized) -> str:
    count = len(given)
    what = "character" if isinstance(given, str) else "item"
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
