"""The command that signs a person of this machine in to the console."""

import click

from everstep.agent_domain.errors import InvalidInput
from everstep.cli.command import command
from everstep.cli.printing import echo
from everstep.runtime.installation import locate_services, open_installation
from everstep.runtime.settings import Settings
from everstep.runtime.sign_in_links import console_link


@click.command("console")
@click.pass_obj
@command
async def console(settings: Settings) -> None:
    """Print a link that signs you in to the console, once and within 10 minutes.

    The first person who opens the link may do everything that you may do here.
    """
    settings = locate_services(settings)
    if settings.public_url is None:
        raise InvalidInput(
            "the address of the API is not known; start it with `everstep up`, or set EVERSTEP_PUBLIC_URL"
        )
    async with open_installation(settings) as installation:
        echo(await console_link(installation, settings.public_url))
