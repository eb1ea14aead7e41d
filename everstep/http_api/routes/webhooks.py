"""Routes about webhooks. They need the scope `admin`."""

from typing import Annotated
from uuid import UUID, uuid4

from fastapi import Path, Query, Response

from everstep.agent_domain.storage.webhooks import DeliveryState
from everstep.client.execution import now
from everstep.client.webhooks import Webhooks
from everstep.http_api.auth import SECRET_MARKER, CallerDep
from everstep.http_api.callers import Caller, Grant
from everstep.http_api.dependencies import Api
from everstep.http_api.idempotency import KeyDep
from everstep.http_api.problems import forbidden, missing_scope
from everstep.http_api.routes.router import ApiDep, router
from everstep.http_api.schemas.responses import PageResponse, page_response
from everstep.http_api.schemas.text import Cursor, Limit
from everstep.http_api.schemas.webhook_schemas import (
    DeliveryResponse,
    NewWebhookSent,
    WebhookChangesSent,
    WebhookResponse,
    WebhookWithSecret,
)

routes = router("webhooks")

WebhookId = Annotated[UUID, Path(description="The webhook's id.")]
DeliveryId = Annotated[UUID, Path(description="The delivery's id.")]


@routes.post("/agent/webhooks", status_code=201, openapi_extra={SECRET_MARKER: True})
async def create_webhook(body: NewWebhookSent, api: ApiDep, caller: CallerDep) -> WebhookWithSecret:
    """Send events of the tenant to a URL. The response has the secret that verifies them, once."""
    _require_right_to_content(caller, included=body.include_content)
    created = await _webhooks(api, caller).create(uuid4(), caller.tenant_id, body.settings, now())
    return WebhookWithSecret.revealed(*created)


@routes.get("/agent/webhooks")
async def list_webhooks(
    api: ApiDep, caller: CallerDep, cursor: Cursor = None, limit: Limit = 50
) -> PageResponse[WebhookResponse]:
    """List webhooks, newest first."""
    page = await _webhooks(api, caller).list(caller.tenant_id, cursor=cursor, limit=limit)
    return page_response(page, WebhookResponse.of)


@routes.get("/agent/webhooks/{webhook_id}")
async def read_webhook(webhook_id: WebhookId, api: ApiDep, caller: CallerDep) -> WebhookResponse:
    """Read a webhook."""
    return WebhookResponse.of(await _webhooks(api, caller).get(caller.tenant_id, webhook_id))


@routes.patch("/agent/webhooks/{webhook_id}")
async def change_webhook(
    webhook_id: WebhookId, body: WebhookChangesSent, api: ApiDep, caller: CallerDep
) -> WebhookResponse:
    """Change, disable or enable a webhook. Events that happen while it is disabled are not delivered."""
    webhooks = _webhooks(api, caller)
    if body.url is not None or body.include_content:
        # Another URL receives the content that the webhook had before, too.
        row = await webhooks.get(caller.tenant_id, webhook_id)
        is_kept = body.include_content is None and row.settings.include_content
        _require_right_to_content(caller, included=is_kept or bool(body.include_content))
    return WebhookResponse.of(await webhooks.change(caller.tenant_id, webhook_id, body.changes))


@routes.delete("/agent/webhooks/{webhook_id}", status_code=204)
async def delete_webhook(webhook_id: WebhookId, api: ApiDep, caller: CallerDep) -> Response:
    """Delete a webhook with its deliveries."""
    await _webhooks(api, caller).delete(caller.tenant_id, webhook_id)
    return Response(status_code=204)


@routes.post("/agent/webhooks/{webhook_id}/rotate", openapi_extra={SECRET_MARKER: True})
async def rotate_webhook_secret(webhook_id: WebhookId, api: ApiDep, caller: CallerDep) -> WebhookWithSecret:
    """Replace the secret. For a day, deliveries have a signature of the previous one, too."""
    return WebhookWithSecret.revealed(*await _webhooks(api, caller).rotate(caller.tenant_id, webhook_id))


@routes.post("/agent/webhooks/{webhook_id}/ping")
async def ping_webhook(
    webhook_id: WebhookId, api: ApiDep, caller: CallerDep, key: KeyDep
) -> DeliveryResponse:
    """Queue a delivery of the type `webhook.ping`, to test the connection."""
    queued = await _webhooks(api, caller).ping(caller.tenant_id, webhook_id, key.id("ping"))
    return DeliveryResponse.of(queued)


@routes.get("/agent/webhooks/{webhook_id}/deliveries")
async def list_deliveries(
    webhook_id: WebhookId,
    api: ApiDep,
    caller: CallerDep,
    state: Annotated[DeliveryState | None, Query(description="Only deliveries in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> PageResponse[DeliveryResponse]:
    """List the deliveries of a webhook, newest first."""
    page = await _webhooks(api, caller).deliveries(
        caller.tenant_id, webhook_id, state=state, cursor=cursor, limit=limit
    )
    return page_response(page, DeliveryResponse.of)


@routes.post("/agent/webhooks/{webhook_id}/deliveries/{delivery_id}/replay")
async def replay_delivery(
    webhook_id: WebhookId, delivery_id: DeliveryId, api: ApiDep, caller: CallerDep, key: KeyDep
) -> DeliveryResponse:
    """Deliver an event again, with the same `webhook-id` and all attempts."""
    del key
    queued = await _webhooks(api, caller).replay(caller.tenant_id, webhook_id, delivery_id)
    return DeliveryResponse.of(queued)


def _require_right_to_content(caller: Caller, *, included: bool) -> None:
    """Refuse to send the conversations of all users where the caller may not read them."""
    if included and not caller.sees_all:
        raise forbidden(
            f"Webhooks with include_content send what all users say, so they need the scope "
            f"'{Grant.ALL_SESSIONS}', too; omit include_content"
        )


def _webhooks(api: Api, caller: Caller) -> Webhooks:
    if not caller.sees_installation:
        raise missing_scope(f"Webhooks need the scope '{Grant.ADMIN}'", Grant.ADMIN)
    return api.webhooks
