"""Classes for schemas that are given as JSON schemas."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from everstep.agent_domain.capabilities.extraction import SchemaDefinition
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, freeze, frozen_map, thaw
from everstep.steps import json_schema


class JsonSchemaData:
    """Data that satisfies a JSON schema; each schema has its own subclass."""

    schema: FrozenDict

    @classmethod
    def validate(cls, data: Any) -> Any:
        """Return the data if it is valid.

        Raises:
            ValueError: It does not satisfy the schema.
        """
        problem = json_schema.check(cls.schema, freeze(data))
        if problem:
            raise ValueError(problem)
        return data

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate against the class's schema."""
        del source, handler
        return core_schema.no_info_plain_validator_function(
            cls.validate, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema for the model."""
        del core, handler
        return thaw(cls.schema)


def schema_definitions(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, SchemaDefinition]:
    """The schemas by name; the agent reads the `description` of each."""
    if not schemas:
        raise InvalidInput("'schemas' is empty")
    return {name: _definition(name, frozen_map(schema)) for name, schema in schemas.items()}


def _definition(name: str, schema: FrozenDict) -> SchemaDefinition:
    if _refers(schema):
        raise InvalidInput(f"the schema '{name}' refers to others by '$ref'; write it out in full")
    problem = json_schema.check(schema, None) or ""
    if problem.startswith(json_schema.UNUSABLE):
        raise InvalidInput(f"'{name}': {problem}")
    kind = type("Written", (JsonSchemaData,), {"schema": schema})
    description = schema.get("description")
    return SchemaDefinition(kind, description if isinstance(description, str) else "")


def _refers(value: object) -> bool:
    """Whether it has a reference, which would point to the wrong place once embedded in another schema."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value)
        return "$ref" in entries or any(map(_refers, entries.values()))
    return isinstance(value, list | tuple) and any(map(_refers, cast("list[object]", value)))
