"""Delivers events to webhooks, in the background of workers and APIs.

A process claims due deliveries for a while; the claims of a lost process are due again afterwards. So each
event is delivered at least once, in no guaranteed order, with the same id in each attempt. A receiver that
hangs holds up only its own deliveries.
"""

import asyncio
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import random
from typing import Any, Final
from uuid import UUID

from everstep.agent_domain.background import note_failure
from everstep.agent_domain.errors import EverstepError, StoreUnavailable
from everstep.agent_domain.ids import ExecutionRef
from everstep.agent_domain.loop.status import ExecutionStatus
from everstep.agent_domain.storage.webhooks import (
    AttemptOutcome,
    ClaimTerms,
    DeliveryRow,
    WebhookRow,
    retry_delay,
    webhook_signature,
)
from everstep.agent_domain.values import format_moment, thaw
from everstep.client.client import Client
from everstep.client.execution import Execution, now
from everstep.client.webhooks import Webhooks

log = logging.getLogger(__name__)

NAME: Final = "the delivery of webhooks"
"""The name in logs and metrics."""

INTERVAL: Final = 1.0
"""Seconds between two looks for due deliveries."""
BATCH: Final = 40
"""Deliveries of one webhook that a process claims together."""
AT_ONCE: Final = 8
"""Requests to one webhook at a time."""
WEBHOOKS: Final = 32
"""Webhooks to which a process delivers at a time. Each request needs a socket, and holds its event."""
WEBHOOKS_OF_TENANT: Final = 8
"""With as many, a tenant has to wait: its receivers may hang, and others have events, too."""
LEASE: Final = timedelta(seconds=120)
"""Longer than a batch takes whose requests all time out."""


