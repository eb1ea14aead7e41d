"""Structured output: schemas, the answer format for the model, and the parsing of answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self, cast

from pydantic import BaseModel, create_model
from pydantic_core import PydanticSerializationError, to_jsonable_python

from everstep.agent_domain.capabilities.data_types import json_schema_of, read_data
from everstep.agent_domain.checks import require_integer_at_least
from everstep.agent_domain.errors import InvalidInput, UnknownName, unknown_name_text
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import (
    EMPTY,
    FrozenDict,
    freeze,
    frozen_map,
    json_text,
    truncate,
    valid_text,
)

TOOL = "extract_data"
MAX_PREVIEW = 200
MAX_CALL_RETRIES = 10
"""The maximum of retries that a call may request: models choose the number, and users pay."""

JSON_SCHEMA, JSON_OBJECT, TEXT = "json_schema", "json_object", "text"
"""Answer formats to request from a provider: JSON of the schema, any JSON object, or text to parse."""
INPUT_EMPTY = "The input is empty"
SCHEMA_EMPTY = "The schema name is empty"


@dataclass(frozen=True, slots=True)
class StructuredOutputPolicy:
    """The model options of extraction; `use_maybe` lets the model report that the data is not there."""

    max_retries: int = 3
    use_maybe: bool = True
    llm_preset: str | None = None
    model: str | None = None
    output_mode: str | None = None
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        require_integer_at_least("max_retries", self.max_retries, 0)
        modes = (JSON_SCHEMA, JSON_OBJECT, TEXT)
        if self.output_mode not in (None, *modes):
            hint = did_you_mean(str(self.output_mode), modes)
            raise InvalidInput(f"output_mode is {self.output_mode!r}; use one of: {', '.join(modes)}{hint}")


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """A schema: any class that pydantic supports, with its prompt, examples and options."""

    class_: type
    description: str = ""
    prompt: str = ""
    examples: tuple[Any, ...] = ()
    max_retries: int | None = None
    llm_options: FrozenDict = field(default_factory=FrozenDict)

    def __post_init__(self) -> None:
        if self.max_retries is not None:
            require_integer_at_least("max_retries", self.max_retries, 0)
        examples = tuple(_example(example, number) for number, example in enumerate(self.examples, 1))
        object.__setattr__(self, "examples", examples)
        object.__setattr__(self, "llm_options", frozen_map(self.llm_options, "llm_options"))
        self.answer_schema(use_maybe=False)

    def answer_schema(self, use_maybe: bool) -> dict[str, Any]:
        """The JSON schema of the model's answer.

        Raises:
            InvalidInput: The class has no JSON schema.
        """
        return json_schema_of(_maybe_model(self.class_) if use_maybe else self.class_)

    def read(self, answer: object, use_maybe: bool) -> "Any | Nothing":
        """Validate the model's answer and return its data as frozen JSON, or `Nothing`.

        Raises:
            InvalidInput: The answer does not match the schema.
        """
        if not use_maybe:
            return read_data(self.class_, answer)
        maybe = read_data(_maybe_model(self.class_), answer)
        return Nothing(maybe["detail"]) if maybe["value"] is None else maybe["value"]


@dataclass(frozen=True, slots=True)
class Nothing:
    """The model's report that the input does not contain the requested data."""

    detail: str = ""


def _example(given: object, number: int) -> Any:
    """An example as JSON; it may be an instance of the class."""
    try:
        return freeze(to_jsonable_python(given), f"example #{number}")
    except PydanticSerializationError as error:
        raise InvalidInput(f"example #{number} cannot be written as JSON: {error}") from None


def _maybe_model(class_: type) -> type[BaseModel]:
    """Wrap the class in a model, so that the references in its JSON schema stay valid."""
    value: Any = (class_ | None, None)
    return create_model("Maybe", value=value, detail=(str, ""))


class SchemaRegistry:
    """Schemas by name, from the constructor and from `register`.

    A bare class is shorthand for `SchemaDefinition(class)`. A capability copies the registry when an
    agent installs it, so later registrations do not change existing agents.
    """

    def __init__(self, schemas: "Mapping[str, SchemaDefinition | type] | SchemaRegistry" = EMPTY) -> None:
        self._schemas: dict[str, SchemaDefinition] = {}
        given = schemas.schemas if isinstance(schemas, SchemaRegistry) else schemas
        for name, entry in given.items():
            self.register(name, entry)

    def __repr__(self) -> str:
        return f"<SchemaRegistry {', '.join(self._schemas) or 'without schemas'}>"

    def register(self, name: str, schema: SchemaDefinition | type) -> Self:
        """Add a schema, or replace the one of that name.

        Returns:
            The registry itself, so that calls can be chained.

        Raises:
            InvalidInput: The name is blank, or pydantic cannot read the class.
        """
        if not valid_text(name, "the schema's name").strip():
            raise InvalidInput(_BLANK_NAME)
        self._schemas[name] = schema if isinstance(schema, SchemaDefinition) else SchemaDefinition(schema)
        return self

    @property
    def schemas(self) -> Mapping[str, SchemaDefinition]:
        """The definitions by name, read-only."""
        return MappingProxyType(self._schemas)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of registration."""
        return tuple(self._schemas)

    def has(self, name: str) -> bool:
        """Whether a schema is registered under this name."""
        return name in self._schemas

    def get(self, name: str) -> SchemaDefinition:
        """The definition of this name.

        Raises:
            UnknownName: There is none.
        """
        if name not in self._schemas:
            raise UnknownName("schema", name, self._schemas)
        return self._schemas[name]


_BLANK_NAME = "a schema has a blank name; the model needs a name to request the schema"


def retry_count(requested: object, schema: SchemaDefinition, policy: StructuredOutputPolicy) -> int:
    """The number of retries: that of the call, or else of the schema, or else of the policy."""
    if requested is None:
        return policy.max_retries if schema.max_retries is None else schema.max_retries
    require_integer_at_least("max_retries", requested, 0)
    return min(cast("int", requested), MAX_CALL_RETRIES)


# --- Texts for the model ---


def extraction_text(schema: str, data: object, store_as: str = "") -> str:
    """The result text after an extraction."""
    target = f" into '{store_as}'" if store_as else ""
    return f"Extracted {schema}{target}: {truncate(json_text(data), MAX_PREVIEW)}"


def extraction_error(schema: str, reason: str) -> str:
    """The error text when nothing was extracted."""
    return f"Error: Nothing extracted ({schema}): {reason}"


def nothing_found_reason(schema: str, nothing: Nothing) -> str:
    """The reason when the input does not contain the requested data."""
    return f"The input holds no {schema}: {nothing.detail or 'the model found nothing'}"


def argument_problem(text: str, schema: str, names: Iterable[str]) -> str | None:
    """The error text for unusable arguments of extract_data; None if they are usable."""
    name = schema.strip()
    reason = _reason(text, name, tuple(names))
    return extraction_error(name, reason) if reason else None


def _reason(text: str, schema: str, names: tuple[str, ...]) -> str | None:
    if not text.strip():
        return INPUT_EMPTY
    if not schema:
        return SCHEMA_EMPTY
    return None if schema in names else unknown_name_text("schema", schema, names)
