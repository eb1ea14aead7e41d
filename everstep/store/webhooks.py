"""Webhooks and their deliveries in PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Executable,
    Row,
    Table,
    and_,
    case,
    delete,
    func,
    literal,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from everstep.agent_domain.storage.executions import Page
from everstep.agent_domain.storage.webhooks import (
    DISABLED_AFTER,
    KEEPS_SECRET,
    MAX_WEBHOOKS,
    PING,
    AttemptOutcome,
    ClaimTerms,
    DeliveryRow,
    DeliveryState,
    TooManyWebhooks,
    WebhookEvent,
    WebhookRow,
    WebhookSecrets,
    WebhookSettings,
    WebhookTaken,
)
from everstep.agent_domain.values import frozen_map
from everstep.store.cursors import Cursor, page_size
from everstep.store.errors import error_translation
from everstep.store.webhook_tables import deliveries, webhooks

_CLAIM = text("""
    WITH ranked AS (
        SELECT id, row_number() OVER (PARTITION BY tenant_id ORDER BY random()) AS rank
          FROM agent_webhooks hook
         WHERE is_enabled AND id <> ALL (CAST(:busy AS uuid[]))
           AND tenant_id <> ALL (CAST(:busy_tenants AS text[]))
           AND EXISTS (SELECT 1
                         FROM agent_webhook_deliveries
                        WHERE webhook_id = hook.id AND state = 'pending' AND next_at <= clock_timestamp())
    ), chosen AS (
        SELECT id
          FROM ranked
         WHERE rank <= :webhooks_of_tenant
         ORDER BY rank, random()
         LIMIT :webhooks
    ), due AS (
        SELECT found.id
          FROM chosen
         CROSS JOIN LATERAL (
                   SELECT id
                     FROM agent_webhook_deliveries
                    WHERE webhook_id = chosen.id AND state = 'pending' AND next_at <= clock_timestamp()
                    ORDER BY next_at
                    LIMIT :deliveries
                      FOR UPDATE SKIP LOCKED
               ) AS found
    )
    UPDATE agent_webhook_deliveries delivery
       SET attempts = attempts + 1, next_at = clock_timestamp() + CAST(:lease AS interval)
      FROM due
     WHERE delivery.id = due.id
 RETURNING delivery.id