@dataclass
class WebhookDelivery:
    """Delivers events until it is stopped."""

    webhooks: Webhooks
    client: Client
    _running: dict[tuple[str, UUID], asyncio.Task[None]] = field(
        default_factory=dict[tuple[str, UUID], asyncio.Task[None]]
    )
    """By tenant and webhook: no second batch begins while one runs."""

    async def run(self, stop: asyncio.Event, interval: float = INTERVAL) -> None:
        """Run until `stop` is set; what is not delivered by then is due again after the lease."""
        try:
            while not stop.is_set():
                try:
                    await self.begin_batches()
                except EverstepError as error:
                    log.warning("no events are delivered to webhooks: %s", error)
                except Exception as error:  # noqa: BLE001 -- the process has other work, and the next look may succeed
                    note_failure(NAME, error, log)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), interval)
        finally:
            for task in self._running.values():
                task.cancel()
            await self.wait()

    async def begin_batches(self) -> None:
        """Claim what is due, and begin to deliver it."""
        self._running = {key: task for key, task in self._running.items() if not task.done()}
        if len(self._running) >= WEBHOOKS:
            return
        counts = Counter(tenant for tenant, _ in self._running)
        terms = ClaimTerms(
            busy=[webhook for _, webhook in self._running],
            busy_tenants=[tenant for tenant, count in counts.items() if count >= WEBHOOKS_OF_TENANT],
            webhooks=WEBHOOKS - len(self._running),
            webhooks_of_tenant=WEBHOOKS_OF_TENANT,
            deliveries=BATCH,
        )
        batches = defaultdict[tuple[str, UUID], list[tuple[WebhookRow, DeliveryRow]]](list)
        for webhook, delivery in await self.webhooks.store.claim_deliveries(terms, LEASE):
            batches[webhook.tenant_id, webhook.id].append((webhook, delivery))
        for owner, batch in batches.items():
            self._running[owner] = asyncio.create_task(self._deliver_batch(batch))

    async def wait(self) -> None:
        """Wait for the running batches."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _deliver_batch(self, batch: Sequence[tuple[WebhookRow, DeliveryRow]]) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def deliver(webhook: WebhookRow, delivery: DeliveryRow) -> None:
            async with at_once:
                try:
                    await self._deliver(webhook, delivery)
                except EverstepError as error:
                    log.warning("the delivery %s is repeated later: %s", delivery.id, error)
                except Exception as error:  # noqa: BLE001 -- the other deliveries are independent
                    note_failure(NAME, error, log)

        await asyncio.gather(*(deliver(*each) for each in batch))

    async def _deliver(self, webhook: WebhookRow, delivery: DeliveryRow) -> None:
        outcome = await self._attempt(webhook, delivery)
        delay = None if outcome.error is None or outcome.is_gone else retry_delay(delivery.attempts, random())  # noqa: S311 -- not a secret
        disabled = await self.webhooks.store.record_attempt(delivery, outcome, delay)
        if outcome.error is not None and delay is None:
            log.warning("the delivery %s to %s is dead: %s", delivery.id, webhook.settings.url, outcome.error)
        if disabled is not None:
            log.warning("the webhook %s is disabled: %s", webhook.id, disabled)

    async def _attempt(self, webhook: WebhookRow, delivery: DeliveryRow) -> AttemptOutcome:
        """Send a delivery. One that cannot be built has failed like others, so that it is dead at last."""
        try:
            body = json.dumps(await self._payload(webhook, delivery), ensure_ascii=False).encode()
            return await self._send(webhook, delivery, body)
        except StoreUnavailable:
            raise
        except EverstepError as error:
            return AttemptOutcome(error=str(error))
        except Exception as error:  # noqa: BLE001 -- the outcome says so
            note_failure(NAME, error, log)
            return AttemptOutcome(error=f"the event could not be built ({type(error).__name__})")

    async def _send(self, webhook: WebhookRow, delivery: DeliveryRow, body: bytes) -> AttemptOutcome:
        moment = now()
        secrets = [self.webhooks.box.open(each) for each in webhook.secrets.signing(moment)]
        headers = _headers(delivery, secrets, moment, body)
        return await self.webhooks.sender.send(webhook.settings.url, headers, body)

    async def _payload(self, webhook: WebhookRow, delivery: DeliveryRow) -> dict[str, Any]:
        data: dict[str, Any] = dict(thaw(delivery.data))
        if "execution_id" in data:
            data |= await self._details(delivery, has_content=webhook.settings.include_content)
        return {
            "id": delivery.event_id,
            "type": delivery.type,
            "timestamp": format_moment(delivery.created_at, 3),
            "data": data,
        }

    async def _details(self, delivery: DeliveryRow, *, has_content: bool) -> dict[str, Any]:
        """What is read when the event is sent; an execution that was deleted has no details."""
        ref = ExecutionRef(UUID(delivery.data["execution_id"]), delivery.tenant_id)
        public_url = self.client.public_url
        details: dict[str, Any] = {
            "because": None,
            "url": f"{public_url}/console/executions/{ref.execution_id}" if public_url else None,
        }
        row = await self.client.store.execution(ref)
        if row is None:
            return details
        client = replace(self.client, tenant_id=delivery.tenant_id)
        if row.status.is_terminal or row.status is ExecutionStatus.PAUSED:
            handle = Execution(client, row.ref)
            details["because"] = await handle.sentence(row, in_full=False, has_content=has_content)
        if has_content:
            details["output"] = thaw(row.output) if row.output is not None else None
            details["request"] = await self._request(delivery)
        return details

    async def _request(self, delivery: DeliveryRow) -> Any:
        if "request_id" not in delivery.data:
            return None
        request_id = UUID(delivery.data["request_id"])
        found = await self.client.store.find_request(delivery.tenant_id, request_id)
        return (
            None if found is None else {"tool": found.tool, "args": thaw(found.args), **thaw(found.request)}
        )


def _headers(delivery: DeliveryRow, secrets: Sequence[str], moment: datetime, body: bytes) -> dict[str, str]:
    timestamp = int(moment.timestamp())
    signatures = [webhook_signature(each, delivery.event_id, timestamp, body) for each in secrets]
    return {
        "Content-Type": "application/json",
        "webhook-id": delivery.event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
