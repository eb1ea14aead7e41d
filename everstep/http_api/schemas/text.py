"""Field types and base classes of request and response models."""

from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, cast

from fastapi import Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import CoreSchema

from everstep.agent_domain.checks import StrictModel
from everstep.agent_domain.storage.text_query import MAX_QUERY
from everstep.agent_domain.values import FrozenDict, format_moment, freeze, valid_text

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
"""Times outside of this range are clamped to it."""

_MOMENT = {"type": "string", "format": "date-time", "examples": ["2026-01-16T10:05:00.123456Z"]}

Moment: TypeAlias = Annotated[
    datetime, PlainSerializer(partial(format_moment, digits=6), return_type=str), WithJsonSchema(_MOMENT)
]
"""UTC with microseconds, ending in `Z`."""

Instant: TypeAlias = Annotated[AwareDatetime, AfterValidator(lambda at: max(EARLIEST, min(at, LATEST)))]
"""A time in a request; it needs a time zone."""

Usd: TypeAlias = Annotated[
    Decimal,
    PlainSerializer(float, return_type=float),
    WithJsonSchema({"type": "number", "examples": [0.0042]}),
]
"""An amount in US dollars."""

Text: TypeAlias = Annotated[str, AfterValidator(partial(valid_text, where="the text"))]
"""Text that every store can hold."""

Json: TypeAlias = Annotated[Any, AfterValidator(partial(freeze, where="data"))]
"""Any JSON that can be stored."""

Map: TypeAlias = FrozenDict
"""A JSON object."""


_SCALARS: Final = ("int", "float", "bool")
_NO_SCHEMAS: Final = frozenset({"default", "metadata", "ref", "serialization"})
"""The keys of pydantic's schemas below which no validation is described."""


def _with_strict_scalars(schema: Any) -> Any:
    """Let numbers and truth values of a schema accept only their own type: `true` is not 1, nor is `"1"`."""
    match schema:
        case list():
            return [_with_strict_scalars(each) for each in cast("list[Any]", schema)]
        case tuple():
            # A type of a union, with its name.
            return tuple(_with_strict_scalars(each) for each in cast("tuple[Any, ...]", schema))
        case {"type": str(kind), **parts}:
            walked = {
                name: part if name in _NO_SCHEMAS else _with_strict_scalars(part)
                for name, part in cast("dict[str, Any]", parts).items()
            }
            return {"type": kind, **walked, **({"strict": True} if kind in _SCALARS else {})}
        case dict():
            # Schemas by the names of fields, which may be any, or by tags.
            return {name: _with_strict_scalars(each) for name, each in cast("dict[str, Any]", schema).items()}
        case _:
            return schema


class StrictScalars:
    """A base of models of JSON; with pydantic's strictness of all types, ids and times could not be text."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the model."""
        return _with_strict_scalars(handler(source))


class RequestModel(StrictScalars, StrictModel):
    """The base of request models: unknown fields are refused."""

    model_config = ConfigDict(frozen=True)


class ResponseModel(BaseModel):
    """The base of response models; later versions may add fields."""

    model_config = ConfigDict(frozen=True)


SearchWords: TypeAlias = Annotated[
    Text,
    Query(
        max_length=MAX_QUERY,
        description="Words of a message, a call or a result: all of these words, "
        '`"a phrase"`, `-without`, `one OR other`, `prefix*`.',
        examples=["invoice -paid"],
    ),
]
"""A query of full-text search, for `TextQuery.parse`."""

Cursor: TypeAlias = Annotated[
    Text | None, Query(max_length=500, description="The `next_cursor` of the previous page.")
]

Limit: TypeAlias = Annotated[int, Query(ge=1, le=200, description="The maximum number of items.")]
