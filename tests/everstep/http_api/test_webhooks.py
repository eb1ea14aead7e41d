"""Webhooks: events reach a receiver, signed, and again if it fails."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import text
from starlette.types import Receive, Scope, Send

from everstep.agent_domain.storage.webhooks import AttemptOutcome, ClaimTerms, webhook_signature
from everstep.client.webhook_delivery import WEBHOOKS_OF_TENANT, WebhookDelivery
from everstep.client.webhooks import Webhooks
from everstep.runtime.serving import serve_app
from everstep.runtime.webhook_sender import HttpSender, SealedSecrets
from everstep.store.retention import PostgresRetention
from everstep.store.webhooks import PostgresWebhooks
from tests.everstep.http_api.house import ApiCaller, ApiSetup, MakeCaller, assert_problem

PATH = "/agent/webhooks"


@dataclass
class Receiver:
    """Records requests, and answers with `status`."""

    status: int = 204
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list[tuple[dict[str, str], bytes]])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body, has_more = body + message.get("body", b""), message.get("more_body", False)
        self.requests.append(({name.decode(): value.decode() for name, value in scope["headers"]}, body))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that arrived."""
        return [json.loads(body) for _, body in self.requests]


@asynccontextmanager
async def a_receiver() -> AsyncGenerator[tuple[Receiver, str]]:
    receiver = Receiver()
    async with serve_app(receiver) as url:
        yield receiver, f"{url}/events"


def delivery_of(setup: ApiSetup) -> WebhookDelivery:
    return WebhookDelivery(setup.webhooks, setup.sessions.client)


async def deliver(setup: ApiSetup) -> None:
    """Deliver what is due, as a worker does."""
    delivery = delivery_of(setup)
    await delivery.begin_batches()
    await delivery.wait()


async def make_due(setup: ApiSetup) -> None:
    """Let the time pass until the next attempt of all deliveries."""
    statement = "UPDATE agent_webhook_deliveries SET next_at = clock_timestamp() WHERE tenant_id = :tenant"
    async with setup.keys.engine.connect() as connection:
        await connection.execute(text(statement), {"tenant": setup.tenant})


async def test_an_end_is_delivered_once_it_is_stored(
    api_setup: ApiSetup, sign_in: MakeCaller, work: None
) -> None:
    """18.6.1, 18.6.2, 18.6.4, 18.6.5: with ids, signed, and without texts of the conversation."""
    boss, ann = await sign_in("boss", "admin"), await sign_in("ann")
    async with a_receiver() as (receiver, url):
        created = await boss.post(PATH, {"url": url, "events": ["execution.completed"]})
        execution = await ann.start_execution("Hello, secret words")
        await ann.wait_for_status(execution, "completed")
        await deliver(api_setup)
        await deliver(api_setup)

    ((headers, body),) = receiver.requests
    event = json.loads(body)
    assert event["type"] == "execution.completed"
    data = event["data"]
    assert (data["execution_id"], data["user_id"], data["agent"]) == (execution, "ann", "clerk")
    assert (data["status"], data["stop_reason"]) == ("completed", "completed")
    assert data["because"]
    assert b"secret words" not in body
    assert headers["webhook-id"] == event["id"] == f"evt_{UUID(execution).hex}"
    stamp = int(headers["webhook-timestamp"])
    expected = webhook_signature(created["secret"], event["id"], stamp, body)
    assert headers["webhook-signature"] == expected
    (listed,) = (await boss.get(f"{PATH}/{created['id']}/deliveries"))["items"]
    assert (listed["state"], listed["attempts"], listed["response_status"]) == ("delivered", 1, 204)


