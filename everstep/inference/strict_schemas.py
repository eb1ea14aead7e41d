"""JSON schemas in the part of the language that OpenAI's strict mode enforces.

Strict mode accepts objects that name all their keys and require each of them. A key that may be left out is
therefore required here, with null or its default as its value, if that fits its schema. Limits that the mode
does not know are moved into the description: the model reads them, and the result is validated afterwards. A
schema that cannot be written in this way, such as a map with any keys, is sent without strict mode.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from everstep.agent_domain.messages.output_schema import resolve_reference
from everstep.agent_domain.messages.response_format import ResponseFormat
from everstep.agent_domain.values import json_text, thaw
from everstep.inference.json_reading import Json

MAX_DEPTH: Final = 10
"""The levels of objects that OpenAI accepts."""
MAX_PROPERTIES: Final = 5_000

_KEPT: Final = frozenset(
    {"type", "title", "description", "enum", "const", "format", "multipleOf", "minItems", "maxItems"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern"}
)
_DROPPED: Final = frozenset(
    {"default", "examples", "$schema", "$id", "$comment", "deprecated", "discriminator"}
)
_DESCRIBED: Final = frozenset(
    {"minLength", "maxLength", "uniqueItems", "contentEncoding", "contentMediaType"}
)
_DEFINITIONS: Final = ("$defs", "definitions")
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)


class _NotStrict(Exception):
    """The schema has something that strict mode does not accept."""


def json_schema_format(response_format: ResponseFormat) -> Json:
    """The name, schema and mode of a response format, as both of OpenAI's APIs take them."""
    name, schema = response_format.name, thaw(response_format.schema)
    if not response_format.strict or _is_strict(schema):
        return {"name": name, "schema": schema, "strict": response_format.strict}
    strict = strict_schema(schema)
    if strict is not None:
        return {"name": name, "schema": strict, "strict": True}
    # Without strict mode a result is still validated afterwards. A format that is not checked is sent as its
    # author wrote it, and the provider says what it does not accept.
    return {"name": name, "schema": schema, "strict": not response_format.is_checked}


def _is_strict(schema: object) -> bool:
    """Whether all objects are written for strict mode already."""
    if isinstance(schema, list):
        return all(map(_is_strict, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return True
    given = cast("Json", schema)
    is_object = given.get("type") == "object"
    names = {*given.get("properties", ())}
    is_closed = given.get("additionalProperties") is False and names == {*given.get("required", ())}
    return (is_closed or not is_object) and all(map(_is_strict, given.values()))


def strict_schema(schema: Json) -> Json | None:
    """The schema for strict mode; None if it cannot be written for it."""
    try:
        strict = _StrictSchema().convert(schema, 0)
    except _NotStrict:
        return None
    return strict if strict.get("type") == "object" else None


class _StrictSchema:
    def __init__(self) -> None:
        self.properties = 0

    def convert(self, schema: object, depth: int) -> Json:
        if not isinstance(schema, Mapping):
            raise _NotStrict
        given = cast("Mapping[str, Any]", schema)
        definitions = {
            key: {name: self.convert(each, 0) for name, each in given[key].items()}
            for key in _DEFINITIONS
            if key in given
        }
        if "$ref" in given:
            reference: Json = {"$ref": given["$ref"]}
            text = given.get("description")
            # Strict mode refuses words beside a reference.
            return ({"anyOf": [reference], "description": text} if text else reference) | definitions
        strict, notes = dict[str, Any](), dict[str, Any]()
        for key, value in given.items():
            if key in _DEFINITIONS or key in _DROPPED or key.startswith("x-"):
                continue
            if key in _DESCRIBED or not _is_kept_value(key, value):
                notes[key] = value
            elif key in _KEPT:
                strict[key] = value
            else:
                strict |= self._structure(key, value, given, depth)
        if strict.get("type") == "object" and "properties" not in strict:
            strict |= self._object({}, given, depth)
        has_type = strict.keys() - {"title", "description"}
        if not has_type or (strict.get("type") == "array" and "items" not in strict):
            raise _NotStrict  # it accepts any value, or any items
        if notes:
            limits = ", ".join(f"{key}: {json_text(value)}" for key, value in notes.items())
            strict["description"] = "\n\n".join(filter(None, (strict.get("description"), f"{{{limits}}}")))
        return strict | definitions

    def _structure(self, key: str, value: Any, schema: Mapping[str, Any], depth: int) -> Json:
        """A keyword with schemas in it."""
        match key:
            case "properties":
                return self._object(value, schema, depth)
            case "required" | "additionalProperties" if (
                "properties" in schema or schema.get("type") == "object"
            ):
                return {}
            case "items":
                return {"items": self.convert(value, depth)}
            case "anyOf" | "oneOf":
                return {"anyOf": [self.convert(each, depth) for each in value]}
            case "allOf" if len(value) == 1:
                return self.convert(value[0], depth)
            case _:
                raise _NotStrict

    def _object(self, properties: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> Json:
        if schema.get("additionalProperties", False) is not False and not properties:
            raise _NotStrict  # a map with any keys
        if isinstance(schema.get("additionalProperties"), Mapping) or depth >= MAX_DEPTH:
            raise _NotStrict
        self.properties += len(properties)
        if self.properties > MAX_PROPERTIES:
            raise _NotStrict
        required = schema.get("required", ())
        for name, each in properties.items():
            if name not in required and not _has_neutral_value(each):
                raise _NotStrict  # the model would have to invent a value
        return {
            "properties": {name: self.convert(each, depth + 1) for name, each in properties.items()},
            "required": list(properties),
            "additionalProperties": False,
        }


def _is_kept_value(key: str, value: Any) -> bool:
    """Whether strict mode accepts the value of a keyword that it knows."""
    if key == "format":
        return value in _FORMATS
    return not (key == "pattern" and "(?" in str(value))


def _has_neutral_value(schema: Any) -> bool:
    """Whether a key that may be left out has a value that means the same: null or its default."""
    if not isinstance(schema, Mapping):
        return False
    given = cast("Mapping[str, Any]", schema)
    kinds = given.get("type")
    variants = [each for key in ("anyOf", "oneOf") for each in given.get(key, ())]
    is_nullable = "null" in kinds if isinstance(kinds, list) else kinds == "null"
    return "default" in given or is_nullable or any(map(_is_null, variants))


def _is_null(schema: Any) -> bool:
    return isinstance(schema, Mapping) and cast("Mapping[str, Any]", schema).get("type") == "null"


def refers_to_itself(schema: Mapping[str, Any]) -> bool:
    """Whether a part of the schema contains itself, as that of a tree does."""
    found, waiting = dict[str, set[str]](), [*_references(schema)]
    while waiting:
        reference = waiting.pop()
        if reference not in found:
            found[reference] = {*_references(resolve_reference(schema, reference))}
            waiting.extend(found[reference])
    # Whatever refers to nothing, or only to parts that were removed, is no part of a cycle.
    while ends := {reference for reference, targets in found.items() if not targets & found.keys()}:
        found = {reference: targets for reference, targets in found.items() if reference not in ends}
    return bool(found)


def _references(part: object) -> Iterator[str]:
    """The references in a part of a schema, without those of its definitions."""
    if isinstance(part, Mapping):
        for key, each in cast("Mapping[str, Any]", part).items():
            if key == "$ref" and isinstance(each, str):
                yield each
            elif key not in _DEFINITIONS:
                yield from _references(each)
    elif isinstance(part, list | tuple):
        for each in cast("list[Any]", part):
            yield from _references(each)
