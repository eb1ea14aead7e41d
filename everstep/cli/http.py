"""The commands that run the HTTP API and manage its keys."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.storage.keys import ApiKey
from everstep.agent_domain.values import format_moment
from everstep.cli.command import announce, command, print_line, stop_on_signals, warn, with_agents
from everstep.cli.id_arguments import parse_id
from everstep.cli.json_output import json_option, print_json
from everstep.cli.printing import echo
from everstep.http_api.api_keys import create_key
from everstep.runtime.api import api_port, open_api
from everstep.runtime.installation import locate_services, open_installation
from everstep.runtime.settings import Settings
from everstep.runtime.telemetry_setup import open_telemetry
from everstep.runtime.temporal_threads import export_sdk_metrics
from everstep.runtime.waiting import wait_for_servers


@click.command()
@click.option(
    "--port",
    "http_port",
    type=click.IntRange(0, 65535),
    help="Default: EVERSTEP_HTTP_PORT or 8080; 0: a free one.",
)
@with_agents
@click.pass_obj
@command
async def api(settings: Settings, http_port: int | None) -> None:
    """Serve the HTTP API until stopped by SIGINT or SIGTERM.

    It waits until PostgreSQL and Temporal are available; /readyz reports the state while it waits.
    """
    settings = locate_services(settings.with_ports(http_port=http_port))
    click.get_current_context().with_resource(open_telemetry(settings, "api"))
    # Install the signal handlers before the port is open: a client may then send a signal.
    stop = stop_on_signals()
    port = api_port(settings)
    export_sdk_metrics()
    if not await wait_for_servers(settings, lambda: stop, warn, port):
        return
    async with (
        open_installation(settings, "everstep api", is_linked=True) as installation,
        open_api(installation, listener=port.listener) as url,
    ):
        announce(f"answering at {url}, documented at {url}/docs; Ctrl-C stops")
        await installation.maintain(stop)


@click.group()
def keys() -> None:
    """Manage the keys that services send to the HTTP API."""


_tenant = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="The tenant of the key.")


@keys.command("create")
@click.argument("name")
@click.option("--user", help="The user it acts for; default: the key acts as its own user.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    help="A scope, such as sessions:all, approve or read-only; may be repeated.",
)
@_tenant
@click.pass_obj
@command
async def create(settings: Settings, name: str, user: str | None, scopes: Sequence[str], tenant: str) -> None:
    """Create a key and print it once."""
    async with open_installation(settings) as installation:
        new = await create_key(installation.keys, name, tenant_id=tenant, user_id=user, scopes=scopes)
    print_line(new.secret)
    echo(f"The key is shown only once. To revoke it: everstep keys revoke {new.key.id}", err=True)


@keys.command("list")
@_tenant
@json_option
@click.pass_obj
@command
async def show(settings: Settings, tenant: str, as_json: bool) -> None:
    """List keys, newest first, with their last use."""
    async with open_installation(settings) as installation:
        for key in await installation.keys.keys(tenant):
            if as_json:
                print_json(_key_entry(key))
            else:
                print_line(_key_line(key))


@keys.command("revoke")
@click.argument("key_id")
@click.option("--tenant", help="Refuse a key of another tenant; default: that of the key.")
@click.pass_obj
@command
async def revoke(settings: Settings, key_id: str, tenant: str | None) -> None:
    """Revoke a key."""

    async def of_tenant() -> list[UUID]:
        async with open_installation(settings) as installation:
            return [key.id for key in await installation.keys.keys(tenant or DEFAULT_TENANT)]

    parsed = await parse_id(key_id, "a key", "everstep keys list", of_tenant)
    async with open_installation(settings) as installation:
        found = tenant or await installation.id_owners.tenant_of_key(parsed)
        if found is None or not await installation.keys.revoke_key(found, parsed):
            where = "there is" if tenant is None else f"the tenant '{tenant}' has"
            raise InvalidInput(f"{where} no key {parsed}; `everstep keys list` lists them")
    echo("the key is revoked")


def _key_entry(key: ApiKey) -> dict[str, Any]:
    times = {"created_at": key.created_at, "last_used_at": key.last_used_at, "revoked_at": key.revoked_at}
    return {
        "id": str(key.id),
        "name": key.name,
        "user_id": key.user_id,
        "scopes": key.scopes,
        **{name: at and format_moment(at, 6) for name, at in times.items()},
    }


def _key_line(key: ApiKey) -> str:
    if key.revoked_at:
        state = f"revoked {format_moment(key.revoked_at, 0)}"
    else:
        state = f"last used {format_moment(key.last_used_at, 0)}" if key.last_used_at else "never used"
    acts_for = f" for {key.user_id}" if key.user_id else ""
    scopes = f" ({', '.join(key.scopes)})" if key.scopes else ""
    return f"{key.id}  {key.name}{acts_for}{scopes}  {state}"
