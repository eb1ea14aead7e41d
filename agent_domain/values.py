"""JSON as immutable values, and the few ways in which Everstep writes text.

Data from users and models arrives as JSON. `freeze` is the one gate: it refuses what JSON
cannot hold (and what PostgreSQL cannot store), with the place where it stands, and returns
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
from typing import Any, NoReturn, SupportsIndex, TypeVar, cast
from uuid import UUID

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from everstep.agent_domain.errors import InvalidInput

_JSON_TYPES = "text, a number, true, false, null, a list or a map with text keys"

MAX_DEPTH = 100
"""Deeper JSON is refused: encoders recurse, and nobody means it."""
DOCUMENT_DEPTH = 20
"""How much deeper than by itself a value may stand in the written form of a state."""

MAX_BITS = 14_000
"""Larger whole numbers are refused: they have over 4,200 digits, and Python writes and reads 4,300."""


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
        """The same with these entries as well."""
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
    """The same JSON, immutable; `InvalidInput` names the first place that is no JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _whole(value, where)
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{where} is {value}, which JSON cannot hold; use null or text")
        return value
    if depth >= MAX_DEPTH:
        raise InvalidInput(f"{where} is nested deeper than {MAX_DEPTH} levels; flatten it")
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return FrozenDict({_key(k, where): freeze(v, f"{where}.{k}", depth + 1) for k, v in items})
    if isinstance(value, list | tuple):
        entries = cast("Iterable[object]", value)
        return FrozenList(freeze(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(entries))
    raise InvalidInput(f"{where} is of type {type(value).__name__}; use {_JSON_TYPES}")


def type_name(value: object) -> str:
    """What a value is, in words of whoever wrote it: nobody writes a `FrozenList`."""
    return "list" if isinstance(value, list) else "dict" if isinstance(value, dict) else type(value).__name__


def frozen_map(value: object, where: str = "value") -> FrozenDict:
    """`freeze` for what has to be a map."""
    if isinstance(value, FrozenDict):
        return value
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where} must be a map, not {type_name(value)}")
    return cast("FrozenDict", freeze(cast("object", value), where))


def frozen_document(value: object, where: str) -> FrozenDict:
    """`frozen_map` for the written form of what holds values as deep as any may be."""
    if not isinstance(value, Mapping):
        return frozen_map(value, where)
    return cast("FrozenDict", freeze(cast("object", value), where, -DOCUMENT_DEPTH))


def thaw(value: Any) -> Any:
    """Plain dictionaries and lists, for code that wants to change them."""
    if isinstance(value, Mapping):
        return {k: thaw(v) for k, v in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [thaw(v) for v in cast("list[Any]", value)]
    return value


def _whole(value: int, where: str) -> int:
    if value.bit_length() > MAX_BITS:
        raise InvalidInput(f"{where} is a number of thousands of digits, which JSON readers refuse; use text")
    return value


def _text(value: str, where: str) -> str:
    if "\x00" in value:
        raise InvalidInput(f"{where} contains a NUL character; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{where} contains half of a surrogate pair; send valid Unicode") from None
    # Of a member of an enumeration of texts, `str()` would give the name.
    return str.__str__(value)


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"{where} has the key {key!r}; keys must be text")
    return _text(key, f"a key of {where}")


def valid_text(value: object, where: str) -> str:
    """The text, if it is text that every store and wire can hold."""
    if not isinstance(value, str):
        raise InvalidInput(f"{where} must be text, not {type_name(value)}")
    return _text(value, where)


def number(value: object, where: str) -> float:
    """The number, if it is a finite one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidInput(f"{where} must be a number, not {type(value).__name__}")
    # A whole number may be larger than any float; what is no number at all compares as false.
    if not abs(value) <= sys.float_info.max:
        raise InvalidInput(f"{where} must be finite; leave it out for no limit")
    return value


def listed(value: object, where: str) -> list[Any]:
    """The entries of anything that has entries, but neither of text nor of a map."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidInput(f"{where} must be a list, not {type(cast('object', value)).__name__}")
    return list(cast("Iterable[Any]", value))


MemberT = TypeVar("MemberT", bound=StrEnum)


