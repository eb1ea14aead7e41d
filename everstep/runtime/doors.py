"""Who may watch what over the gateway: the same tokens, keys and scopes as at the HTTP API."""

import time
from dataclasses import dataclass
from http import HTTPStatus
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from agent_domain.channels import Channel, StreamStore
from agent_domain.ports import StoreUnavailable
from agent_domain.sessions import KeyStore, Scope
from broadcast_gateway.ports import Guest, NotAdmitted
from everstep.http_api.auth import Authenticate
from everstep.http_api.problems import Refusal
from everstep.runtime.access import door
from everstep.runtime.settings import Settings
from everstep.store.keys import PostgresKeys
from everstep.store.streams import PostgresStreams


def doors(settings: Settings, engine: AsyncEngine) -> "ApiDoors":
    """The doors of an installation's gateway."""
    keys = PostgresKeys(engine)
    return ApiDoors(door(settings, keys), PostgresStreams(engine), keys)


@dataclass(frozen=True, slots=True)
class ApiDoors:
    """Asks whoever lets callers into the HTTP API."""

    authenticate: Authenticate
    streams: StreamStore
    keys: KeyStore

    async def guest(self, token: str) -> Guest:
        """Whose token this is; `NotAdmitted` if nobody's, `StoreUnavailable` if nobody can tell now."""
        try:
            caller = await self.authenticate(f"Bearer {token}")
        except Refusal as refusal:
            if refusal.status == HTTPStatus.UNAUTHORIZED:
                raise NotAdmitted(refusal.detail) from None
            # The identity provider's keys are not there yet.
            raise StoreUnavailable(refusal.detail) from None
        return Guest(caller.tenant_id, caller.scope.user_id, caller.may_watch_until(time.time()))

    async def is_good_key(self, key_id: UUID) -> bool:
        """Whether an API key still opens anything."""
        return await self.keys.is_good_key(key_id)

    async def stream(self, channel: Channel, guest: Guest | None) -> UUID | None:
        """The stream that a channel means, if this guest may watch it."""
        scope = None if guest is None else Scope(guest.tenant_id, guest.user_id)
        return await self.streams.stream(channel, scope)
