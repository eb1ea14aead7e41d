"""The commands about webhooks. They use only the public HTTP API."""

from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import click

from everstep.agent_domain.storage.webhooks import DeliveryState, WebhookEvent
from everstep.agent_domain.values import format_moment, valid_text
from everstep.cli.command import command, print_line, warn
from everstep.cli.json_output import json_option, print_json, print_json_lines
from everstep.cli.remote import Remote, api_options, open_remote
from everstep.cli.table_output import Column, print_rows
from everstep.http_api.schemas.responses import PageResponse
from everstep.http_api.schemas.webhook_schemas import DeliveryResponse, WebhookResponse, WebhookWithSecret
from everstep.runtime.settings import Settings

PATH = "/agent/webhooks"

LAST = 200
"""The limit of a page."""


@click.group()
def webhooks() -> None:
    """Send events to URLs.

    They say, for example, that an execution has ended or waits for a person.
    """


_webhook_id = click.argument("webhook_id", type=click.UUID)
_events = click.option(
    "--event",
    "events",
    multiple=True,
    type=click.Choice([str(event) for event in WebhookEvent]),
    help="Several are possible.",
)


@webhooks.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LAST))
@click.option("--cursor", help="The cursor that the previous page printed.")
@json_option
@api_options
@click.pass_obj
@command
async def list_webhooks(
    settings: Settings, *, limit: int, cursor: str | None, as_json: bool, url: str | None, token: str | None
) -> None:
    """List webhooks, newest first."""
    async with open_remote(settings, url, token) as remote:
        page = await remote.get(PageResponse[WebhookResponse], PATH, limit=limit, cursor=cursor)
    if as_json:
        print_json_lines(page.items)
    else:
        print_rows(page.items, _COLUMNS, _line)
    if page.next_cursor:
        warn(f"more: --cursor {page.next_cursor}")
    if not page.items:
        warn("There are no webhooks; `everstep webhooks add` creates one.")


