"""The commands about what tenants and their users may use."""

import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, cast

import click
from click.core import ParameterSource

from everstep.agent_domain.fairness.tenant_limits import EVERYONE, TenantLimits
from everstep.agent_domain.loop.explanations import count_text
from everstep.cli.command import command, print_line
from everstep.cli.json_output import json_option, print_json
from everstep.cli.printing import echo
from everstep.cli.remote import api_options_for, open_remote
from everstep.cli.remote_tenants import RemoteTenants
from everstep.client.tenants import Tenants
from everstep.http_api.schemas.tenant_schemas import TenantLimitsResponse
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings

UNLIMITED = "none"


@click.group()
def tenants() -> None:
    """Manage what tenants and their users may use.

    NAME is a tenant, or '*' for each tenant that has no limits of its own.
    """


_remote_options = api_options_for("default: EVERSTEP_API_URL, or the database")
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
@click.option("--tokens-per-minute", type=_Limit(int), help="Tokens of the model calls of all workers.")
@click.option("--weight", type=_Limit(float), help="The tenant's share in proportion to others; default 1.")
@_remote_options
@click.pass_obj
@command
async def set_limits(
    settings: Settings, name: str, user: str | None, url: str | None, token: str | None, **given: object
) -> None:
    """Set limits; 'none' removes one, and those that are not named stay.

    More executions than --max-running wait in a queue. Those that run already are not stopped.
    """
    changes = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("Name a limit to set, such as --max-running 10.")
    values = {key: None if value == UNLIMITED else value for key, value in changes.items()}
    async with _open_tenants(settings, url, token) as tenants:
        before = await tenants.find(name, user) or TenantLimits(name, user)
        limits = TenantLimits(**cast("Any", asdict(before) | values))
        is_known = await tenants.is_known(name)
        started = await tenants.set(limits)
    print_line(f"set: {limits.owner_text}: {limits.text}")
    for tenant, count in started.items():
        print_line(f"started {count_text(count, 'execution')} of {tenant} that waited")
    if limits.is_empty:
        _hint_at_removal(limits)
    if not is_known:
        echo(f"The tenant '{name}' has no executions yet; check its name.", err=True)


@tenants.command("list")
@json_option
@_remote_options
@click.pass_obj
@command
async def list_limits(settings: Settings, as_json: bool, url: str | None, token: str | None) -> None:
    """List the limits of all tenants and users."""
    async with _open_tenants(settings, url, token) as tenants:
        found = await tenants.list()
    for limits in found:
        _print(limits, as_json=as_json)
    for limits in found:
        if limits.is_empty:
            _hint_at_removal(limits)
    if not found:
        echo("No tenant has limits; `everstep tenants set NAME --max-running 10` sets one.", err=True)


@tenants.command("show")
@click.argument("name")
@json_option
@_remote_options
@click.pass_obj
@command
async def show(settings: Settings, name: str, as_json: bool, url: str | None, token: str | None) -> None:
    """Show the limits of a tenant and of its users."""
    async with _open_tenants(settings, url, token) as tenants:
        found = await tenants.show(name)
    for limits in found:
        _print(limits, as_json=as_json)


@tenants.command("remove")
@click.argument("name")
@_user
@_remote_options
@click.pass_obj
@command
async def remove(settings: Settings, name: str, user: str | None, url: str | None, token: str | None) -> None:
    """Remove the limits of a tenant or of a user; those of '*' apply again."""
    async with _open_tenants(settings, url, token) as tenants:
        limits = await tenants.remove(name, user)
    print_line(f"removed: {limits.owner_text}: {limits.text}")


@asynccontextmanager
async def _open_tenants(
    settings: Settings, url: str | None, token: str | None
) -> AsyncGenerator[Tenants | RemoteTenants]:
    """Open the limits: in the database, or at an API if one is named."""
    if url:
        async with open_remote(settings, url, token) as remote:
            yield RemoteTenants(remote)
        return
    if click.get_current_context().get_parameter_source("token") is ParameterSource.COMMANDLINE:
        # The database needs none, and would be used with all rights.
        raise click.UsageError("--token is for an API: name it with --url, or omit --token")
    async with open_installation(settings) as installation:
        yield Tenants(installation.client)


def _hint_at_removal(limits: TenantLimits) -> None:
    """Say how the limits of '*' apply to a tenant or a user with own limits that limit nothing."""
    if EVERYONE in {limits.tenant_id, limits.user_id}:
        return
    user = f" --user {shlex.quote(limits.user_id)}" if limits.user_id else ""
    how = f"`everstep tenants remove {shlex.quote(limits.tenant_id)}{user}`"
    echo(f"{limits.owner_text} has no limits, also not those of '*': {how} lets these apply.", err=True)


def _print(limits: TenantLimits, *, as_json: bool) -> None:
    if as_json:
        print_json(TenantLimitsResponse.of(limits))
    else:
        print_line(f"{limits.owner_text}: {limits.text}")