async def test_requests_to_people_are_events(api_setup: ApiSetup, sign_in: MakeCaller, work: None) -> None:
    """18.6.1, 18.6.5: with content, such as the arguments of a call, if the webhook asks for it."""
    boss, ann = await sign_in("boss", "admin", "sessions:all"), await sign_in("ann")
    async with a_receiver() as (receiver, url), a_receiver() as (brief, brief_url):
        await boss.post(PATH, {"url": url, "include_content": True})
        await boss.post(PATH, {"url": brief_url})
        request = await ann.wait_for_request(await ann.start_execution("book a room"))
        question = await ann.wait_for_request(asked := await ann.start_execution("ask me"))
        await ann.post(f"/agent/executions/{asked}/cancel")
        await ann.wait_for_status(asked, "cancelled")
        await deliver(api_setup)

    by_type = {event["type"]: event["data"] for event in receiver.events}
    assert set(by_type) == {"approval.requested", "input.requested", "execution.cancelled"}
    approval = by_type["approval.requested"]
    assert (approval["request_id"], approval["kind"]) == (request["id"], "approval")
    assert approval["request"]["tool"] == "book"
    assert "waits: approval of book(hotel: 'Harbour Inn') by the owner" in approval["because"]
    assert len(brief.events) == len(receiver.events) == 3
    (without,) = (each["data"] for each in brief.events if each["type"] == "approval.requested")
    assert without["because"].startswith("waits: approval of book by the owner")
    assert not any(text in body for _, body in brief.requests for text in (b"Harbour", b"Which day", b"room"))
    assert by_type["input.requested"]["request_id"] == question["id"]
    assert by_type["execution.cancelled"]["status"] == "cancelled"


async def test_an_exhausted_budget_is_an_event(api_setup: ApiSetup, sign_in: MakeCaller, work: None) -> None:
    """18.6.1, 18.6.2: also one that another program stores, such as an older release."""
    boss, ann = await sign_in("boss", "admin"), await sign_in("ann")
    path = f"{PATH}/{(await boss.post(PATH, {'url': 'http://127.0.0.1:9/'}))['id']}"
    execution = await ann.start_execution("ask me")
    await ann.wait_for_request(execution)
    stored = (
        "INSERT INTO agent_requests (id, tenant_id, execution_id, kind) VALUES (:id, :tenant, :of, 'budget')"
    )
    values = {"id": uuid4(), "tenant": api_setup.tenant, "of": UUID(execution)}
    async with api_setup.keys.engine.connect() as connection:
        await connection.execute(text(stored), values)

    types = {each["type"] for each in (await boss.get(f"{path}/deliveries"))["items"]}
    assert types == {"input.requested", "budget.exhausted"}


