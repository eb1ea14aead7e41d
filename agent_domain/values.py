"""JSON as immutable values, and the text formats of Everstep.

Data from users and models arrives as JSON. `freeze` validates all of it: it refuses values that JSON
cannot hold (and PostgreSQL cannot store), names their place, and returns
values that compare equal to plain lists and dictionaries but cannot be changed.
"""

import json
import math
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, NoReturn, SupportsIndex, TypeVar, cast
from uuid import UUID

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.nearest import did_you_mean

_JSON_TYPES = "text, a number, true, false, null, a list or a map with text keys"

MAX_DEPTH = 100
"""Deeper JSON is refused: encoders recurse, and no real document is that deep."""
DOCUMENT_DEPTH = 20
"""The additional depth that a value may have inside a serialized state."""

MAX_BITS = 14_000
"""Larger whole numbers are refused: they have over 4,200 digits, and Python converts at most 4,300."""


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("this value is frozen; make a changed copy instead")


class FrozenDict(dict[str, Any]):
    """A dictionary that cannot be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(frozen_map, handler(dict[str, Any]))

    def merged(self, other: Mapping[str, Any]) -> "FrozenDict":
        """A copy with these entries added."""
        return FrozenDict({**self, **frozen_map(other)})


class FrozenList(list[Any]):
    """A list that cannot be changed."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return FrozenList, (list(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(freeze, handler(list[Any]))


EMPTY = FrozenDict()


def freeze(value: object, where: str = "value", depth: int = 0) -> Any:
    """Make JSON immutable.

    Args:
        value: The JSON value.
        where: What the value is, for error messages.
        depth: The depth at which the value is nested already.

    Raises:
        InvalidInput: Part of the value is not JSON; the message names the first such place.
    """
    try:
        return _freeze_usual(value, depth)
    except InvalidInput:
        # A second time, to name the place.
        return _freeze_any(value, where, depth)


def _freeze_usual(value: object, depth: int) -> Any:
    """`freeze` for what `json` returns and for frozen values, without names of places.

    Most values are of these types, and every row and message passes through here.
    """
    kind = type(value)
    if kind is str:
        return value if _is_plain(cast("str", value)) else _valid_string(cast("str", value), "")
    if value is None or kind is bool:
        return value
    if depth < MAX_DEPTH:
        if kind is dict or kind is FrozenDict:
            items = cast("dict[object, object]", value).items()
            return FrozenDict(
                {
                    k if type(k) is str and _is_plain(k) else _valid_key(k, ""): _freeze_usual(v, depth + 1)
                    for k, v in items
                }
            )
        if kind is list or kind is FrozenList or kind is tuple:
            return FrozenList([_freeze_usual(v, depth + 1) for v in cast("list[object]", value)])
    return _freeze_any(value, "", depth)


def _is_plain(text: str) -> bool:
    """Whether the text is ASCII without NUL, which is seen without encoding it."""
    return text.isascii() and "\x00" not in text


