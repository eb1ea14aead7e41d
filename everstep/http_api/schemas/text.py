"""The forms in which values cross the API."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, TypeAlias

from fastapi import Query
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, PlainSerializer, WithJsonSchema

from everstep.agent_domain.values import FrozenDict, freeze, moment, valid_text

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)
"""What lies further away comes to the same."""

_MOMENT = {"type": "string", "format": "date-time", "examples": ["2026-01-16T10:05:00.123456Z"]}

Moment: TypeAlias = Annotated[
    datetime, PlainSerializer(partial(moment, digits=6), return_type=str), WithJsonSchema(_MOMENT)
]
"""UTC with microseconds, ending in `Z`."""

Instant: TypeAlias = Annotated[AwareDatetime, AfterValidator(lambda at: max(EARLIEST, min(at, LATEST)))]
"""A moment that somebody names; it needs a time zone."""

Text: TypeAlias = Annotated[str, AfterValidator(partial(valid_text, where="the text"))]
"""Text that every store can hold."""

Json: TypeAlias = Annotated[Any, AfterValidator(partial(freeze, where="data"))]
"""Any JSON that can be stored."""

Map: TypeAlias = FrozenDict
"""A JSON object."""


class Sent(BaseModel):
    """What clients send: a field that nobody knows is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Told(BaseModel):
    """What clients are told; later versions tell more."""

    model_config = ConfigDict(frozen=True)


Cursor: TypeAlias = Annotated[
    Text | None, Query(max_length=500, description="Where the last page ended: its `next_cursor`.")
]

Limit: TypeAlias = Annotated[int, Query(ge=1, le=200, description="How many at most.")]
