"""Types of structured data: what pydantic reads, such as models, dataclasses and TypedDicts."""

from typing import Any, Final

from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaError

from everstep.agent_domain.checks import faults
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.values import freeze, json_text, parse_json

_HINT: Final = "pass a pydantic model, a dataclass or a TypedDict"
_FENCE: Final = "```"


def type_adapter(type_: Any) -> TypeAdapter[Any]:
    """The adapter that reads and writes data of a type.

    Raises:
        InvalidInput: Pydantic cannot read the type.
    """
    if type_ is None or isinstance(type_, str):
        raise InvalidInput(f"{type_!r} cannot be a schema; {_HINT}")
    try:
        return TypeAdapter(type_)
    except (SchemaError, PydanticUndefinedAnnotation, RecursionError):
        raise InvalidInput(f"{type_!r} cannot be a schema; {_HINT}") from None
    except PydanticUserError as error:
        hint = _HINT
        if error.code == "typed-dict-version":
            hint = "before Python 3.12, take TypedDict from typing_extensions"
        raise InvalidInput(f"{type_!r} cannot be a schema; {hint}") from None


def json_schema_of(type_: Any) -> dict[str, Any]:
    """The JSON schema of a type.

    Raises:
        InvalidInput: The type has none.
    """
    adapter = type_adapter(type_)
    try:
        return adapter.json_schema()
    except PydanticUserError as error:
        raise InvalidInput(f"{type_!r} has no JSON schema: {_first_sentence(error)}") from None


def _first_sentence(error: PydanticUserError) -> str:
    """The problem; the other sentences are advice for direct users of pydantic."""
    return " ".join(error.message.split()).partition(". ")[0]


def read_data(type_: Any, answer: object) -> Any:
    """Validate an answer, and return its data as frozen JSON, with the defaults of the type.

    Raises:
        InvalidInput: The answer does not fit the type.
    """
    adapter = type_adapter(type_)
    try:
        value = adapter.validate_json(json_text(freeze(answer, "the answer")))
        return freeze(adapter.dump_python(value, mode="json"), "the extracted data")
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None
    except PydanticSerializationError as error:
        raise InvalidInput(str(error)) from None


def value_of(type_: Any, data: object) -> Any:
    """The data as an instance of the type.

    Raises:
        InvalidInput: The data do not fit the type.
    """
    try:
        return type_adapter(type_).validate_json(json_text(freeze(data, "the data")))
    except ValidationError as error:
        raise InvalidInput(faults(error)) from None


def parse_answer(text: str) -> Any:
    """Parse the JSON value of an answer, without a code fence around it.

    Raises:
        InvalidInput: The text is not JSON.
    """
    inner = text.strip()
    if inner.startswith(_FENCE):
        inner = inner.strip("`").removeprefix("json").strip()
    return parse_json(inner, "the answer")
