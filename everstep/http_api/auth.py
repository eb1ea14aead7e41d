"""Who is let in."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import Request

from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.storage.keys import KeyStore
from everstep.http_api import api_keys
from everstep.http_api.callers import Caller, Grant, require_person
from everstep.http_api.problems import forbidden, unauthorized
from everstep.http_api.tokens import Tokens

logger = logging.getLogger(__name__)

Authenticate = Callable[[str | None], Awaitable[Caller]]
"""Given an `Authorization` header: who asks."""

ANYBODY = Caller(
    "anybody", DEFAULT_TENANT, frozenset({Grant.ALL_SESSIONS}), scopes=(str(Grant.ALL_SESSIONS),)
)
"""Who everybody is where nobody is asked."""

HOW = "send `Authorization: Bearer` with a token, or with a key made by `everstep keys create`"


@dataclass(frozen=True)
class Doorkeeper:
    """Lets in whoever has a token or a key."""

    tokens: Tokens | None
    keys: KeyStore

    async def __call__(self, header: str | None) -> Caller:
        """Who asks; `Refusal` if nobody knows."""
        if header is None:
            raise unauthorized(f"Nobody knows who you are; {HOW}")
        scheme, _, credential = header.partition(" ")
        credential = credential.strip()
        if scheme.lower() != "bearer" or not credential:
            raise unauthorized(f"The Authorization header cannot be used; {HOW}")
        if credential.startswith(api_keys.PREFIX):
            caller = await api_keys.caller_of(self.keys, credential)
            if caller is None:
                raise unauthorized("This key opens nothing, or not any more; make one: everstep keys create")
            return caller
        if self.tokens is None:
            raise unauthorized("Tokens are not accepted here; send a key made by `everstep keys create`")
        return await self.tokens.caller(credential)


def open_door() -> Authenticate:
    """Lets in everybody, and says so."""
    logger.warning(
        "EVERSTEP_AUTH=off: whoever reaches this port may see and do everything; "
        "never do this where others reach it"
    )

    async def let_in(header: str | None) -> Caller:
        del header
        return ANYBODY

    return let_in


READS = frozenset({"GET", "HEAD", "OPTIONS"})
READ = "x-everstep-reads"
"""What marks a POST that changes nothing."""


async def admitted(request: Request, authenticate: Authenticate, *, is_read: bool) -> Caller:
    """Who asks, known to everything that answers."""
    caller = await authenticate(request.headers.get("authorization"))
    request.state.caller = caller
    request.state.tenant_id = caller.tenant_id
    if not is_read and not caller.may_write:
        raise forbidden("A read-only token or key changes nothing; use another one")
    return caller


async def _caller(request: Request) -> Caller:
    # Set by the route before anything else is looked at: without it there is no way here.
    return cast("Caller", request.state.caller)


Who = Annotated[Caller, Depends(_caller)]
"""The caller, in a route."""


def acting(caller: Caller, named: str | None) -> Scope:
    """Whose things somebody touches while acting for somebody else."""
    return caller.scope if named is None else Scope(caller.tenant_id, user_of(caller, named))


def user_of(caller: Caller, named: str | None) -> str:
    """For whom something is made."""
    if named != caller.user_id:
        require_person("user_id", named)
    user_id = caller.acts_for(named)
    if user_id is None:
        raise forbidden(f"Only the scope '{Grant.ALL_SESSIONS}' may act for somebody else; leave out user_id")
    return user_id
