"""The commands about what tenants and their users may use."""

from dataclasses import asdict
from typing import Any, cast

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.fairness.tenant_limits import EVERYONE, LIMITS, TenantLimits
from everstep.agent_domain.nearest import did_you_mean
from everstep.agent_domain.storage.tenant_store import TenantStore
from everstep.cli.command import command, print_line
from everstep.cli.json_output import json_option, print_json
from everstep.cli.printing import echo
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings

UNLIMITED = "none"


@click.group()
def tenants() -> None:
    """Manage what tenants and their users may use.

    NAME is a tenant, or '*' for each tenant that has no limits of its own.
    """


_user = click.option("--user", help="A user of the tenant, or '*' for each user without limits of their own.")


class _Limit(click.ParamType[Any]):
    """A number, or `none`."""

    name = "number|none"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Return the number; the word for no limit stays."""
        if value == UNLIMITED:
            return value
        try:
            return self._kind(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor '{UNLIMITED}'", param, ctx)


@tenants.command("set")
@click.argument("name")
@_user
@click.option("--max-running", type=_Limit(int), help="Executions at once; with 0 none starts.")
@click.option("--max-model-calls", type=_Limit(int), help="Model calls at once, in each worker.")
@click.option("--requests-per-second", type=_Limit(float), help="Requests to each API process.")
@click.option("--weight", type=_Limit(float), help="The tenant's share in proportion to others; default 1.")
@click.pass_obj
@command
async def set_limits(settings: Settings, name: str, user: str | None, **given: object) -> None:
    """Set limits; 'none' removes one, and those that are not named stay.

    More executions than --max-running wait in a queue. Those that run already are not stopped.
    """
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("Name a limit to set, such as --max-running 10.")
    async with open_installation(settings) as installation:
        client = installation.client
        before = await _find(client.store, name, user) or TenantLimits(name, user)
        values = {key: None if value == UNLIMITED else value for key, value in changes.items()}
        limits = TenantLimits(**cast("Any", asdict(before) | values))
        has_limits = any(each.tenant_id == name for each in await client.store.tenant_limits())
        is_known = name == EVERYONE or has_limits or await client.store.has_executions(name)
        await client.store.set_limits(limits)
        print_line(f"set: {limits.owner_text}: {limits.text}")
        for tenant in await client.store.waiting_tenants():
            if name in {tenant, EVERYONE}:
                started = await client.admit(tenant)
                if started:
                    print_line(f"started {started} executions of {tenant} that waited")
        if not is_known:
            echo(f"The tenant '{name}' has no executions yet; check its name.", err=True)


@tenants.command("list")
@json_option
@click.pass_obj
@command
async def list_limits(settings: Settings, as_json: bool) -> None:
    """List the limits of all tenants and users."""
    async with open_installation(settings) as installation:
        found = await installation.client.store.tenant_limits()
    for limits in found:
        _print(limits, as_json=as_json)
    if not found:
        echo("No tenant has limits; `everstep tenants set NAME --max-running 10` sets one.", err=True)


@tenants.command("show")
@click.argument("name")
@json_option
@click.pass_obj
@command
async def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show the limits of a tenant and of its users."""
    async with open_installation(settings) as installation:
        store = installation.client.store
        every = await store.tenant_limits()
        own = [each for each in every if each.tenant_id == name]
        if not own and not await store.has_executions(name):
            known = {each.tenant_id for each in every}
            hint = did_you_mean(name, known)
            raise InvalidInput(f"there is no tenant '{name}': it has no limits and no executions{hint}")
    if not any(each.user_id is None for each in own):
        shared = next((each for each in every if (each.tenant_id, each.user_id) == (EVERYONE, None)), None)
        own.insert(0, shared or TenantLimits(name))
    for limits in own:
        _print(limits, as_json=as_json)


@tenants.command("remove")
@click.argument("name")
@_user
@click.pass_obj
@command
async def remove(settings: Settings, name: str, user: str | None) -> None:
    """Remove the limits of a tenant or of a user; those of '*' apply again."""
    async with open_installation(settings) as installation:
        client = installation.client
        limits = await _find(client.store, name, user)
        if limits is None or not await client.store.remove_limits(name, user):
            raise InvalidInput(
                f"{TenantLimits(name, user).owner_text} has no limits; `everstep tenants list` lists them"
            )
        print_line(f"removed: {limits.owner_text}: {limits.text}")
        for tenant in await client.store.waiting_tenants():
            await client.admit(tenant)


async def _find(store: TenantStore, name: str, user: str | None) -> TenantLimits | None:
    found = await store.tenant_limits()
    return next((each for each in found if (each.tenant_id, each.user_id) == (name, user)), None)


def _print(limits: TenantLimits, *, as_json: bool) -> None:
    if as_json:
        names = ("weight", *LIMITS)
        print_json(
            {
                "tenant": limits.tenant_id,
                "user": limits.user_id,
                **{key: getattr(limits, key) for key in names},
            }
        )
    else:
        print_line(f"{limits.owner_text}: {limits.text}")