@webhooks.command("add")
@click.argument("receiver")
@_events
@click.option("--include-content", is_flag=True, help="Also send what agents answer and ask.")
@json_option
@api_options
@click.pass_obj
@command
async def add(
    settings: Settings,
    *,
    receiver: str,
    events: tuple[str, ...],
    include_content: bool,
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """Send events to the URL RECEIVER.

    The secret that verifies them is printed once.
    """
    body: dict[str, Any] = {"url": valid_text(receiver, "the URL"), "include_content": include_content}
    async with open_remote(settings, url, token) as remote:
        added = await remote.post(WebhookWithSecret, PATH, {**body, **_chosen(events)})
    _print_secret(added, as_json=as_json)


@webhooks.command("show")
@_webhook_id
@json_option
@api_options
@click.pass_obj
@command
async def show(
    settings: Settings, *, webhook_id: UUID, as_json: bool, url: str | None, token: str | None
) -> None:
    """Show a webhook."""
    async with open_remote(settings, url, token) as remote:
        _print(await remote.get(WebhookResponse, f"{PATH}/{webhook_id}"), as_json=as_json)


@webhooks.command("change")
@_webhook_id
@click.option("--receiver", help="The URL that receives the events.")
@_events
@click.option(
    "--include-content/--no-content", default=None, help="Whether to send what agents answer and ask."
)
@click.option("--enable/--disable", "enabled", default=None, help="Whether it receives events.")
@json_option
@api_options
@click.pass_obj
@command
async def change(
    settings: Settings,
    *,
    webhook_id: UUID,
    receiver: str | None,
    events: tuple[str, ...],
    include_content: bool | None,
    enabled: bool | None,
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """Change a webhook; what is not named stays."""
    named = {"url": receiver, "include_content": include_content, "enabled": enabled}
    body = {**{name: value for name, value in named.items() if value is not None}, **_chosen(events)}
    if not body:
        raise click.UsageError("name what to change, such as --disable")
    async with open_remote(settings, url, token) as remote:
        _print(await remote.patch(WebhookResponse, f"{PATH}/{webhook_id}", body), as_json=as_json)


@webhooks.command("rotate")
@_webhook_id
@json_option
@api_options
@click.pass_obj
@command
async def rotate(
    settings: Settings, *, webhook_id: UUID, as_json: bool, url: str | None, token: str | None
) -> None:
    """Replace the secret; the previous one also signs for a day."""
    async with open_remote(settings, url, token) as remote:
        rotated = await remote.post(WebhookWithSecret, f"{PATH}/{webhook_id}/rotate", {})
    _print_secret(rotated, as_json=as_json)


@webhooks.command("ping")
@_webhook_id
@json_option
@api_options
@click.pass_obj
@command
async def ping(
    settings: Settings, *, webhook_id: UUID, as_json: bool, url: str | None, token: str | None
) -> None:
    """Queue a delivery that tests the connection."""
    async with open_remote(settings, url, token) as remote:
        queued = await remote.post(DeliveryResponse, f"{PATH}/{webhook_id}/ping", {})
    if as_json:
        print_json(queued)
        return
    print_line(_delivery_line(queued))
    warn(f"`everstep webhooks deliveries {webhook_id}` shows whether it arrived.")


@webhooks.command("deliveries")
@_webhook_id
@click.option(
    "--state",
    type=click.Choice([str(state) for state in DeliveryState]),
    help="Only deliveries in this state.",
)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LAST))
@click.option("--cursor", help="The cursor that the previous page printed.")
@json_option
@api_options
@click.pass_obj
@command
async def deliveries(
    settings: Settings,
    *,
    webhook_id: UUID,
    state: str | None,
    limit: int,
    cursor: str | None,
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """List the deliveries of a webhook, newest first."""
    async with open_remote(settings, url, token) as remote:
        path = f"{PATH}/{webhook_id}/deliveries"
        page = await remote.get(PageResponse[DeliveryResponse], path, state=state, limit=limit, cursor=cursor)
    if as_json:
        print_json_lines(page.items)
    else:
        print_rows(page.items, _DELIVERY_COLUMNS, _delivery_line)
    if page.next_cursor:
        warn(f"more: --cursor {page.next_cursor}")


@webhooks.command("replay")
@_webhook_id
@click.argument("delivery_ids", type=click.UUID, nargs=-1)
@json_option
@api_options
@click.pass_obj
@command
async def replay(
    settings: Settings,
    *,
    webhook_id: UUID,
    delivery_ids: tuple[UUID, ...],
    as_json: bool,
    url: str | None,
    token: str | None,
) -> None:
    """Deliver events again: these, or all of which every attempt failed."""
    queued = list[DeliveryResponse]()
    async with open_remote(settings, url, token) as remote:
        named = delivery_ids or [each async for each in _dead(remote, webhook_id)]
        for delivery_id in named:
            path = f"{PATH}/{webhook_id}/deliveries/{delivery_id}/replay"
            queued.append(await remote.post(DeliveryResponse, path, {}))
    if as_json:
        print_json_lines(queued)
    else:
        print_line(f"queued: {len(queued)}")


@webhooks.command("remove")
@_webhook_id
@api_options
@click.pass_obj
@command
async def remove(settings: Settings, *, webhook_id: UUID, url: str | None, token: str | None) -> None:
    """Delete a webhook with its deliveries."""
    async with open_remote(settings, url, token) as remote:
        await remote.delete(f"{PATH}/{webhook_id}")
    print_line(f"removed: {webhook_id}")


async def _dead(remote: Remote, webhook_id: UUID) -> AsyncGenerator[UUID]:
    """The ids of all dead deliveries, read page by page."""
    cursor = None
    while True:
        page = await remote.get(
            PageResponse[DeliveryResponse],
            f"{PATH}/{webhook_id}/deliveries",
            state=str(DeliveryState.DEAD),
            limit=LAST,
            cursor=cursor,
        )
        for each in page.items:
            yield each.id
        cursor = page.next_cursor
        if cursor is None:
            return


def _chosen(events: tuple[str, ...]) -> dict[str, Any]:
    return {"events": [str(event) for event in events]} if events else {}


def _print(webhook: WebhookResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(webhook)
        return
    print_line(_line(webhook))
    if webhook.disabled_reason:
        print_line(f"  disabled: {webhook.disabled_reason}")


def _print_secret(webhook: WebhookWithSecret, *, as_json: bool) -> None:
    _print(webhook, as_json=as_json)
    if not as_json:
        print_line(f"  secret   {webhook.secret}")
        warn("The secret is not shown again.")


def _state(webhook: WebhookResponse) -> str:
    return "disabled" if not webhook.enabled else "failing" if webhook.failing_since else "enabled"


def _line(webhook: WebhookResponse) -> str:
    return f"{webhook.id}  {_state(webhook):<8}  {webhook.url}  {', '.join(webhook.events)}"


def _delivery_line(delivery: DeliveryResponse) -> str:
    at = format_moment(delivery.created_at, 0)
    problem = f"  {delivery.last_error}" if delivery.last_error else ""
    attempts = f"{delivery.attempts} attempt{'' if delivery.attempts == 1 else 's'}"
    return f"{delivery.id}  {delivery.state:<9}  {at}  {delivery.type}  {attempts}{problem}"


_COLUMNS: list[Column[WebhookResponse]] = [
    Column("webhook", lambda each: str(each.id)),
    Column("state", _state),
    Column("url", lambda each: each.url),
    Column("events", lambda each: ", ".join(each.events), is_free=True),
]

_DELIVERY_COLUMNS: list[Column[DeliveryResponse]] = [
    Column("delivery", lambda each: str(each.id)),
    Column("state", lambda each: str(each.state)),
    Column("at", lambda each: format_moment(each.created_at, 0)),
    Column("event", lambda each: each.type),
    Column("attempts", lambda each: str(each.attempts)),
    Column("error", lambda each: each.last_error or "", is_free=True),
]
