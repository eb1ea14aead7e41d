"""Schemas that are written down as JSON schemas, where there is no class."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from everstep.agent_domain.capabilities.extraction import SchemaDefinition
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import FrozenDict, freeze, frozen_map, thaw
from everstep.capabilities import json_schema


class Written:
    """Data that satisfy a JSON schema; each schema has a class of its own."""

    schema: FrozenDict

    @classmethod
    def checked(cls, data: Any) -> Any:
        """The data, if they fit."""
        problem = json_schema.check(cls.schema, freeze(data))
        if problem:
            raise ValueError(problem)
        return data

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic checks it."""
        del source, handler
        return core_schema.no_info_plain_validator_function(
            cls.checked, serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """What the model is told."""
        del core, handler
        return thaw(cls.schema)


def definitions(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, SchemaDefinition]:
    """The schemas by name; what they call their `description` is what the agent is told of them."""
    if not schemas:
        raise InvalidInput("'schemas' holds no schema")
    return {name: _definition(name, frozen_map(schema)) for name, schema in schemas.items()}


def _definition(name: str, schema: FrozenDict) -> SchemaDefinition:
    if _refers(schema):
        raise InvalidInput(f"the schema '{name}' refers to others by '$ref'; write it out in full")
    problem = json_schema.check(schema, None) or ""
    if problem.startswith(json_schema.UNUSABLE):
        raise InvalidInput(f"'{name}': {problem}")
    kind = type("Written", (Written,), {"schema": schema})
    description = schema.get("description")
    return SchemaDefinition(kind, description if isinstance(description, str) else "")


def _refers(value: object) -> bool:
    """Whether there is a reference: the schema becomes a part of another one, where it would lead astray."""
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value)
        return "$ref" in entries or any(map(_refers, entries.values()))
    return isinstance(value, list | tuple) and any(map(_refers, cast("list[object]", value)))