def _freeze_any(value: object, where: str, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _valid_integer(value, where)
    if isinstance(value, str):
        return _valid_string(value, where)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{where} is {value}, which JSON cannot hold; use null or text")
        return value
    if depth >= MAX_DEPTH:
        raise InvalidInput(f"{where} is nested deeper than {MAX_DEPTH} levels; flatten it")
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return FrozenDict({_valid_key(k, where): _freeze_any(v, f"{where}.{k}", depth + 1) for k, v in items})
    if isinstance(value, list | tuple):
        entries = cast("Iterable[object]", value)
        return FrozenList(_freeze_any(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(entries))
    raise InvalidInput(f"{where} is of type {type(value).__name__}; use {_JSON_TYPES}")


def type_name(value: object) -> str:
    """The name of a value's type for error messages: a `FrozenList` is a list to its author."""
    return "list" if isinstance(value, list) else "dict" if isinstance(value, dict) else type(value).__name__


def frozen_map(value: object, where: str = "value") -> FrozenDict:
    """`freeze` for a value that must be a map."""
    if isinstance(value, FrozenDict):
        return value
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where} must be a map, not {type_name(value)}")
    return cast("FrozenDict", freeze(cast("object", value), where))


def frozen_document(value: object, where: str) -> FrozenDict:
    """`frozen_map` for a serialized object that contains values of the maximum depth."""
    if not isinstance(value, Mapping):
        return frozen_map(value, where)
    return cast("FrozenDict", freeze(cast("object", value), where, -DOCUMENT_DEPTH))


def thaw(value: Any) -> Any:
    """Convert to plain dictionaries and lists, for code that wants to change them."""
    if isinstance(value, Mapping):
        return {k: thaw(v) for k, v in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [thaw(v) for v in cast("list[Any]", value)]
    return value


def _valid_integer(value: int, where: str) -> int:
    if value.bit_length() > MAX_BITS:
        raise InvalidInput(f"{where} is a number of thousands of digits, which JSON readers refuse; use text")
    return value


def _valid_string(value: str, where: str) -> str:
    if "\x00" in value:
        raise InvalidInput(f"{where} contains a NUL character; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{where} contains half of a surrogate pair; send valid Unicode") from None
    # For a member of an enumeration of texts, `str()` would give the name.
    return str.__str__(value)


def _valid_key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"{where} has the key {key!r}; keys must be text")
    return _valid_string(key, f"a key of {where}")


def valid_text(value: object, where: str) -> str:
    """Return the text; raise `InvalidInput` if it is not text that can be stored and sent."""
    if not isinstance(value, str):
        raise InvalidInput(f"{where} must be text, not {type_name(value)}")
    return _valid_string(value, where)


def valid_number(value: object, where: str) -> float:
    """Return the number; raise `InvalidInput` if it is not a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidInput(f"{where} must be a number, not {type(value).__name__}")
    # A whole number may be larger than any float; every comparison with nan is false.
    if not abs(value) <= sys.float_info.max:
        raise InvalidInput(f"{where} must be finite; leave it out for no limit")
    return value


def as_list(value: object, where: str) -> list[Any]:
    """Return the entries of an iterable as a list; texts and maps are refused."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidInput(f"{where} must be a list, not {type(cast('object', value)).__name__}")
    return list(cast("Iterable[Any]", value))


MemberT = TypeVar("MemberT", bound=StrEnum)


def enum_member(kind: type[MemberT], value: object, where: str) -> MemberT:
    """Return the member with that value; raise `InvalidInput` if there is none."""
    try:
        return kind(value)
    except ValueError:
        hint = did_you_mean(str(value), kind)
        raise InvalidInput(f"{where} is {value!r}; use one of: {', '.join(kind)}{hint}") from None


def escape_unstorable(text: str) -> str:
    """Escape the characters that cannot be stored, in a text from an external source."""
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


def json_text(value: object) -> str:
    """Serialize to compact JSON that keeps the order of keys and does not escape Unicode."""
    return _ENCODER.encode(value)


# `json.dumps` would make one for each value.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse_json(text: str, where: str = "the text") -> Any:
    """Parse a text as immutable JSON; raise `InvalidInput` if it is not JSON."""
    try:
        return freeze(json.loads(text), where)
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not valid JSON: {error}") from None


def parse_uuid(value: object, where: str) -> UUID:
    """Return a UUID, given as such or as text; raise `InvalidInput` that names its place otherwise."""
    try:
        return value if isinstance(value, UUID) else UUID(valid_text(value, where))
    except ValueError:
        raise InvalidInput(f"{where} is {value!r}; pass a UUID") from None


def parse_optional_uuid(value: object, where: str) -> UUID | None:
    """Like `parse_uuid`, but None for None and for an empty text."""
    return None if value is None or value == "" else parse_uuid(value, where)


MAX_ID = 200
"""The maximum length of an id: ids become parts of channel names and of keys."""


def uuid_or_text(value: object, where: str) -> UUID | str:
    """Return an id that an application chose: a UUID if it is one, otherwise the text."""
    try:
        return parse_uuid(value, where)
    except InvalidInput:
        pass
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ID:
        raise InvalidInput(f"{where} is {value!r}; pass a UUID, or a text of 1 to {MAX_ID} characters")
    return value


class reading:  # noqa: N801 -- used as `with reading("..."):`, like `contextlib.suppress`
    """Turns every exception from parsing stored or received data into `InvalidInput`.

    This is a class because since Python 3.12 a `@contextmanager` that replaces an exception leaves a
    reference cycle: the frame of the generator refers to the frame that threw into it. The gateway's process
    switches the garbage collector off.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, InvalidInput):
            raise InvalidInput(f"{self._what} cannot be read: {error}") from None
        if type(error) is KeyError:
            raise InvalidInput(f"{self._what} cannot be read: {error} is missing") from error
        if isinstance(error, _UNREADABLE):
            raise InvalidInput(f"{self._what} cannot be read: {type(error).__name__}: {error}") from error


_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


ReadT = TypeVar("ReadT")


def read_key(data: Mapping[str, Any], key: str, parse: Callable[[Any], ReadT]) -> ReadT:
    """Parse the value under a key; errors name the keys of all levels."""
    require_map(data)
    if key not in data:
        raise InvalidInput(f"'{key}' is missing")
    with reading(f"'{key}'"):
        return parse(data[key])


def read_optional(data: Mapping[str, Any], key: str, parse: Callable[[Any], ReadT]) -> ReadT | None:
    """Like `read_key`, but None where the key is missing or its value is null or empty."""
    require_map(data)
    return read_key(data, key, parse) if data.get(key) else None


def require_map(data: object, what: str = "it") -> None:
    """Raise `InvalidInput` unless the data is a map."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{what} must be a map, not {type_name(data)}")


