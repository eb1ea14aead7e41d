"""What the HTTP API is made of, and given."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from everstep.agent_domain.hosts import AllowedHosts
from everstep.agent_domain.storage.keys import KeyStore
from everstep.agent_domain.storage.usage_report import AccountStore
from everstep.agent_domain.stream.channels import Admission, StreamStore
from everstep.agent_domain.stream.reader import Position
from everstep.client.client import Client
from everstep.client.sessions import Sessions
from everstep.http_api.auth import Authenticate
from everstep.http_api.callers import Caller
from everstep.http_api.channels import Signer
from everstep.http_api.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the API cannot do without, and whether it is there."""

    name: str
    is_good: bool
    detail: str = ""
    """What to do if it is not."""


Checks = Callable[[], Awaitable[Sequence[Check]]]


Feed = Callable[[UUID, bool, Position | None, Admission], Awaitable[AsyncGenerator[bytes]]]
"""Given a stream, whether it is a session's, where a viewer was, and how long it may watch: its events."""


def nowhere() -> str | None:
    """Where no gateway is known."""
    return None


async def nothing_to_check() -> Sequence[Check]:
    """Where nothing else is needed."""
    return ()


@dataclass(frozen=True)
class Api:
    """Everything that a route needs."""

    sessions: Sessions
    keys: KeyStore
    accounts: AccountStore
    streams: StreamStore
    authenticate: Authenticate
    signer: Signer | None = None
    """Lets browsers into channels of the gateway."""
    feed: Feed | None = None
    """Lets others watch without a gateway."""
    gateway_url: Callable[[], str | None] = nowhere
    """Where viewers reach the gateway; one of a local installation comes and goes."""
    checks: Checks = nothing_to_check
    allowed_origins: Sequence[str] = ()
    allowed_hosts: AllowedHosts | None = None
    """The names that are answered to; None where whoever serves the application checks them."""
    metrics: Metrics = field(default_factory=Metrics)

    def client_for(self, caller: Caller) -> Client:
        """The client of the caller's tenant."""
        return replace(self.sessions.client, tenant_id=caller.tenant_id)

    def sessions_for(self, caller: Caller) -> Sessions:
        """The sessions of the caller's tenant."""
        return replace(self.sessions, client=self.client_for(caller))
