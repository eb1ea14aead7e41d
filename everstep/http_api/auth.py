"""Authentication of requests."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import Request

from everstep.agent_domain.agents.model_name import ModelName, require_no_address
from everstep.agent_domain.capabilities.rights import OWN_SCOPES
from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT, Scope
from everstep.agent_domain.storage.keys import KeyStore
from everstep.http_api import api_keys
from everstep.http_api.callers import Caller, Grant, require_person
from everstep.http_api.problems import authentication_error, forbidden
from everstep.http_api.tokens import Tokens

logger = logging.getLogger(__name__)

Authenticate = Callable[[str | None], Awaitable[Caller]]
"""Returns the caller that an `Authorization` header identifies."""

ANONYMOUS = Caller.from_claims("anybody", DEFAULT_TENANT, OWN_SCOPES)
"""The caller of every request where authentication is off."""

HOW_TO_AUTHENTICATE = "send `Authorization: Bearer` with a token or with a key from `everstep keys create`"


@dataclass(frozen=True)
class Authenticator:
    """Authenticates requests that have a token or a key."""

    tokens: Tokens | None
    keys: KeyStore

    async def __call__(self, header: str | None) -> Caller:
        """Return the caller.

        Raises:
            Refusal: The credentials are missing or invalid.
        """
        if header is None:
            raise authentication_error(f"Authentication required: {HOW_TO_AUTHENTICATE}")
        scheme, _, credential = header.partition(" ")
        credential = credential.strip()
        if scheme.lower() != "bearer" or not credential:
            raise authentication_error(f"The Authorization header is invalid; {HOW_TO_AUTHENTICATE}")
        if credential.startswith(api_keys.PREFIX):
            caller = await api_keys.find_caller(self.keys, credential)
            if caller is None:
                raise authentication_error(
                    "The key is unknown or revoked; create one with `everstep keys create`"
                )
            return caller
        if self.tokens is None:
            raise authentication_error("Tokens are not accepted here; send a key from `everstep keys create`")
        return await self.tokens.caller(credential)


def allow_all() -> Authenticate:
    """Accept every request without authentication, and log a warning."""
    logger.warning(
        "EVERSTEP_AUTH=off: every client that reaches this port has full access; "
        "never use this on a port that others can reach"
    )

    async def authenticate(header: str | None) -> Caller:
        del header
        return ANONYMOUS

    return authenticate


READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READ_MARKER = "x-everstep-reads"
"""The OpenAPI extension that marks a POST which changes nothing."""
SECRET_MARKER = "x-everstep-secret"  # noqa: S105 -- a name
"""The OpenAPI extension that marks a POST whose response is a secret: it is not stored under any key."""


def admit(request: Request, caller: Caller, *, is_read: bool) -> Caller:
    """Store the caller in the request's state, if the caller may send it.

    Raises:
        Refusal: The caller is read-only and this is a write.
    """
    request.state.caller = caller
    request.state.tenant_id = caller.tenant_id
    if not is_read and not caller.may_write:
        raise forbidden("This token or key is read-only; use another one")
    return caller


async def _caller(request: Request) -> Caller:
    # `ApiRoute` sets it before it resolves any dependency.
    return cast("Caller", request.state.caller)


CallerDep = Annotated[Caller, Depends(_caller)]
"""The type of a route's parameter for the caller."""


def acting_scope(caller: Caller, named: str | None) -> Scope:
    """The scope of a request, which may name another user to act for."""
    return caller.scope if named is None else Scope(caller.tenant_id, acting_user(caller, named))


def usable_model(caller: Caller, model: str | None) -> str | None:
    """The model that a request names. Users choose among presets; services name any model of a provider.

    Raises:
        Refusal: The caller may only name presets.
        InvalidInput: The model has an address of its own, or is a script.
    """
    require_no_address(model)
    name = None if model is None else ModelName.parse(model)
    if name is not None and name.provider == "scripted":
        raise InvalidInput("'model' must not hold the path of a script; name a preset")
    if name is not None and not caller.sees_all:
        raise forbidden(f"A model in one line needs the scope '{Grant.ALL_SESSIONS}'; name a preset")
    return model


def acting_user(caller: Caller, named: str | None) -> str:
    """The user that a request acts for.

    Raises:
        Refusal: The caller may not act for the named user.
    """
    if named != caller.user_id:
        require_person("user_id", named)
    user_id = caller.acts_for(named)
    if user_id is None:
        raise forbidden(f"Acting for another user needs the scope '{Grant.ALL_SESSIONS}'; omit user_id")
    return user_id
