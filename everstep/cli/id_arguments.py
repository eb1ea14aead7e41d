"""Ids in arguments: what is no id is refused, with the one that begins like it.

These commands are the operator's, who has the database: an id finds its tenant. With the HTTP API, the token
names the tenant.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final
from uuid import UUID

from everstep.agent_domain.errors import EverstepError, InvalidInput
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.values import truncate
from everstep.client.client import Client
from everstep.client.execution import Execution
from everstep.runtime.installation import Installation

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


async def find_execution(text: str, installation: Installation) -> Execution:
    """Return the handle of the execution of an id, whichever tenant has it.

    Raises:
        InvalidInput: The text is not an id; the message has the known id that begins like it.
    """
    client = installation.client
    parsed = await parse_id(text, "an execution", "everstep executions", lambda: newest_executions(client))
    return await execution_of_id(parsed, installation)


async def execution_of_id(execution_id: UUID, installation: Installation) -> Execution:
    """Return the handle of an execution of any tenant; that of an unknown one has the default tenant."""
    client = installation.client
    tenant = await installation.id_owners.tenant_of_execution(execution_id)
    return replace(client, tenant_id=tenant or client.tenant_id).execution(execution_id)