async def test_a_failed_delivery_is_repeated_and_dead_at_last(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """18.6.3, 18.6.6: each attempt has the same id; a dead delivery can be replayed."""
    boss = await sign_in("boss", "admin")
    async with a_receiver() as (receiver, url):
        path = f"{PATH}/{(await boss.post(PATH, {'url': url}))['id']}"
        ping = await boss.post(f"{path}/ping")
        receiver.status = 500
        await deliver(api_setup)
        (waiting,) = (await boss.get(f"{path}/deliveries", state="pending"))["items"]
        assert (waiting["id"], waiting["attempts"]) == (ping["id"], 1)
        assert waiting["last_error"] == "the receiver answered with HTTP 500"
        await deliver(api_setup)
        assert len(receiver.requests) == 1
        for _ in range(11):
            await make_due(api_setup)
            await deliver(api_setup)
        (dead,) = (await boss.get(f"{path}/deliveries", state="dead"))["items"]
        assert (dead["attempts"], dead["next_attempt_at"]) == (12, None)
        assert (await boss.get(path))["failing_since"]
        receiver.status = 200
        await boss.post(f"{path}/deliveries/{dead['id']}/replay")
        await deliver(api_setup)
        (delivered,) = (await boss.get(f"{path}/deliveries", state="delivered"))["items"]

    assert delivered["last_error"] is None
    assert (await boss.get(path))["failing_since"] is None
    assert len(receiver.requests) == 13
    assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1


async def test_the_claim_of_a_lost_process_expires(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """18.6.3: while it holds, no other process delivers."""
    boss = await sign_in("boss", "admin")
    async with a_receiver() as (receiver, url):
        path = f"{PATH}/{(await boss.post(PATH, {'url': url}))['id']}"
        await boss.post(f"{path}/ping")
        store = api_setup.webhooks.store
        claims = await asyncio.gather(
            *(store.claim_deliveries(ClaimTerms(), timedelta(seconds=60)) for _ in range(4))
        )
        assert sorted(map(len, claims)) == [0, 0, 0, 1]
        await deliver(api_setup)
        assert receiver.requests == []
        await make_due(api_setup)
        await deliver(api_setup)
        assert len(receiver.requests) == 1
        # The lost process comes back: its outcome is out of date.
        ((_, claimed),) = next(each for each in claims if each)
        await store.record_attempt(claimed, AttemptOutcome(500, "late"), None)
        (delivered,) = (await boss.get(f"{path}/deliveries"))["items"]
        assert (delivered["state"], delivered["last_error"]) == ("delivered", None)
        assert (await boss.get(path))["failing_since"] is None


async def test_a_receiver_that_hangs_holds_up_no_other(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """18.6.8"""
    boss = await sign_in("boss", "admin")
    hangs, ended = asyncio.Event(), asyncio.Event()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hangs.set()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    hanging = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, a_receiver() as (receiver, url):
        for each in (hanging, url):
            await boss.post(f"{PATH}/{(await boss.post(PATH, {'url': each}))['id']}/ping")
        stop = asyncio.Event()
        running = asyncio.create_task(delivery_of(api_setup).run(stop, 0.01))
        async with asyncio.timeout(10):
            await hangs.wait()
            while not receiver.requests:  # noqa: ASYNC110 -- the receiver has no event
                await asyncio.sleep(0.01)
        stop.set()
        async with asyncio.timeout(5):
            await running
            await ended.wait()
    assert receiver.events[0]["type"] == "webhook.ping"


async def test_many_receivers_of_one_tenant_that_hang_hold_up_no_other_tenant(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """18.6.11: nor do they take all sockets of the process."""
    open_connections = list[asyncio.StreamWriter]()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.append(writer)
        await reader.read()
        writer.close()

    many = """
        WITH hooks AS (
            INSERT INTO agent_webhooks (id, tenant_id, url, events, secret)
            SELECT gen_random_uuid(), :tenant, :url || number, '{}', 'whsec_'
              FROM generate_series(1, 60) AS number
         RETURNING id
        )
        INSERT INTO agent_webhook_deliveries (id, tenant_id, webhook_id, event_id, type, data)
        SELECT gen_random_uuid(), :tenant, id, 'evt_' || id, 'webhook.ping', '{}' FROM hooks
    """
    other = await sign_in("boss", "admin", tenant=f"{api_setup.tenant}-other")
    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    values = {
        "tenant": api_setup.tenant,
        "url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/",
    }
    async with server, a_receiver() as (receiver, url):
        async with api_setup.keys.engine.connect() as connection:
            await connection.execute(text(many), values)
        delivery, stop = delivery_of(api_setup), asyncio.Event()
        running = asyncio.create_task(delivery.run(stop, 0.01))
        async with asyncio.timeout(10):
            while len(open_connections) < WEBHOOKS_OF_TENANT:  # noqa: ASYNC110 -- it has no event
                await asyncio.sleep(0.01)
            await other.post(f"{PATH}/{(await other.post(PATH, {'url': url}))['id']}/ping")
            while not receiver.requests:  # noqa: ASYNC110 -- likewise
                await asyncio.sleep(0.01)
        assert len(open_connections) <= WEBHOOKS_OF_TENANT
        stop.set()
        await running
        async with api_setup.keys.engine.connect() as connection:
            gone = text("UPDATE agent_webhooks SET is_enabled = false WHERE tenant_id = :tenant")
            await connection.execute(gone, {"tenant": api_setup.tenant})


async def test_a_webhook_that_is_gone_or_fails_for_days_is_disabled(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """18.6.9"""
    boss = await sign_in("boss", "admin")
    async with a_receiver() as (receiver, url):
        path = f"{PATH}/{(await boss.post(PATH, {'url': url}))['id']}"
        await boss.post(f"{path}/ping")
        receiver.status = 410
        await deliver(api_setup)
        gone = await boss.get(path)
        assert (gone["enabled"], gone["disabled_reason"]) == (
            False,
            "the receiver answered with HTTP 410, Gone",
        )
        assert_problem(await boss.send_post(f"{path}/ping"), 409, "disabled")

        assert (await boss.http.patch(path, json={"enabled": True})).json()["disabled_reason"] is None
        receiver.status = 500
        long_ago = "UPDATE agent_webhooks SET failing_since = :since WHERE tenant_id = :tenant"
        values = {"since": datetime.now(UTC) - timedelta(days=6), "tenant": api_setup.tenant}
        async with api_setup.keys.engine.connect() as connection:
            await connection.execute(text(long_ago), values)
        await boss.post(f"{path}/ping")
        await deliver(api_setup)
        # It may be well in ten seconds, and has had one event since.
        assert (await boss.get(path))["enabled"]
        last = "UPDATE agent_webhook_deliveries SET attempts = 11 WHERE tenant_id = :tenant"
        async with api_setup.keys.engine.connect() as connection:
            await connection.execute(text(last), {"tenant": api_setup.tenant})
        await make_due(api_setup)
        await deliver(api_setup)
    assert (await boss.get(path))["disabled_reason"] == "all deliveries failed for 5 days"


async def test_a_disabled_webhook_gets_no_events(
    api_setup: ApiSetup, sign_in: MakeCaller, work: None
) -> None:
    """18.6.9"""
    boss, ann = await sign_in("boss", "admin"), await sign_in("ann")
    path = f"{PATH}/{(await boss.post(PATH, {'url': 'http://127.0.0.1:9/', 'enabled': False}))['id']}"
    await ann.wait_for_status(await ann.start_execution("Hello"), "completed")
    assert (await boss.get(f"{path}/deliveries"))["items"] == []


async def test_both_secrets_sign_after_a_rotation(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """18.6.4: a secret is in no other response."""
    boss = await sign_in("boss", "admin")
    async with a_receiver() as (receiver, url):
        created = await boss.post(PATH, {"url": url})
        path = f"{PATH}/{created['id']}"
        rotated = await boss.post(f"{path}/rotate")
        assert rotated["secret"] != created["secret"]
        await boss.post(f"{path}/ping")
        await deliver(api_setup)
        assert "secret" not in await boss.get(path)

    ((headers, body),) = receiver.requests
    stamp = int(headers["webhook-timestamp"])
    assert headers["webhook-signature"].split() == [
        webhook_signature(each["secret"], headers["webhook-id"], stamp, body) for each in (rotated, created)
    ]


async def test_a_webhook_is_changed_and_deleted(sign_in: MakeCaller) -> None:
    """18.6.1"""
    boss = await sign_in("boss", "admin")
    created = await boss.post(PATH, {"url": "http://127.0.0.1:9/", "events": ["input.requested"] * 2})
    path = f"{PATH}/{created['id']}"
    assert created["events"] == ["input.requested"]
    again = assert_problem(await boss.send_post(PATH, {"url": "http://127.0.0.1:9/"}), 409, "exists already")
    assert again["title"] == "The webhook does not accept this now"
    assert "execution" not in again["detail"]
    changed = (await boss.http.patch(path, json={"events": ["execution.failed"], "enabled": False})).json()
    assert (changed["events"], changed["enabled"], changed["url"]) == (
        ["execution.failed"],
        False,
        created["url"],
    )
    assert [each["id"] for each in (await boss.get(PATH))["items"]] == [created["id"]]
    assert (await boss.http.delete(path)).status_code == 204
    for gone in (path, f"{path}/deliveries"):
        assert_problem(await boss.http.get(gone), 404)


async def test_webhooks_need_the_scope_of_operators(sign_in: MakeCaller, ann: ApiCaller) -> None:
    """18.6.1"""
    everyone = await sign_in("robot", "sessions:all", "approve")
    reader = await sign_in("boss", "admin", "read-only")
    for caller in (ann, everyone):
        assert_problem(await caller.send_post(PATH, {"url": "http://127.0.0.1:9/"}), 403, "admin")
        assert_problem(await caller.http.get(PATH), 403, "admin")
    assert_problem(await reader.send_post(PATH, {"url": "http://127.0.0.1:9/"}), 403, "read-only")
    assert (await reader.get(PATH))["items"] == []
    assert_problem(await reader.http.get(f"{PATH}/{uuid4()}"), 404)


async def test_content_goes_only_where_callers_send_it_who_may_read_it(sign_in: MakeCaller) -> None:
    """18.6.10: the right to webhooks is none to read the conversations of all users."""
    operator, boss = await sign_in("op", "admin"), await sign_in("boss", "admin", "sessions:all")
    wanted = {"url": "http://127.0.0.1:9/mine", "include_content": True}
    assert_problem(await operator.send_post(PATH, wanted), 403, "sessions:all")
    path = f"{PATH}/{(await boss.post(PATH, wanted))['id']}"
    stolen = {"url": "http://127.0.0.1:9/other"}
    assert_problem(await operator.http.patch(path, json=stolen), 403, "sessions:all")
    assert (await operator.http.patch(path, json={"enabled": False})).status_code == 200
    without = {**stolen, "include_content": False}
    assert (await operator.http.patch(path, json=without)).json()["include_content"] is False
    again = await operator.http.patch(path, json={"include_content": True})
    assert_problem(again, 403, "sessions:all")


async def test_a_delivery_that_cannot_be_built_is_dead_at_last(
    api_setup: ApiSetup, sign_in: MakeCaller
) -> None:
    """18.6.6: such as one with a secret that a restore has damaged; it is not tried forever."""
    boss = await sign_in("boss", "admin")
    path = f"{PATH}/{(await boss.post(PATH, {'url': 'http://127.0.0.1:9/'}))['id']}"
    await boss.post(f"{path}/ping")
    damaged = "UPDATE agent_webhooks SET secret = 'whsec_damaged!' WHERE tenant_id = :tenant"
    last = "UPDATE agent_webhook_deliveries SET attempts = 11 WHERE tenant_id = :tenant"
    async with api_setup.keys.engine.connect() as connection:
        for statement in (damaged, last):
            await connection.execute(text(statement), {"tenant": api_setup.tenant})
    await deliver(api_setup)
    (dead,) = (await boss.get(f"{path}/deliveries"))["items"]
    assert (dead["state"], dead["attempts"]) == ("dead", 12)
    assert dead["last_error"] == "the event could not be built (ValueError)"


MANY_BYTES = "".join(chr(0x4E00 + n * n * 7919 % 20_000) for n in range(1900))
"""Text that cannot be compressed, in few characters."""

INVALID: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no url": ({}, "url"),
    "an empty url": ({"url": ""}, "url"),
    "http": ({"url": "http://example.com/"}, "use https"),
    "this machine": ({"url": "https://127.0.0.1/"}, "is not public"),
    "a cloud's metadata": ({"url": "https://169.254.169.254/"}, "is not public"),
    "a password": ({"url": "https://a:b@example.com/"}, "a user or a password"),
    "a port of zero": ({"url": "https://93.184.216.34:0/"}, "port 0"),
    "a url of many bytes": ({"url": f"https://93.184.216.34/{MANY_BYTES}"}, "too long"),
    "an endless url": ({"url": f"https://93.184.216.34/{'a' * 3000}"}, "url"),
    "an unknown event": ({"url": "https://93.184.216.34/", "events": ["execution.begun"]}, "events"),
    "no events": ({"url": "https://93.184.216.34/", "events": []}, "events"),
    "an unknown field": ({"url": "https://93.184.216.34/", "secret": "mine"}, "secret"),
}


async def test_an_invalid_webhook_is_refused(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """18.6.7: in one sentence, and nothing is stored."""
    boss = await sign_in("boss", "admin")
    strict = Webhooks(PostgresWebhooks(api_setup.keys.engine), HttpSender(), SealedSecrets(None))
    object.__setattr__(boss.app.state.api, "webhooks", strict)
    for body, words in INVALID.values():
        assert_problem(await boss.send_post(PATH, body), 422, words)
    assert (await boss.get(PATH))["items"] == []


async def test_old_deliveries_are_pruned(api_setup: ApiSetup, sign_in: MakeCaller) -> None:
    """8.7.2: those that were delivered or given up, or whose webhook is disabled."""
    boss = await sign_in("boss", "admin")
    path = f"{PATH}/{(await boss.post(PATH, {'url': 'http://127.0.0.1:9/'}))['id']}"
    old, pending = [(await boss.post(f"{path}/ping"))["id"] for _ in range(2)]
    at = "UPDATE agent_webhook_deliveries SET completed_at = '2001-01-01', state = 'dead' WHERE id = :id"
    engine = api_setup.keys.engine
    async with engine.connect() as connection:
        await connection.execute(text(at), {"id": UUID(old)})
    retention, before = PostgresRetention(engine), datetime(2002, 1, 1, tzinfo=UTC)

    assert [count async for count in retention.prune_deliveries(before, dry_run=True)] == [1]
    assert sum([count async for count in retention.prune_deliveries(before)]) == 1
    assert [each["id"] for each in (await boss.get(f"{path}/deliveries"))["items"]] == [pending]

    stored = "UPDATE agent_webhook_deliveries SET created_at = '2001-01-01' WHERE id = :id"
    async with engine.connect() as connection:
        await connection.execute(text(stored), {"id": UUID(pending)})
    assert sum([count async for count in retention.prune_deliveries(before)]) == 0
    await boss.http.patch(path, json={"enabled": False})
    assert sum([count async for count in retention.prune_deliveries(before, dry_run=True)]) == 1
    assert sum([count async for count in retention.prune_deliveries(before)]) == 1
    assert (await boss.get(f"{path}/deliveries"))["items"] == []
