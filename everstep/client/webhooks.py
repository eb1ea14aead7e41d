"""Webhooks, for the HTTP API and the command line: who receives which events.

Deliveries are queued by the database, in the transaction that stores what happened, and sent by
`webhook_delivery`.
"""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from everstep.agent_domain.errors import NotFound
from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.webhooks import (
    SECRET_PREFIX,
    AttemptOutcome,
    DeliveryRow,
    DeliveryState,
    TooManyWebhooks,
    WebhookRow,
    WebhookSecrets,
    WebhookSettings,
    WebhookStore,
    WebhookTaken,
)
from everstep.client.errors import SettingRefused

SECRET_BYTES: Final = 32


class WebhookSender(Protocol):
    """Sends requests to receivers."""

    async def check_url(self, url: str) -> None:
        """Check a URL, and the addresses of its host.

        Raises:
            InvalidInput: Nothing may be sent there; the message says why.
        """
        ...

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> AttemptOutcome:
        """Send a delivery; a failure is an outcome."""
        ...


class SecretBox(Protocol):
    """Encrypts what the database stores."""

    def seal(self, secret: str) -> str:
        """Return the secret as it is stored."""
        ...

    def open(self, stored: str) -> str:
        """Return the secret.

        Raises:
            InvalidInput: It was sealed with another key.
        """
        ...


def new_secret() -> str:
    """Return a random secret that signs deliveries."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The webhooks of all tenants."""

    store: WebhookStore
    sender: WebhookSender
    box: SecretBox

    async def create(
        self, webhook_id: UUID, tenant_id: str, settings: WebhookSettings, now: datetime
    ) -> tuple[WebhookRow, str]:
        """Create a webhook; return it with its secret.

        Raises:
            InvalidInput: Nothing may be sent to the URL.
            SettingRefused: There is one with this URL, or there are too many.
        """
        await self.sender.check_url(settings.url)
        secret = new_secret()
        row = WebhookRow(webhook_id, tenant_id, settings, WebhookSecrets(self.box.seal(secret)), now, now)
        try:
            return await self.store.add_webhook(row), secret
        except (WebhookTaken, TooManyWebhooks) as error:
            raise SettingRefused("webhook", str(error)) from None

    async def get(self, tenant_id: str, webhook_id: UUID) -> WebhookRow:
        """Return a webhook.

        Raises:
            NotFound: There is none.
        """
        row = await self.store.webhook(tenant_id, webhook_id)
        if row is None:
            raise NotFound("webhook", webhook_id)
        return row

    async def list(self, tenant_id: str, *, cursor: str | None = None, limit: int = 50) -> Page[WebhookRow]:
        """Return the webhooks of a tenant, newest first."""
        return await self.store.webhooks(tenant_id, cursor=cursor, limit=limit)

    async def change(self, tenant_id: str, webhook_id: UUID, changes: Mapping[str, Any]) -> WebhookRow:
        """Change settings of a webhook.

        Raises:
            NotFound: There is none.
            InvalidInput: Nothing may be sent to the URL.
            SettingRefused: There is another one with this URL.
        """
        row = await self.get(tenant_id, webhook_id)
        settings = replace(row.settings, **changes)
        if settings.url != row.settings.url:
            await self.sender.check_url(settings.url)
        try:
            changed = await self.store.change_webhook(tenant_id, webhook_id, settings)
        except WebhookTaken as error:
            raise SettingRefused("webhook", str(error)) from None
        if changed is None:
            raise NotFound("webhook", webhook_id)
        return changed

    async def rotate(self, tenant_id: str, webhook_id: UUID) -> tuple[WebhookRow, str]:
        """Replace the secret; return the webhook with the new one. The previous one also signs for a day.

        Raises:
            NotFound: There is no such webhook.
            SettingRefused: It was rotated by another process at the same moment.
        """
        row, secret = await self.get(tenant_id, webhook_id), new_secret()
        changed = await self.store.rotate_secret(row, self.box.seal(secret))
        if changed is None:
            raise SettingRefused(
                "webhook", "The secret was changed at the same moment; try again if you still want to"
            )
        return changed, secret

    async def delete(self, tenant_id: str, webhook_id: UUID) -> None:
        """Delete a webhook with its deliveries.

        Raises:
            NotFound: There is none.
        """
        if not await self.store.delete_webhook(tenant_id, webhook_id):
            raise NotFound("webhook", webhook_id)

    async def ping(self, tenant_id: str, webhook_id: UUID, delivery_id: UUID) -> DeliveryRow:
        """Queue a delivery that tests the connection.

        Raises:
            NotFound: There is no such webhook.
            SettingRefused: It is disabled.
        """
        return await self.store.queue_ping(await self._get_active(tenant_id, webhook_id), delivery_id)

    async def deliveries(
        self,
        tenant_id: str,
        webhook_id: UUID,
        *,
        state: DeliveryState | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[DeliveryRow]:
        """Return the deliveries of a webhook, newest first.

        Raises:
            NotFound: There is no such webhook.
        """
        await self.get(tenant_id, webhook_id)
        return await self.store.deliveries(tenant_id, webhook_id, state=state, cursor=cursor, limit=limit)

    async def replay(self, tenant_id: str, webhook_id: UUID, delivery_id: UUID) -> DeliveryRow:
        """Deliver an event again, with all attempts.

        Raises:
            NotFound: There is no such webhook, or no such delivery.
            SettingRefused: The webhook is disabled.
        """
        await self._get_active(tenant_id, webhook_id)
        queued = await self.store.replay_delivery(tenant_id, webhook_id, delivery_id)
        if queued is None:
            raise NotFound("delivery", delivery_id)
        return queued

    async def _get_active(self, tenant_id: str, webhook_id: UUID) -> WebhookRow:
        row = await self.get(tenant_id, webhook_id)
        if not row.settings.is_enabled:
            raise SettingRefused("webhook", "The webhook is disabled; enable it first")
        return row
