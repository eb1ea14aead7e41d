"""Lists reach PostgreSQL as arrays, whatever their texts contain."""

from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis.strategies import characters, lists, none, text
from sqlalchemy import text as statement

from everstep.store.postgres import PostgresStore
from everstep.store.transaction import transaction

TEXTS = lists(none() | text(characters(exclude_categories=["Cs"], exclude_characters="\x00")))


class Colour(StrEnum):
    """A text with a name."""

    RED = "red"


async def elements_of(store: PostgresStore, values: list[Any], kind: str = "text") -> list[Any]:
    """The elements that the server reads."""
    query = statement(f"SELECT each FROM unnest(CAST(:values AS {kind}[])) AS each")  # noqa: S608 -- own
    async with transaction(store.engine) as current:
        return [row.each for row in (await current.execute(query, {"values": values})).all()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS)
@example(["", "NULL", "null", None, '"', "\\", '\\"', "{a,b}", " a ", "\u2003", "a\nb"])
async def test_texts_arrive_unchanged(postgres: PostgresStore, values: list[str | None]) -> None:
    assert await elements_of(postgres, values) == values


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -2, None], "int"),
        ([True, False], "bool"),
        ([UUID(int=7)], "uuid"),
        ([Decimal("0.10"), None], "numeric"),
        ([datetime(2026, 1, 2, 3, 4, 5, 6, UTC)], "timestamptz"),
        ([Colour.RED], "text"),
        ([], "text"),
    ],
)
async def test_elements_have_the_type_that_the_statement_names(
    postgres: PostgresStore, values: list[Any], kind: str
) -> None:
    assert await elements_of(postgres, values, kind) == values


@pytest.mark.parametrize("values", [[["a"]], ["a\x00b"]])
async def test_what_no_flat_array_holds_is_refused(postgres: PostgresStore, values: list[Any]) -> None:
    with pytest.raises(Exception, match=r"list inside a list|NUL") as refused:
        await elements_of(postgres, values)
    assert isinstance(refused.value.__cause__ or refused.value, psycopg.DataError)
