"""Sends lists to PostgreSQL as arrays, faster than the driver's own dumper.

The driver escapes each element with a regular expression. Events and messages are JSON in arrays of text,
full of quotes, and each step sends several of them. Statements here send flat lists only, and name their type
(`CAST(:ids AS uuid[])`), so every element can be sent as quoted text.
"""

from typing import Any

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format


class FlatArrayDumper(Dumper):
    """The text form of a flat list. Its type is unknown to the driver, and follows from the statement."""

    format = Format.TEXT
    oid = 0

    def dump(self, obj: list[Any]) -> bytes:
        """Return the array literal.

        Raises:
            psycopg.DataError: An element is a list, which would need dimensions, or holds a NUL.
        """
        literal = "{" + ",".join(map(_element, obj)) + "}"
        if "\x00" in literal:
            raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
        return literal.encode()


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        raise psycopg.DataError("a list inside a list cannot be sent as an array; send JSON")
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