def read_each(data: Mapping[str, Any], key: str, parse: Callable[[Any], ReadT]) -> tuple[ReadT, ...]:
    """Parse every entry of the list under a key; without the key the result is empty."""
    return read_optional(data, key, lambda value: tuple(map(parse, as_list(value, "it")))) or ()


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def is_hidden(char: str) -> bool:
    """Whether a character is invisible or changes how others are shown: controls, formats, line ends."""
    return unicodedata.category(char) in _HIDDEN


def truncate(text: str, length: int) -> str:
    """Cut a text to `length` characters, and append `...` if some were removed."""
    return text if len(text) <= length else text[:length] + "..."


def format_moment(at: datetime, digits: int) -> str:
    """Format a time as ISO 8601 in UTC, ending in `Z`.

    Args:
        at: An aware datetime.
        digits: The digits of the fraction of a second; further ones are dropped, not rounded.

    Raises:
        InvalidInput: The datetime has no time zone.
    """
    if at.tzinfo is None:
        raise InvalidInput(f"the moment {at.isoformat()} has no time zone; pass an aware datetime")
    at = at.astimezone(UTC)
    fraction = f".{at.microsecond:06d}"[: digits + 1] if digits else ""
    return f"{at.replace(tzinfo=None, microsecond=0).isoformat()}{fraction}Z"


def format_optional_moment(at: datetime | None, digits: int = 6) -> str | None:
    """Format a time, or return None for None."""
    return None if at is None else format_moment(at, digits)


def parse_moment(value: object, where: str = "the moment") -> datetime:
    """Parse an ISO 8601 date and time; the result is an aware datetime in UTC."""
    text = valid_text(value, where)
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{where} is not an ISO 8601 date and time with a zone: {value!r}") from None


def parse_optional_moment(value: object, where: str = "the moment") -> datetime | None:
    """Like `parse_moment`, but None for None."""
    return None if value is None else parse_moment(value, where)
