"""Webhooks: URLs that receive the events of a tenant, their deliveries, and the port that stores both.

The database itself queues the deliveries of an event, in the transaction that stores what happened.
"""

import base64
import binascii
import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

from everstep.agent_domain.errors import EverstepError
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.values import FrozenDict

MAX_URL: Final = 2_000
MAX_WEBHOOKS: Final = 50
"""The limit of webhooks of one tenant."""

FIRST_DELAY: Final = timedelta(seconds=10)
LONGEST_DELAY: Final = timedelta(hours=6)
MAX_ATTEMPTS: Final = 12
"""The delays between them are 27 hours in all."""
JITTER: Final = 0.2
"""The share of a delay by which it varies, so that receivers that come back are not called by all at once."""

DISABLED_AFTER: Final = timedelta(days=5)
"""A webhook that failed for this long, without a success, is disabled with its next dead delivery."""

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 -- the prefix of all secrets
KEEPS_SECRET: Final = timedelta(days=1)
"""How long the previous secret still signs after a rotation."""


class WebhookEvent(StrEnum):
    """The events that webhooks receive."""

    EXECUTION_COMPLETED = "execution.completed"
    EXECUTION_FAILED = "execution.failed"
    EXECUTION_CANCELLED = "execution.cancelled"
    APPROVAL_REQUESTED = "approval.requested"
    INPUT_REQUESTED = "input.requested"
    BUDGET_EXHAUSTED = "budget.exhausted"


PING: Final = "webhook.ping"
"""The type of a delivery that only tests the connection."""


class DeliveryState(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"
    """All attempts failed; it can be replayed."""


class WebhookTaken(EverstepError):
    """The tenant has a webhook with this URL."""

    def __init__(self, url: str) -> None:
        super().__init__(f"a webhook with the URL {url} exists already; change that one")


class TooManyWebhooks(EverstepError):
    """The tenant has as many webhooks as are allowed."""

    def __init__(self) -> None:
        super().__init__(f"a tenant has at most {MAX_WEBHOOKS} webhooks; delete one first")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """What a caller decides about a webhook."""

    url: str
    events: tuple[WebhookEvent, ...] = tuple(WebhookEvent)
    include_content: bool = False
    """Whether deliveries contain texts of conversations."""
    is_enabled: bool = True


@dataclass(frozen=True, slots=True)
class WebhookSecrets:
    """The secrets that sign, as they are stored."""

    current: str
    previous: str | None = None
    previous_until: datetime | None = None

    def signing(self, now: datetime) -> tuple[str, ...]:
        """Return the secrets that sign at this time, the current one first."""
        if self.previous is None or self.previous_until is None or self.previous_until <= now:
            return (self.current,)
        return (self.current, self.previous)


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """A webhook."""

    id: UUID
    tenant_id: str
    settings: WebhookSettings
    secrets: WebhookSecrets
    created_at: datetime
    updated_at: datetime
    failing_since: datetime | None = None
    """The first failure since the last success."""
    disabled_reason: str | None = None
    """Why it was disabled, if no caller did that."""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """The delivery of an event to a webhook."""

    id: UUID
    tenant_id: str
    webhook_id: UUID
    event_id: str
    """The same in each attempt, and for each webhook."""
    type: str
    data: FrozenDict
    """Ids and statuses; never texts."""
    state: DeliveryState
    attempts: int
    next_at: datetime
    created_at: datetime
    completed_at: datetime | None = None
    response_status: int | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """The outcome of an attempt to deliver."""

    response_status: int | None = None
    error: str | None = None
    """None if the receiver accepted it."""

    @property
    def is_gone(self) -> bool:
        """Whether the receiver said that it wants no more deliveries."""
        return self.response_status == 410  # noqa: PLR2004 -- Gone, as Standard Webhooks defines it


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """How many deliveries a process claims."""

    busy: Collection[UUID] = ()
    """Webhooks to leave out."""
    busy_tenants: Collection[str] = ()
    """Tenants to leave out."""
    webhooks: int = 32
    """The limit of webhooks."""
    webhooks_of_tenant: int = 8
    """The limit of webhooks of one tenant."""
    deliveries: int = 40
    """The limit of deliveries of one webhook."""


def retry_delay(attempts: int, chance: float) -> timedelta | None:
    """Return the delay before the next attempt; None if there is none.

    Args:
        attempts: How many failed.
        chance: A random number between 0 and 1.
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    delay = min(FIRST_DELAY * 3 ** (attempts - 1), LONGEST_DELAY)
    return delay * (1 - JITTER + 2 * JITTER * chance)


def webhook_signature(secret: str, event_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature of a delivery, as Standard Webhooks defines it.

    Raises:
        ValueError: The secret is none of ours.
    """
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("the secret of a webhook is base64") from None
    signed = f"{event_id}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"


class WebhookStore(Protocol):
    """Stores webhooks and their deliveries."""

    async def add_webhook(self, row: WebhookRow) -> WebhookRow:
        """Store a webhook.

        Raises:
            WebhookTaken: The tenant has one with this URL.
            TooManyWebhooks: The tenant has as many as are allowed.
        """
        ...

    async def webhook(self, tenant_id: str, webhook_id: UUID) -> WebhookRow | None:
        """One webhook of the tenant, if it exists."""
        ...

    async def webhooks(
        self, tenant_id: str, *, cursor: str | None = None, limit: int = 50
    ) -> Page[WebhookRow]:
        """The webhooks of a tenant, newest first."""
        ...

    async def change_webhook(
        self, tenant_id: str, webhook_id: UUID, settings: WebhookSettings
    ) -> WebhookRow | None:
        """Store new settings; None if there is no such webhook. Enabling it forgets its failures.

        Raises:
            WebhookTaken: The tenant has another one with this URL.
        """
        ...

    async def rotate_secret(self, row: WebhookRow, secret: str) -> WebhookRow | None:
        """Store a new secret; the current one becomes the previous one. None if the secret was changed."""
        ...

    async def delete_webhook(self, tenant_id: str, webhook_id: UUID) -> bool:
        """Delete a webhook with its deliveries; return whether there was one."""
        ...

    async def queue_ping(self, row: WebhookRow, delivery_id: UUID) -> DeliveryRow:
        """Queue a delivery that tests the connection."""
        ...

    async def deliveries(
        self,
        tenant_id: str,
        webhook_id: UUID,
        *,
        state: DeliveryState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[DeliveryRow]:
        """The deliveries of a webhook, newest first."""
        ...

    async def replay_delivery(
        self, tenant_id: str, webhook_id: UUID, delivery_id: UUID
    ) -> DeliveryRow | None:
        """Deliver an event again, with all attempts; None if there is no such delivery."""
        ...

    async def claim_deliveries(
        self, terms: ClaimTerms, lease: timedelta
    ) -> Sequence[tuple[WebhookRow, DeliveryRow]]:
        """Claim due deliveries of enabled webhooks, of all tenants in turn, and count the attempt.

        A claim that is not recorded, because its process was lost, is due again after the lease.

        Args:
            terms: How many.
            lease: How long the claim holds.
        """
        ...

    async def record_attempt(
        self, delivery: DeliveryRow, outcome: AttemptOutcome, delay: timedelta | None
    ) -> str | None:
        """Store the outcome of the claimed attempt; return why the webhook was disabled, if it was.

        Args:
            delivery: The delivery as it was claimed.
            outcome: The outcome.
            delay: The time until the next attempt; None if there is none.
        """
        ...
