"""The form of an answer: a JSON schema, and whether the answer is checked against it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast, get_origin

from everstep.agent_domain.capabilities.data_types import json_schema_of
from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.messages.output_schema import (
    WHERE,
    require_references_in_definitions,
    resolve_reference,
    valid_output_schema,
)
from everstep.agent_domain.values import EMPTY, FrozenDict, frozen_map, valid_text

if TYPE_CHECKING:
    # Its default keeps `AgentState` and `Agent` usable without arguments; at run time no default is needed.
    from typing_extensions import TypeVar

    OutputT_co = TypeVar("OutputT_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    OutputT_co = TypeVar("OutputT_co", covariant=True)

DEFAULT_RETRIES: Final = 3
MAX_RETRIES: Final = 10
"""The maximum of retries for a result: each is a paid request."""

RESULT_KEY: Final = "result"
"""The key of a result that is no object, in the object that is sent: providers require one."""

_JSON_SCHEMA: Final = "json_schema"
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]+")
MAX_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The JSON schema that an answer has to satisfy."""

    schema: FrozenDict
    type: str = _JSON_SCHEMA
    name: str = "schema"
    strict: bool = True
    max_retries: int | None = None
    """How often the model may correct an answer that does not fit; None: answers are not checked."""
    is_wrapped: bool = False
    """Whether the result is the value of `RESULT_KEY`, because it is no object."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", frozen_map(self.schema, "the schema of the response format"))

    @property
    def is_checked(self) -> bool:
        """Whether answers are validated, and returned to the model if they do not fit."""
        return self.max_retries is not None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ResponseFormat":
        """Read `{type, schema, name, strict}`, or the same nested under `json_schema`."""
        given = frozen_map(data, "response format")
        inner = frozen_map(given.get(_JSON_SCHEMA) or given, "response format")
        kind = valid_text(given.get("type", _JSON_SCHEMA), "the type of the response format")
        if "schema" not in inner and kind == _JSON_SCHEMA:
            raise InvalidInput("a response format of type json_schema needs a 'schema'")
        name = valid_text(inner.get("name") or "schema", "the name of the response format")
        strict = inner.get("strict", True)
        retries = inner.get("maxRetries")
        return cls(
            inner.get("schema") or EMPTY, kind, name, bool(strict), retries, bool(inner.get("isWrapped"))
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        checked: dict[str, Any] = {"maxRetries": self.max_retries} if self.is_checked else {}
        wrapped = {"isWrapped": True} if self.is_wrapped else {}
        plain = {"type": self.type, "schema": self.schema, "name": self.name, "strict": self.strict}
        return plain | checked | wrapped

    def unwrapped(self, answer: Any) -> Any:
        """The result in an answer; an answer that is the bare result is accepted as well."""
        if self.is_wrapped and isinstance(answer, Mapping):
            entries = cast("Mapping[str, Any]", answer)
            return entries[RESULT_KEY] if {*entries} == {RESULT_KEY} else entries
        return answer

    def wrapped(self, result: Any) -> Any:
        """A result in the form of the schema."""
        return {RESULT_KEY: result} if self.is_wrapped else result


def as_response_format(
    given: "ResponseFormat | Mapping[str, Any] | type | None",
) -> ResponseFormat | None:
    """Return the format, given as such, as a map, or as a type such as a pydantic model.

    An empty map means None.
    """
    if given is None or isinstance(given, ResponseFormat):
        return given
    if isinstance(given, type) or get_origin(given) is not None:
        schema = valid_output_schema(json_schema_of(given), is_written=False)
        return ResponseFormat(schema, name=_name_of(given, schema))
    return ResponseFormat.from_dict(given) if given else None


def output_format(given: Any, max_retries: object = None) -> ResponseFormat:
    """The format of results, which are checked.

    Args:
        given: A type that pydantic reads, a JSON schema, or a response format.
        max_retries: How often the model may correct a result.

    Raises:
        InvalidInput: There is no usable schema, or the number is not one of 0 to `MAX_RETRIES`.
    """
    retries = DEFAULT_RETRIES if max_retries is None else max_retries
    require_integer_at_least("max_retries", retries, 0)
    if cast("int", retries) > MAX_RETRIES:
        raise InvalidInput(f"max_retries is {retries}; pass at most {MAX_RETRIES}")
    found = _unchecked(given)
    return replace(_with_object(found), max_retries=cast("int", retries))


def _unchecked(given: Any) -> ResponseFormat:
    if isinstance(given, ResponseFormat):
        return replace(given, schema=valid_output_schema(given.schema))
    if not isinstance(given, Mapping):
        schema = valid_output_schema(json_schema_of(given), is_written=False)
        return ResponseFormat(schema, name=_name_of(given, schema))
    data = cast("Mapping[str, Any]", given)
    if data.get("type") == _JSON_SCHEMA or _JSON_SCHEMA in data:
        found = replace(ResponseFormat.from_dict(data), type=_JSON_SCHEMA)
        return replace(found, schema=valid_output_schema(found.schema))
    schema = valid_output_schema(data)
    return ResponseFormat(schema, name=_name_of(None, schema))


def _name_of(type_: object, schema: Mapping[str, Any]) -> str:
    """A name that every provider accepts: that of the class, or else the title of the schema."""
    name = getattr(type_, "__name__", None) or schema.get("title")
    usable = _NOT_IN_NAMES.sub("_", name).strip("_")[:MAX_NAME] if isinstance(name, str) else ""
    return usable or "result"


def _with_object(found: ResponseFormat) -> ResponseFormat:
    """The format with an object at the root: providers and tools require one."""
    schema, inner = found.schema, found.schema
    if "$ref" in schema:
        inner = frozen_map(resolve_reference(schema, schema["$ref"]), WHERE)
    if inner.get("type") == "object":
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        return replace(found, schema=frozen_map({**inner, **definitions}, WHERE))
    require_references_in_definitions(schema)
    return replace(found, schema=_wrapped_schema(schema), is_wrapped=True)


def _wrapped_schema(schema: FrozenDict) -> FrozenDict:
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    value = {key: each for key, each in schema.items() if key not in definitions and key != "$schema"}
    return frozen_map(
        {
            "type": "object",
            "properties": {RESULT_KEY: value},
            "required": [RESULT_KEY],
            "additionalProperties": False,
            **definitions,
        },
        WHERE,
    )
