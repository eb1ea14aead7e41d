"""Starts workflows with search attributes, if the Temporal server has them."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from everstep.workflows import search_attributes
from everstep.workflows.contracts import ExecutionInput
from everstep.workflows.search_attributes import is_unknown_attribute

log = logging.getLogger(__name__)

LIST_TIMEOUT: Final = timedelta(seconds=5)


async def start_with_attributes(
    temporal: TemporalClient,
    start: ExecutionInput,
    start_workflow: Callable[[ExecutionInput], Awaitable[None]],
) -> None:
    """Start a workflow; without search attributes if the server does not have them.

    A server that could not read its database when it started knows none for a while, until they are listed.
    """
    is_listed = False
    while True:
        try:
            await start_workflow(start)
        except RPCError as error:
            if not (start.search_attributes and is_unknown_attribute(error)):
                raise
            if is_listed or not await _has_attributes(temporal):
                log.warning("the execution starts without search attributes: %s", error)
                start = replace(start, search_attributes=False)
            is_listed = True
        else:
            return


async def _has_attributes(temporal: TemporalClient) -> bool:
    request = ListSearchAttributesRequest(namespace=temporal.namespace)
    try:
        known = await temporal.operator_service.list_search_attributes(request, timeout=LIST_TIMEOUT)
    except RPCError:
        # Not every server allows it.
        return False
    return all(key.name in known.custom_attributes for key in search_attributes.ALL)
