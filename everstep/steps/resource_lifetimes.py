"""Starts and stops the resources of a worker or of a run."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from everstep.agent_domain.errors import EverstepError, ResourceFailed
from everstep.agent_domain.tools.resources import Resource, Resources, as_resources, require_resources
from everstep.steps.isolation import error_boundary

STOP_SECONDS: Final = 10.0
"""How long a resource may take to stop; what waits longer would keep the process from its end."""

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_resources(
    wanted: Iterable[Resource[Any]], given: Resources | Mapping[Any, object] | None = None
) -> AsyncGenerator[Resources]:
    """Start resources one after the other, and stop them in reverse order at the end.

    Args:
        wanted: The resources.
        given: Objects to use instead, by key or by type. They are neither started nor stopped here.

    Raises:
        ResourceFailed: One could not be started; those before it have been stopped.
    """
    own = as_resources(given)
    missing = [each for each in require_resources(wanted, "the list of resources") if not own.covers(each)]
    if not missing:
        yield own
        return
    opened: asyncio.Future[dict[Any, Any]] = asyncio.get_running_loop().create_future()
    release = asyncio.Event()
    # One task starts and stops them, as libraries with cancel scopes require.
    holder = asyncio.create_task(_hold(missing, opened, release))
    try:
        # A cancel here must not reach the future, which the other task sets.
        yield Resources(await asyncio.shield(opened)).merged(own)
    finally:
        if opened.done():
            release.set()
        else:
            holder.cancel()
        await asyncio.wait([holder])
        if not holder.cancelled():
            holder.result()


async def _hold(
    missing: Sequence[Resource[Any]], opened: asyncio.Future[dict[Any, Any]], release: asyncio.Event
) -> None:
    """Start resources, and stop them once they are released."""
    started: dict[Resource[Any], AbstractAsyncContextManager[Any]] = {}
    values: dict[Any, Any] = {}
    try:
        for each in missing:
            manager = each.open()
            values[each] = await _start(each, manager)
            started[each] = manager
        opened.set_result(values)
        await release.wait()
    except ResourceFailed as error:
        opened.set_exception(error)
    finally:
        for each, manager in reversed(started.items()):
            await _stop(each, manager)


async def _start(resource: Resource[Any], manager: AbstractAsyncContextManager[Any]) -> Any:
    deadline = asyncio.timeout(resource.start_seconds)
    try:
        async with deadline:
            with error_boundary():
                return await manager.__aenter__()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, EverstepError):
            problem = str(error)
        if isinstance(error, TimeoutError) and deadline.expired():
            problem = f"it took longer than {resource.start_seconds:g} seconds"
        raise ResourceFailed(f"the resource '{resource.name}' cannot be started: {problem}") from error


async def _stop(resource: Resource[Any], manager: AbstractAsyncContextManager[Any]) -> None:
    """Stop a resource. A failure is logged: the others have to be stopped all the same."""
    deadline = asyncio.timeout(STOP_SECONDS)
    try:
        async with deadline:
            with error_boundary():
                await manager.__aexit__(None, None, None)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, TimeoutError) and deadline.expired():
            problem = f"it took longer than {STOP_SECONDS:g} seconds"
        log.exception("the resource '%s' was not stopped: %s", resource.name, problem)
