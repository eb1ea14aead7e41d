"""The dependencies of the routes."""

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID

from starlette.requests import Request

from everstep.agent_domain.fairness.request_rates import RequestRates
from everstep.agent_domain.fairness.tenant_limits import LimitBook
from everstep.agent_domain.hosts import AllowedHosts
from everstep.agent_domain.ids import Scope
from everstep.agent_domain.redaction import Redaction
from everstep.agent_domain.storage.definition_uses import DefinitionUse, ReadDefinitionUses
from everstep.agent_domain.storage.keys import KeyStore
from everstep.agent_domain.storage.schedules import ScheduleStore
from everstep.agent_domain.storage.usage_report import UsageReportStore
from everstep.agent_domain.stream.channels import Admission, StreamIndex, StreamStore
from everstep.agent_domain.stream.reader import Position
from everstep.client.client import Client
from everstep.client.sessions import Sessions
from everstep.client.webhooks import Webhooks
from everstep.http_api.auth import Authenticate
from everstep.http_api.callers import Caller
from everstep.http_api.channel_authorization import Signer
from everstep.http_api.identity_provider import IdentityProvider
from everstep.http_api.metrics import Metrics
from everstep.http_api.problems import too_many_requests
from everstep.http_api.schemas.system_responses import ChecksResponse, SystemResponse
from everstep.http_api.sign_ins import BrowserSessions, find_caller
from everstep.http_api.waiting_calls import WaitingCalls


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a readiness check of one dependency."""

    name: str
    is_good: bool
    detail: str = ""
    """How to fix a failed check."""


Checks = Callable[[], Awaitable[Sequence[Check]]]


Feed = Callable[[UUID, bool, Position | None, Admission], Awaitable[AsyncGenerator[bytes]]]
"""Opens the events of a stream; its arguments: id, whether of a session, position, admission."""


@dataclass(frozen=True, slots=True)
class Logs:
    """The envelopes of streams."""

    open: Feed
    """Opens the envelopes of a stream as lines of JSON."""
    index: StreamIndex


def no_gateway_url() -> str | None:
    """The gateway URL of an API without a gateway: None."""
    return None


async def no_definition_uses(scope: Scope, agent: str) -> Sequence[DefinitionUse]:
    """The definitions that executions of an agent began with, of an API that does not read them: none."""
    del scope, agent
    return ()


async def no_checks() -> Sequence[Check]:
    """The readiness checks of an API without dependencies: none."""
    return ()


class SystemReader(Protocol):
    """Reads the state of an installation, over all tenants."""

    async def read(self) -> SystemResponse:
        """Return what its parts report now."""
        ...

    async def checks(self) -> ChecksResponse:
        """Return what is wrong and how to fix it."""
        ...


@dataclass(frozen=True)
class Api:
    """The dependencies of the routes."""

    sessions: Sessions
    keys: KeyStore
    accounts: UsageReportStore
    schedules: ScheduleStore
    webhooks: Webhooks
    streams: StreamStore
    authenticate: Authenticate
    signer: Signer | None = None
    """Signs subscriptions of browsers to channels of the gateway."""
    feed: Feed | None = None
    """Serves events over HTTP, for viewers without a gateway connection."""
    gateway_url: Callable[[], str | None] = no_gateway_url
    """The URL at which viewers reach the gateway; it may change in a local installation."""
    checks: Checks = no_checks
    allowed_origins: Sequence[str] = ()
    allowed_hosts: AllowedHosts | None = None
    """The accepted host names; None if the server in front of the application checks them."""
    metrics: Metrics = field(default_factory=Metrics)
    metrics_page: Callable[[], Awaitable[bytes]] | None = None
    """Renders the metrics of the whole process; None if the process has no others."""
    redaction: Redaction = field(default_factory=Redaction)
    """Replaces secrets in exports."""
    browser_sessions: BrowserSessions | None = None
    """The sessions of people who are signed in with a browser."""
    identity_provider: IdentityProvider | None = None
    """Where people sign in, if not with a token or a link."""
    requires_sign_in: bool = True
    """Whether requests have to be authenticated."""
    temporal_workflows_url: str | None = None
    """The list of workflows in Temporal's web UI, for links of the console."""

    system: SystemReader | None = None
    """The state of the installation."""
    definition_uses: ReadDefinitionUses = no_definition_uses

    limits: Callable[[], LimitBook] = LimitBook
    """The limits of tenants and users."""
    request_rates: RequestRates = field(default_factory=RequestRates)
    """How many requests tenants and users with limits have left in this process."""

    async def caller_of(self, request: Request, *, is_new: bool = True) -> Caller:
        """The caller of a request, by its header or its cookie.

        Args:
            request: The request.
            is_new: Whether it counts; otherwise the caller of an open stream is checked again.

        Raises:
            Refusal: The caller is unknown, or sends too many requests.
        """
        caller = await find_caller(request, self.authenticate, self.browser_sessions)
        wait = is_new and self.request_rates.take(
            self.limits(), caller.tenant_id, caller.user_id, time.monotonic()
        )
        if wait:
            raise too_many_requests(math.ceil(wait))
        return caller

    logs: Logs | None = None
    """The envelopes of streams, for the wires of other protocols."""
    waiting_calls: WaitingCalls = field(default_factory=WaitingCalls)
    """The calls that wait for executions."""

    def client_for(self, caller: Caller) -> Client:
        """A client for the caller's tenant."""
        return replace(self.sessions.client, tenant_id=caller.tenant_id)

    def sessions_for(self, caller: Caller) -> Sessions:
        """The sessions of the caller's tenant."""
        return replace(self.sessions, client=self.client_for(caller))
