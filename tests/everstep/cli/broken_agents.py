"""Agents with a resource that cannot be started."""

from collections.abc import AsyncIterator

from everstep import AgentBuilder, resource


@resource
async def first() -> AsyncIterator[int]:
    print("first starts", flush=True)  # noqa: T201 -- the test reads it
    yield 1
    print("first stops", flush=True)  # noqa: T201 -- the test reads it


@resource
async def orders() -> int:
    raise ConnectionRefusedError("no database at port 5432")


agents = [AgentBuilder.base()]