def member(kind: type[MemberT], value: object, where: str) -> MemberT:
    """The member of that value."""
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(f"{where} is {value!r}; use one of: {', '.join(kind)}") from None


def storable(text: str) -> str:
    """Text that came from elsewhere, with what no store can hold written as an escape."""
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


def json_text(value: object) -> str:
    """Compact JSON that keeps key order and leaves every character readable."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse_json(text: str, where: str = "the text") -> Any:
    """Frozen JSON; `InvalidInput` when the text is none."""
    try:
        return freeze(json.loads(text), where)
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is no JSON: {error}") from None


def parse_uuid(value: object, where: str) -> UUID:
    """A UUID, from its text or as it is; `InvalidInput` names where it stands."""
    try:
        return value if isinstance(value, UUID) else UUID(valid_text(value, where))
    except ValueError:
        raise InvalidInput(f"{where} is {value!r}; pass a UUID") from None


def parse_optional_uuid(value: object, where: str) -> UUID | None:
    """`parse_uuid`, or None for None and for an empty text."""
    return None if value is None or value == "" else parse_uuid(value, where)


MAX_ID = 200
"""Longer ids are refused; they become parts of channel names and of keys."""


def uuid_or_text(value: object, where: str) -> UUID | str:
    """An id that an application chose: a UUID where it is one, else its text."""
    try:
        return parse_uuid(value, where)
    except InvalidInput:
        pass
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ID:
        raise InvalidInput(f"{where} is {value!r}; pass a UUID, or a text of 1 to {MAX_ID} characters")
    return value


class reading:  # noqa: N801 -- used as `with reading("..."):`, like `contextlib.suppress`
    """Turns what goes wrong while stored or received data are taken apart into one typed error.

    A class: since Python 3.12 a `@contextmanager` that replaces an exception leaves a reference cycle, as the
    frame of the generator refers to the frame that threw into it. The gateway collects no garbage.
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
    """The value under a key as `parse` reads it; an error names the key, through every level."""
    require_map(data)
    if key not in data:
        raise InvalidInput(f"'{key}' is missing")
    with reading(f"'{key}'"):
        return parse(data[key])


def read_optional(data: Mapping[str, Any], key: str, parse: Callable[[Any], ReadT]) -> ReadT | None:
    """`read_key`, or None where the key is missing or holds null or nothing."""
    require_map(data)
    return read_key(data, key, parse) if data.get(key) else None


def require_map(data: object, what: str = "it") -> None:
    """Refuse what is no written form at all."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{what} must be a map, not {type_name(data)}")


def read_each(data: Mapping[str, Any], key: str, parse: Callable[[Any], ReadT]) -> tuple[ReadT, ...]:
    """Every entry of the list under a key; none where the key is missing."""
    return read_optional(data, key, lambda value: tuple(map(parse, listed(value, "it")))) or ()


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def is_hidden(char: str) -> bool:
    """Whether people do not see a character, or it changes what they see: controls, formats, line ends."""
    return unicodedata.category(char) in _HIDDEN


def cut(text: str, length: int) -> str:
    """At most `length` characters, marked with `...` when some are missing."""
    return text if len(text) <= length else text[:length] + "..."


def moment(at: datetime, digits: int) -> str:
    """UTC, ending in `Z`, with so many digits of the second; more are dropped, not rounded."""
    if at.tzinfo is None:
        raise InvalidInput(f"the moment {at.isoformat()} has no time zone; pass an aware datetime")
    at = at.astimezone(UTC)
    fraction = f".{at.microsecond:06d}"[: digits + 1] if digits else ""
    return f"{at.replace(tzinfo=None, microsecond=0).isoformat()}{fraction}Z"


def optional_moment(at: datetime | None, digits: int = 6) -> str | None:
    """`moment`, or None for None."""
    return None if at is None else moment(at, digits)


def parse_moment(value: object, where: str = "the moment") -> datetime:
    """An aware datetime in UTC."""
    text = valid_text(value, where)
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{where} is no ISO 8601 date and time with a zone: {value!r}") from None


def parse_optional_moment(value: object, where: str = "the moment") -> datetime | None:
    """`parse_moment`, or None for None."""
    return None if value is None else parse_moment(value, where)
