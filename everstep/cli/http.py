"""The commands about the HTTP API: its process, and the keys with which services use it."""

from collections.abc import Sequence
from uuid import UUID

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.storage.keys import ApiKey
from everstep.agent_domain.values import moment
from everstep.cli.command import command, say, stopped_by_signals, told, with_agents
from everstep.cli.printing import echo
from everstep.http_api.api_keys import create_key
from everstep.runtime.api import answering, api_port, log_requests
from everstep.runtime.installation import located, opened
from everstep.runtime.settings import Settings
from everstep.runtime.waiting import servers_answer


@click.command()
@click.option(
    "--port", "http_port", type=click.IntRange(0, 65535), help="8080, unless it is set; 0: a free one."
)
@with_agents
@click.pass_obj
@command
async def api(settings: Settings, http_port: int | None) -> None:
    """Answer HTTP until told to stop.

    It waits for PostgreSQL and Temporal, and says so; /readyz tells meanwhile.
    """
    log_requests()
    settings = located(settings.listening_on(http_port=http_port))
    # Before anyone knows that it answers, and may want to stop it.
    stop = stopped_by_signals()
    port = api_port(settings)
    if not await servers_answer(settings, lambda: stop, told, port):
        return
    async with (
        opened(settings, "everstep api", is_linked=True) as installation,
        answering(installation, listener=port.listener) as url,
    ):
        echo(f"answering at {url}, explained at {url}/docs; Ctrl-C stops")
        await installation.reconciler.run(stop)


@click.group()
def keys() -> None:
    """Keys with which services use the HTTP API."""


_tenant = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Whose things it opens.")


@keys.command("create")
@click.argument("name")
@click.option("--user", help="For whom it acts; without one it acts as itself.")
@click.option("--scope", "scopes", multiple=True, help="sessions:all or read-only; may be repeated.")
@_tenant
@click.pass_obj
@command
async def create(settings: Settings, name: str, user: str | None, scopes: Sequence[str], tenant: str) -> None:
    """Make a key, and show it once."""
    async with opened(settings) as installation:
        new = await create_key(installation.keys, name, tenant_id=tenant, user_id=user, scopes=scopes)
    say(new.secret)
    echo(f"It is shown this once. To revoke it: everstep keys revoke {new.key.id}", err=True)


@keys.command("list")
@_tenant
@click.pass_obj
@command
async def show(settings: Settings, tenant: str) -> None:
    """List keys, newest first, and when each was used."""
    async with opened(settings) as installation:
        for key in await installation.keys.keys(tenant):
            say(_line(key))


@keys.command("revoke")
@click.argument("key_id")
@_tenant
@click.pass_obj
@command
async def revoke(settings: Settings, key_id: str, tenant: str) -> None:
    """Let a key open nothing any more."""
    try:
        known = UUID(key_id)
    except ValueError:
        raise InvalidInput(f"'{key_id}' is no key id; `everstep keys list` lists them") from None
    async with opened(settings) as installation:
        if not await installation.keys.revoke_key(tenant, known):
            raise InvalidInput(f"the tenant '{tenant}' has no key {known}; `everstep keys list` lists them")
    echo("it opens nothing any more")


def _line(key: ApiKey) -> str:
    if key.revoked_at:
        stands = f"revoked {moment(key.revoked_at, 0)}"
    else:
        stands = f"last used {moment(key.last_used_at, 0)}" if key.last_used_at else "never used"
    acts_for = f" for {key.user_id}" if key.user_id else ""
    scopes = f" ({', '.join(key.scopes)})" if key.scopes else ""
    return f"{key.id}  {key.name}{acts_for}{scopes}  {stands}"
