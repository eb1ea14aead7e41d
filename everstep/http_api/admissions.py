"""How long the sender of a request may watch a stream."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from time import time

from starlette.requests import Request

from everstep.agent_domain.errors import StoreUnavailable
from everstep.agent_domain.stream.channels import Admission
from everstep.http_api.callers import Caller
from everstep.http_api.dependencies import Api
from everstep.http_api.problems import Refusal

CHECK_SECONDS = 10.0
"""The time limit for checking whether a viewer may still watch."""


def admission_of(api: Api, caller: Caller, request: Request) -> Admission:
    """The admission of a request's sender: until the token expires, or the key is revoked."""
    return Admission(caller.may_watch_until(time()), _access_check(api, request))


def _access_check(api: Api, request: Request) -> Callable[[], Awaitable[bool]]:
    async def is_good() -> bool:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await api.caller_of(request, is_new=False)
        except Refusal as refusal:
            return refusal.status != HTTPStatus.UNAUTHORIZED
        except (StoreUnavailable, TimeoutError):
            # While it cannot be checked, the viewer keeps its access.
            return True
        return True

    return is_good
