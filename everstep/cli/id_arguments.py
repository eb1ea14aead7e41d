"""Ids in arguments: what is no id is refused, with the one that begins like it."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final
from uuid import UUID

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import truncate
from everstep.client.client import Client

LOOKED_THROUGH: Final = 200
"""How many of the newest rows may be meant by the beginning of an id."""

_PART_OF_ID = re.compile(r"[0-9a-fA-F-]{4,36}")


async def parse_id(
    text: str, kind: str, lister: str, known_ids: Callable[[], Awaitable[Iterable[object]]]
) -> UUID:
    """Parse an id.

    Args:
        text: The argument.
        kind: What it identifies, for the error message.
        lister: The command that lists the ids.
        known_ids: Reads the newest ids; called if the text looks like a part of one.

    Raises:
        InvalidInput: The text is not an id; the message has the known id that begins like it.
    """
    try:
        return UUID(text)
    except ValueError:
        problem = f"{truncate(text, 50)!r} is not {kind} id; `{lister}` lists them"
    if not _PART_OF_ID.fullmatch(text):
        raise InvalidInput(problem)
    try:
        ids = await known_ids()
    except EverstepError:
        # Without servers the text is as wrong as before, and only the suggestion is missing.
        ids = ()
    raise InvalidInput(f"{problem}{did_you_mean(text, map(str, ids))}")


async def newest_executions(client: Client) -> list[UUID]:
    """The ids of the newest executions."""
    page = await client.list(limit=LOOKED_THROUGH)
    return [row.ref.execution_id for row in page.rows]


async def parse_execution_id(text: str, client: Client) -> UUID:
    """Parse the id of an execution.

    Raises:
        InvalidInput: The text is not an id; the message has the known id that begins like it.
    """
    return await parse_id(text, "an execution", "everstep executions", lambda: newest_executions(client))
