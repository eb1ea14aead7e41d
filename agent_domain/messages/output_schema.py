"""Schemas that people write for results: what is refused before a model is asked.

A schema is sent with every request and stored with every execution, so its size is limited. Its references
stay inside of it: nothing is fetched. An unknown keyword is refused, because JSON Schema ignores one, and a
misspelt `required` would go unnoticed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import MAX_DEPTH, FrozenDict, frozen_map, json_text

WHERE: Final = "the output schema"

MAX_SCHEMA: Final = 100_000
"""Characters of a schema as JSON; OpenAI accepts 120,000 characters of names and values."""

_SAME_VALUE: Final = ("allOf", "anyOf", "oneOf")
_SAME_VALUE_ONE: Final = ("not", "if", "then", "else")
"""Keywords whose schemas apply to the same value as the schema around them."""
_LISTS: Final = (*_SAME_VALUE, "prefixItems")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS: Final = (
    *_SAME_VALUE_ONE,
    *("items", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
)
_VALUES: Final = (
    *("$schema", "$id", "$anchor", "$ref", "$comment", "$vocabulary", "$dynamicRef", "$dynamicAnchor"),
    *("type", "enum", "const", "title", "description", "default", "examples", "deprecated"),
    *("readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType", "contentSchema"),
    *("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    *("maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems"),
    *("maxContains", "minContains", "maxProperties", "minProperties", "required", "dependentRequired"),
    # Written by pydantic and OpenAPI, and without effect on validation.
    *("dependencies", "discriminator", "example", "nullable", "xml", "externalDocs"),
)
_KEYWORDS: Final = frozenset({*_LISTS, *_MAPS, *_SCHEMAS, *_VALUES})


def valid_output_schema(given: Mapping[str, Any], *, is_written: bool = True) -> FrozenDict:
    """Return a schema as frozen JSON.

    Args:
        given: The schema.
        is_written: Whether a person wrote it; the keywords of a generated one are not checked.

    Raises:
        InvalidInput: It cannot be used; the message says what to change.
    """
    schema = _frozen(given)
    if not schema:
        raise InvalidInput(f"{WHERE} is empty; describe the result, as in {{'type': 'object', ...}}")
    if (size := len(json_text(schema))) > MAX_SCHEMA:
        raise InvalidInput(f"{WHERE} has {size} characters, more than {MAX_SCHEMA}; describe less in it")
    for place, each in _subschemas(schema):
        if is_written:
            _require_keywords(place, each)
        if "$ref" in each:
            _require_progress(schema, each)
    return schema


def _frozen(given: Mapping[str, Any]) -> FrozenDict:
    try:
        return frozen_map(given, WHERE)
    except InvalidInput as error:
        # Its message names the place, which is as long as the schema is deep.
        if f"{MAX_DEPTH} levels" in str(error):
            raise InvalidInput(
                f"{WHERE} is nested deeper than {MAX_DEPTH} levels or contains itself; "
                "flatten it, or refer to '#/$defs/NAME'"
            ) from None
        raise


def _require_keywords(place: str, schema: Mapping[str, Any]) -> None:
    for keyword in schema:
        if keyword not in _KEYWORDS and not keyword.startswith("x-"):
            at = f" at {place}" if place else ""
            raise InvalidInput(
                f"{WHERE} has the unknown keyword '{keyword}'{at}; correct it, or begin it with 'x-'"
                f"{did_you_mean(keyword, _KEYWORDS)}"
            )


def _subschemas(root: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schema and those inside of it, each with its place."""
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        place, schema = waiting.pop()
        if isinstance(schema, Mapping):
            found = cast("Mapping[str, Any]", schema)
            yield place, found
            waiting.extend((f"{place}/{key}", found[key]) for key in _SCHEMAS if key in found)
            waiting.extend(
                (f"{place}/{key}/{name}", each)
                for key in (*_LISTS, *_MAPS, "items")
                for name, each in _named(found.get(key), is_map=key in _MAPS)
            )


def _named(group: object, *, is_map: bool) -> Iterable[tuple[object, object]]:
    """The schemas of a keyword that has several, each with its name or its number."""
    if isinstance(group, Mapping):
        return cast("Mapping[str, object]", group).items() if is_map else ()
    return enumerate(cast("list[object]", group)) if isinstance(group, list | tuple) else ()


def _require_progress(root: Mapping[str, Any], start: Mapping[str, Any]) -> None:
    """Refuse references that lead back to themselves for one and the same value: no value would end them."""
    waiting: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [(start, ())]
    seen = set[str]()
    while waiting:
        schema, path = waiting.pop()
        for target, inner in _same_value(root, schema):
            if target in path:
                raise InvalidInput(
                    f"{WHERE} refers to itself at {target} without an object or a list in between; "
                    "describe there what it is"
                )
            if not target:
                waiting.append((inner, path))
            elif target not in seen:
                seen.add(target)
                waiting.append((inner, (*path, target)))


def _same_value(
    root: Mapping[str, Any], schema: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schemas that apply to the same value, each with its reference if it is one."""
    if "$ref" in schema:
        reference = schema["$ref"]
        yield str(reference), resolve_reference(root, reference)
    groups = [schema.get(keyword) for keyword in _SAME_VALUE]
    inner = [each for group in groups if isinstance(group, list | tuple) for each in cast("list[Any]", group)]
    for each in (*inner, *(schema.get(keyword) for keyword in _SAME_VALUE_ONE)):
        if isinstance(each, Mapping):
            yield "", cast("Mapping[str, Any]", each)


def resolve_reference(root: Mapping[str, Any], reference: object) -> Mapping[str, Any]:
    """The schema that a reference names.

    Raises:
        InvalidInput: It is not a place in the schema.
    """
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise InvalidInput(
            f"{WHERE} refers to {reference!r}, which is not fetched; write it out under '$defs', "
            "and refer to it as '#/$defs/NAME'"
        )
    found: Any = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = cast("Mapping[str, Any]", found)[key]
        elif isinstance(found, list | tuple) and key.isdecimal() and int(key) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(key)]
        else:
            raise InvalidInput(f"{WHERE} refers to '{reference}', which is not in it; add it")
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def require_references_in_definitions(schema: Mapping[str, Any]) -> None:
    """Refuse references to other places than definitions, which are lost when the schema becomes a part.

    Raises:
        InvalidInput: There is such a reference.
    """
    for _, each in _subschemas(schema):
        reference = each.get("$ref")
        if isinstance(reference, str) and not reference.startswith(("#/$defs/", "#/definitions/")):
            raise InvalidInput(
                f"{WHERE} is no object and refers to '{reference}'; move what it refers to under '$defs'"
            )
