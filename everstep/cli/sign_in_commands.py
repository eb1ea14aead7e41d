"""The commands that list and end the sessions of people in browsers."""

from uuid import UUID

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.agent_domain.ids import DEFAULT_TENANT
from everstep.agent_domain.storage.sign_ins import BrowserSession
from everstep.agent_domain.values import format_moment
from everstep.cli.command import command, print_line
from everstep.cli.id_arguments import parse_id
from everstep.cli.json_output import json_option, print_json
from everstep.cli.printing import echo
from everstep.runtime.installation import open_installation
from everstep.runtime.settings import Settings


@click.group("sign-ins")
def sign_ins() -> None:
    """List and end the sessions of people in browsers."""


_tenant = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="The tenant of the users.")


@sign_ins.command("list")
@click.option("--user", help="List those of this user.")
@_tenant
@json_option
@click.pass_obj
@command
async def list_sign_ins(settings: Settings, user: str | None, tenant: str, as_json: bool) -> None:
    """List the sessions of people in browsers, newest first."""
    # Imported here because importing the schemas takes longer than the other commands.
    from everstep.http_api.schemas.sign_in_schemas import BrowserSessionResponse  # noqa: PLC0415

    async with open_installation(settings) as installation:
        for session in await installation.sign_ins.sessions(tenant, user):
            if as_json:
                print_json(BrowserSessionResponse.of(session))
            else:
                print_line(_line(session))


@sign_ins.command("end")
@click.argument("sign_in_id", required=False)
@click.option("--user", help="End all sessions of this user.")
@click.option("--everyone", is_flag=True, help="End all sessions of the tenant.")
@click.option("--tenant", help=f"The tenant; default: that of the session, of users '{DEFAULT_TENANT}'.")
@click.pass_obj
@command
async def end(
    settings: Settings, sign_in_id: str | None, user: str | None, everyone: bool, tenant: str | None
) -> None:
    """End one session, or all sessions of a user or of everyone.

    With the sessions of a user end the links to the console that are not used yet. The tokens and keys with
    which people signed in stay valid: see `everstep keys revoke`.
    """
    if (sign_in_id is not None) + (user is not None) + everyone != 1:
        raise click.UsageError("name one of: the id of a session, --user, --everyone")
    async with open_installation(settings) as installation:
        store = installation.sign_ins
        if sign_in_id is None:
            count = len(await store.end_sessions(tenant or DEFAULT_TENANT, user))
            echo(f"{count} {'session' if count == 1 else 'sessions'} ended")
            return

        async def of_tenant() -> list[UUID]:
            return [each.id for each in await store.sessions(tenant or DEFAULT_TENANT)]

        parsed = await parse_id(sign_in_id, "a sign-in", "everstep sign-ins list", of_tenant)
        found = tenant or await installation.id_owners.tenant_of_sign_in(parsed)
        if found is None or not await store.end_session(found, None, parsed):
            where = "there is" if tenant is None else f"the tenant '{tenant}' has"
            raise InvalidInput(f"{where} no sign-in {parsed}; `everstep sign-ins list` lists them")
        echo("1 session ended")


def _line(session: BrowserSession) -> str:
    sign_in = session.sign_in
    times = f"{format_moment(session.created_at, 0)} to {format_moment(sign_in.expires_at, 0)}"
    scopes = f" ({', '.join(sign_in.scopes)})" if sign_in.scopes else ""
    return f"{session.id}  {sign_in.user_id}{scopes}  {times}  {sign_in.user_agent or 'unknown browser'}"