""")
"""Each webhook and each tenant has a limit of its own, so that none with many deliveries displaces others."""

_NOW = func.clock_timestamp()


class PostgresWebhooks:
    """Stores webhooks and their deliveries."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def add_webhook(self, row: WebhookRow) -> WebhookRow:
        """Store a webhook; see `WebhookStore`."""
        counted = select(func.count().label("number")).where(webhooks.c.tenant_id == row.tenant_id)
        # Requests that arrive together may exceed the limit by their number.
        if (await self._all(counted))[0].number >= MAX_WEBHOOKS:
            raise TooManyWebhooks
        values = {
            "id": row.id,
            "tenant_id": row.tenant_id,
            "secret": row.secrets.current,
            **_settings_values(row.settings),
        }
        stored = await self._all(
            insert(webhooks).values(**values).on_conflict_do_nothing().returning(webhooks)
        )
        if not stored:
            raise WebhookTaken(row.settings.url)
        return _webhook(stored[0])

    async def webhook(self, tenant_id: str, webhook_id: UUID) -> WebhookRow | None:
        """One webhook of the tenant, if it exists."""
        found = await self._all(select(webhooks).where(*_mine(tenant_id, webhook_id)))
        return _webhook(found[0]) if found else None

    async def webhooks(
        self, tenant_id: str, *, cursor: str | None = None, limit: int = 50
    ) -> Page[WebhookRow]:
        """The webhooks of a tenant, newest first."""
        conditions = (webhooks.c.tenant_id == tenant_id,)
        rows, following = await self._page(webhooks, conditions, cursor, limit)
        return Page(tuple(_webhook(each) for each in rows), following)

    async def change_webhook(
        self, tenant_id: str, webhook_id: UUID, settings: WebhookSettings
    ) -> WebhookRow | None:
        """Store new settings; see `WebhookStore`."""
        other = select(webhooks.c.id).where(
            webhooks.c.tenant_id == tenant_id, webhooks.c.url == settings.url, webhooks.c.id != webhook_id
        )
        if await self._all(other):
            raise WebhookTaken(settings.url)
        forgotten = {"failing_since": None, "disabled_reason": None} if settings.is_enabled else {}
        changed = await self._all(
            update(webhooks)
            .where(*_mine(tenant_id, webhook_id))
            .values(**_settings_values(settings), **forgotten, updated_at=_NOW)
            .returning(webhooks)
        )
        return _webhook(changed[0]) if changed else None

    async def rotate_secret(self, row: WebhookRow, secret: str) -> WebhookRow | None:
        """Store a new secret; see `WebhookStore`."""
        unchanged = (*_mine(row.tenant_id, row.id), webhooks.c.secret == row.secrets.current)
        values = {
            "secret": secret,
            "previous_secret": webhooks.c.secret,
            "previous_until": _NOW + KEEPS_SECRET,
            "updated_at": _NOW,
        }
        changed = await self._all(update(webhooks).where(*unchanged).values(**values).returning(webhooks))
        return _webhook(changed[0]) if changed else None

    async def delete_webhook(self, tenant_id: str, webhook_id: UUID) -> bool:
        """Delete a webhook with its deliveries; return whether there was one."""
        own = (deliveries.c.tenant_id == tenant_id, deliveries.c.webhook_id == webhook_id)
        gone = await self._all(delete(webhooks).where(*_mine(tenant_id, webhook_id)).returning(webhooks.c.id))
        # An event that is stored at this moment may leave a delivery behind: it is never claimed.
        await self._all(delete(deliveries).where(*own).returning(deliveries.c.id))
        return bool(gone)

    async def queue_ping(self, row: WebhookRow, delivery_id: UUID) -> DeliveryRow:
        """Queue a delivery that tests the connection; a repetition finds the first one."""
        values: dict[str, Any] = {
            "id": delivery_id,
            "tenant_id": row.tenant_id,
            "webhook_id": row.id,
            "event_id": f"evt_{delivery_id.hex}",
            "type": PING,
            "data": {},
        }
        await self._all(
            insert(deliveries).values(**values).on_conflict_do_nothing().returning(deliveries.c.id)
        )
        return _delivery((await self._all(select(deliveries).where(deliveries.c.id == delivery_id)))[0])

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
        own = (deliveries.c.tenant_id == tenant_id, deliveries.c.webhook_id == webhook_id)
        wanted = () if state is None else (deliveries.c.state == str(state),)
        rows, following = await self._page(deliveries, (*own, *wanted), cursor, limit)
        return Page(tuple(_delivery(each) for each in rows), following)

    async def replay_delivery(
        self, tenant_id: str, webhook_id: UUID, delivery_id: UUID
    ) -> DeliveryRow | None:
        """Deliver an event again, with all attempts; None if there is no such delivery."""
        own = (
            deliveries.c.tenant_id == tenant_id,
            deliveries.c.webhook_id == webhook_id,
            deliveries.c.id == delivery_id,
        )
        values = {"state": str(DeliveryState.PENDING), "attempts": 0, "next_at": _NOW, "completed_at": None}
        queued = await self._all(update(deliveries).where(*own).values(**values).returning(deliveries))
        return _delivery(queued[0]) if queued else None

    async def claim_deliveries(
        self, terms: ClaimTerms, lease: timedelta
    ) -> Sequence[tuple[WebhookRow, DeliveryRow]]:
        """Claim due deliveries; see `WebhookStore`."""
        values = {
            "lease": lease,
            "busy": list(terms.busy),
            "busy_tenants": list(terms.busy_tenants),
            "webhooks": terms.webhooks,
            "webhooks_of_tenant": terms.webhooks_of_tenant,
            "deliveries": terms.deliveries,
        }
        claimed = [row.id for row in await self._all(_CLAIM, values)]
        if not claimed:
            return []
        rows = await self._all(select(deliveries).where(deliveries.c.id.in_(claimed)))
        owners = {row.webhook_id for row in rows}
        hooks = await self._all(select(webhooks).where(webhooks.c.id.in_(owners)))
        known = {row.id: _webhook(row) for row in hooks}
        return [(known[row.webhook_id], _delivery(row)) for row in rows if row.webhook_id in known]

    async def record_attempt(
        self, delivery: DeliveryRow, outcome: AttemptOutcome, delay: timedelta | None
    ) -> str | None:
        """Store the outcome of the claimed attempt; see `WebhookStore`."""
        is_claimed = (
            deliveries.c.id == delivery.id,
            deliveries.c.attempts == delivery.attempts,
            deliveries.c.state == str(DeliveryState.PENDING),
        )
        values: dict[str, Any] = {
            "response_status": outcome.response_status,
            "last_error": outcome.error,
        }
        if outcome.error is None:
            values |= {"state": str(DeliveryState.DELIVERED), "completed_at": _NOW}
        elif delay is None:
            values |= {"state": str(DeliveryState.DEAD), "completed_at": _NOW}
        else:
            values |= {"next_at": _NOW + delay}
        recorded = update(deliveries).where(*is_claimed).values(**values).returning(deliveries.c.id)
        if not await self._all(recorded):
            # Another process has made a later attempt, or the webhook was deleted.
            return None
        is_dead = outcome.error is not None and delay is None
        return await self._note_health(delivery.webhook_id, outcome, is_dead=is_dead)

    async def _note_health(self, webhook_id: UUID, outcome: AttemptOutcome, *, is_dead: bool) -> str | None:
        this = webhooks.c.id == webhook_id
        if outcome.error is None:
            failing = (this, webhooks.c.failing_since.is_not(None))
            healed = update(webhooks).where(*failing).values(failing_since=None)
            await self._all(healed.returning(webhooks.c.id))
            return None
        if outcome.is_gone:
            reason, is_hopeless = "the receiver answered with HTTP 410, Gone", this
        else:
            reason = f"all deliveries failed for {DISABLED_AFTER.days} days"
            # A receiver of few events may have missed one, and be well before the next one fails once.
            is_hopeless = and_(literal(is_dead), webhooks.c.failing_since < _NOW - DISABLED_AFTER)
        values = {
            "failing_since": func.coalesce(webhooks.c.failing_since, _NOW),
            "is_enabled": case((is_hopeless, False), else_=webhooks.c.is_enabled),
            "disabled_reason": case((is_hopeless, reason), else_=webhooks.c.disabled_reason),
        }
        enabled = update(webhooks).where(this, webhooks.c.is_enabled).values(**values)
        changed = await self._all(enabled.returning(webhooks.c.is_enabled, webhooks.c.disabled_reason))
        return changed[0].disabled_reason if changed and not changed[0].is_enabled else None

    async def _page(
        self, table: Table, conditions: Collection[ColumnElement[bool]], cursor: str | None, limit: int
    ) -> tuple[Sequence[Row[Any]], str | None]:
        """Return a page of rows, newest first, and the cursor of the next one."""
        limit = page_size(limit)
        wanted = select(table).where(*conditions)
        if cursor is not None:
            last = Cursor.parse(cursor)
            wanted = wanted.where(tuple_(table.c.created_at, table.c.id) < (last.created_at, last.id))
        newest = wanted.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(limit + 1)
        found = await self._all(newest)
        rows = found[:limit]
        return rows, Cursor(rows[-1].created_at, rows[-1].id).text if len(found) > limit else None

    async def _all(
        self, statement: Executable, values: Mapping[str, Any] | None = None
    ) -> Sequence[Row[Any]]:
        with error_translation(self.engine.url):
            async with self.engine.connect() as connection:
                return (await connection.execute(statement, values)).all()


def _mine(tenant_id: str, webhook_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return (webhooks.c.tenant_id == tenant_id, webhooks.c.id == webhook_id)


def _settings_values(settings: WebhookSettings) -> dict[str, Any]:
    return {
        "url": settings.url,
        "events": [str(event) for event in settings.events],
        "include_content": settings.include_content,
        "is_enabled": settings.is_enabled,
    }


def _webhook(row: Row[Any]) -> WebhookRow:
    known = tuple(event for event in WebhookEvent if event in row.events)
    return WebhookRow(
        row.id,
        row.tenant_id,
        WebhookSettings(row.url, known, row.include_content, row.is_enabled),
        WebhookSecrets(row.secret, row.previous_secret, row.previous_until),
        row.created_at,
        row.updated_at,
        row.failing_since,
        row.disabled_reason,
    )


def _delivery(row: Row[Any]) -> DeliveryRow:
    return DeliveryRow(
        row.id,
        row.tenant_id,
        row.webhook_id,
        row.event_id,
        row.type,
        frozen_map(row.data),
        DeliveryState(row.state),
        row.attempts,
        row.next_at,
        row.created_at,
        row.completed_at,
        row.response_status,
        row.last_error,
    )
